#!/usr/bin/env python3
"""How long a cold build of the command takes, and which crates take it.

    python3 scripts/build_time.py            # builds into target/build-time, and prints the 25 longest
    python3 scripts/build_time.py --all      # every crate

Seconds of a crate are those of its compiler process, beside others on the same cores; their sum over
the number of cores is the least that a build can take. Processor time is what to compare between
machines in use and machines at rest.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "target" / "build-time"


def build() -> tuple[float, float]:
    """Seconds that passed, and of the processors, for a build into an empty folder."""
    shutil.rmtree(TARGET, ignore_errors=True)
    command = ["cargo", "build", "--release", "--locked", "--timings", "--target-dir", str(TARGET)]
    started = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - started, used.ru_utime + used.ru_stime


def seconds_by_crate() -> Counter:
    page = (TARGET / "cargo-timings" / "cargo-timing.html").read_text()
    units = re.search(r"const UNIT_DATA = (\[.*?\]);", page, re.DOTALL)
    if units is None:
        raise SystemExit("cargo-timing.html has no UNIT_DATA; this cargo writes another page")
    seconds = Counter()
    for unit in json.loads(units[1]):
        seconds[unit["name"]] += unit["duration"]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every crate, not the 25 longest")
    arguments = parser.parse_args()
    passed, processor = build()
    seconds = seconds_by_crate()
    for name, of_crate in seconds.most_common(None if arguments.all else 25):
        print(f"{of_crate:7.1f} s  {name}")
    size = (TARGET / "release" / "kerple").stat().st_size / 1e6
    print(
        f"\n{passed / 60:.1f} min on {os.cpu_count()} cores, {processor:.0f} s of processor time, "
        f"{len(seconds)} crates, a command of {size:.0f} MB"
    )


if __name__ == "__main__":
    main()
