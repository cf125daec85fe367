"""Attention whose scores are more than tables and gates, composed of PyTorch operations for devices without an engine of
their own: FIRE, DAPE, Transformer-XL, Shaw et al., CoPE and xPos.

Queries go by in chunks, whose scores are the only ones in memory. The backward computes them again. Every operation
adds in a fixed order, so that a call has the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, pad
from torch.utils.checkpoint import checkpoint

from ._documents import own_keys
from ._gpu import prefix_sums
from ._maps import for_each_head
from ._ops import _transforms

#: Bytes of scores, and of what is computed from them, that are in memory at once.
CHUNK_BYTES = 256 << 20
#: Slope of hidden units below 0: of DAPE's network, and of FIRE under it.
SLOPE = 0.01


class Chunk(NamedTuple):
    """Some queries, and all keys."""

    #: The number of the first query among the keys, and how many queries there are.
    start: int
    count: int
    #: Numbers of all keys, ``[K]``.
    keys: Tensor
    #: The first key of each query's sequence or document, and one past its last, ``[B or 1, C, 1]``.
    first: Tensor
    end: Tensor
    #: Which keys each query sees, ``[B or 1, 1, C, K]``.
    seen: Tensor
    causal: bool

    @property
    def rows(self) -> Tensor:
        return torch.arange(self.start, self.start + self.count, device=self.keys.device)[:, None]

    def distances(self) -> Tensor:
        """All ``i - j`` between these queries and keys, rising, ``[N]``."""
        return torch.arange(self.start - len(self.keys) + 1, self.start + self.count, device=self.keys.device)

    def by_pair(self, x: Tensor) -> Tensor:
        """Of ``[.., C, N]``, by distance, that of each key, ``[.., C, K]``: every row is shifted by one more."""
        width = x.shape[-1]
        rows = pad(x.flip(-1), (0, 1)).flatten(-2)[..., self.count - 1 : self.count - 1 + self.count * width]
        return rows.unflatten(-1, (self.count, width))[..., : len(self.keys)]

    def by_distance(self, x: Tensor) -> Tensor:
        """Of ``[.., C, K]`` that of each distance, ``[.., C, N]``, 0 where no key is."""
        width = len(self.keys) + self.count - 1
        rows = pad(x, (0, self.count - 1)).flatten(-2)
        return pad(rows, (self.count - 1, 1)).unflatten(-1, (self.count, width + 1))[..., :width].flip(-1)


#: From scaled scores ``[B, H, C, K]`` and queries ``[B, H, C, D]`` to logits, and what is added to outputs, given weights.
Scores = Callable[[Tensor, Tensor, Chunk], Tensor]
Values = Callable[[Tensor, Chunk], Tensor]


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores, values: Values | None, width: int, *, scale: float, causal: bool, window: int | None,
    softcap: float | None, sinks: Tensor | None, key_lengths: Tensor | None, documents: Tensor | None,
    kept: Callable[[int, int], Tensor] | None = None, dropout_p: float = 0.0,
    products: Callable[[Tensor, Tensor, Chunk], Tensor] | None = None, most_rows: int | None = None,
) -> Tensor:  # fmt: skip
    """Attention of ``[B, H, Q, D]`` queries, the last of ``[B, G, K, D]`` keys.

    ``scores`` may hold ``width`` numbers for each pair of a sequence, of at most ``most_rows`` queries at once. ``products`` replaces ``q k^T`` of all heads. ``kept`` are
    the weights of some queries that dropout leaves.
    """
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    k, v = (for_each_head(x, heads) for x in (k, v))
    if documents is not None:
        first, end = own_keys(documents, keys)
    else:
        first = torch.zeros(1, keys, dtype=torch.int64, device=q.device)
        end = torch.full((1, keys), keys, device=q.device) if key_lengths is None else key_lengths[:, None].expand(-1, keys)
    numbers = torch.arange(keys, device=q.device)
    if documents is not None or key_lengths is not None:  # what is in padding is not read
        padding = ((numbers >= end) | (first >= end))[:, None, :, None]
        k, v = k.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)

    def part(q: Tensor, k: Tensor, v: Tensor, at: int) -> Tensor:
        start, count = keys - queries + at, q.shape[2]
        rows = torch.arange(start, start + count, device=q.device)
        own, past = first[:, start : start + count, None], end[:, start : start + count, None]
        seen = (numbers >= own) & (numbers < past)
        if causal:
            seen = seen & (numbers <= rows[:, None])
        if window is not None:
            seen = seen & ((rows[:, None] - numbers).abs() < window)
        chunk = Chunk(start, count, numbers, own, past, seen[:, None], causal)
        s = (q @ k.mT if products is None else products(q, k, chunk)) * scale
        s = s if softcap is None else softcap * torch.tanh(s / softcap)
        z = scores(s, q, chunk).masked_fill(~chunk.seen, float("-inf"))
        most = z.amax(-1, keepdim=True).detach()
        if sinks is not None:
            most = torch.maximum(most, sinks.detach()[:, None, None])
        most = most.clamp(min=torch.finfo(z.dtype).min)
        weights = (z - most).exp()
        total = weights.sum(-1, keepdim=True)
        if sinks is not None:
            total = total + (sinks[:, None, None] - most).exp()
        weights = weights / total.masked_fill(total == 0.0, 1.0)
        if kept is not None:
            weights = torch.where(kept(at, count), weights / (1.0 - dropout_p), 0.0)
        out = weights @ v
        return out if values is None else out + values(weights, chunk)

    rows = max(1, CHUNK_BYTES // max(1, batch * keys * width * q.element_size()))
    rows = max(4, min(rows, most_rows or rows) // 4 * 4)  # dropout draws for four queries together
    parts = []
    for at in range(0, queries, rows):
        own = q[:, :, at : at + rows]
        if torch.is_grad_enabled() and _transforms() is None:
            parts.append(checkpoint(part, own, k, v, at, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(part(own, k, v, at))
    return torch.cat(parts, 2) if parts else q.new_empty(batch, heads, 0, v.shape[3])


def _positions(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Of queries, ``[B or 1, C, 1]``, and keys, ``[B or 1, C, K]``, in the document of the query."""
    return chunk.rows - chunk.first, chunk.keys - chunk.first


