"""Runs cases and measures their errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from .cases import CASES, Case
from .definition import GRADIENTS, Call, Unsupported, definition, sizes

#: The allowed error in units of the type, relative to the magnitudes of the terms that are added. A
#: product of 16 features, an exponential and a sum are rounded to a few units; rows have up to 4096
#: terms, whose roundings mostly cancel.
_UNITS = 16.0
#: In half precision units are so much larger than what float32 inside rounds that few are enough:
#: weights, score gradients and results are each rounded once.
_UNITS_OF_HALF = 4.0

#: Of dropout: both of its words of 32 bits count.
_SEED = 0x0123_4567_89AB_CDEF

PARTS = ("out", *GRADIENTS.values())


@dataclass(frozen=True)
class Result:
    """The result of a case."""

    case: Case
    #: For output and gradients: the largest error, relative to the largest sum of the magnitudes of
    #: the terms that are added.
    errors: dict[str, float]
    allowed: float
    #: The exception, and the pass that raised it; or what else is wrong.
    failure: str | None = None
    #: The feature that the implementation does not have.
    unsupported: str | None = None
    #: For each part that is wrong: how many entries are, and where the error is largest.
    places: dict[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.failure is None and all(error <= self.allowed for error in self.errors.values())

    @property
    def wrong(self) -> list[str]:
        """The parts with an error that rounding does not explain."""
        return [part for part, error in self.errors.items() if not error <= self.allowed]

    def message(self) -> str:
        """What is wrong, beginning with the name of the check."""
        found = [
            f"{part} is wrong by {self.errors[part]:.1e}, {self.allowed:.1e} is allowed, {self.places[part]}"
            for part in self.wrong
        ]
        return "; ".join([f"{self.case.name} ({self.case.about})", *([self.failure] if self.failure else []), *found])


def allowed(case: Case) -> float:
    """The largest error that rounding explains: a number of units of the type, more for large
    scores, whose rounding grows. A large bias is added in float32 at least.
    """
    of_type = torch.finfo(case.dtype)
    units = _UNITS if of_type.bits >= 32 else _UNITS_OF_HALF
    of_offset = _UNITS * min(of_type.eps, torch.finfo(torch.float32).eps) * abs(case.constant) / 16
    return max(units * of_type.eps * max(1.0, case.scores / 4), of_offset)


def make(case: Case, device: torch.device | str = "cpu") -> tuple[Call, Tensor]:
    """The call, and the gradient of its output."""
    values, up = _draw(case)

    def place(x: Tensor) -> Tensor:
        once = x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())]
        return _laid_out(once.to(device, case.dtype), case.layout).expand(x.shape)

    def leaf(name: str, wanted: bool = True) -> Tensor | None:
        if not wanted:
            return None
        in_rows = name in ("q", "k", "v", "rows")
        x = place(values[name]) if in_rows else values[name].to(device, case.table_dtype or case.dtype)
        return x.requires_grad_()

    def placed() -> Tensor | None:
        return None if case.kernel is None else values["positions"].to(device).requires_grad_()

    starts, ends = case.intervals()
    whole = lambda x: None if x is None else torch.tensor(x, device=device)  # noqa: E731
    call = Call(
        leaf("q"), leaf("k"), leaf("v"), leaf("bias", case.bias), case.causal, case.window, whole(case.key_lengths),
        case.features**-0.5 if case.scale is None else case.scale,
        sink_tokens=case.sink_tokens, weight=leaf("weight", case.weight), softcap=case.softcap, sinks=leaf("sinks", case.sinks is not None),
        gates=leaf("gates", case.gates), rows=leaf("rows", case.relative is not None),
        profiles=leaf("profiles", case.relative is not None), positions=placed(),
        parameters=leaf("parameters", case.kernel is not None), kernel=case.kernel or "", key_starts=whole(starts or case.key_starts), key_ends=whole(ends),
        document_ids=whole(_document_ids(case)), dropout_p=case.dropout, dropout_seed=None if case.dropout is None else _SEED,
    )  # fmt: skip
    return call, place(up)


def _draw(case: Case) -> tuple[dict[str, Tensor], Tensor]:
    """Values in f64 of all tensors that a call may have, and of the gradient of its output."""
    random = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=random, dtype=torch.float64)  # noqa: E731
    q = draw(case.batch, case.heads, case.queries, case.features) * case.scores
    k, v = (draw(case.batch, case.kv_heads, case.keys, case.features) for _ in "kv")
    longest = max(case.queries, case.keys) + case.columns
    d = torch.arange(case.keys + case.columns) if case.causal else torch.arange(1 - longest, longest)
    heads = torch.arange(1, case.heads + 1, dtype=torch.float64)[:, None]
    bias = case.constant - case.slope * heads * d.abs() + 0.1 * min(1.0, case.scores) * draw(case.heads, len(d))
    up = draw(*q.shape)
    weight, sinks = 1 + 0.3 * draw(case.heads, len(d)), (case.sinks or 0.0) + draw(case.heads)
    gates = torch.nn.functional.logsigmoid(2 + draw(case.batch, case.heads, case.keys))
    _set_gates(case, gates)
    if case.layout == "expanded":
        k, v, up = k[:1].expand_as(k), v[:1].expand_as(v), up[:1, ..., :1].expand_as(up)
    rank, reach = case.relative or (1, 1)
    rows, profiles = draw(*q.shape[:3], rank), 0.5 * draw(rank, reach)
    uniform = lambda *shape: torch.rand(*shape, generator=random, dtype=torch.float64)  # noqa: E731
    steps = case.step * (0.2 + 1.6 * uniform(case.batch, case.heads, case.keys))
    parameters = (0.5 if case.kernel != "spline" else 0.1) + 0.5 * uniform(case.heads, _PARAMETERS.get(case.kernel, 2))
    made = dict(q=q, k=k, v=v, bias=bias, weight=weight, sinks=sinks, gates=gates, rows=rows, profiles=profiles)
    return made | dict(positions=_positions(case, steps), parameters=parameters), up


#: Of each kernel of learned positions per head; of a spline those of 4 knots.
_PARAMETERS = {"log": 2, "power": 2, "log3": 3, "spline": 5}


def _positions(case: Case, steps: Tensor) -> Tensor:
    """Running sums, which documents begin anew; those of padding become NaN."""
    if case.coincide:
        steps[..., ::3] = 0.0
    x = case.origin + steps.cumsum(-1)
    for sequence, ids in enumerate(_document_ids(case) or ()):
        x[sequence, :, torch.tensor(ids) < 0] = math.nan
        for first in (at for at in range(1, len(ids)) if ids[at] > ids[at - 1]):
            x[sequence, :, first:] -= x[sequence, :, first, None].clone()
    return _mark_padding(case, x)


def _set_gates(case: Case, gates: Tensor) -> None:
    """Gates of padding become NaN, and one of the others as low as the case wants it."""
    if case.reset is not None:
        gates[..., case.keys // 3] = case.reset
    _mark_padding(case, gates)


def _mark_padding(case: Case, x: Tensor) -> Tensor:
    """NaN in padding of ``[B, H, K]``."""
    for sequence in range(case.batch):
        if case.key_lengths is not None:
            x[sequence, :, case.key_lengths[sequence] :] = math.nan
        if case.key_starts is not None:
            x[sequence, :, : case.key_starts[sequence]] = math.nan
    return x


def _document_ids(case: Case) -> list[list[int]] | None:
    if case.documents is None:
        return None
    rows = [[n for n, length in enumerate(lengths) for _ in range(length)] for lengths in case.documents]
    return [row + [-1] * (case.keys - len(row)) for row in rows]


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values in another layout, see :data:`~kerple.conformance.cases.LAYOUTS`."""
    if layout == "heads inside rows":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "features apart":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    if layout == "within larger tensors":
        batch, heads, rows, features = x.shape
        larger = x.new_full((batch, heads, rows + 5, features + 19), math.nan)
        inside = larger[:, :, 2 : 2 + rows, 1 : 1 + features]
        inside.copy_(x)
        return inside
    return x


