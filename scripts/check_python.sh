#!/usr/bin/env bash
# The Python package as a user would install it: a wheel, in an environment of its own, and the tests in python/tests.
#
# scripts/python_venv.sh says where that environment is.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD wheels=$PWD/target/wheels/checked
source scripts/python_venv.sh

install 'maturin>=1.9,<2' 'pytest>=8' pytest-xdist
install_torch
rm -rf "$wheels"
(cd python && "$venv/bin/maturin" build --release --locked --out "$wheels")
# --no-deps first: the version stays the same when the sources change, and pip would keep what it has
install --force-reinstall --no-deps "$wheels"/kerple-*.whl
install "$(ls "$wheels"/kerple-*.whl)[transformers]"

# away from the sources, so that what is tested is what was installed
cd "$root/target"
unset KERPLE
"$venv/bin/python" -c 'import kerple; print("kerple", kerple.__version__, "of", kerple.__file__)'
# a process for each core, whose tests of a file share what they trained; small operations of PyTorch use one
"$venv/bin/pytest" -q -p no:cacheprovider -n auto --dist loadfile "$root/python/tests"
