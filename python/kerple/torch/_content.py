"""Attention whose products depend on the tokens between query and key: decays of features (Wall), a bias summed over
the path (GRAPE-AP), Householder products (PaTH)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import library as registry

from .. import _native
from ._checks import check_device, check_tensor, number
from ._documents import sums_after, whole_numbers
from ._ops import _check, _compiling, _dense, _library, _out, _room, _rows, _second, _transforms, refuse_tangents, transformable

_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor first, Tensor? second, Tensor? clocks, Tensor? sinks, Tensor? key_lengths, Tensor? documents, "
    "str kind, float[] slopes, float scale, bool causal, int? window, int? sink_tokens, float? softcap"
)
_library.define(f"content_attention({_INPUTS}) -> (Tensor, Tensor)")
_library.define(
    f"content_attention_backward(Tensor d_out, Tensor out, Tensor lse, {_INPUTS}) -> ({', '.join(['Tensor'] * 7)})"
)

#: Tensors of a call, those with gradients first; and everything.
_WITH_GRADIENTS, _TENSORS, _ALL = 7, 9, 16


class Between(NamedTuple):
    """What the tokens between a query and a key do to their product."""

    #: The argument that gives it.
    kind: str
    first: Tensor
    second: Tensor | None
    slopes: list[float]


def between_of(decays: object, path_bias: object, householder: object, q: Tensor, dtype: torch.dtype) -> Between | None:
    """That of a call, whose arguments exclude each other."""
    given = {"decays": decays, "path_bias": path_bias, "householder": householder}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return None
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} exclude each other; give one of them")
    ((name, value),) = given.items()
    if name == "decays":
        check_tensor(name, value)
        check_device(name, value, q)
        return Between(name, value, None, [])
    letters = "p, r and slopes" if name == "path_bias" else "w and beta"
    if not isinstance(value, (tuple, list)) or len(value) != (3 if name == "path_bias" else 2):
        raise TypeError(f"{name}: expected the tuple of {letters}, got {type(value).__name__}")
    for at, x in enumerate(value[:2]):
        check_tensor(f"{name}[{at}]", x)
        check_device(f"{name}[{at}]", x, q)
    slopes = _slopes(value[2]) if name == "path_bias" else []
    return Between(name, value[0].to(dtype), value[1].to(dtype), slopes)


def _slopes(given: object) -> list[float]:
    """Slopes of heads, which are not learned."""
    if not hasattr(given, "__iter__") or getattr(given, "ndim", 1) != 1:
        raise TypeError(f"path_bias[2] = {given!r} must be a list of one slope per head")
    return [number(f"path_bias[2][{head}]", slope) for head, slope in enumerate(given)]


def decay_sums(decays: Tensor, k: Tensor, heads: int, lengths: Tensor | None, documents: Tensor | None, lowest: float) -> Tensor:
    """Cumulative log decays of features, ``[B, H, K, D]`` in f64, counted from the last key, of packed documents that of each; those of
    padding are not read.
    """
    wanted = (k.shape[0], heads, k.shape[2], k.shape[3])
    if decays.shape != wanted:
        raise ValueError(f"decays: expected [B, H, K, D] = {list(wanted)}, got shape {tuple(decays.shape)}")
    padding = None
    if lengths is not None and lengths.shape == (k.shape[0],):
        padding = (torch.arange(k.shape[2]) >= lengths[:, None])[:, None, :, None]
    if documents is not None and documents.dim() == 2:
        padding = (documents < 0)[:, None, :, None]
    decays = (decays if padding is None else decays.masked_fill(padding, 0.0)).to(torch.float64).clamp(min=lowest)
    if documents is not None:
        return -sums_after(decays, documents)
    behind = decays[:, :, 1:].flip(2).cumsum(2).flip(2)
    return -torch.nn.functional.pad(behind, (0, 0, 0, 1)) if k.shape[2] > 0 else decays


@lru_cache(maxsize=1024)
def _rule(scale: float, causal: bool, window: int | None, sink_tokens: int | None, softcap: float | None, threads: int) -> _native.Rule:
    return _native.Rule(scale, (causal, window, sink_tokens), softcap, threads)


def _given(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[_native.Rule, tuple]:
    first, second, *beside = rest[: _TENSORS - 3]
    kind, slopes, *options = rest[_TENSORS - 3 :]
    rows = (lambda x: x) if kind == "decays" else _rows
    between = (kind, rows(_dense(first)), None if second is None else rows(_dense(second)), list(slopes))
    return _rule(*options, torch.get_num_threads()), (_rows(q), _rows(k), _rows(v), between, *map(_dense, beside))


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    _check(q, k, v)
    out, lse = _forward_fake(q, k, v)
    rule, inputs = _given(q, k, v, *rest)
    _native.content_forward(rule, inputs, out, lse)
    return out, lse


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _out(q, v), q.new_empty(q.shape[:3])


def _backward(d_out: Tensor, out: Tensor, lse: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    made = _backward_fake(d_out, out, lse, *inputs)
    rule, given = _given(*inputs)
    told = [x if of is not None else None for x, of in zip(made, inputs[:_WITH_GRADIENTS], strict=True)]
    _native.content_backward(rule, given, (_rows(out), _dense(lse), _rows(d_out)), told)
    return made


def _backward_fake(d_out: Tensor, out: Tensor, lse: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    dense = lambda x: torch.empty_like(x, memory_format=torch.contiguous_format)  # noqa: E731
    own = [d_out.new_empty(0) if x is None else dense(x) for x in inputs[3:_WITH_GRADIENTS]]
    return (*map(_room, inputs[:3]), *own)


def _setup(ctx, inputs, output) -> None:
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(out, lse, *inputs[:_TENSORS])
    ctx.options = inputs[_TENSORS:]


def _gradient(ctx, d_out, _d_lse):
    if d_out is None:
        return (None,) * _ALL
    run = torch.ops.kerple.content_attention_backward if _transforms() is None else _Backward.apply
    made = run(d_out, *ctx.saved_tensors, *ctx.options)
    needs = ctx.needs_input_grad[:_WITH_GRADIENTS]
    return (*(d if need else None for d, need in zip(made, needs, strict=True)), *(None,) * (_ALL - _WITH_GRADIENTS))


_Forward = transformable(lambda *inputs: torch.ops.kerple.content_attention(*inputs), _setup, _gradient)
_Backward = transformable(lambda *inputs: torch.ops.kerple.content_attention_backward(*inputs))

registry.impl("kerple::content_attention", "cpu", lib=_library)(_forward)
registry.register_fake("kerple::content_attention", lib=_library)(_forward_fake)
registry.impl("kerple::content_attention_backward", "cpu", lib=_library)(_backward)
registry.register_fake("kerple::content_attention_backward", lib=_library)(_backward_fake)
registry.register_autograd("kerple::content_attention", _gradient, setup_context=_setup, lib=_library)
registry.register_autograd("kerple::content_attention_backward", _second, lib=_library)


def attend_between(
    q: Tensor, k: Tensor, v: Tensor, between: Between, clocks: Tensor | None, sinks: Tensor | None, key_lengths: Tensor | None,
    documents: Tensor | None, *options: Any,
) -> Tensor:  # fmt: skip
    """Attention of tensors of one type; ``options`` are scale, causal, window, sink_tokens and softcap."""
    lengths = whole_numbers("key_lengths", key_lengths, q.device)
    arguments = (q, k, v, between.first, between.second, clocks, sinks, lengths, documents, between.kind, between.slopes, *options)
    refuse_tangents(*arguments[:_TENSORS])
    run = torch.ops.kerple.content_attention if _compiling() or _transforms() is None else _Forward.apply
    return run(*arguments)[0]
