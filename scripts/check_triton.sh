#!/usr/bin/env bash
# The attention kernels for GPUs without a GPU: through Triton's interpreter against their definition, under models of transformers and
# loaded by Hugging Face `kernels`, and compiled for GPUs of four architectures.
#
# Every tile that is launched is compiled, for each pass, architecture, type and size of heads, with the most that its kind of call may have:
# learned positions with splines, a relative bias of rank 16, dropout and first tokens together. Before a release, `check_triton.py code --all`
# also compiles the other calls that get these tiles, which takes four times as long. Calls with less on the same tile than a kind that
# `_gpu.TERMS` lists are not compiled.
#
# The environment is that of scripts/python_venv.sh. KERPLE_WHEEL is a wheel of the package; without it the package that is installed
# there is tested, or one that is built. On a GPU:
# KERPLE_TEST_DEVICE=cuda scripts/check_triton.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/python_venv.sh

install_torch safetensors numpy 'pytest>=8' pytest-xdist accelerate
install 'kernels==0.17.*' || echo "not tested: the repository for Hugging Face kernels, which cannot be installed"
# PyTorch's wheel without CUDA may come without it
"$venv/bin/python" -c 'import triton' 2>/dev/null || install 'triton>=3.6'
if [ -n "${KERPLE_WHEEL:-}" ]; then
    install --force-reinstall --no-deps "$KERPLE_WHEEL"
elif ! "$venv/bin/python" -c 'import kerple.torch._gpu' 2>/dev/null; then
    install 'maturin>=1.9,<2'
    (cd python && "$venv/bin/maturin" build --release --locked --out "$PWD/../target/wheels/checked")
    install --force-reinstall --no-deps target/wheels/checked/kerple-*.whl
fi

if [ -n "${KERPLE_TEST_DEVICE:-}" ]; then
    for dtype in float32 bfloat16 float16; do
        "$venv/bin/python" -m kerple.conformance --device "$KERPLE_TEST_DEVICE" --dtype "$dtype"
    done
    exit
fi
# two processes, since the interpreter uses one processor
mkdir -p target
TRITON_INTERPRET=1 "$venv/bin/python" scripts/check_triton.py numbers >target/check_triton.txt 2>&1 &
failed=0
# without numbers of lines, of which nothing is read
TRITON_DISABLE_LINE_INFO=1 "$venv/bin/python" scripts/check_triton.py code || failed=1
models='outputs_and_gradients and none or inkling and (outputs_and_gradients and left or generated and none-dynamic) or t5_equals and none or trainer and llama or packed_positions and llama-False or prefixes_and_images and paligemma-right or in_training and gpt2-left-True'
TRITON_INTERPRET=1 "$venv/bin/python" -m pytest -q -p no:cacheprovider -n auto --dist loadfile python/tests/test_hub.py python/tests/test_transformers.py \
    python/tests/test_encodings.py python/tests/test_dropout.py python/tests/test_positions.py -k "documents_are_what and spline or padding_is_not_read or decoding_goes_on or checkpointing_repeats or counted_along or test_hub or inkling_meets or inkling_is_its_formula or inkling_of_a_layer or $models or generated and llama-left-dynamic" || failed=1
wait $! || failed=1
cat target/check_triton.txt
exit $failed
