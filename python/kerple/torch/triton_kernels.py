"""Exact attention with a learned bias over distances, as Triton kernels. Query i is at position
``K - Q + i``; with positions i and j and the distance d = i - j:

    s_ij = softcap(scale q_i . k_j)        z_ij = s_ij weight[h, d] + bias[h, d] + c_i - c_j + u_i[d] + k(|x_i - x_j|)
    lse_i = ln(sum_j e^z_ij + e^sink_h)    P_ij = e^(z_ij - lse_i)          o_i = sum_j P_ij v_j

    dv_j = sum_i P_ij do_i                 dz_ij = P_ij (do_i . v_j - delta_i),  delta_i = do_i . o_i
    dbias[h, d] = sum over all pairs at distance d of dz        dweight[h, d] = the same of dz s
    dq_i = scale sum_j dz_ij ds_ij k_j     dk_j = scale sum_i dz_ij ds_ij q_i,  ds = weight softcap'

where c are cumulative gates, u is the bias per row of :mod:`.triton_relative`, k is the kernel of learned positions
of :mod:`.triton_positions`, and sums run over the pairs that the mask admits. A pass along a row of tiles visits those
of the window, and then those of first tokens before it. Dropout multiplies the P of o and dv, and do . v, by 0 or ``1 / (1 - p)``. The passes are those of
FlashAttention-2 (Dao 2023, arXiv:2307.08691): tiles of the scores live in registers only, and the
backward recomputes them from ``lse``. Few queries share out their keys among programs.

The gradient of a table sums along diagonals, which atomic additions would do in a random order.
Instead a program of the dq pass owns one head and some of its row tiles, and adds their diagonals to a
row of ``partial`` that no other program touches; ``fold`` adds the rows in order: the same bits in
every run. A tile of scores is computed by :mod:`.triton_scores`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_positions import Learned, _add_parameters, _kernel  # noqa: F401
from .triton_relative import Relative, _add_block, _block, _by_distance, _first_block, _of_distances, _of_distances_transposed  # noqa: F401
from .triton_scores import _INF, _INTERPRETED, _LOG2E, Dropout, Mask, Rows, Sizes, Terms  # noqa: F401
from .triton_scores import _between, _dot, _first_tokens, _intervals, _kept, _keys_seen, _load, _past_first_tokens, _range  # noqa: F401
from .triton_scores import _rows_that_see, _scores, _store, _sums


@triton.jit
def _add_to_softmax(z, row_max, row_sum):
    """Weights of more scores, what earlier weights are multiplied by, and the new maxima and sums of rows."""
    new_max = tl.maximum(row_max, tl.max(z, 1))
    finite_max = tl.where(new_max == -_INF, 0.0, new_max)
    p = tl.exp2((z - finite_max[:, None]) * _LOG2E)
    rescale = tl.exp2((row_max - finite_max) * _LOG2E)
    return p, rescale, new_max, row_sum * rescale + tl.sum(p, 1)


@triton.jit
def _normalized(acc, row_max, row_sum):
    """Output and lse; of rows that see nothing 0 and +inf, which makes P = 0 in the backward."""
    sees_none = row_sum == 0.0
    row_sum = tl.where(sees_none, 1.0, row_sum)
    return acc / row_sum[:, None], tl.where(sees_none, _INF, row_max + tl.log(row_sum))


@triton.jit
def forward(
    q, k, v, out, lse, sinks, splits, sizes, terms, mask, dropout, relative, learned,
    D: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, KERNEL: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, TOGETHER: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, OF_ROWS: tl.constexpr,
):  # fmt: skip
    """Output and lse of M rows, of ``B splits H Q / M`` programs.

    To decode, a program takes one of ``splits`` parts of the keys that its rows see, and its rows are those of
    heads which share them: with TOGETHER = H / G, q is ``[B, G, TOGETHER Q, D]``. The results are
    ``[B, splits, G, TOGETHER Q]``, of which ``merge`` makes one.
    """
    ACC: tl.constexpr = lse.dtype.element_ty
    heads, length = sizes.heads // TOGETHER, sizes.queries * TOGETHER
    row_tiles = tl.cdiv(length, M)
    at, m = tl.program_id(0) // row_tiles, (row_tiles - 1 - tl.program_id(0) % row_tiles) * M  # the longest rows first
    place, h = at // heads, at % heads
    b, split = place // splits, place % splits
    q_tile, acc = _load(q, b, h, m, length, D, M, WIDTH), tl.zeros((M, WIDTH), ACC)
    rows, g = m + tl.arange(0, M), h * TOGETHER // (sizes.heads // sizes.kv_heads)
    of, query, i = h, rows, rows + (sizes.keys - sizes.queries)
    if TOGETHER > 1:
        of, query = (h * TOGETHER + tl.minimum(rows, length - 1) // sizes.queries)[:, None], rows % sizes.queries
        i = tl.where(rows < length, query + (sizes.keys - sizes.queries), sizes.keys)
    row_max, row_sum = tl.full((M,), -_INF, ACC), tl.zeros((M,), ACC)
    if sinks is not None:  # a first key, of the first part, whose value is 0
        row_max = tl.where(split == 0, tl.max(tl.zeros((M, 1), ACC) + tl.load(sinks + of), 1), -_INF)
        row_sum += tl.where(split == 0, 1.0, 0.0)
    low, high = _intervals(mask, b, query, sizes.queries)
    bh = b * sizes.heads + of
    c, x = _sums(terms.clocks, bh, i[:, None], sizes.keys), _sums(learned.x, bh, i[:, None], sizes.keys)
    start, end = _keys_seen(i, low, high, sizes.keys, mask, CAUSAL)
    first, past = start, start
    if mask.sink_tokens is not None:
        first, past = _first_tokens(mask, low, high, start)
        past = first + tl.cdiv(past - first, N) * N
        start = tl.maximum(start, past)
    if splits > 1:  # of the keys of the window, and then of the first tokens
        window = tl.cdiv(tl.maximum(end - start, 0), N) * N
        keys = tl.cdiv(window + past - first, splits * N) * N
        before = split * keys
        start, end = start + before, tl.minimum(end, start + before + keys)
        first, past = first + tl.maximum(before - window, 0), tl.minimum(past, first + before + keys - window)
    if relative.profiles is not None:  # rows are at most N apart
        r_tile, origin, offset = _load(relative, b, h, m, length, RANK, M, RANKS), m + sizes.keys - sizes.queries, tl.arange(0, M)
        if TOGETHER > 1:
            origin, offset = sizes.keys - sizes.queries, query
    for span in range(1 if mask.sink_tokens is None else 2):
        if relative.profiles is not None:
            far = _first_block(r_tile, relative, origin - start, RANK, N, OF_ROWS, ACC)
        for n in range(start, end, N):
            products = _dot(q_tile, tl.trans(_load(k, b, g, n, sizes.keys, D, N, WIDTH)), PRECISION, ACC)
            z, _, _, _ = _scores(products, i, n, low[:, None], high[:, None], c, bh, of, sizes, terms, mask, CAUSAL, False)
            if relative.profiles is not None:
                if origin - n - N < relative.reach:
                    near, far = far, _block(r_tile, relative, origin - n - N, RANK, N, False, OF_ROWS, ACC)
                    z += _of_distances(near, far, offset)
            if learned.x is not None:
                u = tl.abs(_between(learned.x, x, bh, n, N, sizes.keys, False, ACC))
                z += _kernel(u, learned, of, KERNEL)[0]
            p, rescale, row_max, row_sum = _add_to_softmax(z, row_max, row_sum)
            if dropout.seed is not None:  # not while decoding, where rows are queries of several heads
                p = tl.where(_kept(dropout, bh, m, n, M, N, False), p, 0.0)
            v_tile = _load(v, b, g, n, sizes.keys, D, N, WIDTH)
            acc = acc * rescale[:, None] + _dot(p.to(v_tile.dtype), v_tile, PRECISION, ACC)
        if mask.sink_tokens is not None:
            start, end = first, past
    acc, row_lse = _normalized(acc, row_max, row_sum)
    if dropout.seed is not None:
        acc *= dropout.scale
    _store(out, acc, place, h, m, length, D, M, WIDTH)
    tl.store(lse + tl.cast(at, tl.int64) * length + rows, row_lse, mask=rows < length)


@triton.jit
def merge(parts, parts_lse, out, lse, splits, sizes, D: tl.constexpr, WIDTH: tl.constexpr, S: tl.constexpr):
    """Output and lse of one row from those of parts of its keys, S at a time, of ``B H Q`` programs."""
    ACC: tl.constexpr = lse.dtype.element_ty
    b, row = tl.program_id(0) // (sizes.heads * sizes.queries), tl.program_id(0) % (sizes.heads * sizes.queries)
    row_max, row_sum, acc = tl.full((1,), -_INF, ACC), tl.zeros((1,), ACC), tl.zeros((1, WIDTH), ACC)
    for first in range(0, splits, S):
        split = first + tl.arange(0, S)
        at = (tl.cast(b, tl.int64) * splits + split) * (sizes.heads * sizes.queries) + row
        z = tl.load(parts_lse + at, mask=split < splits, other=_INF)
        z = tl.where(z == _INF, -_INF, z)  # a part of which the row sees nothing
        p, rescale, row_max, row_sum = _add_to_softmax(z[None, :], row_max, row_sum)
        acc = acc * rescale[:, None] + tl.sum(tl.trans(p) * _load(parts, b, row, first, splits, D, S, WIDTH), 0)[None, :]
    acc, row_lse = _normalized(acc, row_max, row_sum)
    _store(out, acc, b, row // sizes.queries, row % sizes.queries, sizes.queries, D, 1, WIDTH)
    tl.store(lse + tl.program_id(0) + tl.arange(0, 1), row_lse)


@triton.jit
def _add_diagonals(partial, columns, distance, x, CAUSAL: tl.constexpr, T: tl.constexpr):
    """Adds the sums along the diagonals of a tile, of distances ``distance + r - c``, to this program's row."""
    r, s = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    turned = tl.gather(x, (r - s) & (T - 1), 1)  # column s: r - c = s where r >= s, else s - T
    near, far = tl.sum(tl.where(r >= s, turned, 0.0), 0), tl.sum(tl.where(r < s, turned, 0.0), 0)
    column = distance + tl.arange(0, T) + (0 if CAUSAL else columns // 2)
    to = partial + tl.cast(tl.program_id(0), tl.int64) * columns + column
    keep = (column >= 0) & (column < columns)
    tl.store(to, tl.load(to, mask=keep, other=0.0) + near, mask=keep)
    keep = (column >= T) & (column < columns + T)
    tl.store(to - T, tl.load(to - T, mask=keep, other=0.0) + far, mask=keep)
    tl.debug_barrier()  # the next tile adds to the same distances, perhaps from other threads


@triton.jit
def backward_dq(
    q, k, v, out, d_out, d_q, lse, delta, d_row_clocks, partial_bias, partial_weight, d_rows, partial_profiles,
    d_row_positions, partial_parameters, columns, items, splits, sizes, terms, mask, dropout, relative, learned,
    D: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, KERNEL: tl.constexpr, S: tl.constexpr,
    T: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, OF_ROWS: tl.constexpr,
):  # fmt: skip
    """dq, delta, dr, sums over rows for learned positions, and the gradients of tables, profiles and a kernel's parameters
    as ``[splits H, columns]``, ``[splits H, R, reach]`` and ``[splits H, S]`` partial sums, of ``splits H`` programs.

    A program computes each ``splits``-th of the B Q / T row tiles of its head. Key tiles are cut from
    the rows' first position downwards, so that a tile e behind has the distances ``e T + r - c``.
    ``columns`` are the distances that the window admits.
    """
    ACC: tl.constexpr = lse.dtype.element_ty
    h, split = tl.program_id(0) % sizes.heads, tl.program_id(0) // sizes.heads
    g = h // (sizes.heads // sizes.kv_heads)
    row_tiles = tl.cdiv(sizes.queries, T)
    if partial_parameters is not None:
        of_parameters = tl.zeros((S,), tl.float64)
    for item in range(split, items, splits):
        turn = item // splits
        mirror = (turn % 2 == 1) & ((turn + 1) * splits <= items)  # who had shorter rows than others gets longer ones next
        place = tl.where(mirror, turn * splits + splits - 1 - split, item)
        b, m = place // row_tiles, (place % row_tiles) * T
        rows = m + tl.arange(0, T)
        first = m + sizes.keys - sizes.queries
        i = first + tl.arange(0, T)
        bh = b * sizes.heads + h
        row = tl.cast(bh, tl.int64) * sizes.queries + rows
        q_tile = _load(q, b, h, m, sizes.queries, D, T, WIDTH)
        do_tile = _load(d_out, b, h, m, sizes.queries, D, T, WIDTH)
        row_lse = tl.load(lse + row, mask=rows < sizes.queries, other=_INF)
        row_delta = tl.sum(do_tile.to(ACC) * _load(out, b, h, m, sizes.queries, D, T, WIDTH).to(ACC), 1)
        tl.store(delta + row, row_delta, mask=rows < sizes.queries)
        acc, acc_clocks = tl.zeros((T, WIDTH), ACC), tl.zeros((T,), ACC)
        low, high = _intervals(mask, b, rows, sizes.queries)
        c, x = _sums(terms.clocks, bh, i[:, None], sizes.keys), _sums(learned.x, bh, i[:, None], sizes.keys)
        if partial_parameters is not None:
            acc_positions, acc_parameters = tl.zeros((T,), ACC), tl.zeros((T, S), ACC)
        start, end = _keys_seen(i, low, high, sizes.keys, mask, CAUSAL)
        nearest = -tl.maximum(0, tl.cdiv(end - first, T) - 1)
        farthest = tl.maximum(0, tl.cdiv(first - start, T))
        if relative.profiles is not None:
            r_tile, offset = _load(relative, b, h, m, sizes.queries, RANK, T, RANKS), tl.arange(0, T)
            if partial_profiles is not None:
                acc_rows = tl.zeros((T, RANKS), ACC)
        for span in range(1 if mask.sink_tokens is None else 2):
            if relative.profiles is not None:
                near = _first_block(r_tile, relative, (nearest - 1) * T, RANK, T, OF_ROWS, ACC)
                if partial_profiles is not None:
                    du = tl.zeros((T, T), ACC)
            for e in range(nearest, farthest + 1):
                n = first - e * T
                k_tile = _load(k, b, g, n, sizes.keys, D, T, WIDTH)
                products = _dot(q_tile, tl.trans(k_tile), PRECISION, ACC)
                z, s, slope, sign = _scores(products, i, n, low[:, None], high[:, None], c, bh, h, sizes, terms, mask, CAUSAL, False)
                if relative.profiles is not None:
                    if (e - 1) * T < relative.reach:
                        far, near = near, _block(r_tile, relative, e * T, RANK, T, False, OF_ROWS, ACC)
                        z += _of_distances(near, far, offset)
                if learned.x is not None:
                    u = tl.abs(_between(learned.x, x, bh, n, T, sizes.keys, False, ACC))
                    k_of_u, rate, ln_u = _kernel(u, learned, h, KERNEL)
                    z += k_of_u
                p = tl.exp2((z - row_lse[:, None]) * _LOG2E)
                dp = _dot(do_tile, tl.trans(_load(v, b, g, n, sizes.keys, D, T, WIDTH)), PRECISION, ACC)
                if dropout.seed is not None:
                    dp = tl.where(_kept(dropout, bh, m, n, T, T, False), dp * dropout.scale, 0.0)
                dz = p * (dp - row_delta[:, None])
                if d_row_clocks is not None:
                    acc_clocks += tl.sum(dz * sign, 1)
                if partial_parameters is not None:
                    acc_positions += tl.sum(dz * rate * sign, 1)
                    acc_parameters = _add_parameters(acc_parameters, dz, u, k_of_u, rate, ln_u, learned, KERNEL)
                if partial_bias is not None:
                    _add_diagonals(partial_bias, columns, e * T, dz, CAUSAL, T)
                if partial_weight is not None:
                    _add_diagonals(partial_weight, columns, e * T, dz * s, CAUSAL, T)
                acc += _dot((dz * slope).to(k_tile.dtype), k_tile, PRECISION, ACC)
                if partial_profiles is not None:
                    if (e - 1) * T < relative.reach:
                        of_near, of_far = _by_distance(dz)
                        acc_rows = _add_block(acc_rows, partial_profiles, du + of_far, r_tile, relative, (e - 1) * T, RANK, OF_ROWS, ACC)
                        du = of_near
            if partial_profiles is not None:
                if farthest * T < relative.reach:
                    acc_rows = _add_block(acc_rows, partial_profiles, du, r_tile, relative, farthest * T, RANK, OF_ROWS, ACC)
            if mask.sink_tokens is not None:
                key, past = _first_tokens(mask, low, high, start)
                nearest = tl.maximum(farthest, (first - past) // T) + 1
                farthest = tl.where(key < past, tl.cdiv(first - key, T), nearest - 1)
        _store(d_q, acc * terms.scale, b, h, m, sizes.queries, D, T, WIDTH)
        if d_row_clocks is not None:
            tl.store(d_row_clocks + row, acc_clocks, mask=rows < sizes.queries)
        if partial_profiles is not None:
            _store(d_rows, acc_rows, b, h, m, sizes.queries, RANK, T, RANKS)
        if partial_parameters is not None:
            tl.store(d_row_positions + row, acc_positions, mask=rows < sizes.queries)
            of_parameters += tl.sum(acc_parameters.to(tl.float64), 0)
    if partial_parameters is not None:
        tl.store(partial_parameters + tl.program_id(0) * S + tl.arange(0, S), of_parameters)


@triton.jit
def fold(partial, total, columns, total_columns, splits, CAUSAL: tl.constexpr, C: tl.constexpr):
    """The sum of ``[splits, H, columns]`` over splits, in order and in f64, as ``[H, total_columns]``: 0 where no pair is."""
    h = tl.program_id(1)
    to = tl.program_id(0) * C + tl.arange(0, C)
    column = to + (0 if CAUSAL else columns // 2 - total_columns // 2)
    keep = (to < total_columns) & (column >= 0) & (column < columns)
    acc = tl.zeros((C,), tl.float64)
    for split in range(splits):
        row = tl.cast(split * tl.num_programs(1) + h, tl.int64) * columns
        acc += tl.load(partial + row + column, mask=keep, other=0.0).to(tl.float64)
    to_row = total + tl.cast(h, tl.int64) * total_columns
    tl.store(to_row + to, acc.to(total.dtype.element_ty), mask=to < total_columns)


@triton.jit
def backward_dkv(
    q, k, v, d_out, d_k, d_v, lse, delta, d_clocks, d_positions, sizes, terms, mask, dropout, relative, learned,
    D: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, KERNEL: tl.constexpr, T: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr, OF_ROWS: tl.constexpr,
):  # fmt: skip
    """dk and dv of T keys of one key head, and d_clocks and d_positions but for the sums over rows, of ``B G K / T``
    programs. Tiles are transposed, keys by queries, so that P and dz enter the products from registers.
    """
    ACC: tl.constexpr = lse.dtype.element_ty
    key_tiles = tl.cdiv(sizes.keys, T)
    bg, n = tl.program_id(0) // key_tiles, (tl.program_id(0) % key_tiles) * T
    b, g = bg // sizes.kv_heads, bg % sizes.kv_heads
    j = n + tl.arange(0, T)
    k_tile = _load(k, b, g, n, sizes.keys, D, T, WIDTH)
    v_tile = _load(v, b, g, n, sizes.keys, D, T, WIDTH)
    acc_k, acc_v = tl.zeros((T, WIDTH), ACC), tl.zeros((T, WIDTH), ACC)
    shift = sizes.keys - sizes.queries
    start, end = _rows_that_see(mask, b, n, sizes.queries, T)
    last = end + shift
    start, end = _range(start + shift, last, j, mask, CAUSAL, True)
    if mask.sink_tokens is not None:  # where a key is the first token of some queries, it is of the last
        first_key = _intervals(mask, b, last - shift - 1, sizes.queries)[0]
        end = tl.where(n < _past_first_tokens(mask, first_key), last, end)
    if dropout.seed is not None:  # four queries draw together
        start -= (start - shift) % 4
    group = sizes.heads // sizes.kv_heads
    for h in range(g * group, (g + 1) * group):
        bh = b * sizes.heads + h
        acc_clocks, acc_positions = tl.zeros((T,), ACC), tl.zeros((T,), ACC)
        c, x = _sums(terms.clocks, bh, j[:, None], sizes.keys), _sums(learned.x, bh, j[:, None], sizes.keys)
        for first in range(start, end, T):
            m = first - shift
            rows = m + tl.arange(0, T)
            q_tile = _load(q, b, h, m, sizes.queries, D, T, WIDTH)
            products = _dot(k_tile, tl.trans(q_tile), PRECISION, ACC)
            low, high = _intervals(mask, b, rows, sizes.queries)
            z, _, slope, sign = _scores(products, j, first, low[None, :], high[None, :], c, bh, h, sizes, terms, mask, CAUSAL, True)
            if relative.profiles is not None:
                if first - n - T < relative.reach:
                    r_tile = _load(relative, b, h, m, sizes.queries, RANK, T, RANKS)
                    far = _block(r_tile, relative, first - n - T, RANK, T, True, OF_ROWS, ACC)
                    z += _of_distances_transposed(_block(r_tile, relative, first - n, RANK, T, True, OF_ROWS, ACC), far)
            if learned.x is not None:
                u = tl.abs(_between(learned.x, x, bh, first, T, sizes.keys, True, ACC))
                k_of_u, rate, _ = _kernel(u, learned, h, KERNEL)
                z += k_of_u
            row = tl.cast(bh, tl.int64) * sizes.queries + rows
            row_lse = tl.load(lse + row, mask=rows < sizes.queries, other=_INF)
            row_delta = tl.load(delta + row, mask=rows < sizes.queries, other=0.0)
            p = tl.exp2((z - row_lse[None, :]) * _LOG2E)
            do_tile = _load(d_out, b, h, m, sizes.queries, D, T, WIDTH)
            dp, dropped_p = _dot(v_tile, tl.trans(do_tile), PRECISION, ACC), p
            if dropout.seed is not None:
                kept = _kept(dropout, bh, m, n, T, T, True)
                dp, dropped_p = tl.where(kept, dp * dropout.scale, 0.0), tl.where(kept, p, 0.0)
            acc_v += _dot(dropped_p.to(do_tile.dtype), do_tile, PRECISION, ACC)
            dz = p * (dp - row_delta[None, :])
            acc_k += _dot((dz * slope).to(q_tile.dtype), q_tile, PRECISION, ACC)
            if d_clocks is not None:
                acc_clocks -= tl.sum(dz * sign, 1)
            if d_positions is not None:
                acc_positions -= tl.sum(dz * rate * sign, 1)
        if d_clocks is not None:
            tl.store(d_clocks + tl.cast(bh, tl.int64) * sizes.keys + j, acc_clocks, mask=j < sizes.keys)
        if d_positions is not None:
            tl.store(d_positions + tl.cast(bh, tl.int64) * sizes.keys + j, acc_positions, mask=j < sizes.keys)
    if dropout.seed is not None:
        acc_v *= dropout.scale
    _store(d_k, acc_k * terms.scale, b, g, n, sizes.keys, D, T, WIDTH)
    _store(d_v, acc_v, b, g, n, sizes.keys, D, T, WIDTH)
