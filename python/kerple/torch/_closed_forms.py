"""Tables over distances as PyTorch expressions, for tensors on GPUs.

The engine computes tables on the processor. A GPU would have to wait for that in each layer, and no
graph could be captured, so the formulas are evaluated where the parameters are: in float64, to be
cast once. An encoding's formulas become nested tuples once, when it is made, which `torch.compile`
traces like any constants.
"""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any

import torch
from torch import Tensor

from .. import _native

#: Expressions of the named kernels, bias and weight; their learned values are the parameters in order.
_NAMED = {
    "kerple_log": ("log(b, a)", None),
    "kerple_power": ("power(a, p)", None),
    "kerple_bias_weight": ("power(a, p)", "exp(1, a, p)"),
    "kerple_weight": (None, "exp(1, a, p)"),
    "kerple_log3": ("log3(b, a, p)", None),
    "gaussian_bias": ("gauss(c, a)", None),
    "stretched_bias": ("exp(c, a, p)", None),
    "gaussian_weight": (None, "gauss(1, a)"),
    "stretched_weight": (None, "exp(1, a, p)"),
}
#: What the engine reads, whatever PyTorch's default device is.
_HOST = dict(dtype=torch.float64, device="cpu")
#: Kinds whose tables need nothing but numbers that the engine gives once.
_FIXED = ("alibi", "kerple_power_original", "sandwich", "t5")


class _Parser:
    """A kernel expression as nested tuples: ``("log", 0, 0.5)`` is the function of the first learned
    value and of 0.5. Learned values are numbered as they occur in the text.
    """

    def __init__(self, first: int) -> None:
        self.learned = first

    def parse(self, text: str) -> tuple:
        text = re.sub(r"~(U\([^)]*\)|[-+.\deE]+)", "", text).replace("^", "**")  # without initial values
        return self._node(ast.parse(text, mode="eval").body)

    def _node(self, node: ast.AST) -> Any:
        match node:
            case ast.Constant(value):
                return float(value)
            case ast.Name("sqdist"):
                return ("sqdist",)
            case ast.Name():
                self.learned += 1
                return self.learned - 1
            case ast.UnaryOp(ast.USub(), of):
                return ("negative", self._node(of))
            case ast.BinOp(left, ast.Sub(), right):
                return ("sum", self._node(left), ("negative", self._node(right)))
            case ast.BinOp(left, op, right):
                name = {ast.Add: "sum", ast.Mult: "product", ast.Pow: "to_the"}[type(op)]
                return (name, self._node(left), self._node(right))
            case ast.Call(ast.Name(name), arguments):
                if name in ("exp", "log") and len(arguments) == 1:
                    name += "_of"
                return (name, *map(self._node, arguments))
        raise ValueError(f"{ast.unparse(node)} is not part of a kernel expression")


def program_of(native: _native.Encoding) -> dict[str, Any] | None:
    """What a table is computed from; None where the encoding has none, or none on GPUs."""
    keys = json.loads(native.keys)
    if native.entry != "scores" or keys.get("emulate") == "bf16":
        return None
    known = _NAMED.get(native.kind) or ((keys.get("bias"), keys.get("weight")) if native.kind == "kernel" else None)
    if known is None and native.kind not in (*_FIXED, "bam"):
        return None
    parser = _Parser(0)
    bias, weight = (text and parser.parse(text) for text in known or (None, None))
    return {
        "kind": native.kind, "bias": bias, "weight": weight, "ranges": _ranges(native), "smooth": keys.get("keep") == "smooth",
        "inside": keys.get("scale") == "inside", "behind": keys.get("behind", 0.0),
        "rates": keys.get("features"), "base": keys.get("base"), "reach": keys.get("reach"),
        "cap": keys.get("distance_cap"),
    }  # fmt: skip


def _ranges(native: _native.Encoding) -> tuple[tuple[float, float], ...]:
    """The range of each parameter's constrained values, which raw values far out reach."""
    parameters = native.parameters()
    count = sum(math.prod(shape) for _, shape, *_ in parameters)
    ends = [native.true_values(torch.full((count,), far, **_HOST)) for far in (-1e15, 1e15)]
    found, at = [], 0
    for _, shape, *_ in parameters:
        found.append(tuple(end[at] if abs(end[at]) < 1e14 else math.copysign(math.inf, end[at]) for end in ends))
        at += math.prod(shape)
    return tuple(found)


def constants_of(native: _native.Encoding, heads: int, head_dim: int) -> list[float] | None:
    """Numbers of a table that no formula here repeats: slopes per head, or of T5 the distances at which
    buckets begin, and then these buckets.
    """
    keys = json.loads(native.keys)
    if "reach" in keys or "distance_cap" in keys:  # the numbers are those of a bias that goes on
        whole = {key: value for key, value in keys.items() if key not in ("reach", "distance_cap")}
        native = _native.Encoding(json.dumps(whole), heads, head_dim, 1)
    if native.kind in ("alibi", "kerple_power_original"):
        two_sides = native.tables[2]
        table = torch.empty(heads, 3 if two_sides else 2, **_HOST)
        native.table(torch.empty(0, **_HOST), 2, table, None)
        return (-table[:, 0 if two_sides else 1]).tolist()
    if native.kind != "t5":
        return None
    keys = json.loads(native.keys)
    length, two_sides = keys["max_distance"] + 2, native.tables[2]
    table = torch.empty(heads, 2 * length - 1 if two_sides else length, **_HOST)
    numbered = torch.arange(keys["num_buckets"], **_HOST)[:, None].expand(-1, heads).reshape(-1)
    native.table(numbered.contiguous(), length, table, None)
    factor = head_dim**-0.5 if keys.get("scale") == "inside" else 1.0
    bucket = (table[0] / (head_dim**0.5 * factor)).round()
    changes = torch.cat([torch.ones(1, dtype=torch.bool, device="cpu"), bucket[1:] != bucket[:-1]]).nonzero()[:, 0]
    starts = changes - (length - 1 if two_sides else 0)
    return torch.cat([starts.double(), bucket[changes]]).tolist()


