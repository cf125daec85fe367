"""The sums of linear attention, composed of PyTorch operations for devices without an engine of their own.

    out_i = sum over j of a(i - j) phi(q_i).phi(k_j) [v_j, 1]

The quotient of the two parts is attention. Queries go block by block. Those keys that a decay treats pair by
pair are multiplied with them; all earlier keys are in sums, one for each exponential of the decay:

    S_k = sum over j < w of e^(-rate_k (w - j)) phi(k_j) [v_j, 1]        out_i += weight_k e^(-rate_k (i - w)) phi(q_i).S_k

The backward repeats this, and then goes through the blocks from the last one with the sums of what follows a
key. So memory is linear in the length, and small beside features. Nothing is added in random order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

#: Queries of a block.
BLOCK = 256


class Fading(NamedTuple):
    """How products fade with distance: not at all, by a decay, or by gates.

    Pairs of positions count as near if their chunks are less than ``near_chunks`` apart. Without a
    decay those of a block do.
    """

    #: Positions of a chunk of the decay.
    chunk: int
    #: The decay at near distances, ``[H, near]``; None without a decay.
    near: Tensor | None
    #: Of the exponentials of distances beyond, ``[H, K]`` in float64; None without a decay.
    rates: Tensor | None
    #: ``[H, K]``
    weights: Tensor | None
    #: Sums of gates up to each position, ``[B, H, L]`` in float64; None without gates.
    clocks: Tensor | None

    @property
    def terms(self) -> int:
        return 1 if self.rates is None else self.rates.shape[1]

    def first_near(self, position: int) -> int:
        """The first of the keys that a query is multiplied with, and all later queries too."""
        if self.near is None:
            return position
        return max(0, (position // self.chunk - self.near.shape[1] // self.chunk + 1) * self.chunk)

    def is_near(self, queries: Tensor, keys: Tensor) -> Tensor:
        chunks = torch.div(queries, self.chunk, rounding_mode="floor")[:, None] - torch.div(keys, self.chunk, rounding_mode="floor")
        return chunks < self.near.shape[1] // self.chunk

    def exponentials(self, distances: Tensor) -> Tensor:
        """``e^(-rate d)``, ``[H, D, K]`` of distances ``[D]``."""
        return torch.exp(-self.rates[:, None] * distances[:, None])

    def of_pairs(self, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The factors of products, ``[H, Q, K]`` or ``[B, H, Q, K]``; of pairs that do not count some number."""
        if self.clocks is not None:
            between = self.clocks[..., queries, None] - self.clocks[..., None, keys]
            return between.clamp(max=0.0).to(dtype).exp()
        if self.near is None:
            return None
        distances = (queries[:, None] - keys).clamp(min=0)
        near = self.near[:, distances.clamp(max=self.near.shape[1] - 1)]
        if self.terms == 0:
            return torch.where(self.is_near(queries, keys), near, 0.0)
        span = torch.arange(len(queries) + len(keys), device=keys.device)
        far = (self.exponentials(span.to(torch.float64)) * self.weights.to(torch.float64)[:, None]).sum(2).to(dtype)
        return torch.where(self.is_near(queries, keys), near, far[:, distances])

    def of_queries(self, queries: Tensor, start: int, dtype: torch.dtype) -> Tensor | None:
        """What queries multiply sums with, up to the key ``start``, ``[H, Q, K]`` or ``[B, H, Q, 1]``, without weights."""
        if self.clocks is not None:
            return torch.exp(self.clocks[..., queries] - self._clock_before(start)).to(dtype)[..., None]
        return None if self.rates is None else self.exponentials((queries - start).to(torch.float64)).to(dtype)

    def of_keys(self, keys: Tensor, start: int, dtype: torch.dtype) -> Tensor | None:
        """What keys enter these sums with."""
        if self.clocks is not None:
            return torch.exp(self._clock_before(start) - self.clocks[..., keys]).to(dtype)[..., None]
        return None if self.rates is None else self.exponentials((start - keys).to(torch.float64)).to(dtype)

    def of_sums(self, start: int, then: int, dtype: torch.dtype) -> Tensor | float:
        """What is left of sums up to ``start`` in those up to ``then``, ``[H, K, 1, 1]`` or ``[B, H, 1, 1, 1]``."""
        if self.clocks is not None:
            return torch.exp(self._clock_before(then) - self._clock_before(start)).to(dtype)[..., None, None]
        return 1.0 if self.rates is None else torch.exp(-self.rates * (then - start)).to(dtype)[..., None, None]

    def _clock_before(self, position: int) -> Tensor:
        """``[B, H, 1]``"""
        return torch.zeros_like(self.clocks[..., :1]) if position == 0 else self.clocks[..., position - 1 : position]


