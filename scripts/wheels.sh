#!/usr/bin/env bash
# Wheels of the Python package for Linux, one for all Pythons from 3.10 on: scripts/wheels.sh [DIR] [TARGET...]
#
# Zig links against an old glibc, so that the wheels run wherever manylinux 2.17 does. Targets other than this machine's are
# cross-built; `rustup target add TARGET` brings their standard library.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-target/wheels}")
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu)

venv=$PWD/target/python-build
source scripts/python_venv.sh "$venv" 'maturin>=1.9,<2' ziglang
export PATH="$venv/bin:$PATH"
for target in "${targets[@]}"; do
    command -v rustup >/dev/null && rustup target add "$target"
    (cd python && maturin build --release --locked --zig --compatibility manylinux_2_17 --target "$target" --out "$out")
done
ls -l "$out"
