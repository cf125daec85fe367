#!/usr/bin/env python3
"""Renames the evaluation protocol `blocks` to `nonoverlapping` in exported reproductions:

    python3 scripts/migrate_protocol.py results/*

Rows of evaluations inside the archive, the manifest beside it and the sums of both. Bytes are replaced, so every number stays as it
was written; a folder without the old name is left alone. Needs zstd. Then the pages are made again:

    UPDATE_RESULTS=1 cargo test --release -p kerple-experiments --test documents pages_are_those_of_the_rows
"""

import hashlib
import io
import pathlib
import subprocess
import sys
import tarfile

OLD, NEW = (b'"protocol":%s"' + name + b'"' for name in (b"blocks", b"nonoverlapping"))
ARCHIVE, MANIFEST, SUMS = "runs.tar.zst", "reproduction.json", "SHA256SUMS"


def renamed(content):
    for space in (b"", b" "):
        content = content.replace(OLD % space, NEW % space)
    return content


def zstd(data, *options):
    return subprocess.run(["zstd", "--quiet", "--stdout", *options], input=data, stdout=subprocess.PIPE, check=True).stdout


def migrate(folder):
    """Changes one folder; the names of the files that have changed."""
    sums, packed = {}, io.BytesIO()
    source = tarfile.open(fileobj=io.BytesIO(zstd((folder / ARCHIVE).read_bytes(), "--decompress")))
    with source, tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as target:
        for member in source:
            content = source.extractfile(member).read() if member.isfile() else b""
            now = renamed(content) if member.name.endswith("/evaluation.jsonl") else content
            if now != content:
                sums[member.name], member.size = hashlib.sha256(now).hexdigest(), len(now)
            target.addfile(member, io.BytesIO(now))
    manifest = (folder / MANIFEST).read_bytes()
    if sums:
        # with the checksum of its content, as `kerple reproduce --export` packs
        (folder / ARCHIVE).write_bytes(zstd(packed.getvalue(), "--check", "-19"))
    if renamed(manifest) != manifest:
        (folder / MANIFEST).write_bytes(renamed(manifest))
        sums[MANIFEST] = hashlib.sha256(renamed(manifest)).hexdigest()
    if sums:
        lines = [line.split("  ", 1) for line in (folder / SUMS).read_text().splitlines()]
        unknown = set(sums) - {name for _, name in lines}
        if unknown:
            raise SystemExit(f"{folder / SUMS} does not list {', '.join(sorted(unknown))}")
        (folder / SUMS).write_text("".join(f"{sums.get(name, known)}  {name}\n" for known, name in lines))
    return sorted(sums)


for name in sys.argv[1:]:
    if (pathlib.Path(name) / ARCHIVE).exists():
        print(f"{name}: {len(migrate(pathlib.Path(name)))} files changed")
