"""``python -m kerple.conformance``"""

from __future__ import annotations

import argparse
import json
import sys

import torch

from .backends import BUILT_IN, find
from .cases import CASES
from .run import PARTS, Result, check


def _line(result: Result) -> str:
    verdict = "ok" if result.is_good else "WRONG"
    if result.failure is not None:
        out = f"{result.errors['out']:>11.1e}" if "out" in result.errors else " " * 11
        return f"{result.case.name:<28}{verdict:<7}{out}  {result.failure[:320]}"
    cells = "".join(f"{result.errors[part]:>11.1e}" for part in PARTS)
    return f"{result.case.name:<28}{verdict:<7}{cells}{result.allowed:>11.1e}"


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 if every case passes, 1 if one fails, 2 if the arguments are invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m kerple.conformance",
        description="Holds attention with a bias over distances against its definition.",
    )
    parser.add_argument("--against", default="kerple", help=f"{', '.join(BUILT_IN)}, or MODULE:FUNCTION")
    parser.add_argument("--case", action="append", help="only this one; may be repeated")
    parser.add_argument("--list", action="store_true", help="what the cases are about")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each case")
    args = parser.parse_args(arguments)
    if args.list:
        for case in CASES:
            print(f"{case.name:<28}{case.about}")
        return 0
    known = {case.name: case for case in CASES}
    unknown = [name for name in args.case or () if name not in known]
    if unknown:
        print(f"error: there is no case {unknown[0]!r}\n\nhint: --list names them", file=sys.stderr)
        return 2
    try:
        attention = find(args.against)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not args.json:
        print(f"{args.against}, torch {torch.__version__}, errors as parts of what is added up\n")
        print(f"{'case':<28}{'':<7}" + "".join(f"{part:>11}" for part in PARTS) + f"{'allowed':>11}")
    bad = 0
    for case in [known[name] for name in args.case] if args.case else CASES:
        result = check(attention, case)
        bad += not result.is_good
        if args.json:
            row = dict(
                case=case.name,
                good=result.is_good,
                errors=result.errors,
                allowed=result.allowed,
                failure=result.failure,
            )
            print(json.dumps(row), flush=True)
        else:
            print(_line(result), flush=True)
    if not args.json:
        count = len(args.case or CASES)
        print(
            f"\n{count - bad} of {count} cases agree with the definition"
            if bad
            else f"\nall {count} cases agree with the definition"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
