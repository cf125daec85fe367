#!/usr/bin/env bash
# The documentation as a site, in target/site/book: scripts/site.sh [--serve]
#
# Pages are the files of docs/ and three from the root. Links to other files of the repository lead to
# its web address, which Cargo.toml names. Every link within the site is checked.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in mdbook npm; do
    command -v $tool >/dev/null || { echo "error: no $tool; cargo install --locked mdbook@0.5.4, and Node.js has npm" >&2; exit 2; }
done
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
(cd "$site" && npm pack --silent mermaid@11 >/dev/null && tar -C src -xzf mermaid-*.tgz --strip-components 2 package/dist/mermaid.min.js)
mdbook build "$site"
python3 scripts/site.py --check "$site/book"
[ "${1:-}" != --serve ] || exec python3 -m http.server --directory "$site/book" 8000
