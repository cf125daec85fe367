#!/usr/bin/env bash
# The tests of the Python package under the address sanitizer: what the border reads and writes of Python's arrays, and what the
# engines do with it. Builds into target/asan. Arguments go to pytest; without any, the tests of what computes are run.
#
# The environment must be there already: scripts/check_python.sh makes it.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD own=$PWD/target/asan/python
source scripts/python_venv.sh
runtime=$(cc -print-file-name=libasan.so)
[ -e "$runtime" ] || { echo "error: the compiler has no libasan.so" >&2; exit 1; }

rm -rf "$own" target/asan/wheels
# stable Rust has the sanitizer behind a nightly flag
(cd python && RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$root/target/asan "$venv/bin/maturin" build \
    --release --locked --target "$(rustc -vV | sed -n 's/^host: //p')" --compatibility linux --out "$root/target/asan/wheels")
install --no-deps --target "$own" target/asan/wheels/kerple-*.whl

tests=(test_attention.py test_encodings.py test_linear.py test_manners.py)
[ $# -gt 0 ] || set -- "${tests[@]/#/$root/python/tests/}"
cd target/asan
# leaks are the interpreter's; symbols of Python's own libraries are defined twice in some
export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:abort_on_error=0:exitcode=99
LD_PRELOAD=$runtime PYTHONPATH=$own PYTHONMALLOC=malloc "$venv/bin/python" - "$@" <<'END'
import sys
import kerple, pytest
assert "/asan/" in kerple.__file__, kerple.__file__
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", "not inductor and not memory_grows", *sys.argv[1:]]))
END
