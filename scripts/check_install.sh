#!/usr/bin/env bash
# What people install, without the clone: the packed crates and the wheel, each in an empty folder, run
# the demo. The crates are built as crates.io would hand them out. KERPLE_BIN names the folder of a program
# that is built already: then nothing is built, but their sources, and the packages and features that they
# ask for, must be those of the clone, and the wheel alone runs the demo. KERPLE_WHEEL names a wheel that is
# built already.
set -euo pipefail
cd "$(dirname "$0")/.."
step() { printf '\n== %s\n' "$*"; "$@"; }
clone=$PWD target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# alone COMMAND...: in a new folder, with a home of its own, where the clone cannot be seen
alone() {
    local folder
    folder=$(mktemp -d -p "$work")
    if unshare --mount true 2>/dev/null; then
        unshare --mount bash -c 'mount -t tmpfs none "$1" && cd "$2" && shift 2 && exec env -i HOME="$PWD" PATH="$PATH" "$@"' \
            - "$clone" "$folder" "$@"
    else
        echo "note: the clone cannot be hidden here, mounts need root"
        (cd "$folder" && env -i HOME="$folder" PATH="$PATH" "$@")
    fi
}

# demo PROGRAM...: rotary rises, and the report is there
demo() {
    alone bash -c '"$@" demo --out demo >out.txt && cat out.txt && test -s demo/report/index.html &&
        awk "\$1 == \"rotary\" { found = 1; if (\$6 < 1.3 * \$2) exit 1 } END { exit !found }" out.txt' - "$@"
}

step cargo package --workspace --exclude kerple-conformance --exclude kerple-py --locked --no-verify --allow-dirty
mkdir "$work/crates"
for crate in "$target"/package/kerple*-"$version".crate; do tar -C "$work/crates" -xzf "$crate"; done
# crates.io does not have them yet, and a packed crate does not have the workspace's profile
{
    sed -n '/^\[profile.release\]/,/^$/p' Cargo.toml
    echo "[patch.crates-io]"
    for folder in "$work"/crates/*/; do
        name=$(basename "$folder" "-$version")
        echo "$name = { path = \"${folder%/}\" }"
    done
} >"$work/patch.toml"
# packed COMMAND OPTION...: takes the dependencies of the packed Cargo.lock, where `cargo install` would look for newer ones
packed() {
    (cd "$work" && cargo "$@" --manifest-path "crates/kerple-$version/Cargo.toml" --config patch.toml)
}
# features CARGO OPTION...: every package and its features, without the folders of packages
features() { "$1" tree "${@:2}" --edges normal,build,features --target all --prefix none | sed 's/ ([^"]*)$//' | sort -u; }
built=$target/release/kerple
mkdir "$work/installed"
if [ -n "${KERPLE_BIN:-}" ]; then
    for folder in "$work"/crates/*/; do
        name=$(basename "$folder" "-$version")
        # all but what cargo writes itself
        (cd "$folder" && find . -type f ! -name 'Cargo.*' ! -name .cargo_vcs_info.json) | while read -r file; do
            cmp "$folder$file" "crates/$name/$file"
        done
    done
    features cargo --locked --package kerple >"$work/own.txt"
    features packed >"$work/packed.txt"
    step diff "$work/own.txt" "$work/packed.txt"
else
    # the clone's own program comes back afterwards
    [ ! -e "$built" ] || cp -p "$built" "$work/own"
    # what is built of them already serves again
    step packed build --release --target-dir "$target"
    cp "$built" "$work/installed"
    [ ! -e "$work/own" ] || { rm "$built" && cp -p "$work/own" "$built"; }
    demo "$work/installed/kerple"
fi

source scripts/python_venv.sh
wheel=${KERPLE_WHEEL:-}
if [ -z "$wheel" ]; then
    install 'maturin>=1.9,<2'
    (cd python && "$venv/bin/maturin" build --release --locked --out "$work/wheel")
    wheel=$(ls "$work"/wheel/kerple-*.whl)
fi
venv=$work/python
install "$wheel"
demo "$venv/bin/kerple"
alone "$venv/bin/python" -m kerple --version
