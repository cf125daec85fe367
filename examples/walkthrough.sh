#!/usr/bin/env bash
# From text to a page of results, on this repository's own documents. Writes to the folder named first, or a temporary one.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-$(mktemp -d)}
[ $# -gt 0 ] || trap 'rm -rf "$out"' EXIT
kerple=${KERPLE:-${CARGO_TARGET_DIR:-target}/release/kerple}
[ -x "$kerple" ] || cargo build --release --locked
step() { printf '\n$ kerple %s\n' "$*"; "$kerple" "$@"; }

step prepare --input README.md ARCHITECTURE.md CONTRIBUTING.md docs crates/kerple-core/src --out "$out/data"
for kind in kerple_log sinusoidal; do
    step train --config configs/tiny.toml --out "$out/$kind" \
        --set "data.path=$out/data" --set "encoding.kind=$kind" \
        --set train.train_len=32 --set train.batch_size=8 --set train.steps=60 --set train.eval_interval=0
    step eval "$out/$kind" --lengths 32,128,512 --n-segments 8 --protocol last:32
done
step kernel plot "$out/kerple_log" --length 64
step report "$out/kerple_log" "$out/sinusoidal" --out "$out/report"
