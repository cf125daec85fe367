#!/usr/bin/env python3
"""Renames files and keys in the archives of results/ to those of 0.1.0. Run it once; a second run changes nothing.

    python3 scripts/migrate_folder.py [RESULTS]

Of each folder it rewrites `runs.tar.zst`, `timing.json` and `SHA256SUMS`. Numbers are copied as they are written, digit by digit.
`plan.json` and `kernels.json` are copied byte by byte, so that plans keep their hashes. Files that another migration has changed
may differ from their sums: the script says how many do, and writes the sums of what there is.

The names are those of `crates/kerple-run/src/old_names.rs`, which this script reads. It needs the command `zstd`.
"""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ROOT / "crates/kerple-run/src/old_names.rs"
ARCHIVE, SUMS = "runs.tar.zst", "SHA256SUMS"
BESIDE = ["reproduction.json", "timing.json", "floors.json"]


class Number(str):
    """A number as it is written."""


def written(value):
    """JSON in one line, with keys in their order by name and numbers as they were."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{written(key)}:{written(one)}" for key, one in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def pretty(value, indent=""):
    """JSON with a line for each value and keys in the order in which they come, as `write_json` has it."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        lines = [f"{inner}{written(key)}: {pretty(one, inner)}" for key, one in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(inner + pretty(one, inner) for one in value) + f"\n{indent}]"
    return written(value)


def parsed(text):
    return json.loads(text, parse_int=Number, parse_float=Number)


def names():
    """The renamed files, and the renamed keys of each file, from the source of the program."""
    constants = dict(re.findall(r'pub const (\w+_FILE): &str = "([^"]+)"', (NAMES.parent / "lib.rs").read_text()))
    source = NAMES.read_text().split("#[cfg(test)]")[0]
    files, keys = source.split("pub const KEYS")
    words = lambda text: re.findall(r'\("([^"]+)", "?([\w.]+)"?\)', text)  # noqa: E731
    tables = re.findall(r'\(\s*(?:([A-Z_]+_FILE)|"([\w.]+)"),\s*&\[(.*?)\]', keys, re.DOTALL)
    return (
        {old: constants[new] for old, new in words(files)},
        {constants[const] if const else name: words(table) for const, name, table in tables},
    )


def renamed(row, table):
    """A row with new keys. Paths of the table lead through new names, so those above come first."""
    for old, new in table:
        *above, key = old.split(".")
        inner = row
        for name in above:
            inner = inner.get(name) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or key not in inner:
            continue
        if new in inner:
            raise ValueError(f"both `{key}` and `{new}` are in {written(row)[:200]}")
        # in its place, for files whose keys are not in the order of their names
        items = [(new if name == key else name, value) for name, value in inner.items()]
        inner.clear()
        inner.update(items)
    return row


def converted(name, content, tables):
    """The content of a file with this new name."""
    table = tables.get(name)
    if table is None:
        return content
    text = content.decode()
    if name.endswith(".jsonl"):
        rows = [written(renamed(parsed(line), table)) for line in text.splitlines()]
        return "".join(row + "\n" for row in rows).encode()
    value = parsed(text)
    for row in value if isinstance(value, list) else [value]:
        renamed(row, table)
    return ((pretty(value) if name == "timing.json" else written(value)) + "\n").encode()


def unpacked(archive):
    packed = subprocess.run(["zstd", "-dcq", str(archive)], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        return {entry.name: files.extractfile(entry).read() for entry in files if entry.isfile()}


def packed(files):
    """The files as an archive, in their order, as `kerple_experiments::packed` packs them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return subprocess.run(["zstd", "-19", "--check", "-cq"], input=out.getvalue(), check=True, capture_output=True).stdout


def sums(files):
    """Lines of SHA256SUMS, in the order of the parts of names."""
    ordered = sorted(files, key=lambda name: name.encode().split(b"/"))
    return "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in ordered)


def migrate(folder, renames, tables):
    """Whether anything was to be renamed."""
    archive = unpacked(folder / ARCHIVE)
    beside = {name: (folder / name).read_bytes() for name in BESIDE if (folder / name).exists()}
    former, current = (folder / SUMS).read_text(), sums({**archive, **beside})
    if former != current:
        changed = len(set(former.splitlines()) ^ set(current.splitlines()))
        print(f"{folder}: {changed} lines of {SUMS} are not those of the files", file=sys.stderr)
    runs = {}
    for path, content in archive.items():
        above, _, name = path.rpartition("/")
        name = renames.get(name, name)
        runs[f"{above}/{name}"] = converted(name, content, tables)
    # runs in their order, files of a run by name, as they are packed
    order = {above: at for at, above in enumerate(dict.fromkeys(path.rpartition("/")[0] for path in runs))}
    runs = dict(sorted(runs.items(), key=lambda file: (order[file[0].rpartition("/")[0]], file[0])))
    kept = {name: converted(name, content, tables) for name, content in beside.items()}
    if (runs, kept, former) == (archive, beside, current):
        return False
    if runs != archive:
        (folder / ARCHIVE).write_bytes(packed(runs))
    for name, content in kept.items():
        if content != beside[name]:
            (folder / name).write_bytes(content)
    (folder / SUMS).write_text(sums({**runs, **kept}))
    return True


def main():
    results = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results"
    renames, tables = names()
    for folder in sorted(path.parent for path in results.glob(f"*/{ARCHIVE}")):
        print(f"{folder}: {'renamed' if migrate(folder, renames, tables) else 'has the new names'}")


if __name__ == "__main__":
    main()