def fire(learned: list[Tensor], threshold: float, slope: float, dtype: torch.dtype) -> Callable[[Chunk], Tensor]:
    """FIRE's bias, ``[B or 1, H, C, K]``."""
    c, m, w1, b1, w2, b2 = (x.reshape(-1).to(torch.float64) for x in learned)
    hidden = w1.shape[0]
    w1, b1, w2, b2 = w1.to(dtype), b1.to(dtype), w2.to(dtype).reshape(-1, hidden), b2.to(dtype)

    def bias(chunk: Chunk) -> Tensor:
        of_query, of_key = (x.to(torch.float64) for x in _positions(chunk))
        furthest = of_query if chunk.causal else torch.maximum(of_query, of_key)
        psi = lambda x: torch.log1p((c * x).abs())  # noqa: E731
        t = psi((of_query - of_key).abs()) / (psi(torch.maximum(furthest, (m * threshold).abs())) + 1e-6)
        units = leaky_relu(t.to(dtype)[..., None] * w1 + b1, slope)
        return (units @ w2.mT + b2).movedim(-1, 1)

    return bias


def network(learned: list[Tensor], keys: dict[str, Any], bias: Callable[[Chunk], Tensor] | None, dtype: torch.dtype) -> Scores:
    """DAPE's network over heads, whose layers see some neighbours of a key."""
    first, first_bias, second, second_bias = (x.to(dtype) for x in learned)
    taps, variant, is_closed = keys["kernel"], keys["variant"], keys.get("edge") == "closed"
    first, second = first.reshape(*first.shape[:2], taps), second.reshape(*second.shape[:2], taps)
    reach = taps // 2

    def layer(x: Tensor, weight: Tensor, added: Tensor) -> Tensor:
        """``[B, C, R, N]`` to ``[B, O, R, N - 2 reach]``."""
        count, made = x.shape[-1] - 2 * reach, added[:, None, None]
        for tap in range(taps):
            part = x[..., tap : tap + count]
            made = made + (weight[:, :, tap] @ part.flatten(2)).unflatten(2, part.shape[2:])
        return made

    def scores(s: Tensor, _: Tensor, chunk: Chunk) -> Tensor:
        b = None if bias is None else bias(chunk).expand_as(s)
        if b is None:
            seen_by, added = s, s
        else:
            added = s if variant == "concat" else s + b
            seen_by = {"add_residual": s + b, "bias_only": b}.get(variant)
            seen_by = torch.cat([s, b], 1) if seen_by is None else seen_by
        if taps == 1:
            return added + layer(leaky_relu(layer(seen_by, first, first_bias), SLOPE), second, second_bias)
        units = layer(pad(seen_by.masked_fill(~chunk.seen, 0.0), (2 * reach, 2 * reach)), first, first_bias)
        at = torch.arange(-reach, len(chunk.keys) + reach, device=s.device)
        # nothing is before the first key of a document; after the last one units are what they are in a longer sequence, or 0
        outside = at < chunk.first
        if is_closed or not chunk.causal:
            outside = outside | (at >= chunk.end)
        return added + layer(leaky_relu(units, SLOPE).masked_fill(outside[:, None], 0.0), second, second_bias)

    return scores


