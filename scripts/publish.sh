#!/usr/bin/env bash
# Publishes what this commit is to crates.io and PyPI: scripts/publish.sh [--dry-run] [WHEELS]
#
# WHEELS: the folder of wheels and sources that scripts/wheels.sh made; without it only the crates are
# published. Tokens: CARGO_REGISTRY_TOKEN, and TWINE_USERNAME with TWINE_PASSWORD.
set -euo pipefail
cd "$(dirname "$0")/.."
refuse() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 2; }

dry=
[ "${1:-}" != --dry-run ] || { dry=--dry-run; shift; }
wheels=${1:-}

repository=$(sed -n 's/^repository = "\(.*\)"$/\1/p' Cargo.toml)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
if [ -z "$dry" ]; then
    case $repository in
        */OWNER/*) refuse "Cargo.toml: repository is the placeholder $repository" "write the repository's address there, in [workspace.package]" ;;
    esac
    [ -z "$(git status --porcelain)" ] || refuse "the work tree has changes" "commit them"
    [ "$(git tag --points-at HEAD)" = "v$version" ] || refuse "this commit is not tagged v$version" "git tag v$version"
fi

cargo publish --workspace --locked $dry
if [ -n "$wheels" ]; then
    twine check --strict "$wheels"/kerple-*
    [ -n "$dry" ] || twine upload "$wheels"/kerple-*
fi
