#!/usr/bin/env bash
# lm-evaluation-harness against `kerple serve`, in the environment that scripts/python_venv.sh makes. KERPLE_BIN is where the
# program lies.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${KERPLE_BIN:-${CARGO_TARGET_DIR:-target}/release}
source scripts/python_venv.sh

install_torch 'lm_eval[api]'
[ -n "${KERPLE_BIN:-}" ] || cargo build --release --locked -p kerple
"$venv/bin/python" scripts/check_serve.py "$bin/kerple"
