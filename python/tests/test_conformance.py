"""The conformance suite finds what is wrong and nothing else."""

import json
import subprocess
import sys

import pytest
import torch

from kerple.conformance import CASES, Call, check, definition
from kerple.conformance.backends import BUILT_IN, eager, find, sdpa

KNOWN = {case.name: case for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kerple_is_conforming(case):
    result = check(BUILT_IN["kerple"], case)
    assert result.is_good, (result.failure, result.errors, result.allowed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_definition_agrees_with_itself_in_the_type_of_the_call(case):
    result = check(lambda call: definition(call).to(call.q.dtype), case)
    assert result.is_good, (result.failure, result.errors, result.allowed)


def test_eager_is_wrong_where_rows_see_nothing():
    wrong = {case.name for case in CASES if not check(eager, case).is_good}
    assert wrong == {"more queries", "no key at all", "window past the padding"}


def other(**changed):
    return lambda call: sdpa(Call(**{**vars(call), **{name: make(call) for name, make in changed.items()}}))


MISTAKES = {
    "keys ahead": (other(causal=lambda call: False, bias=lambda call: torch.cat([call.bias.flip(1)[:, :-1], call.bias], 1)), "causal"),
    "a window too wide": (other(window=lambda call: call.window + 1), "window"),
    "no padding": (other(key_lengths=lambda call: None), "padding"),
    "another scale": (other(scale=lambda call: 1.02 * call.scale), "causal"),
    "a bias without gradient": (other(bias=lambda call: call.bias.detach()), "causal"),
    "a bias off by one": (other(bias=lambda call: call.bias.roll(1, 1)), "causal"),
    "heads in another order": (other(k=lambda call: call.k.flip(1)), "grouped heads"),
    "a mask of -1e4": (
        lambda call: (
            (call.q @ call.grouped()[0].transpose(-1, -2) * call.scale + call.spread())
            .masked_fill(~call.seen(), -1e4).softmax(-1) @ call.grouped()[1]
        ),
        "all far below zero",
    ),
    "half precision inside": (lambda call: sdpa(call).bfloat16().to(call.q.dtype), "causal"),
    "queries from the front": (lambda call: sdpa(Call(**{**vars(call), "k": call.k.roll(1, 2)})), "more keys"),
    "an error": (lambda call: 1 / 0, "causal"),
    "another shape": (lambda call: call.q[..., :1] * 1, "causal"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake):
    wrong, name = MISTAKES[mistake]
    assert check(sdpa, KNOWN[name]).is_good
    assert not check(wrong, KNOWN[name]).is_good


def command(*arguments):
    told = [sys.executable, "-m", "kerple.conformance", *arguments]
    return subprocess.run(told, capture_output=True, text=True, timeout=300)


def test_the_command():
    good = command("--against", "kerple", "--case", "causal", "--case", "padding", "--json")
    rows = [json.loads(line) for line in good.stdout.splitlines()]
    assert good.returncode == 0 and [row["case"] for row in rows] == ["causal", "padding"]
    assert all(row["good"] and set(row["errors"]) == {"out", "d_q", "d_k", "d_v", "d_bias"} for row in rows)
    bad = command("--against", "kerple.conformance.backends:eager", "--case", "no key at all")
    assert bad.returncode == 1 and "WRONG" in bad.stdout and "0 of 1 cases" in bad.stdout
    assert "a single pair" in command("--list").stdout
    for asked, words in [
        (("--against", "nobody"), "MODULE:FUNCTION"),
        (("--against", "no.such:f"), "no.such"),
        (("--against", "math:no_such"), "no_such"),
        (("--case", "x"), "there is no case 'x'"),
    ]:
        found = command(*asked)
        assert found.returncode == 2 and words in found.stderr, found.stderr


def test_what_is_no_function_is_refused():
    with pytest.raises(ValueError, match="no function"):
        find("math:pi")
