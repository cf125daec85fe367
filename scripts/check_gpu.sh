#!/usr/bin/env bash
# GPUs without one: kernels against their definition, reference values, models of every method that train as on the processor, runs
# that move between the two; on a software renderer, Mesa's lavapipe. On a GPU: KERPLE_TEST_DEVICE=wgpu scripts/check_gpu.sh, or
# another name that --device takes.
set -euo pipefail
cd "$(dirname "$0")/.."
step() { printf '\n== %s\n' "$*"; "$@"; }

command -v cc >/dev/null || { apt-get update && apt-get install -y gcc; }
if [ -z "${KERPLE_TEST_DEVICE:-}" ] && ! ls /usr/share/vulkan/icd.d/lvp_icd*.json >/dev/null 2>&1; then
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends mesa-vulkan-drivers libvulkan1
fi
# without a desktop's session the drivers say so, many times
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-$(mktemp -d)}

crates=(-p kerple-gpu -p kerple-burn -p kerple-lm -p kerple -p kerple-conformance)
features=kerple-gpu/wgpu,kerple-gpu/cuda-source,kerple-burn/gpu,kerple-lm/gpu,kerple/gpu,kerple-conformance/gpu
case ${KERPLE_TEST_DEVICE:-} in
    cuda*) features=$features,kerple-gpu/cuda,kerple/cuda,kerple-conformance/cuda ;;
    vulkan*) features=$features,kerple/vulkan,kerple-conformance/vulkan ;;
    metal*) features=$features,kerple/metal,kerple-conformance/metal ;;
esac

step cargo clippy --release --locked "${crates[@]}" --features "$features" --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" step cargo doc --release --locked "${crates[@]}" --features "$features" \
    --no-deps --document-private-items
step cargo test --release --locked "${crates[@]}" --features "$features" --test attention --test linear_sums --test step --test head_mlp \
    --test cuda_source --test gpu --test query_chunks

target=${CARGO_TARGET_DIR:-target}
source scripts/python_venv.sh
# what compares with PyTorch on a GPU, gone through without one
if [ -z "${KERPLE_TEST_DEVICE:-}" ]; then
    install_torch numpy
    KERPLE=$target/release/kerple step "$venv/bin/python" scripts/compare_gpu.py attention --device wgpu:software --torch-device cpu --small \
        --lengths 64 --precision f32 --rounds 1 --repeats 1
fi

# the same kernels through NVIDIA's compiler, which needs no GPU
cuda=${CUDA_HOME:-$target/cuda/nvidia/cu13}
if [ ! -x "$cuda/bin/ptxas" ]; then
    install --target "$target/cuda" 'nvidia-cuda-nvrtc==13.*' 'nvidia-cuda-nvcc==13.*' 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-crt==13.*' \
        'nvidia-cuda-cccl==13.*'
fi
step python3 scripts/check_cuda_source.py "$cuda" "$target/tmp/cuda-source"