def _passes(attention: Callable[[Call], Tensor], call: Call, up: Tensor) -> dict[str, Tensor]:
    out = attention(call)
    if out.shape != call.q.shape:
        raise ValueError(f"the output is {tuple(out.shape)}, expected {tuple(call.q.shape)}")
    leaves = call.with_gradient()
    found = torch.autograd.grad(out, list(leaves.values()), up.to(out.dtype), allow_unused=True)
    named = {GRADIENTS[name]: d for name, d in zip(leaves, found, strict=True)}
    missing = [name for name, d in named.items() if d is None]
    if missing:
        raise ValueError(f"no gradient reaches {', '.join(missing)}")
    return {"out": out.detach(), **named}


@lru_cache(maxsize=2 * len(CASES))
def _expected(case: Case) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The output and gradients of the definition, and the sizes of what is added up in them."""
    call, up = make(case)
    return _passes(definition, call, up), sizes(call, up)


def check(
    attention: Callable[[Call], Tensor],
    case: Case,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> Result:
    """Runs one case; an exception of the implementation becomes its result.

    Args:
        device: where the implementation runs. The reference stays on the CPU, in f64.
        dtype: in place of the case's own type. Half precision keeps tables in float32 where the
            case has them so.
    """
    if dtype is not None:
        table_dtype = case.table_dtype if torch.finfo(dtype).bits < 32 else None
        case = replace(case, dtype=dtype, table_dtype=table_dtype)
    wanted, scale = _expected(case)
    call, up = make(case, device)
    before = {name: x.detach().clone() for name, x in call.with_gradient().items()}
    found, failure = {}, None
    try:
        found = _passes(attention, call, up)
    except Unsupported as missing:
        return Result(case, {}, allowed(case), unsupported=str(missing))
    except Exception as error:
        failure = _words(error)
        found, also = _forward(attention, call)
        failure += f"; the output alone: {also}" if also else ""
    failure = failure or _side_effects(attention, case, call, up, before, found)
    errors, places = {}, {}
    for part, got in found.items():
        errors[part], places[part] = _error(got.cpu().double(), wanted[part].double(), scale[part], allowed(case))
    return Result(case, errors, allowed(case), failure, None, places)


def _error(got: Tensor, want: Tensor, size: Tensor, most: float) -> tuple[float, str]:
    """The largest error relative to what is added up, and where it is."""
    if not got.numel():
        return 0.0, ""
    error = (got - want).abs() / size.max().clamp(min=1e-30)
    wrong = ~(error <= most)
    worst = error.nan_to_num(nan=math.inf).argmax()
    at = [int(i) for i in torch.unravel_index(worst, error.shape)]
    largest = math.nan if error.isnan().any() else error.max().item()
    return largest, f"in {int(wrong.sum())} of {wrong.numel()} entries, most at {at}"


def _side_effects(
    attention: Callable[[Call], Tensor],
    case: Case,
    call: Call,
    up: Tensor,
    before: dict[str, Tensor],
    found: dict[str, Tensor],
) -> str | None:
    """What is wrong besides the values: inputs that were written to, other bits in a second run."""
    for name, x in call.with_gradient().items():
        if not torch.equal(x.detach().nan_to_num(), before[name].nan_to_num()):
            return f"the call writes to its input {name}"
    if case.is_repeated:
        again = _passes(attention, call, up)
        other = [part for part in found if not torch.equal(found[part], again[part])]
        if other:
            return f"a second run has other bits in {', '.join(other)}"
    return None


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _forward(attention: Callable[[Call], Tensor], call: Call) -> tuple[dict[str, Tensor], str | None]:
    """The output alone, of an implementation without gradients; the reason where that fails too."""
    try:
        with torch.no_grad():
            out = attention(call.map(Tensor.detach))
    except Exception as error:
        return {}, _words(error)
    return ({"out": out}, None) if out.shape == call.q.shape else ({}, f"its shape is {tuple(out.shape)}")


def run(
    attention: Callable[[Call], Tensor],
    cases: Iterable[Case] = CASES,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> Iterable[Result]:
    """All cases, one after another; the arguments are those of :func:`check`."""
    for case in cases:
        yield check(attention, case, device, dtype)
