# A virtual environment with these packages: source scripts/python_venv.sh DIR PACKAGE...
#
# What is there already is kept. A machine whose Python cannot make one gets what is missing from its packages.
make_venv() {
    local dir=$1
    shift
    local python=${PYTHON:-python3}
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        apt-get update && apt-get install -y python3 python3-venv python3-pip
    fi
    [ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
    "$dir/bin/pip" install --quiet --disable-pip-version-check "$@"
}
make_venv "$@"
