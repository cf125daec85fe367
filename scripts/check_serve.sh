#!/usr/bin/env bash
# lm-evaluation-harness against `kerple serve`, in the virtual environment of scripts/check_transformers.sh: KERPLE_VENV, or
# target/venv, which is made where it is missing. KERPLE_BIN is where the program lies.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${KERPLE_VENV:-target/venv}
bin=${KERPLE_BIN:-target/release}

if ! "$venv/bin/python" -c 'import lm_eval, aiohttp, requests, tenacity, tqdm' 2>/dev/null; then
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv" ||
        { apt-get update && apt-get install -y python3-venv && python3 -m venv "$venv"; }
    "$venv/bin/pip" install --quiet 'lm_eval[api]'
fi
[ -n "${KERPLE_BIN:-}" ] || cargo build --release --locked -p kerple-cli
"$venv/bin/python" scripts/check_serve.py "$bin/kerple"
