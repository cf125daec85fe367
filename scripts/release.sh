#!/usr/bin/env bash
# Makes dist/kerple-VERSION-TARGET.tar.gz for the machine it runs on (the command, completions, man pages, licences and what to
# read first) and its SHA-256 beside it, then unpacks the archive and runs what is in it. OUT names another folder than dist.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-dist}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=kerple-$version-$(rustc -vV | sed -n 's/^host: //p')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# keeps equal functions once; elsewhere Rust's linker may not know the option
case $(uname -sm) in "Linux x86_64") export RUSTFLAGS="${RUSTFLAGS:-} -Clink-arg=-Wl,--icf=all" ;; esac
cargo build --profile dist --locked --package kerple
binary=${CARGO_TARGET_DIR:-target}/dist/kerple
[ ! -e "$binary.exe" ] || binary=$binary.exe

folder=$work/$name
mkdir -p "$folder/completions"
cp "$binary" README.md CHANGELOG.md CITATION.cff LICENSE-MIT LICENSE-APACHE "$folder"
"$binary" manual --man "$folder/man" >/dev/null
for shell in bash elvish fish powershell zsh; do
    "$binary" completions "$shell" >"$folder/completions/kerple.$shell"
done

mkdir -p "$out"
tar -C "$work" -czf "$out/$name.tar.gz" "$name"
sha256() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }
(cd "$out" && sha256 "$name.tar.gz" >"$name.tar.gz.sha256")

mkdir "$work/unpacked"
tar -C "$work/unpacked" -xzf "$out/$name.tar.gz"
"$work/unpacked/$name/$(basename "$binary")" --version
(cd "$out" && sha256 -c "$name.tar.gz.sha256")
