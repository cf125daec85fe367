"""PyTorch's own attention functions, each with a bias by distance in the form that it accepts."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from .definition import Call

Attention = Callable[[Call], Tensor]


def eager(call: Call) -> Tensor:
    """Scores of all pairs in the type of the tensors, and ``softmax``."""
    k, v = call.grouped()
    scores = call.q @ k.transpose(-1, -2) * call.scale + call.spread()
    return scores.masked_fill(~call.seen(), -math.inf).softmax(-1) @ v


def sdpa(call: Call) -> Tensor:
    """``scaled_dot_product_attention`` with bias and mask as a matrix of all pairs."""
    k, v = call.grouped()
    mask = call.spread()[None].masked_fill(~call.seen(), -math.inf)
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
    """Compiled FlexAttention whose score function reads the bias."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    (batch, _, queries, _), keys = call.q.shape, call.k.shape[2]
    origin = 0 if call.causal else call.bias.shape[1] // 2
    last, bias, lengths = call.bias.shape[1] - 1, call.bias, call.key_lengths
    shift = keys - queries

    def score(s, b, h, i, j):
        return s + bias[h, (origin + i + shift - j).clamp(0, last)]

    def seen(b, h, i, j):
        d = i + shift - j
        pair = d >= 0 if call.causal else j >= 0
        if call.window is not None:
            pair = pair & (d.abs() < call.window)
        return pair if lengths is None else pair & (j < lengths[b])

    block = create_block_mask(seen, batch, None, queries, keys, device="cpu")
    k, v = call.grouped()
    # a failed compilation is never tried again in this process, so run uncompiled where there is no
    # backward
    has_backward = call.q.device.type != "cpu" or not (torch.is_grad_enabled() and call.q.requires_grad)
    kind = (call.q.shape, call.k.shape, call.q.dtype, call.causal, call.window, lengths is None)
    run = _compiled(*kind) if has_backward else flex_attention
    return run(call.q, k, v, score_mod=score, block_mask=block, scale=call.scale)


def kerple(call: Call) -> Tensor:
    """:func:`kerple.torch.attention`."""
    from ..torch import attention

    return attention(
        call.q, call.k, call.v, bias=call.bias, causal=call.causal, window=call.window, scale=call.scale,
        key_lengths=call.key_lengths,
    )  # fmt: skip


BUILT_IN: dict[str, Attention] = {"eager": eager, "sdpa": sdpa, "flex": flex, "kerple": kerple}


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
