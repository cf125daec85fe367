#!/usr/bin/env bash
# The tests of the Python package under the address sanitizer: what the border reads and writes of Python's arrays, and what the
# engines do with it. Builds into target/asan. Arguments go to pytest; without any, the tests of what computes are run.
#
# The environment must be there already: scripts/check_python.sh makes it.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD own=$PWD/target/asan/python
source scripts/python_venv.sh
# the interpreter is C, and what PyTorch throws is intercepted: the library of C++ must be there from the start
runtime="$(cc -print-file-name=libasan.so) $(cc -print-file-name=libstdc++.so.6)"
for library in $runtime; do
    [ -e "$library" ] || { echo "error: the compiler has no $library" >&2; exit 1; }
done

rm -rf "$own" target/asan/wheels target/asan/report.*
# stable Rust has the sanitizer behind a nightly flag; the command's allocator would hide memory from it
(cd python && RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$root/target/asan "$venv/bin/maturin" build \
    --release --locked --no-default-features --target "$(rustc -vV | sed -n 's/^host: //p')" --compatibility linux --out "$root/target/asan/wheels")
install --no-deps --target "$own" target/asan/wheels/kerple-*.whl

tests=(test_attention.py test_border.py test_encodings.py test_linear.py test_manners.py)
[ $# -gt 0 ] || set -- "${tests[@]/#/$root/python/tests/}"
cd target/asan
# leaks are the interpreter's; symbols of Python's own libraries are defined twice in some; pytest takes what is printed
export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:abort_on_error=0:exitcode=99:log_path=$PWD/report
watched() { LD_PRELOAD=$runtime PYTHONPATH=$own PYTHONMALLOC=malloc "$venv/bin/python" "$@"; }

# an array that says it is longer than its memory must be found out
found=0
watched - <<'END' || found=$?
import ctypes
from kerple import _native

class Lie:
    def __init__(self, rows):
        self.memory, self.shape, self.dtype = (ctypes.c_float * 64)(), (1, 1, rows, 4), "float32"
    def data_ptr(self): return ctypes.addressof(self.memory)
    def stride(self): return (self.shape[2] * 4, self.shape[2] * 4, 4, 1)
    def element_size(self): return 4
    def is_floating_point(self): return True

q, lse = Lie(17), Lie(16)
lse.shape, lse.stride = (1, 1, 17), lambda: (17, 17, 1)
_native.attention_forward(_native.Rule(1.0, True, None, None, 1), (q, Lie(17), Lie(17), *(None,) * 8), Lie(17), lse)
END
[ "$found" = 99 ] && grep -q heap-buffer-overflow report.* || { echo "error: reading past an array was not noticed" >&2; exit 1; }
rm report.*

watched - "$@" <<'END' || { status=$?; cat report.* >&2 || true; exit $status; }
import sys
import kerple, pytest
assert "/asan/" in kerple.__file__, kerple.__file__
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", "not inductor and not memory_grows", *sys.argv[1:]]))
END
