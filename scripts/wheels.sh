#!/usr/bin/env bash
# Wheels of the Python package for Linux, one for all Pythons from 3.10 on, and its sources: scripts/wheels.sh [DIR] [TARGET...]
#
# Zig links against an old glibc, so that the wheels run wherever manylinux 2.17 does. Targets other than this machine's are
# cross-built; `rustup target add TARGET` brings their standard library. auditwheel says what each really needs, and the one for
# this machine is installed into an environment of its own, with numpy alone, and computes something.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-target/wheels/manylinux}")
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu)

KERPLE_VENV=target/python-wheels
source scripts/python_venv.sh
install 'maturin>=1.9,<2' ziglang auditwheel twine
export PATH="$venv/bin:$PATH"
rm -f "$out"/kerple-*
for target in "${targets[@]}"; do
    ! command -v rustup >/dev/null || rustup target add "$target"
    (cd python && maturin build --profile dist --locked --zig --compatibility manylinux_2_17 --target "$target" --out "$out")
done
for wheel in "$out"/kerple-*.whl; do auditwheel show "$wheel"; done
(cd python && maturin sdist --out "$out")
# the sources hold every manifest that they name
sources=$(mktemp -d)
tar -C "$sources" --strip-components 1 -xzf "$out"/kerple-*.tar.gz
(cd "$sources" && cargo metadata --locked --format-version 1 >/dev/null)
rm -rf "$sources"
twine check --strict "$out"/kerple-*

own=$(ls "$out"/kerple-*"$(uname -m)".whl 2>/dev/null) || { echo "no wheel for this machine was asked for, none is tried"; ls -l "$out"; exit; }
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
install "$own"
(cd "$venv" && bin/python - <<'END')
import kerple, subprocess, sys
from pathlib import Path
bias, _ = kerple.table("kerple_log", heads=2, length=4)
assert bias.shape == (2, 4) and (bias[:, 0] == 0).all() and (bias[:, 3] < bias[:, 1]).all() and "torch" not in sys.modules
subprocess.run([Path(sys.executable).with_name("kerple"), "describe", "kerple_log"], check=True)
print("kerple", kerple.__version__, kerple.instruction_set(), "of", kerple.__file__)
END
ls -l "$out"
