#!/usr/bin/env bash
# The kernels of GPUs, and models that train with them, on a software renderer; on a GPU: KERPLE_TEST_DEVICE=wgpu scripts/check_gpu.sh
set -euo pipefail
cd "$(dirname "$0")/.."
step() { printf '\n== %s\n' "$*"; "$@"; }
cargo() { "${CARGO:-cargo}" "$@"; }

if [ -z "${KERPLE_TEST_DEVICE:-}" ] && ! ls /usr/share/vulkan/icd.d/lvp_icd*.json >/dev/null 2>&1; then
    apt-get update && apt-get install -y mesa-vulkan-drivers libvulkan1
fi
command -v cc >/dev/null || { apt-get update && apt-get install -y gcc; }

step cargo test --release --locked -p kerple-cube --features wgpu
if [ "${1:-}" = --all ]; then
    step cargo test --release --locked -p kerple-burn --features gpu --test gpu
    step cargo test --release --locked -p kerple-lm --features gpu --test gpu
fi
