"""Runs cases and measures their errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .cases import CASES, Case
from .definition import Call, definition, sizes

#: The allowed error in units of the type, relative to the magnitudes of the terms that are added. A
#: product of 16 features, an exponential and a sum are rounded to a few units; rows have up to 4096
#: terms, whose roundings mostly cancel.
_UNITS = 16.0

PARTS = ("out", "d_q", "d_k", "d_v", "d_bias")


@dataclass(frozen=True)
class Result:
    """The result of a case."""

    case: Case
    #: For output and gradients: the largest error, relative to the largest sum of the magnitudes of
    #: the terms that are added.
    errors: dict[str, float]
    allowed: float
    #: The exception, and the pass that raised it.
    failure: str | None = None

    @property
    def is_good(self) -> bool:
        return self.failure is None and all(error <= self.allowed for error in self.errors.values())


def allowed(case: Case) -> float:
    """The largest error that rounding explains: a number of units of the type, more for large
    scores, whose rounding grows.
    """
    return _UNITS * torch.finfo(case.dtype).eps * max(1.0, case.scores / 4, abs(case.constant) / 16)


def make(case: Case) -> tuple[Call, Tensor]:
    """The call, and the gradient of its output."""
    random = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=random, dtype=torch.float64)  # noqa: E731
    q = draw(case.batch, case.heads, case.queries, case.features) * case.scores
    k, v = (draw(case.batch, case.kv_heads, case.keys, case.features) for _ in "kv")
    longest = max(case.queries, case.keys)
    d = torch.arange(case.keys) if case.causal else torch.arange(1 - longest, longest)
    heads = torch.arange(1, case.heads + 1, dtype=torch.float64)[:, None]
    bias = case.constant - case.slope * heads * d.abs() + 0.1 * min(1.0, case.scores) * draw(case.heads, len(d))
    cast = lambda x: x.to(case.dtype).requires_grad_()  # noqa: E731
    lengths = None if case.key_lengths is None else torch.tensor(case.key_lengths)
    q, k, v, bias = (cast(x) for x in (q, k, v, bias))
    call = Call(q, k, v, bias, case.causal, case.window, lengths, case.features**-0.5)
    return call, draw(*q.shape).to(case.dtype)


def _passes(attention: Callable[[Call], Tensor], call: Call, up: Tensor) -> list[Tensor]:
    out = attention(call)
    if out.shape != call.q.shape:
        raise ValueError(f"the output is {tuple(out.shape)}, expected {tuple(call.q.shape)}")
    leaves = (call.q, call.k, call.v, call.bias)
    found = torch.autograd.grad(out, leaves, up.to(out.dtype), allow_unused=True)
    missing = [name for name, d in zip(PARTS[1:], found, strict=True) if d is None]
    if missing:
        raise ValueError(f"no gradient reaches {', '.join(missing)}")
    return [out.detach(), *found]


def check(attention: Callable[[Call], Tensor], case: Case) -> Result:
    """Runs one case; an exception of the implementation becomes its result."""
    call, up = make(case)
    wanted = _passes(definition, call, up)
    try:
        found = _passes(attention, call, up)
        failure = None
    except Exception as error:
        failure = _words(error)
        found, also = _forward(attention, call)
        failure += f"; the output alone: {also}" if also else ""
    errors = {}
    for name, got, want, size in zip(PARTS, found, wanted, sizes(call, up), strict=False):
        error = (got.double() - want.double()).abs()
        errors[name] = math.nan if error.isnan().any() else error.max().item() / max(size, 1e-30)
    return Result(case, errors, allowed(case), failure)


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _forward(attention: Callable[[Call], Tensor], call: Call) -> tuple[list[Tensor], str | None]:
    """The output alone, of an implementation without gradients; the reason where that fails too."""
    q, k, v, bias = (x.detach() for x in (call.q, call.k, call.v, call.bias))
    try:
        with torch.no_grad():
            out = attention(replace(call, q=q, k=k, v=v, bias=bias))
    except Exception as error:
        return [], _words(error)
    return ([out], None) if out.shape == q.shape else ([], f"its shape is {tuple(out.shape)}")


def run(attention: Callable[[Call], Tensor], cases: Iterable[Case] = CASES) -> Iterable[Result]:
    """All cases, one after another."""
    for case in cases:
        yield check(attention, case)
