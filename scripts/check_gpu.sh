#!/usr/bin/env bash
# GPUs without one: kernels against their definition, reference values, models of every method that train as on the processor, runs
# that move between the two; on a software renderer, Mesa's lavapipe. On a GPU: KERPLE_TEST_DEVICE=wgpu scripts/check_gpu.sh, or
# another name that --device takes.
# KERPLE_GPU_CRATES=kerple-gpu tests this crate alone, its kernels.
set -euo pipefail
cd "$(dirname "$0")/.."
step() { printf '\n== %s\n' "$*"; "$@"; }

command -v cc >/dev/null || { apt-get update && apt-get install -y gcc; }
source scripts/gpu_features.sh
read -ra crates <<<"${KERPLE_GPU_CRATES:-kerple-gpu kerple-burn kerple-lm kerple kerple-conformance}"
wanted=$gpu_features
# on a software renderer, where compiling takes longer than running
profile=software-gpu
[ -z "${KERPLE_TEST_DEVICE:-}" ] || profile=release
case ${KERPLE_TEST_DEVICE:-} in
    cuda*) wanted+=,kerple-gpu/cuda,kerple/cuda,kerple-conformance/cuda ;;
    vulkan*) wanted+=,kerple/vulkan,kerple-conformance/vulkan ;;
    metal*) wanted+=,kerple/metal,kerple-conformance/metal ;;
esac
packages=() features=
for crate in "${crates[@]}"; do
    packages+=(-p "$crate")
    for feature in ${wanted//,/ }; do
        [ "${feature%/*}" != "$crate" ] || features+=,$feature
    done
done
tests=(--test attention --test linear_sums --test step --test head_mlp --test cuda_source)
[ "${crates[*]}" = kerple-gpu ] || tests+=(--test gpu)
[[ " ${crates[*]} " != *" kerple-burn "* ]] || tests+=(--test query_chunks)
if [ -z "${KERPLE_TEST_DEVICE:-}" ] && ! ls /usr/share/vulkan/icd.d/lvp_icd*.json >/dev/null 2>&1; then
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends mesa-vulkan-drivers libvulkan1
fi
# without a desktop's session the drivers say so, many times
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-$(mktemp -d)}

step cargo test --profile "$profile" --locked "${packages[@]}" --features "${features#,}" "${tests[@]}"

target=${CARGO_TARGET_DIR:-target}
source scripts/python_venv.sh
# what compares with PyTorch on a GPU, gone through without one
if [ -z "${KERPLE_TEST_DEVICE:-}" ] && [[ " ${crates[*]} " = *" kerple "* ]]; then
    install_torch numpy
    KERPLE=$target/$profile/kerple step "$venv/bin/python" scripts/compare_gpu.py attention --device wgpu:software --torch-device cpu --small \
        --lengths 64 --precision f32 --rounds 1 --repeats 1
fi

# the same kernels through NVIDIA's compiler, which needs no GPU
cuda=${CUDA_HOME:-$target/cuda/nvidia/cu13}
if [ ! -x "$cuda/bin/ptxas" ]; then
    install --target "$target/cuda" 'nvidia-cuda-nvrtc==13.*' 'nvidia-cuda-nvcc==13.*' 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-crt==13.*' \
        'nvidia-cuda-cccl==13.*'
fi
step python3 scripts/check_cuda_source.py "$cuda" "$target/tmp/cuda-source"
