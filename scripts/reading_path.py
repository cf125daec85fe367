#!/usr/bin/env python3
"""Counts the lines of Rust that a reader of the libraries meets without optional features.

    scripts/reading_path.py

Follows the modules of every crate from its `lib.rs`. Left out are tests and what is behind a
feature that is not among the crate's defaults, and a crate that the command takes only with a
feature. The sum covers the libraries: not the command, the Python module and the conformance
suite, which have lines of their own in the table.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {"kerple", "kerple-py", "kerple-conformance"}
CFG = re.compile(r"\s*#!?\[cfg\((.*)\)\]\s*$")
MODULE = re.compile(r"\s*(?:pub(?:\([^)]*\))?\s+)?mod (\w+);")


def is_left_out(condition: str, features: set[str]) -> str | None:
    """Why an item with this condition is not read: "test", "feature" or None."""
    if re.search(r"\btest\b", re.sub(r"not\([^()]*\)", "", condition)):
        return "test"
    needed = re.findall(r'feature = "([^"]+)"', re.sub(r'not\(feature = "[^"]+"\)', "", condition))
    return "feature" if any(name not in features for name in needed) else None


def item_end(lines: list[str], start: int) -> int:
    """The line after the item whose attributes or first line stand at `start`."""
    depth = 0
    for at in range(start, len(lines)):
        code = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|//.*', "", lines[at])
        depth += sum(code.count(c) for c in "([{") - sum(code.count(c) for c in ")]}")
        if depth <= 0 and not code.strip().startswith("#[") and code.rstrip().endswith((";", "}", ",")):
            return at + 1
    return len(lines)


class Crate:
    def __init__(self, folder: Path, why: str | None):
        manifest = tomllib.loads((folder / "Cargo.toml").read_text())
        known = manifest.get("features", {})
        self.features, waiting = set(), list(known.get("default", []))
        while waiting:
            name = waiting.pop()
            self.features.add(name)
            waiting.extend(known.get(name, []))
        self.lines = {None: 0, "feature": 0, "test": 0}
        self.read(folder / "src" / "lib.rs", why)

    def read(self, path: Path, why: str | None) -> None:
        lines = path.read_text().splitlines()
        inner = path.parent if path.name in ("lib.rs", "mod.rs", "main.rs") else path.with_suffix("")
        at = 0
        while at < len(lines):
            found, own = CFG.match(lines[at]), why
            end = at + 1
            if found and (reason := is_left_out(found[1], self.features)):
                own, end = why or reason, item_end(lines, at)
            self.lines[own] += end - at
            for line in lines[at:end]:
                if module := MODULE.match(line):
                    name = module[1]
                    file = next(f for f in (inner / f"{name}.rs", inner / name / "mod.rs") if f.exists())
                    self.read(file, own)
            at = end


def main() -> None:
    total = 0
    command = tomllib.loads((ROOT / "crates/kerple/Cargo.toml").read_text())["dependencies"]
    optional = {name for name, of in command.items() if isinstance(of, dict) and of.get("optional")}
    print(f"{'crate':<22}{'read':>8}{'feature':>9}{'tests':>8}")
    for folder in sorted((ROOT / "crates").iterdir()):
        crate = Crate(folder, "feature" if folder.name in optional else None)
        read, feature, tests = (crate.lines[why] for why in (None, "feature", "test"))
        print(f"{folder.name:<22}{read:>8}{feature:>9}{tests:>8}")
        total += 0 if folder.name in PROGRAMS else read
    print(f"\nthe libraries without optional features: {total} lines")


if __name__ == "__main__":
    main()
