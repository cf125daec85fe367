"""A tile of attention scores in Triton: what is read for it, which of its pairs the mask admits, and how they
are computed. The passes of :mod:`.triton_kernels` consist of such tiles.

An argument, or an entry of the tuples below, that is None leaves its part out of the kernel.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import triton
import triton.language as tl


class Rows(NamedTuple):
    """A ``[B, H, L, D]`` tensor with contiguous features."""
    ptr: Any
    batch: int
    head: int
    row: int


class Sizes(NamedTuple):
    """H query heads, G key heads, Q queries, K keys."""
    heads: int
    kv_heads: int
    queries: int
    keys: int


class Terms(NamedTuple):
    """How scores are computed from products; tables are ``[H, columns]``, c is ``[B, H, K]`` in f64."""
    scale: float
    softcap: float | None
    weight: Any
    bias: Any
    columns: int
    clocks: Any


class Mask(NamedTuple):
    """``|d| < window``, or one of the first ``sink_tokens`` keys of a query's interval; and that interval, of each query:
    the first and the last + 1, ``[B, Q]`` int32, K and 0 of an empty one. ``backward_dkv`` also reads the least first and
    the greatest last of each of its row tiles, ``[B, Q / T]``.
    """
    window: int | None
    sink_tokens: int | None
    first: Any
    last: Any
    tile_first: Any
    tile_last: Any


class Dropout(NamedTuple):
    """Which weights are dropped: an int64 seed, the least upper 31 bits of a number that keeps its weight, and what
    those are multiplied by, ``1 / (1 - p)``.
    """
    seed: Any
    bound: int
    scale: float


#: Interpreted kernels compute products of halves in f32: Triton's interpreter multiplies bfloat16 as
#: the integers that hold its bits (triton-lang/triton#11584).
_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
_LOG2E = tl.constexpr(1.4426950408889634)
_INF = tl.constexpr(float("inf"))


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr, ACC: tl.constexpr):
    if _INTERPRETED:  # in full precision, whatever PRECISION says
        return tl.dot(a.to(ACC), b.to(ACC), input_precision="ieee", out_dtype=ACC)
    return tl.dot(a, b, input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def _tile(x, b, h, first, length, D: tl.constexpr, T: tl.constexpr, WIDTH: tl.constexpr):
    """Pointers to T rows from ``first`` on, and which of the numbers exist."""
    r, f = tl.arange(0, T)[:, None], tl.arange(0, WIDTH)[None, :]
    base = tl.cast(b, tl.int64) * x.batch + tl.cast(h, tl.int64) * x.head + tl.cast(first, tl.int64) * x.row
    return x.ptr + base + (r * x.row + f), (first + r >= 0) & (first + r < length) & (f < D)


@triton.jit
def _load(x, b, h, first, length, D: tl.constexpr, T: tl.constexpr, WIDTH: tl.constexpr):
    at, inside = _tile(x, b, h, first, length, D, T, WIDTH)
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _store(x, value, b, h, first, length, D: tl.constexpr, T: tl.constexpr, WIDTH: tl.constexpr):
    at, inside = _tile(x, b, h, first, length, D, T, WIDTH)
    tl.store(at, value.to(x.ptr.dtype.element_ty), mask=inside)


@triton.jit
def _intervals(mask, b, rows, queries):
    """First and last + 1 of the keys of each query, empty outside of ``0..queries``."""
    first, last = rows, rows
    if mask.first is not None:
        inside = (rows >= 0) & (rows < queries)
        first = tl.load(mask.first + tl.cast(b, tl.int64) * queries + rows, mask=inside, other=2**31 - 1)
        last = tl.load(mask.last + tl.cast(b, tl.int64) * queries + rows, mask=inside, other=0)
    return first, last


@triton.jit
def _past_first_tokens(mask, low):
    """The first key that is not one of the first tokens, where the first key of a query's interval is low."""
    return mask.sink_tokens if mask.first is None else low + mask.sink_tokens


@triton.jit
def _first_tokens(mask, low, high, start):
    """First and last + 1 of the first tokens that queries with these intervals see before ``start``, which is the first key
    of their windows.
    """
    first, past = 0, _past_first_tokens(mask, tl.max(tl.where(low < high, low, 0)))
    if mask.first is not None:
        first = tl.min(low)
    return first, tl.maximum(first, tl.minimum(past, start))


@triton.jit
def _rows_that_see(mask, b, n, queries, T: tl.constexpr):
    """First and last + 1 of the queries with an interval that meets the keys n to n + T, of which they see some:
    from the bounds of all row tiles, and then from the rows of the first and the last tile that may be meant.
    """
    start, end = 0, queries
    if mask.first is not None:
        N: tl.constexpr = 256
        tiles = tl.cdiv(queries, T)
        first, last = tl.zeros((N,), tl.int32) + tiles, tl.full((N,), -1, tl.int32)
        for at in range(0, tiles, N):
            tile = at + tl.arange(0, N)
            low = tl.load(mask.tile_first + tl.cast(b, tl.int64) * tiles + tile, mask=tile < tiles, other=2**31 - 1)
            high = tl.load(mask.tile_last + tl.cast(b, tl.int64) * tiles + tile, mask=tile < tiles, other=0)
            meets = (low < n + T) & (high > n)
            first, last = tl.minimum(first, tl.where(meets, tile, tiles)), tl.maximum(last, tl.where(meets, tile, -1))
        start, end = tl.min(first) * T, tl.max(last) * T
        rows = start + tl.arange(0, T)
        low, high = _intervals(mask, b, rows, queries)
        start = tl.min(tl.where((low < n + T) & (high > n), rows, start + T))
        rows = end + tl.arange(0, T)
        low, high = _intervals(mask, b, rows, queries)
        end = tl.max(tl.where((low < n + T) & (high > n), rows + 1, end))
    return start, end


