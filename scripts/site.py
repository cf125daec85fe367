#!/usr/bin/env python3
"""Links of the documentation's site.

    site.py FOLDER URL      links out of the pages in FOLDER lead to URL
    site.py --check FOLDER  every local link and anchor of the HTML pages in FOLDER exists
    site.py --mermaid FILE  downloads the library that draws diagrams
"""

import hashlib
import html
import io
import re
import sys
import tarfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

MERMAID = "https://registry.npmjs.org/mermaid/-/mermaid-11.6.0.tgz"
MERMAID_SHA256 = "156e94d96fcd3c8dcbc9580b4f6db2bf145eefbb3ed833e4a2931be57cf9ee52"
# pages that come from the root of the repository
ROOT_PAGES = {"ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def rewrite(folder, url):
    for page in folder.rglob("*.md"):
        text = page.read_text()
        at_root = page.name in ROOT_PAGES

        def replaced(link):
            target, _, anchor = link[2].partition("#")
            if not target or urlsplit(target).scheme:
                return link[0]
            # as seen from the root of the repository
            path = Path(target) if at_root else Path("docs", page.parent.relative_to(folder), target)
            parts = []
            for part in path.parts:
                parts.pop() if part == ".." else parts.append(part)
            path = "/".join(parts)
            inside = path if path in ROOT_PAGES else path.removeprefix("docs/") if path.startswith("docs/") else None
            if inside and (folder / inside).is_file():
                target = "/".join([".."] * len(page.parent.relative_to(folder).parts) + [inside])
            else:
                target = f"{url}/{path}"
            return link[1] + target + (f"#{anchor}" if anchor else "") + link[3]

        text = LINK.sub(replaced, text)
        diagrams = FENCE.findall(text)
        for diagram in diagrams:
            # a blank line would end the HTML
            lines = "\n".join(line for line in html.escape(diagram).split("\n") if line.strip())
            text = text.replace(f"```mermaid\n{diagram}```\n", f'<pre class="mermaid">\n{lines}\n</pre>\n')
        if diagrams:
            text += '\n<script src="mermaid.min.js"></script>\n'
        page.write_text(text)


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(attributes[key] for key in ("id", "name") if attributes.get(key))
        for key in ("href", "src"):
            if attributes.get(key):
                self.links.append(attributes[key])


def check(folder):
    pages = {path.resolve(): Page(path) for path in folder.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            # the page for addresses that do not exist is shown at any of them
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                broken.append(f"{path.name}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{path.name}: {link}")
    links = sum(len(page.links) for page in pages.values())
    print(f"{len(pages)} pages, {links} links, {len(broken)} broken")
    print("\n".join(broken), end="\n" if broken else "")
    return 1 if broken or not pages else 0


def mermaid(file):
    try:
        packed = urlopen(MERMAID, timeout=60).read()
    except OSError as error:
        sys.exit(f"{MERMAID}: {error}")
    found = hashlib.sha256(packed).hexdigest()
    if found != MERMAID_SHA256:
        sys.exit(f"{MERMAID}: SHA-256 {found}, expected {MERMAID_SHA256}")
    with tarfile.open(fileobj=io.BytesIO(packed)) as package:
        file.write_bytes(package.extractfile("package/dist/mermaid.min.js").read())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--mermaid", file]:
            mermaid(Path(file))
        case ["--check", folder]:
            sys.exit(check(Path(folder)))
        case [folder, url]:
            rewrite(Path(folder), url)
        case _:
            sys.exit(__doc__)
