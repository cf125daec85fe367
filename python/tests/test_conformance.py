"""The conformance suite: modules meet reference values of any folder, and the checks of attention find
what is wrong and nothing else.
"""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
import torch

from kerple.conformance import CASES, Call, Unsupported, check, definition, plain
from kerple.conformance.backends import BUILT_IN, _features, eager, find, sdpa
from kerple.conformance.mutants import MUTANTS, Mutant, executed_lines
from kerple.conformance.run import make
from kerple.torch import Encoding

KNOWN = {case.name: case for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kerple_is_conforming(case):
    result = check(BUILT_IN["kerple"], case)
    assert result.is_good, result.message()
    assert result.unsupported is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_definition_agrees_with_itself_in_the_type_of_the_call(case):
    result = check(lambda call: definition(call).to(call.q.dtype), case)
    assert result.is_good, result.message()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_plain_attention_is_conforming(case):
    result = check(BUILT_IN["plain"], case)
    assert result.is_good and result.unsupported is None, result.message()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_a_type_holds_for_all_checks(dtype):
    for case in CASES:
        if case.keys <= 64:
            result = check(BUILT_IN["plain"], case, dtype=dtype)
            assert result.is_good and result.case.dtype == dtype, result.message()


@pytest.mark.parametrize(
    "name",
    [
        "one key", "bias in both directions", "everything", "gates and sinks", "documents", "softcap and weight",
        "relative bias and padding", "intervals", "dropout and all else", "learned positions", "learned positions of a spline",
        "learned positions in both directions", "learned positions and padding", "learned positions and all else",
    ],
)  # fmt: skip
def test_gradients_of_the_plain_attention_are_those_of_differences(name):
    small = dict(batch=2, queries=min(5, KNOWN[name].queries), keys=min(7, KNOWN[name].keys), features=3, window=KNOWN[name].window and 4)
    if KNOWN[name].documents:
        small.update(queries=7, documents=((3, 1, 2), (7,)))
    if KNOWN[name].key_lengths:
        small.update(key_lengths=(7, 6), key_starts=(0, 1))
    call, _ = make(replace(KNOWN[name], **small, dtype=torch.float64))
    leaves = call.with_gradient()
    if "positions" in leaves:
        leaves["positions"] = leaves["positions"].detach().nan_to_num(0.0).requires_grad_()
    if "gates" in leaves:  # differences of padding's NaN are NaN
        leaves["gates"] = leaves["gates"].detach().nan_to_num(-1.0).requires_grad_()

    def run(*values):
        given = dict(zip(leaves, values, strict=True))
        if "rows" in given:
            given["relative"] = (given.pop("rows"), given.pop("profiles"))
        if "parameters" in given:
            given["position_kernel"] = (call.kernel, given.pop("parameters"))
        return plain.attention(**{**_features(call), "q": None, "k": None, "v": None, **given}, tile=3)

    assert torch.autograd.gradcheck(run, tuple(leaves.values()))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught_by_the_check_that_is_named_after_its_mistake(mutant):
    found = mutant.first_failure()
    assert found is not None, "no check fails"
    assert mutant.is_caught(found), (mutant.caught_by, mutant.part, found.message())
    assert found.message().startswith(mutant.caught_by) and mutant.part in found.message()


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.caught_by in ("softcap", "sinks")][:3], ids=lambda mutant: mutant.name)
def test_checks_that_never_come_to_a_mistake_pass(mutant):
    """Such checks are not run to look for the first that fails."""
    attention, lines = mutant.attention(), set(mutant.lines())
    passed_over = [case for case in CASES if case.keys <= 64 and not executed_lines(case) & lines]
    assert passed_over and KNOWN[mutant.caught_by] not in passed_over
    for case in passed_over:
        result = check(attention, case)
        assert result.is_good, result.message()


def test_half_precision_has_its_own_mistakes():
    """Scores in bfloat16 are further from the definition than one rounding of each result."""
    case = replace(KNOWN["rising bias"], dtype=torch.bfloat16)
    for good in ("plain", "kerple", "sdpa"):
        assert check(BUILT_IN[good], case).is_good
    assert check(eager, case).wrong == ["out"]