def table(
    program: dict[str, Any], learned: list[Tensor], constants: Tensor | None, heads: int, head_dim: int, length: int,
    two_sides: bool, device: torch.device,
) -> tuple[Tensor | None, Tensor | None]:
    """Bias and weight ``[H, C]`` in float64 over the engine's distances, ``0..length`` or both directions."""
    d = torch.arange(1 - length if two_sides else 0, length, dtype=torch.float64, device=device)
    if program["cap"] is not None:
        d = d.clamp(-program["cap"], program["cap"])
    kind = program["kind"]
    if kind == "t5":
        bias, weight = _t5(learned[0], constants, d, head_dim), None
    elif kind in ("alibi", "kerple_power_original"):
        bias, weight = -constants[:, None] * (d.abs() - program["behind"] * (d > 0)), None
    elif kind == "sandwich":
        bias, weight = _sandwich(program, d, heads), None
    else:
        values = [
            constrained(x, low, high, program["smooth"])[:, None]
            for x, (low, high) in zip(learned, program["ranges"], strict=True)
        ]
        if kind == "bam":
            bias, weight = _bam(values, d), None
        else:
            bias, weight = (of and _value(of, values, d).expand(heads, -1) for of in (program["bias"], program["weight"]))
    if program["inside"] and bias is not None:
        bias = bias * head_dim**-0.5
    if program["reach"] is not None:
        bias = torch.where(d.abs() < program["reach"], bias, 0.0)
    return bias, weight


def constrained(raw: Tensor, low: float, high: float, smooth: bool = False) -> Tensor:
    """The values of a raw parameter; gradients pass through the clamp."""
    raw = raw.to(torch.float64)
    value = raw
    if smooth and high < math.inf:
        value = low + (high - low) * torch.sigmoid(raw)
    elif smooth:
        value = low + torch.nn.functional.softplus(raw, threshold=1e3)
    return value + (value.clamp(low, high) - value).detach()


def _power(d: Tensor, p: Tensor | float) -> Tensor:
    """``d^p`` with a derivative of 0 in p at d = 0."""
    return torch.where(d > 0, torch.exp(p * torch.log(torch.where(d > 0, d, 1.0))), 0.0)


def _value(of: tuple | int | float, values: list[Tensor], d: Tensor) -> Tensor:
    """An expression at distances d, rows for heads."""
    if isinstance(of, float):
        return torch.full_like(d, of)
    if isinstance(of, int):
        return values[of]
    name, x = of[0], [_value(one, values, d) for one in of[1:]]
    if name == "power":
        return -x[0] * _power(d, x[1])
    if name == "log":
        return -x[0] * torch.log1p(x[1] * d)
    if name == "log3":
        return -x[0] * torch.log1p(x[1] * _power(d, x[2]))
    if name == "sqdist":
        return -d * d
    if name == "gauss":
        return x[0] * torch.exp(-x[1] * (d * d))
    if name == "exp":
        return x[0] * torch.exp(-x[1] * _power(d, x[2]))
    if name == "cos":
        return x[0] * torch.cos(x[1] * d)
    if name == "const":
        return x[0]
    if name == "sum":
        return x[0] + x[1]
    if name == "product":
        return x[0] * x[1]
    if name == "negative":
        return -x[0]
    if name == "to_the":
        return _power(x[0], x[1])
    if name == "log_of":
        return torch.log(x[0])
    if name == "exp_of":
        return torch.exp(x[0])
    raise ValueError(f"{name} is not computed on GPUs; move the module and its inputs to the processor with .cpu()")


def _bam(values: list[Tensor], d: Tensor) -> Tensor:
    """``-e^alpha (|d + mu| + eps)^beta``, where ``mu = 2 sinh(theta_mu)`` or 0."""
    alpha, beta, *theta_mu = values
    offset = d + 2.0 * torch.sinh(theta_mu[0]) if theta_mu else d
    return -torch.exp(alpha + beta * torch.log(offset.abs() + 1e-5))


def _t5(weight: Tensor, constants: Tensor, d: Tensor, head_dim: int) -> Tensor:
    """``sqrt(D) W[bucket(d), h]`` as a product with rows of a unit matrix: its gradient sums in a fixed
    order, which that of indexing does not on GPUs.
    """
    starts, buckets = constants.chunk(2)
    at = (torch.searchsorted(starts, d, right=True) - 1).clamp(min=0)
    is_bucket = buckets[at, None] == torch.arange(weight.shape[0], dtype=torch.float64, device=d.device)
    return head_dim**0.5 * (is_bucket.to(torch.float64) @ weight.to(torch.float64)).T


def _sandwich(program: dict[str, Any], d: Tensor, heads: int) -> Tensor:
    features = program["rates"]
    k = torch.arange(features // 2, dtype=torch.float64, device=d.device)
    rates = program["base"] ** (-2.0 * k / features)
    sums = (-2.0 * torch.sin(0.5 * d[:, None] * rates).square()).sum(1)  # cos x - 1 without its cancellation
    return sums * heads / (8.0 * torch.arange(1, heads + 1, dtype=torch.float64, device=d.device)[:, None])
