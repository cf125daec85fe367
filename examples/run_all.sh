#!/usr/bin/env bash
# Runs every example; a failing one ends the script.
set -euo pipefail
cd "$(dirname "$0")/.."
# the whole workspace at once, so that the dependencies are those of the other builds
cargo build --release --locked --workspace --bins --examples
for file in crates/kerple-core/examples/0*.rs crates/kerple-burn/examples/0*.rs; do
    name=$(basename "$file" .rs)
    printf '\n== %s\n' "$name"
    "${CARGO_TARGET_DIR:-target}/release/examples/$name"
done
printf '\n== walkthrough\n'
bash examples/walkthrough.sh
printf '\n== extend\n'
bash examples/extend.sh