class Past(NamedTuple):
    """What decoding keeps of earlier tokens."""

    #: Sums over the keys before the first near one, ``[B, H, K, F, E + 1]``.
    sums: Tensor
    #: Features of near keys, ``[B, H, N, F]``, and their values, ``[B, H, N, E + 1]``.
    k: Tensor
    v: Tensor
    #: Tokens so far.
    length: int


def _blocks(first: int, end: int) -> list[tuple[int, int]]:
    starts = range(first - first % BLOCK, end, BLOCK)
    return [(max(first, start), min(start + BLOCK, end)) for start in starts]


def _weighted(factors: Tensor | None, x: Tensor) -> Tensor:
    """Rows ``[B, H, R, E]`` times the factor of each term, ``[B, H, K, R, E]``."""
    return x[:, :, None] if factors is None else x[:, :, None] * factors.transpose(-1, -2)[..., None]


def _summed(factors: Tensor | None, x: Tensor) -> Tensor:
    """Sums over terms of ``[B, H, K, R, E]``, each with its factor."""
    return x[:, :, 0] if factors is None else (x * factors.transpose(-1, -2)[..., None]).sum(2)


def _with_weights(factors: Tensor | None, fading: Fading) -> Tensor | None:
    return factors if fading.weights is None else factors * fading.weights[:, None]


def _counted(queries: Tensor, keys: Tensor, strict: bool) -> Tensor:
    """Keys up to the query's own, or before it."""
    return keys < queries[:, None] if strict else keys <= queries[:, None]


def _products(q: Tensor, k: Tensor, factors: Tensor | None, counted: Tensor) -> Tensor:
    products = q @ k.mT
    return torch.where(counted, products if factors is None else products * factors, 0.0)


class _Sums:
    """The sums over keys before the first near one, as blocks of queries go by."""

    def __init__(self, fading: Fading, like: tuple[Tensor, Tensor], first: int, start: int, value: Tensor | None = None) -> None:
        k, v = like
        self.fading, self.first, self.start = fading, first, start
        sizes = (*k.shape[:2], fading.terms, k.shape[3], v.shape[3])
        self.value = k.new_zeros(sizes) if value is None else value

    def up_to(self, start: int, k: Tensor, v: Tensor) -> None:
        """Takes up the keys before ``start``; key 0 of ``k`` has the number ``first``."""
        if start > self.start:
            own = slice(self.start - self.first, start - self.first)
            keys = torch.arange(self.start, start, device=k.device)
            entering = _weighted(self.fading.of_keys(keys, start, k.dtype), v[:, :, own])
            self.value = self.value * self.fading.of_sums(self.start, start, k.dtype) + k[:, :, None, own].mT @ entering
            self.start = start


def forward(q: Tensor, k: Tensor, v: Tensor, fading: Fading, strict: bool = False, past: Past | None = None) -> tuple[Tensor, Past]:
    """Sums over the keys up to each query, ``[B, H, L, E + 1]``, or with ``strict`` over those before it, and what
    decoding keeps. Queries and keys are features, ``[B, H, L, F]``.
    """
    first = 0 if past is None else past.length
    begin = fading.first_near(first)
    if past is not None:
        k, v = torch.cat([past.k, k], 2), torch.cat([past.v, v], 2)
        fading = fading if fading.clocks is None else fading._replace(clocks=torch.cat([fading.clocks.new_zeros(*k.shape[:2], first), fading.clocks], 2))
    sums = _Sums(fading, (k, v), begin, begin, None if past is None else past.sums)
    out, end = v.new_empty(*q.shape[:3], v.shape[3]), first + q.shape[2]
    for a, b in _blocks(first, end):
        start = fading.first_near(a)
        sums.up_to(start, k, v)
        queries, keys = torch.arange(a, b, device=q.device), torch.arange(start, b, device=q.device)
        own, near = slice(a - first, b - first), slice(start - begin, b - begin)
        weights = _products(q[:, :, own], k[:, :, near], fading.of_pairs(queries, keys, q.dtype), _counted(queries, keys, strict))
        block = weights @ v[:, :, near]
        if start > 0 and fading.terms > 0:
            of_queries = _with_weights(fading.of_queries(queries, start, q.dtype), fading)
            block = block + _summed(of_queries, q[:, :, None, own] @ sums.value)
        out[:, :, own] = block
    start = fading.first_near(end)
    sums.up_to(start, k, v)
    return out, Past(sums.value, k[:, :, start - begin :], v[:, :, start - begin :], end)