@triton.jit
def _sums(sums, bh, at, keys):
    """Running sums ``[B, H, K]`` in f64 at these keys; of the nearest key outside of ``0..keys``."""
    c = at
    if sums is not None:
        c = tl.load(sums + tl.cast(bh, tl.int64) * keys + tl.minimum(tl.maximum(at, 0), keys - 1))
    return c


@triton.jit
def _between(sums, c, bh, first, N: tl.constexpr, keys, OF_KEYS: tl.constexpr, ACC: tl.constexpr):
    """Differences of running sums, of queries less those of keys, where rows have c and columns are N keys from ``first``
    on, or with OF_KEYS the other way around. They are added up of high and low parts: a sum may leave f32 no digits.
    """
    zero = _sums(sums, bh, first, keys)
    x, y = c - zero, _sums(sums, bh, first + tl.arange(0, N)[None, :], keys) - zero
    if OF_KEYS:
        x, y = y, x
    high_x, high_y = x.to(ACC), y.to(ACC)
    return (high_x - high_y) + ((x - high_x).to(ACC) - (y - high_y).to(ACC))


@triton.jit
def _tanh(x):
    """Without the cancellation of ``1 - 2 / (1 + e^2x)`` at small x, in f32."""
    t = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
    if x.dtype == tl.float32:
        y = x * x
        t = tl.where(tl.abs(x) < 0.25, x * (1 + y * (-1 / 3 + y * (2 / 15 + y * (-17 / 315 + y * 62 / 2835)))), t)
    return t


@triton.jit
def _scores(products, own, first, low, high, c, bh, h, sizes, terms, mask, CAUSAL: tl.constexpr, OF_KEYS: tl.constexpr):
    """z of a tile, -inf where nothing is seen; s; dz/ds without the scale; the sign of ``c_i - c_j`` in z.

    Rows of the tile are the queries at positions ``own`` and columns the keys from ``first`` on, or with
    OF_KEYS the other way around. c are cumulative gates of the rows; low and high are the intervals of the
    queries, of a shape that fits the tile.
    """
    own, other = own[:, None], first + tl.arange(0, products.shape[1])[None, :]
    i, j = (other, own) if OF_KEYS else (own, other)
    d = i - j
    seen = (i < sizes.keys) & (j < sizes.keys) & (j >= 0)  # of no others a table is read
    if CAUSAL:
        seen = seen & (d >= 0)
    if mask.window is not None:
        near = d < mask.window
        if mask.sink_tokens is not None:
            near = near | (j < _past_first_tokens(mask, low))
        seen = seen & near
        if not CAUSAL:
            seen = seen & (-d < mask.window)
    if mask.first is not None:
        seen = seen & (j >= low) & (j < high)
    s = products * terms.scale
    slope = 1.0
    if terms.softcap is not None:
        t = _tanh(s / terms.softcap)
        s = terms.softcap * t
        slope = 1.0 - t * t
    z = s
    column = h * terms.columns + d + (0 if CAUSAL else terms.columns // 2)
    if terms.weight is not None:
        weight = tl.load(terms.weight + column, mask=seen, other=0.0)
        z = z * weight
        slope = slope * weight
    if terms.bias is not None:
        z += tl.load(terms.bias + column, mask=seen, other=0.0)
    sign = 1.0 if CAUSAL else tl.where(d >= 0, 1.0, -1.0)
    if terms.clocks is not None:
        z += sign * _between(terms.clocks, c, bh, first, products.shape[1], sizes.keys, OF_KEYS, s.dtype)
    return tl.where(seen, z, -_INF), s, slope, sign


@triton.jit
def _kept(dropout, bh, m, n, M: tl.constexpr, N: tl.constexpr, OF_KEYS: tl.constexpr):
    """Which weights of M queries from m on, a multiple of 4, and N keys from n on are kept, ``[M, N]``, or with OF_KEYS
    ``[N, M]``.

    Query i draws word ``i % 4`` of Philox4x32-10 with the seed as its key and the counter ``j, i // 4, b H + h, 0``.
    """
    j, group = n + tl.arange(0, N)[:, None], m // 4 + tl.arange(0, M // 4)[None, :]
    zero = tl.zeros((N, M // 4), tl.int32)
    w0, w1, w2, w3 = tl.philox(tl.load(dropout.seed), zero + j, zero + group, zero + bh, zero)
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (N, M))
    kept = (words >> 1).to(tl.int32) >= dropout.bound
    return kept if OF_KEYS else tl.trans(kept)


@triton.jit
def _range(start, end, own, mask, CAUSAL: tl.constexpr, OF_KEYS: tl.constexpr):
    """The part of ``start..end`` where queries at positions ``own`` see keys, or OF_KEYS are seen by queries."""
    if CAUSAL and OF_KEYS:
        start = tl.maximum(start, tl.min(own))
    elif CAUSAL:
        end = tl.minimum(end, tl.max(own) + 1)
    if mask.window is not None:
        start, end = tl.maximum(start, tl.min(own) - mask.window + 1), tl.minimum(end, tl.max(own) + mask.window)
    return start, end


@triton.jit
def _keys_seen(own, low, high, keys, mask, CAUSAL: tl.constexpr):
    """First and last + 1 of the keys that queries at positions ``own`` see, with their intervals."""
    start, end = 0, keys
    if mask.first is not None:
        start, end = tl.maximum(0, tl.min(low)), tl.minimum(keys, tl.max(high))
    return _range(start, end, own, mask, CAUSAL, False)
