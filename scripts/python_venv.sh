# The Python environment of checks, target/python unless KERPLE_VENV says another: source scripts/python_venv.sh
#
# What is there already is kept, so that only the first check downloads PyTorch and transformers. PYTHON: the interpreter to make it
# with, 3.10 or later. A machine whose Python cannot make one gets what is missing from its packages.
venv=$(realpath -m "${KERPLE_VENV:-target/python}")

# install PACKAGE...: into $venv, which is made where it is missing
install() {
    local python=${PYTHON:-python3}
    if [ ! -x "$venv/bin/python" ]; then
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            apt-get update && apt-get install -y python3 python3-venv python3-pip
        fi
        "$python" -m venv "$venv"
    fi
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
}

# install_torch PACKAGE...: PyTorch and what checks compare with it, in the versions that they are written for
install_torch() {
    # without CUDA it is a tenth of the size, where its own index is reachable
    "$venv/bin/python" -c 'import torch' 2>/dev/null ||
        install --retries 1 --timeout 10 'torch==2.15.*' --index-url https://download.pytorch.org/whl/cpu || install 'torch==2.15.*'
    install 'transformers==5.23.*' "$@"
}
