"""``python -m kerple.conformance``"""

from __future__ import annotations

import argparse
import json
import sys

import torch

from .backends import BUILT_IN, find
from .cases import CASES, Case
from .mutants import MUTANTS
from .run import PARTS, Result, check

_TYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def _line(result: Result) -> str:
    verdict = "-" if result.unsupported else "ok" if result.is_good else "WRONG"
    row = f"{result.case.name:<35}{verdict:<6}"
    if result.unsupported:
        return f"{row}  {result.unsupported}: not supported"
    cells = "".join(f"{result.errors[part]:>9.0e}" if part in result.errors else f"{'':>9}" for part in PARTS)
    row = f"{row}{cells}{result.allowed:>9.0e}"
    return row if result.is_good else f"{row}\n    {result.message()[:480]}"


def _row(result: Result) -> dict:
    return dict(
        case=result.case.name,
        good=result.is_good,
        errors=result.errors,
        allowed=result.allowed,
        failure=result.failure,
        unsupported=result.unsupported,
        message=None if result.is_good else result.message(),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kerple.conformance",
        description="Compares an attention with its definition in f64: outputs and all gradients, a check for each feature.",
        epilog="Exit codes: 0 if no check fails, 1 if one fails, 2 if the arguments are invalid. Checks of features that the "
        "attention does not support (it raises kerple.conformance.Unsupported) are counted and do not fail.",
    )
    add = parser.add_argument
    add("--against", default="kerple", help=f"{', '.join(BUILT_IN)}, or MODULE:FUNCTION")
    add("--device", default="cpu", help="where the attention runs, such as cuda; the definition stays on the CPU")
    add("--dtype", choices=_TYPES, help="type of q, k and v in all checks, instead of each check's own")
    add("--case", action="append", help="only this check; may be repeated")
    add("--list", action="store_true", help="what the checks are about")
    add("--json", action="store_true", help="a line of JSON for each check")
    add("--mutants", action="store_true",
        help=f"tests the suite: {len(MUTANTS)} plain attentions with one mistake each must all be caught, by the right check")  # fmt: skip
    return parser


def _device(name: str) -> torch.device:
    """The device, if this PyTorch can compute on it.

    Raises:
        ValueError: it cannot; the message contains the reason.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines() or ["no reason"]
        raise ValueError(f"--device {name}: {reason[0]}") from None
    return device


def _checks(args: argparse.Namespace, device: torch.device) -> int:
    """Runs the checks; the exit code."""
    attention = find(args.against)
    known = {case.name: case for case in CASES}
    asked = [known[name] for name in args.case] if args.case else CASES
    if not args.json:
        print(f"{args.against} on {device}, torch {torch.__version__}, errors as parts of what is added up\n")
        print(f"{'check':<35}{'':<6}" + "".join(f"{part:>9}" for part in PARTS) + f"{'allowed':>9}")
    results = []
    for case in asked:
        result = check(attention, case, device, _TYPES.get(args.dtype))
        results.append(result)
        print(json.dumps(_row(result)) if args.json else _line(result), flush=True)
    if not args.json:
        print(f"\n{_summary(results)}")
    return 0 if all(result.is_good for result in results) else 1


def _summary(results: list[Result]) -> str:
    wrong = [result.case for result in results if not result.is_good]
    missing = [result for result in results if result.unsupported]
    good = len(results) - len(wrong) - len(missing)
    told = f"all {good} checks pass" if good == len(results) else f"{good} of {len(results)} checks pass"
    if missing:
        features = dict.fromkeys(result.unsupported for result in missing)
        told += f", {len(missing)} not supported ({', '.join(features)})"
    return told + (f", {len(wrong)} wrong; the first: {_named(wrong[0])}" if wrong else "")


def _named(case: Case) -> str:
    return f"{case.name} ({case.about})"


def _mutants(device: torch.device) -> int:
    """Runs all mutants; the exit code."""
    missed = 0
    for mutant in MUTANTS:
        found = mutant.first_failure(device)
        caught = mutant.is_caught(found)
        missed += not caught
        by = "no check" if found is None else found.case.name
        expected = "" if caught else f"; expected: {mutant.caught_by}, {mutant.part}"
        print(f"{'caught' if caught else 'MISSED':<8}{mutant.name:<52}{by}{expected}", flush=True)
    print(f"\n{len(MUTANTS) - missed} of {len(MUTANTS)} mutants are caught by the right check")
    return 1 if missed else 0


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 if no check fails, 1 if one fails, 2 if the arguments are invalid."""
    parser = _parser()
    args = parser.parse_args(arguments)
    for mode, without_effect in (("list", ("against", "device", "dtype", "case", "json", "mutants")), ("mutants", ("against", "dtype", "case", "json"))):
        for name in without_effect if getattr(args, mode) else ():
            if getattr(args, name) != parser.get_default(name):
                print(f"error: --{name} has no effect with --{mode}\n\nhint: leave one of the two out", file=sys.stderr)
                return 2
    if args.list:
        for case in CASES:
            print(f"{case.name:<35}{case.about}")
        return 0
    known = [case.name for case in CASES]
    unknown = [name for name in args.case or () if name not in known]
    if unknown:
        print(f"error: there is no check {unknown[0]!r}\n\nhint: --list names them", file=sys.stderr)
        return 2
    try:
        device = _device(args.device)
        return _mutants(device) if args.mutants else _checks(args, device)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
