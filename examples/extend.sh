#!/usr/bin/env bash
# Longer sequences for a model that was trained on short ones: its rotary rates are stretched, or its positions exchanged for a
# learned kernel or for none, it learns a little on longer text, and is measured before and after. Also imports a model of another
# program. Writes to the folder named first, or a temporary one.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-$(mktemp -d)}
[ $# -gt 0 ] || trap 'rm -rf "$out"' EXIT
kerple=${KERPLE:-${CARGO_TARGET_DIR:-target}/release/kerple}
[ -x "$kerple" ] || cargo build --release --locked
step() { printf '\n$ kerple %s\n' "$*"; "$kerple" "$@"; }

# the model that is to be extended
step prepare --input README.md ARCHITECTURE.md CONTRIBUTING.md docs crates/kerple-core/src --out "$out/data"
step train --config configs/tiny.toml --out "$out/short" --set "data.path=$out/data" --set encoding.kind=rotary \
    --set train.train_len=32 --set train.batch_size=8 --set train.steps=80 --set train.eval_interval=0
evaluate() { step eval "$@" --lengths 32,128,256 --n-segments 8 --protocol last:32; }
evaluate "$out/short"
evaluate "$out/short" --rope-scaling yarn

# the same weights, other positions, sequences of four times the length
extend() {
    name=$1
    shift
    step train --init-from "$out/short" --out "$out/$name" --set train.train_len=128 --set train.batch_size=4 --set train.steps=40 \
        --set train.learning_rate=0.0003 "$@"
    evaluate "$out/$name"
}
extend interpolated --set encoding.scaling=linear
extend ntk --set encoding.scaling=ntk
extend yarn --set encoding.scaling=yarn
extend kernel --set encoding.kind=kerple_log
extend dropped --set encoding.kind=none
step report "$out/short" "$out/interpolated" "$out/ntk" "$out/yarn" "$out/kernel" "$out/dropped" --out "$out/report"

# a model that transformers wrote, of 192 tokens without text, looked at, extended in the same way
step import reference/interchange/neox_sequential_tied_bf16 --out "$out/imported"
step verify "$out/imported"
