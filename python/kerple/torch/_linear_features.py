"""Features and stochastic codes of linear attention, composed of PyTorch operations for devices without an engine of their own.

    phi(x) = e^(+-z - n) / sqrt(count), z = x Omega / D^(1/4)        n = |x|^2 / (2 sqrt(D)) of keys, max |z| of queries
    x_hat[l, r] = sum over d of x[l, d] code[l, d, r]                 a code of positions, in place of queries and keys

Random numbers are those of the processor: they are drawn there, once for each draw, and copied. What a code makes is
computed in pieces of some positions, and again in the backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d, conv3d, softplus
from torch.utils.checkpoint import checkpoint

from ._ops import _transforms

#: What is added to the sums of products.
GUARDS = {"favor": 1e-6, "relu": 0.0, "elu": 1e-6}
#: Positions whose code is computed at once.
PIECE = 256


def features(x: Tensor, kind: str, omega: Tensor | None, is_query: bool) -> Tensor:
    """``[.., D]`` to ``[.., F]``."""
    if kind == "relu":
        return x.clamp(min=0.0) + 1e-3
    if kind == "elu":
        return x.clamp(min=0.0) + x.clamp(max=0.0).exp()
    width = x.shape[-1]
    z = (x * width**-0.25) @ omega
    less = z.abs().amax(-1, keepdim=True) if is_query else x.square().sum(-1, keepdim=True) * (0.5 / math.sqrt(width))
    return torch.cat([(z - less).exp(), (-z - less).exp()], -1) * (2 * omega.shape[1]) ** -0.5


class Code(NamedTuple):
    """A stochastic code, as the native library describes it."""

    #: Numbers of a row that the code makes, R.
    realisations: int
    #: Sinusoids of a feature; 0 of a code of filters.
    waves: int
    #: Taps of a filter, and positions, along each axis.
    taps: list[int]
    size: list[int]
    gating: str | None
    #: Whether the gradient in frequencies is counted from the middle of a sequence.
    centred: bool

    def rows_of_noise(self, first: int, count: int) -> tuple[int, int]:
        """Of filters: the first row of noise that these positions need, and how many."""
        slab, stride = math.prod(self.size[1:]), math.prod(n + taps - 1 for n, taps in zip(self.size[1:], self.taps[1:], strict=True))
        start, end = first // slab, (first + count - 1) // slab + self.taps[0]
        return start * stride, (end - start) * stride


#: Noise of a call: of a code or of its gate, from this row on, so many rows of each stream, ``[H D, rows, R]``.
Draw = Callable[[str, int, int], Tensor]


def coded(x: Tensor, code: Code, learned: list[Tensor], draw: Draw, side: int, first: int, span: int) -> Tensor:
    """Rows ``[B, H, L, D]`` of queries (side 0) or keys (1) at positions from ``first`` on, contracted with the code:
    ``[B, H, L, R]``. ``learned`` are the parameters of the encoding.
    """
    sizes = (x.shape[1], x.shape[3])
    # noise that all positions share is drawn once, that of filters for each piece
    waves = draw("code", 0, 2 * code.waves).unflatten(0, sizes).flatten(1, 2) if code.waves > 0 else None
    of_gate = None if code.gating is None else draw("gate", 0, 1)[:, 0].unflatten(0, sizes)

    def contracted(rows: Tensor, at: int) -> Tensor:
        of_code = of_noise = rows
        if code.gating is not None:
            share = torch.sigmoid(learned[-1].to(x.dtype))[:, None]
            of_code, of_noise = rows * (1.0 - share).sqrt(), rows * share.sqrt()
            if code.gating == "jax":
                of_code, of_noise = of_noise, of_code
        out = _filtered(of_code, code, learned[side], draw, at) if waves is None else _waves(of_code, code, learned, waves, side, at, span)
        out = out if of_gate is None else out + of_noise @ of_gate
        return out * (code.realisations * x.shape[3]) ** -0.25

    pieces = []
    for start in range(0, x.shape[2], PIECE):
        rows = x[:, :, start : start + PIECE]
        if torch.is_grad_enabled() and _transforms() is None:
            pieces.append(checkpoint(contracted, rows, first + start, use_reentrant=False, preserve_rng_state=False))
        else:
            pieces.append(contracted(rows, first + start))
    return torch.cat(pieces, 2) if pieces else x.new_empty(*x.shape[:3], code.realisations)


def _waves(rows: Tensor, code: Code, learned: list[Tensor], noise: Tensor, side: int, first: int, span: int) -> Tensor:
    """Contracted with sums of sinusoids, whose angles are computed in float64; of noise ``[H, 2 K D, R]``."""
    freqs, offsets, gains = learned[:3]  # [H, D, K]
    origin = 0.5 * span if code.centred else 0.0
    f = 0.5 * torch.sigmoid(freqs.to(torch.float64))[:, None]
    positions = torch.arange(first, first + rows.shape[2], device=rows.device, dtype=torch.float64)[:, None, None]
    turns = f.detach() * origin + f * (positions - origin)
    angles = (turns - turns.detach().floor()).to(rows.dtype) * (2.0 * math.pi)
    if side == 0:
        angles = angles + offsets.to(rows.dtype)[:, None]
    heights = softplus(gains.to(rows.dtype)) * (2 * code.waves) ** -0.5
    sinusoids = torch.stack([angles.cos(), angles.sin()], -1) * heights[:, None, ..., None]
    return (rows[..., None] * sinusoids.flatten(3)).flatten(3) @ noise


def _filtered(rows: Tensor, code: Code, filters: Tensor, draw: Draw, first: int) -> Tensor:
    """Contracted with filtered noise."""
    heads, count, features = rows.shape[1:]
    streams, slab = heads * features, math.prod(code.size[1:])
    start, needed = code.rows_of_noise(first, count)
    axes = [n + taps - 1 for n, taps in zip(code.size[1:], code.taps[1:], strict=True)]
    noise = draw("code", start, needed).permute(2, 0, 1).unflatten(2, (-1, *axes))
    convolve = (conv1d, conv2d, conv3d)[len(axes)]
    filters = filters.to(rows.dtype).reshape(streams, 1, *code.taps)
    own = convolve(noise, filters, groups=streams).flatten(2)[:, :, first % slab : first % slab + count]  # [R, H D, L]
    return torch.einsum("bhld,rhdl->bhlr", rows, own.unflatten(1, (heads, features)))
