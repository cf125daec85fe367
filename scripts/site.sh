#!/usr/bin/env bash
# The documentation as a site, in target/site/book: scripts/site.sh [--serve]
#
# Pages are the files of docs/ and three from the root. Links to other files of the repository lead to
# its web address, which Cargo.toml names. Every link within the site is checked.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v mdbook >/dev/null || { echo "error: no mdbook; cargo install --locked mdbook@0.5.4" >&2; exit 2; }
site=${CARGO_TARGET_DIR:-target}/site
repository=$(sed -n 's/^repository = "\(.*\)"$/\1/p' Cargo.toml)
rm -rf "$site"
mkdir -p "$site/src"
cp -r docs/. "$site/src"
cp ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md "$site/src"
python3 scripts/site.py "$site/src" "$repository/blob/main"
cat >"$site/book.toml" <<END
[book]
title = "kerple"
description = "Relative positional encodings and length extrapolation in transformers"
language = "en"

[output.html]
git-repository-url = "$repository"
END
# diagrams are text in the pages; this draws them
python3 scripts/site.py --mermaid "$site/src/mermaid.min.js"
mdbook build "$site"
python3 scripts/site.py --check "$site/book"
[ "${1:-}" != --serve ] || exec python3 -m http.server --directory "$site/book" 8000
