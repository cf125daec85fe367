#!/usr/bin/env bash
# Compares what kerple writes and serves with the libraries that others use, in a virtual environment of their own:
# KERPLE_VENV, or target/venv, which is made where it is missing. KERPLE_BIN is where the programs lie.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${KERPLE_VENV:-target/venv}
bin=${KERPLE_BIN:-${CARGO_TARGET_DIR:-target}/release}

if ! "$venv/bin/python" -c 'import torch, transformers, safetensors, lm_eval, accelerate' 2>/dev/null; then
    python3 -m venv "$venv" || { apt-get update && apt-get install -y python3-venv && python3 -m venv "$venv"; }
    # torch without CUDA is a tenth of the size, where its own index is reachable
    "$venv/bin/pip" install --quiet torch --index-url https://download.pytorch.org/whl/cpu ||
        "$venv/bin/pip" install --quiet torch
    "$venv/bin/pip" install --quiet 'transformers==5.23.*' 'safetensors' numpy accelerate lm_eval
fi
[ -n "${KERPLE_BIN:-}" ] || cargo build --release --locked --workspace --bins --examples
"$venv/bin/python" scripts/check_transformers.py --bin "$bin" "$@"
