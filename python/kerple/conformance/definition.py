"""The reference: attention with a bias over distances in f64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Call:
    """The inputs of an implementation.

    Query ``i`` of Q is at position ``K - Q + i``; ``d = i - j`` is the distance from query to key.
    The score of a pair is ``scale q.k + bias[h, d]``. A query attends to keys with ``0 <= d``, or
    to all without ``causal``, within ``|d| < window``, and of sequence b only to the first
    ``key_lengths[b]``. A query that may not attend to any key has the output 0 and passes no
    gradient on.
    """

    q: Tensor
    """``[B, H, Q, D]``"""
    k: Tensor
    """``[B, G, K, D]``, where G divides H."""
    v: Tensor
    """``[B, G, K, D]``"""
    bias: Tensor
    """``[H, K]`` over distances 0 to K - 1; without ``causal`` ``[H, 2 L - 1]`` over ``-(L - 1)`` to
    ``L - 1``, where L is the larger of Q and K.
    """
    causal: bool
    window: int | None
    key_lengths: Tensor | None
    """``[B]``"""
    scale: float

    def distances(self) -> Tensor:
        """``[Q, K]``"""
        queries, keys = self.q.shape[2], self.k.shape[2]
        return torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)

    def seen(self) -> Tensor:
        """The attention mask, ``[B or 1, 1, Q, K]``."""
        d = self.distances()
        seen = d >= 0 if self.causal else torch.ones_like(d, dtype=torch.bool)
        if self.window is not None:
            seen = seen & (d.abs() < self.window)
        seen = seen[None, None]
        if self.key_lengths is not None:
            seen = seen & (torch.arange(self.k.shape[2]) < self.key_lengths[:, None])[:, None, None]
        return seen

    def spread(self) -> Tensor:
        """The bias per pair, ``[H, Q, K]``."""
        origin = 0 if self.causal else self.bias.shape[1] // 2
        return self.bias[:, (origin + self.distances()).clamp(0, self.bias.shape[1] - 1)]

    def grouped(self) -> tuple[Tensor, Tensor]:
        """Keys and values for each query head, ``[B, H, K, D]``."""
        group = self.q.shape[1] // self.k.shape[1]
        return self.k.repeat_interleave(group, 1), self.v.repeat_interleave(group, 1)


def weights(call: Call) -> Tensor:
    """Attention weights per pair, ``[B, H, Q, K]`` in f64; zeros for a query that may not attend to
    any key.
    """
    k = call.grouped()[0].double()
    scores = call.q.double() @ k.transpose(-1, -2) * call.scale + call.spread().double()
    scores = scores.masked_fill(~call.seen(), -math.inf)
    lowest = torch.finfo(scores.dtype).min
    exponentials = (scores - scores.amax(-1, keepdim=True).clamp(min=lowest)).exp()
    sums = exponentials.sum(-1, keepdim=True)
    return exponentials / sums.where(sums > 0, torch.ones_like(sums))


def definition(call: Call) -> Tensor:
    """The output in f64, with whole score matrices; gradients by autograd."""
    return weights(call) @ call.grouped()[1].double()


@torch.no_grad()
def sizes(call: Call, up: Tensor) -> list[float]:
    """For the output and the gradients of q, k, v and bias: the largest sum of the magnitudes of
    the terms that are added.

    Rounding is relative to these and not to the results: the gradient of a row with a single key is
    0, a difference of two equal numbers.
    """
    (k, v), p, up = (x.double() for x in call.grouped()), weights(call), up.double()
    products = up @ v.transpose(-1, -2)
    d_scores = p * (products.abs() + (p * products).sum(-1, keepdim=True).abs())
    group = lambda x: x.reshape(x.shape[0], call.k.shape[1], -1, *x.shape[2:]).sum(2)  # noqa: E731
    d_bias = torch.zeros(call.bias.shape, dtype=torch.float64)
    origin = 0 if call.causal else call.bias.shape[1] // 2
    places = (origin + call.distances()).clamp(0, call.bias.shape[1] - 1).flatten()
    d_bias.index_add_(1, places, d_scores.sum(0).flatten(1))
    found = [
        p @ v.abs(),
        call.scale * (d_scores @ k.abs()),
        call.scale * group(d_scores.transpose(-1, -2) @ call.q.double().abs()),
        group(p.transpose(-1, -2) @ up.abs()),
        d_bias,
    ]
    return [x.max().item() if x.numel() else 0.0 for x in found]
