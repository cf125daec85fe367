# The Python environment of checks, target/python unless KERPLE_VENV says another: source scripts/python_venv.sh
#
# What is there already is kept, so that only the first check downloads PyTorch and transformers. PYTHON: the interpreter to make it
# with, 3.10 or later. A machine whose Python cannot make one gets what is missing from its packages.

# One thread of PyTorch's in each process: those of several processes wait for processors by spinning, in more than twice the time.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
venv=$(realpath -m "${KERPLE_VENV:-target/python}")

# install PACKAGE...: into $venv, which is made where it is missing. uv takes a quarter of pip's time.
install() {
    local python=${PYTHON:-python3}
    if [ ! -x "$venv/bin/uv" ]; then
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            apt-get update && apt-get install -y python3 python3-venv python3-pip
        fi
        "$python" -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check uv
    fi
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "$@"
}

# install_torch PACKAGE...: PyTorch and what checks compare with it, in the versions that they are written for
install_torch() {
    # without CUDA it is a tenth of the size, where its own index is reachable
    "$venv/bin/python" -c 'import torch' 2>/dev/null ||
        UV_HTTP_TIMEOUT=10 UV_HTTP_RETRIES=0 install 'torch==2.15.*' --index-url https://download.pytorch.org/whl/cpu || install 'torch==2.15.*'
    install 'transformers==5.23.*' "$@"
}