def contextual(embedding: Tensor, dtype: torch.dtype) -> Scores:
    """CoPE: positions are numbers of open gates, and ``q . e`` is interpolated between whole ones."""
    e = embedding.to(dtype)
    most = e.shape[1] - 1

    def scores(s: Tensor, q: Tensor, chunk: Chunk) -> Tensor:
        gates = torch.where(chunk.seen, torch.sigmoid(s), 0.0).to(torch.float64)
        upto, is_own = prefix_sums(gates), chunk.keys == chunk.rows
        of_own, upto_own = (torch.where(is_own, x, 0.0).sum(-1, keepdim=True) for x in (gates, upto))
        behind = upto_own - upto + gates
        if not chunk.causal:
            behind = torch.where(chunk.keys > chunk.rows, upto - upto_own + of_own, behind)
        p = behind.clamp(max=most).to(s.dtype)
        # whole positions by comparison, whose weights have the derivatives of the interpolation
        whole = p.detach().floor().clamp(max=most)
        part = p - whole
        of_whole, z = s, q @ e
        for n in range(most + 1):
            share = torch.where(whole == n, 1.0 - part, torch.where(whole == n - 1, part, 0.0))
            of_whole = of_whole + share * z[..., n : n + 1]
        return of_whole

    return scores


def projected(waves: Callable[[Tensor], Tensor], more: Tensor, heads: int, scale: float, dtype: torch.dtype) -> Scores:
    """Transformer-XL: products of queries with vectors of distances, ``[N, H D]``."""

    def scores(s: Tensor, q: Tensor, chunk: Chunk) -> Tensor:
        vectors = waves(chunk.distances()).to(dtype).unflatten(-1, (heads, -1)).transpose(0, 1)
        return s + scale * chunk.by_pair((q + more.to(dtype)[:, None]) @ vectors.mT)

    return scores


def _vectors(learned: Tensor, chunk: Chunk, dtype: torch.dtype) -> Tensor:
    """The learned vector of each distance, ``[N, D]``, chosen by a product, whose gradients add in order."""
    reach = learned.shape[0] // 2
    own = torch.arange(-reach, reach + 1, device=learned.device)
    return (chunk.distances().clamp(-reach, reach)[:, None] == own).to(dtype) @ learned.to(dtype)


def shaw(learned: list[Tensor], scale: float, dtype: torch.dtype) -> tuple[Scores, Values | None]:
    def scores(s: Tensor, q: Tensor, chunk: Chunk) -> Tensor:
        return s + scale * chunk.by_pair(q @ _vectors(learned[0], chunk, dtype).mT)

    def values(weights: Tensor, chunk: Chunk) -> Tensor:
        return chunk.by_distance(weights) @ _vectors(learned[1], chunk, dtype)

    return scores, values if len(learned) > 1 else None


def table(two_sided: Tensor) -> Callable[[Chunk], Tensor]:
    """A bias over the distances ``-(K - 1)..K - 1``, ``[H, 2 K - 1]``."""

    def bias(chunk: Chunk) -> Tensor:
        own = two_sided[:, chunk.start : chunk.start + len(chunk.keys) + chunk.count - 1]
        return chunk.by_pair(own[:, None].expand(-1, chunk.count, -1))[None]

    return bias


def fading(rate: Tensor) -> Callable[[Tensor, Tensor, Chunk], Tensor]:
    """xPos: products of features that decay with distance at these rates, ``[D]``, counted from the first query of a chunk."""

    def products(q: Tensor, k: Tensor, chunk: Chunk) -> Tensor:
        # keys behind the chunk by at most 1; among those of the chunk factors are small powers that cancel, and later ones do not count
        of_queries = torch.exp(-rate * (chunk.rows - chunk.start)).to(q.dtype)
        behind = (chunk.start - chunk.keys[:, None]).clamp(min=1 - chunk.count)
        return (q * of_queries) @ (k * torch.exp(-rate * behind).to(k.dtype)).mT

    return products


