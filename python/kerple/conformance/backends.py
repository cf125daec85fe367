"""PyTorch's own attention functions, each with a bias by distance in the form that it accepts."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from . import plain
from .definition import GRADIENTS, Call, Unsupported

Attention = Callable[[Call], Tensor]


def eager(call: Call) -> Tensor:
    """Scores of all pairs in the type of the tensors, and ``softmax``."""
    k, v = call.grouped()
    scores = call.q @ k.transpose(-1, -2) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.weight is not None:
        scores = scores * call.spread(call.weight)
    added = call.added()
    scores = scores if added is None else scores + added
    scores = scores.masked_fill(~call.seen(), -math.inf)
    if call.sinks is not None:
        column = call.sinks[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column.to(scores.dtype)], -1)
    weights = scores.softmax(-1)[..., : k.shape[2]]
    if call.dropout_p is not None:
        weights = weights * call.dropout_factors().to(weights.dtype)
    return weights.to(v.dtype) @ v


def _refuse(call: Call, *features: str) -> None:
    """Refuses a call with one of these features."""
    for feature in features:
        if getattr(call, feature) is not None:
            raise Unsupported(feature)


def sdpa(call: Call) -> Tensor:
    """``scaled_dot_product_attention`` with bias, gates and mask as a matrix of all pairs in the
    type of the tensors, as it requires.
    """
    _refuse(call, "weight", "softcap", "sinks", "dropout_p")
    k, v = call.grouped()
    added = call.added()
    added = call.q.new_zeros(1, 1, 1, 1) if added is None else added.to(call.q.dtype)
    mask = torch.where(call.seen(), added, -math.inf)
    return torch.nn.functional.scaled_dot_product_attention(call.q, k, v, attn_mask=mask, scale=call.scale)


@cache
def _compiled(*_: object) -> Callable:
    """FlexAttention compiled for calls of one kind. It drops earlier compilations, since dynamic
    sizes and recompilation limits are not part of the test.
    """
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    return torch.compile(flex_attention, dynamic=False)


def flex(call: Call) -> Tensor:
    """Compiled FlexAttention whose score function reads tables and cumulative gates."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    _refuse(call, "sinks", "rows", "positions", "dropout_p")
    (batch, _, queries, _), keys = call.q.shape, call.k.shape[2]
    block = create_block_mask(_flex_mask(call), batch, None, queries, keys, device=call.q.device)
    k, v = call.grouped()
    # a failed compilation is never tried again in this process, so run uncompiled where there is no
    # backward
    has_backward = call.q.device.type != "cpu" or not (torch.is_grad_enabled() and call.q.requires_grad)
    given = (name for name in GRADIENTS if getattr(call, name) is not None)
    kind = (call.q.shape, call.k.shape, call.q.dtype, call.causal, call.window, call.sink_tokens, call.softcap, *given)
    masks = (call.key_lengths is None, call.key_starts is None or call.key_starts.dim(), call.key_ends is None, call.document_ids is None)
    run = _compiled(*kind, *masks) if has_backward else flex_attention
    return run(call.q, k, v, score_mod=_flex_score(call), block_mask=block, scale=call.scale)


def _flex_score(call: Call) -> Callable | None:
    bias, weight, softcap = call.bias, call.weight, call.softcap
    gates = None if call.gates is None else call.cumulative_gates()
    if bias is None and weight is None and gates is None and softcap is None:
        return None
    shift, table = call.k.shape[2] - call.q.shape[2], bias if weight is None else weight
    origin = 0 if call.causal or table is None else table.shape[1] // 2
    last = 0 if table is None else table.shape[1] - 1

    def score(s, b, h, i, j):
        d = i + shift - j
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if weight is not None:
            s = s * weight[h, (origin + d).clamp(0, last)]
        if bias is not None:
            s = s + bias[h, (origin + d).clamp(0, last)]
        if gates is not None:
            between = gates[b, h, i + shift] - gates[b, h, j]
            s = s + torch.where(d >= 0, between, -between).to(s.dtype)
        return s

    return score


def _flex_mask(call: Call) -> Callable:
    causal, window, shift = call.causal, call.window, call.k.shape[2] - call.q.shape[2]
    sink_tokens, places = call.sink_tokens, None if call.sink_tokens is None else call.places().expand(call.q.shape[0], -1)
    lengths, starts, ends, ids = call.key_lengths, call.key_starts, call.key_ends, call.document_ids

    def seen(b, h, i, j):
        d = i + shift - j
        pair = d >= 0 if causal else j >= 0
        if window is not None:
            near = d.abs() < window
            pair = pair & (near if sink_tokens is None else near | (places[b, j] < sink_tokens))
        if lengths is not None:
            pair = pair & (j < lengths[b])
        if starts is not None:
            pair = pair & (j >= (starts[b, i] if starts.dim() == 2 else starts[b]))
        if ends is not None:
            pair = pair & (j < ends[b, i])
        return pair if ids is None else pair & (ids[b, i + shift] == ids[b, j]) & (ids[b, j] >= 0)

    return seen


def _features(call: Call) -> dict[str, object]:
    """A call as keyword arguments of :func:`kerple.torch.attention`."""
    named = {name: getattr(call, name) for name in _ARGUMENTS}
    named["relative"] = None if call.rows is None else (call.rows, call.profiles)
    named["position_kernel"] = None if call.positions is None else (call.kernel, call.parameters)
    return {name: value for name, value in named.items() if value is not None}


_ARGUMENTS = (
    "bias", "weight", "causal", "window", "sink_tokens", "scale", "softcap", "sinks", "gates", "positions", "key_lengths", "key_starts", "key_ends",
    "document_ids", "dropout_p", "dropout_seed",
)  # fmt: skip


def kerple(call: Call) -> Tensor:
    """:func:`kerple.torch.attention`."""
    from ..torch import attention

    return attention(call.q, call.k, call.v, **_features(call))


def plain_with(module: ModuleType) -> Attention:
    """:func:`kerple.conformance.plain.attention` of this module. Its small tiles have many borders in
    short sequences.
    """

    def plain(call: Call) -> Tensor:
        tile = 32 if call.k.shape[2] <= 512 else 256
        return module.attention(call.q, call.k, call.v, **_features(call), tile=tile)

    return plain


BUILT_IN: dict[str, Attention] = {
    "eager": eager,
    "sdpa": sdpa,
    "flex": flex,
    "kerple": kerple,
    "plain": plain_with(plain),
}


def find(name: str) -> Attention:
    """One of the functions above, or ``MODULE:FUNCTION``.

    Raises:
        ValueError: the function does not exist; the message names the missing part.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"--against {name}: use one of {', '.join(BUILT_IN)}, or MODULE:FUNCTION")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--against {name}: {error}") from None
    if not callable(found):
        raise ValueError(f"--against {name}: {function} is no function")
    return found