def test_mutants_are_many_and_different():
    assert len(MUTANTS) >= 100
    assert len({mutant.name for mutant in MUTANTS}) == len({(mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.caught_by for mutant in MUTANTS} <= set(KNOWN)


def test_the_command_tests_the_suite(monkeypatch, capsys):
    of = importlib.import_module("kerple.conformance.__main__")
    monkeypatch.setattr(of, "MUTANTS", MUTANTS[:3])
    assert of.main(["--mutants"]) == 0
    assert "3 of 3 mutants are caught by the right check" in capsys.readouterr().out
    monkeypatch.setattr(of, "MUTANTS", (MUTANTS[0], replace(MUTANTS[1], caught_by="window")))
    assert of.main(["--mutants"]) == 1
    assert "expected: window, out" in (printed := capsys.readouterr().out) and "1 of 2 mutants" in printed


@pytest.mark.parametrize("arguments", ["--mutants --json", "--mutants --dtype float32", "--mutants --case window", "--list --mutants", "--list --json"])
def test_options_without_effect_are_refused(arguments, capsys):
    of = importlib.import_module("kerple.conformance.__main__")
    assert of.main(arguments.split()) == 2
    mode, name = arguments.split()[:2]
    assert f"error: {name} has no effect with {mode}" in capsys.readouterr().err


def test_a_mutant_that_changes_nothing_is_refused_or_survives():
    with pytest.raises(ValueError, match="contains 0 times"):
        Mutant("none", "no such line", "", "bias").first_failure()
    same = Mutant("same", "_RESET = -65536.0", "_RESET = -65536.0  # the same", "bias")
    short = [case for case in CASES if case.keys <= 33]
    assert all(check(same.attention(), case).is_good for case in short)
    assert not same.is_caught(None)


def test_the_suite_runs_on_the_device_that_is_asked_for():
    """Every tensor of a call is there; meta tensors have no values, so that nothing can pass."""
    seen = []

    def attention(call):
        tensors = [x for x in vars(call).values() if isinstance(x, torch.Tensor)]
        seen.extend(x.device.type for x in tensors)
        raise Unsupported("values")

    for case in CASES:
        assert check(attention, case, device="meta").unsupported == "values"
    assert set(seen) == {"meta"}


def test_what_is_not_supported_is_neither_good_nor_wrong():
    result = check(sdpa, KNOWN["sinks"])
    assert result.unsupported == "sinks" and not result.errors
    found = command("--against", "sdpa", "--case", "sinks", "--case", "bias")
    assert found.returncode == 0 and "1 of 2 checks pass, 1 not supported (sinks)" in found.stdout


def test_eager_is_wrong_where_rows_see_nothing():
    wrong = {case.name for case in CASES if not check(eager, case).is_good}
    assert wrong == {
        "more queries", "no key at all", "window past the padding", "padding at the front", "first tokens and padding", "documents in both directions",
        "intervals", "intervals and what is earlier", "intervals across tiles", "gates and padding", "relative bias and padding",
        "learned positions and padding", "learned positions and intervals",
    }  # fmt: skip


def other(**changed):
    return lambda call: sdpa(Call(**{**vars(call), **{name: make(call) for name, make in changed.items()}}))


MISTAKES = {
    "keys ahead": (other(causal=lambda call: False, bias=lambda call: torch.cat([call.bias.flip(1)[:, :-1], call.bias], 1)), "bias"),
    "a window too wide": (other(window=lambda call: call.window + 1), "window"),
    "no padding": (other(key_lengths=lambda call: None), "padding"),
    "another scale": (other(scale=lambda call: 1.02 * call.scale), "bias"),
    "a bias without gradient": (other(bias=lambda call: call.bias.detach()), "bias"),
    "a bias off by one": (other(bias=lambda call: call.bias.roll(1, 1)), "bias"),
    "heads in another order": (other(k=lambda call: call.k.flip(1)), "grouped heads"),
    "a mask of -1e4": (
        lambda call: (
            (call.q @ call.grouped()[0].transpose(-1, -2) * call.scale + call.spread())
            .masked_fill(~call.seen(), -1e4).softmax(-1) @ call.grouped()[1]
        ),
        "all far below zero",
    ),
    "half precision inside": (lambda call: sdpa(call).bfloat16().to(call.q.dtype), "bias"),
    "queries from the front": (lambda call: sdpa(Call(**{**vars(call), "k": call.k.roll(1, 2)})), "more keys"),
    "an error": (lambda call: 1 / 0, "bias"),
    "another shape": (lambda call: call.q[..., :1] * 1, "bias"),
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
    good = command("--against", "kerple", "--case", "bias", "--case", "padding", "--json")
    rows = [json.loads(line) for line in good.stdout.splitlines()]
    assert good.returncode == 0 and [row["case"] for row in rows] == ["bias", "padding"]
    assert all(row["good"] and set(row["errors"]) == {"out", "d_q", "d_k", "d_v", "d_bias"} for row in rows)
    bad = command("--against", "kerple.conformance.backends:eager", "--case", "no key at all")
    assert bad.returncode == 1 and "WRONG" in bad.stdout and "0 of 1 checks pass, 1 wrong; the first: no key at all" in bad.stdout
    assert "a single pair" in command("--list").stdout
    for asked, words in [
        (("--against", "nobody"), "MODULE:FUNCTION"),
        (("--against", "no.such:f"), "no.such"),
        (("--against", "math:no_such"), "no_such"),
        (("--case", "x"), "there is no check 'x'"),
        (("--device", "nowhere"), "--device nowhere"),
    ]:
        found = command(*asked)
        assert found.returncode == 2 and words in found.stderr, found.stderr


def test_what_is_no_function_is_refused():
    with pytest.raises(ValueError, match="no function"):
        find("math:pi")


#: Folders of reference values with a `manifest.json`, as `conformance FOLDER...` reads them.
REPOSITORY = Path(__file__).resolve().parents[2] / "reference"
FOLDERS = [Path(folder) for folder in os.environ.get("KERPLE_REFERENCE_VALUES", "").split(os.pathsep) if folder] or [
    REPOSITORY / name for name in ("kerple", "dape", "encodings")
]

#: Methods of the reference values: our kind, and the names of its parameters there, in our order.
METHODS = {
    "kerple_log": ("kerple_log", ["bias_p", "bias_a"]),
    "kerple_power": ("kerple_power", ["bias_a", "bias_p"]),
    "kerple_power_wht": ("kerple_weight", ["wei_a", "wei_p"]),
    "kerple_bias_wht": ("kerple_bias_weight", ["bias_a", "bias_p", "wei_a", "wei_p"]),
    "kerple_power_original": ("kerple_power_original", []),
    "log3": ("kerple_log3", ["r1", "r2", "r3"]),
    "gauss_2para_bias": ("gaussian_bias", ["r1", "r2"]),
    "gauss_3para_bias": ("stretched_bias", ["r1", "r2", "r3"]),
    "gauss_1para_wht": ("gaussian_weight", ["r1"]),
    "gauss_2para_wht": ("stretched_weight", ["r1", "r2"]),
    "alibi": ("alibi", []),
    "none": ("none", []),
    "nope": ("none", []),
    "t5": ("t5", ["weight"]),
    "rotary": ("rotary", []),
    "kerple": ("kerple_log", ["bias_p", "bias_a"]),
    "fire": ("fire", ["c", "L_multiplier", "mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"]),
    "cope": ("cope", ["pos_emb"]),
    "xl": ("transformer_xl", ["r_net.weight", "r_w_bias", "r_r_bias"]),
}
NETWORK = ["mlp2.0.weight", "mlp2.0.bias", "mlp2.2.weight", "mlp2.2.bias"]


class Reference:
    """A case of whole attention layers, whichever generator wrote it."""

    def __init__(self, folder, case):
        self.folder, self.case = folder, case

    def __repr__(self):
        return f"{self.folder.name}: {self.case['id']}"

    def array(self, role, key):
        entry = self.case[role][key]
        if isinstance(entry, (int, float, list)):
            return torch.tensor(entry, dtype=torch.float64)
        with safetensors.safe_open(self.folder / entry["file"], "pt") as file:
            return file.get_tensor(entry.get("key") or entry["tensor"])

    def encoding(self, heads, features):
        """Our module with the case's parameters, and their names there."""
        case, static = self.case, self.case.get("static") or {}
        method = case.get("method") or case["id"].split("/")[1]
        keys = {"window": static["window"]} if static.get("window") else {}
        while (base := method.removesuffix("_windowed").removesuffix("_paperscale")) != method:
            keys.update({"scale": "inside"} if method.endswith("_paperscale") else {})
            method = base
        last = method if method in METHODS else method.split("_")[0 if method[:2] in ("t5", "ro") else -1]
        kind, names = METHODS[last]
        own = {}
        if kind == "t5":
            own = {key: static[key] for key in ("num_buckets", "max_distance") if key in static}
        elif kind == "rotary" and static:
            own = {ours: static[key] for ours, key in (("pct", "rotary_pct"), ("base", "base")) if key in static}
        elif kind == "cope":
            own = {"npos_max": case["npos_max"]}
        elif kind == "fire":
            hidden, init_l = self.array("params", "mlp.0.weight").shape[0], self.array("params", "init_L").item()
            own = {"hidden": hidden, "init_l": init_l}
        if method.startswith("dape"):
            kernel = case.get("kernel", 1)
            variant = case.get("variant")
            own = {
                "base": {"kind": kind, **own},
                "variant": variant if variant in ("concat", "add_residual") else "concat_residual",
                "kernel": kernel,
                "hidden": case["hidden"],
                "edge": "closed" if kernel > 1 else "open",
            }
            kind, names = "dape", names + NETWORK
        module = Encoding(kind, heads, features, dtype=torch.float64, seed=0, **own, **keys)
        with torch.no_grad():
            for number, name in zip(module.parameters(), names, strict=True):
                number.copy_(self.array("params", name).reshape(number.shape))
        return module, names

    def tolerance(self, key, expected):
        """Absolute and relative."""
        if "tolerance" in self.case:
            name = "f64_arrays" if expected.dtype == torch.float64 else "f32_arrays"
            entry = self.case["tolerance"][name]
            return entry.get("atol", 0.0), entry.get("rtol", 0.0)
        entry = self.case["tol"]
        entry = entry.get(key) or entry.get("default") or entry
        return entry["abs"], entry["rel"]


def references():
    for folder in FOLDERS:
        for case in json.loads((folder / "manifest.json").read_text())["cases"]:
            if case.get("id", "").startswith("attn/") or case.get("op") == "causal_attention":
                yield Reference(folder, case)


@pytest.mark.parametrize("reference", list(references()), ids=repr)
def test_modules_meet_the_reference_values(reference):
    q, k, v, up = (reference.array("inputs", key).double() for key in ("q", "k", "v", "dout"))
    module, names = reference.encoding(q.shape[1], q.shape[3])
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = module(*leaves)
    learned = list(module.parameters())
    found = torch.autograd.grad((out * up).sum(), [*leaves, *learned], allow_unused=True)
    found = [torch.zeros_like(leaf) if d is None else d for leaf, d in zip([*leaves, *learned], found, strict=True)]
    ours = {"out": out, **dict(zip(["q", "k", "v", *names], found, strict=True))}
    for key in reference.case["expected"]:
        expected = reference.array("expected", key)
        name = key if key == "out" else key.removeprefix("grad_").removeprefix("d_")
        got = ours[name if name in ours else name.removeprefix("d")]
        absolute, relative = reference.tolerance(key, expected)
        got, words = got.reshape(expected.shape), lambda text, key=key: f"{key}: {text}"
        torch.testing.assert_close(got, expected.double(), atol=absolute, rtol=relative, msg=words)


def test_the_page_counts_checks_and_mutants():
    page = (REPOSITORY.parent / "docs" / "python.md").read_text()
    assert f"The {len(CASES)} checks cover" in page and f"All {len(MUTANTS)} mutants are caught" in page