class Gradients(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    #: As of a :class:`Fading`.
    near: Tensor | None
    weights: Tensor | None
    clocks: Tensor | None


def _by_distance(x: Tensor, start: int, length: int) -> Tensor:
    """Sums over pairs of equal distance, ``[H, length]``, of ``[H, Q, K]``: row r and column c are ``start + r - c`` apart."""
    heads, rows, columns = x.shape
    turned = torch.nn.functional.pad(x.flip(2), (0, rows)).flatten(1)[:, : rows * (rows + columns - 1)]
    sums = turned.unflatten(1, (rows, rows + columns - 1)).sum(1)  # column m: r + columns - 1 - c = m
    first = start - (columns - 1)
    out = x.new_zeros(heads, length)
    low, high = max(first, 0), min(first + rows + columns - 1, length)
    if high > low:
        out[:, low:high] = sums[:, low - first : high - first]
    return out


def backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, fading: Fading, strict: bool = False) -> Gradients:
    """The gradients of what :func:`forward` is given, with those of its sums."""
    dtype, length = q.dtype, q.shape[2]
    d_q, d_k, d_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    out_by_d = None if fading.clocks is None else torch.zeros_like(fading.clocks)
    d_near = None if fading.near is None else torch.zeros_like(fading.near)
    d_weights = None if fading.weights is None else torch.zeros_like(fading.rates)
    sums = _Sums(fading, (k, v), 0, 0)
    blocks = _blocks(0, length)
    for a, b in blocks:
        start = fading.first_near(a)
        sums.up_to(start, k, v)
        queries, keys = torch.arange(a, b, device=q.device), torch.arange(start, b, device=q.device)
        own, near = slice(a, b), slice(start, b)
        factors, counted = fading.of_pairs(queries, keys, dtype), _counted(queries, keys, strict)
        products, along = (_products(x[:, :, own], y[:, :, near], None, counted) for x, y in ((q, k), (d_out, v)))
        weights, d_products = (x if factors is None else torch.where(counted, x * factors, 0.0) for x in (products, along))
        d_q[:, :, own] = d_products @ k[:, :, near]
        d_k[:, :, near] += d_products.mT @ q[:, :, own]
        d_v[:, :, near] += weights.mT @ d_out[:, :, own]
        if fading.near is not None:
            of_pairs = (products * along).sum(0)
            is_near = fading.is_near(queries, keys)
            d_near += _by_distance(torch.where(is_near, of_pairs, 0.0), a - start, d_near.shape[1])
            if fading.terms > 0:
                far = _by_distance(torch.where(is_near, 0.0, of_pairs), a - start, b - start)
                distances = torch.arange(b - start, device=q.device, dtype=torch.float64)
                d_weights += (far.to(torch.float64)[..., None] * fading.exponentials(distances)).sum(1)
        if start > 0 and fading.terms > 0:
            of_queries = fading.of_queries(queries, start, dtype)
            d_q[:, :, own] += _summed(_with_weights(of_queries, fading), d_out[:, :, None, own] @ sums.value.mT)
            if d_weights is not None:
                far = ((q[:, :, None, own] @ sums.value) * d_out[:, :, None, own]).sum(4).sum(0)
                d_weights += (far * of_queries.transpose(1, 2)).sum(2).to(torch.float64)
        if out_by_d is not None:
            out_by_d[:, :, own] = (q[:, :, own] * d_q[:, :, own]).sum(3)
    _keys_of_far_queries(d_out, q, k, v, fading, blocks, d_k, d_v)
    d_clocks = None if out_by_d is None else out_by_d - (k * d_k).sum(3)
    return Gradients(d_q, d_k, d_v, d_near, d_weights, d_clocks)


def _keys_of_far_queries(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, fading: Fading, blocks: list[tuple[int, int]], d_k: Tensor, d_v: Tensor
) -> None:
    """Adds to the gradients of keys and values what queries give them through sums."""
    if fading.terms == 0:
        return
    after, then = None, 0
    for at, (a, b) in reversed(list(enumerate(blocks))):
        start = fading.first_near(a)
        queries = torch.arange(a, b, device=q.device)
        of_queries = _with_weights(fading.of_queries(queries, start, q.dtype), fading)
        given = q[:, :, None, a:b].mT @ _weighted(of_queries, d_out[:, :, a:b])
        after = given if after is None else given + after * fading.of_sums(start, then, q.dtype)
        then = start
        taken = slice(fading.first_near(blocks[at - 1][0]) if at > 0 else 0, start)
        if taken.stop > taken.start:
            keys = torch.arange(taken.start, taken.stop, device=q.device)
            of_keys = fading.of_keys(keys, start, q.dtype)
            d_k[:, :, taken] += _summed(of_keys, v[:, :, None, taken] @ after.mT)
            d_v[:, :, taken] += _summed(of_keys, k[:, :, None, taken] @ after)


def reversed_rows(lengths: Tensor | None, rows: Tensor) -> Tensor:
    """Of each place the token there when sequences are read from their last token, ``[B or 1, L]``; padding stays behind."""
    length = rows.shape[2]
    last = torch.full((1,), length, device=rows.device) if lengths is None else lengths.clamp(0, length)
    return (last[:, None] - 1 - torch.arange(length, device=rows.device)) % max(length, 1)


def turned(x: Tensor, places: Tensor) -> Tensor:
    """Rows ``[B, H, L, F]`` in the order of these places; done twice, they are as before."""
    return x.gather(2, places[:, None, :, None].expand(x.shape))
