"""Maps of queries and keys before their product: rotations by content, PoPE and FoPE; and what tokens between them do to it,
made of hidden states.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def turned_by(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs ``(x[n], x[n + D/2])`` of ``[B, H, L, D]`` turned by these angles in float64, ``[B, H, L, D/2]``."""
    angles = torch.remainder(angles, math.tau)  # gradients pass; sines of large angles are slow and, on GPUs, inexact
    dtype = torch.promote_types(x.dtype, torch.float32)  # halves are rounded once
    return _rotated(x.to(dtype), angles.cos().to(dtype), angles.sin().to(dtype)).to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def for_each_head(x: Tensor, heads: int) -> Tensor:
    """Keys or values ``[B, G, K, D]`` repeated for the query heads that read them."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def polar(x: Tensor, angles: Tensor) -> Tensor:
    """The first R features as lengths and angles ``[B or 1, H or 1, L, R]``: ``D + R`` features."""
    width = angles.shape[-1]
    lengths = torch.nn.functional.softplus(x[..., :width], threshold=1e3)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([lengths * cos, lengths * sin, x[..., width:]], -1)


def clamped(delta: Tensor) -> Tensor:
    """Numbers within [-2 pi, 0]; the gradient passes within and on the border."""
    value = delta.detach().clamp(-math.tau, 0.0)
    return value + (delta - delta.detach()) * (value == delta.detach())


def mixed(x: Tensor, angles: Tensor, cos_mix: Tensor, sin_mix: Tensor, zero_pad: bool) -> Tensor:
    """Pairs turned by mixtures ``[H, F, O]`` of the waves of angles ``[B or 1, 1, L, F]``; other pairs stay, or turn
    by 45 degrees.
    """
    others = x.shape[-1] // 2 - cos_mix.shape[-1]
    pad = lambda made, value: torch.nn.functional.pad(made.to(x.dtype), (0, others), value=value)  # noqa: E731
    cos, sin = angles.cos() @ cos_mix.to(torch.float64), angles.sin() @ sin_mix.to(torch.float64)
    return _rotated(x, pad(cos, 1.0), pad(sin, 0.0 if zero_pad else 1.0))


def increments(
    rows: Tensor, weight_in: Tensor, weight_out: Tensor, filters: Tensor, bias: Tensor | None,
    gate: tuple[Tensor, Tensor] | None, heads: int, before: Tensor | None,
) -> Tensor:  # fmt: skip
    """What each token turns the pairs of its heads by, ``[B, H, L, P]``, before rates. ``before`` are the hidden states
    of the tokens before these.
    """
    earlier = 0 if before is None else before.shape[1]
    rows = rows if before is None else torch.cat([before.to(rows.dtype), rows], 1)
    parts = rows.unflatten(-1, (heads, -1))
    normed = (parts / (parts.square().sum(-1, keepdim=True) + 1e-6).sqrt()).flatten(-2)
    u = normed @ weight_in.to(rows.dtype) @ weight_out.to(rows.dtype)
    made = convolved(u, filters, None)
    if bias is not None:
        made = made + bias.to(u.dtype).exp()
    made = made.unflatten(-1, (heads, -1))
    if gate is not None:
        weight, own = (x.to(rows.dtype) for x in gate)
        made = made * torch.sigmoid(normed @ weight + own)[..., None]
    return made[:, earlier:].transpose(1, 2)


def convolved(x: Tensor, filters: Tensor, positions: Tensor | None) -> Tensor:
    """``sum over w of f[c, w] x_(t - W + 1 + w)[c]`` of rows ``[B, L, C]``: tokens before the first, or in other documents where
    there are ``positions`` ``[B, L]`` in these, are 0.
    """
    taps, made = filters.shape[1], 0.0
    padded = torch.nn.functional.pad(x, (0, 0, taps - 1, 0))
    for w in range(taps):
        part = padded[:, w : w + x.shape[1]]
        if positions is not None:
            part = part.masked_fill((positions < taps - 1 - w)[..., None], 0.0)
        made = made + part * filters[:, w].to(x.dtype)
    return made


def bounded(log_gates: Tensor, bound: float | None) -> Tensor:
    """``bound (e^(g / bound) - 1)``, above ``-bound``."""
    return log_gates if bound is None else bound * torch.expm1(log_gates / bound)


def path_features(rows: Tensor, weight: Tensor, heads: int, positions: Tensor, relative: bool) -> tuple[Tensor, Tensor]:
    """Features ``[B, H, L, E]`` of tokens at these positions ``[B or 1, L]``, as queries and as keys of a path."""
    p = (rows @ weight.to(rows.dtype)).unflatten(-1, (heads, -1)).transpose(1, 2)
    angles = -positions.to(torch.float64)[:, None, :, None].expand(-1, -1, -1, p.shape[-1] // 2)  # in the published sense
    r = p / (p.square().mean(-1, keepdim=True) + torch.finfo(p.dtype).eps).sqrt()
    return turned_by(p, angles) if relative else p, turned_by(r, angles)


def householder_parts(
    rows: Tensor, weights: tuple[Tensor, Tensor], filters: Tensor, strength: tuple[Tensor, Tensor], heads: int, positions: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Directions ``[B, H, L, D]`` of length 1 and strengths ``[B, H, L, 1]`` within 0 and 2."""
    projected = rows @ weights[0].to(rows.dtype) @ weights[1].to(rows.dtype)
    u = torch.nn.functional.silu(convolved(projected, filters, positions)).unflatten(-1, (heads, -1))
    w = u / (u.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    beta = 2.0 * torch.sigmoid(rows @ strength[0].to(rows.dtype) + strength[1].to(rows.dtype))
    return w.transpose(1, 2), beta.transpose(1, 2)[..., None]
