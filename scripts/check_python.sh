#!/usr/bin/env bash
# The Python package as a user would install it: a wheel, in an environment of its own, and the tests in python/tests.
#
# The environment is kept in target/python, so that only the first run downloads PyTorch and transformers.
# PYTHON: the interpreter to make it with, 3.10 or later.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD venv=$PWD/target/python wheels=$PWD/target/wheels

source scripts/python_venv.sh "$venv" 'maturin>=1.9,<2' 'pytest>=8'
rm -rf "$wheels"
(cd python && "$venv/bin/maturin" build --release --locked --out "$wheels")
"$venv/bin/pip" install --quiet --force-reinstall --no-deps "$wheels"/kerple-*.whl
"$venv/bin/pip" install --quiet "$(ls "$wheels"/kerple-*.whl)[transformers]"

# away from the sources, so that what is tested is what was installed
cd "$root/target"
if [ -z "${KERPLE:-}" ] && [ -x release/kerple ]; then export KERPLE=$root/target/release/kerple; fi
"$venv/bin/python" -c 'import kerple; print("kerple", kerple.__version__, "of", kerple.__file__)'
"$venv/bin/pytest" -q -p no:cacheprovider "$root/python/tests"
