#!/usr/bin/env bash
# Compares what kerple exports with the transformers library, in the environment that scripts/python_venv.sh makes. KERPLE_BIN is
# where the programs lie. Arguments go to check_transformers.py.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${KERPLE_BIN:-${CARGO_TARGET_DIR:-target}/release}
source scripts/python_venv.sh

# Inkling with images plans its patches with scipy
install_torch safetensors numpy accelerate scipy
[ -n "${KERPLE_BIN:-}" ] || cargo build --release --locked --workspace --bins --examples
"$venv/bin/python" scripts/check_transformers.py --bin "$bin" "$@"
