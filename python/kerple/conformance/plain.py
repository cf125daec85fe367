"""Attention with every feature of the suite, forward and backward, in plain PyTorch.

It is written to be read and copied: a few products and sums for each tile of scores, in memory
linear in the lengths, as in FlashAttention (Dao et al. 2022, arXiv:2205.14135). It runs on any
device and has the same bits in every run. :mod:`~kerple.conformance.mutants` breaks it in one place
at a time, to show that the suite notices.

For query i and key j at the distance d = i - j::

    s = scale q.k,   u = softcap tanh(s / softcap),   z = u weight[h, d] + bias[h, d] + r_i P[:, d] + c_i - c_j + k(y)
    p = exp(z - lse_i),   lse_i = ln(exp(sink_h) + sum_j exp(z)),   out_i = sum_j p m v_j

where c are the cumulative gates, the columns of P end at its reach, k is a kernel of the distance y = |x_i - x_j| between learned positions,
and dropout makes m 0 or 1 / (1 - dropout_p). With delta_i = d_out_i . out_i the gradients are::

    dz = p (m d_out_i . v_j - delta_i),   ds = dz weight[h, d] (1 - (u / softcap)^2)
    d_q_i = scale sum_j ds k_j,   d_k_j = scale sum_i ds q_i,   d_v_j = sum_i p m d_out_i
    d_r_i = sum_j dz P[:, d],   d_P[:, d] = sum dz r_i   (over heads too)
    d_bias[h, d] = sum dz,   d_weight[h, d] = sum dz u   (over sequences and pairs at distance d)
    d_sink_h = -sum_i exp(sink_h - lse_i) delta_i,   d_c_i = sum_j dz,   d_c_j = -sum_i dz
    d_x_i = sum_j dz k'(y),   d_x_j = -sum_i dz k'(y),   both times -1 where j is ahead
    d_r1 = sum dz k / r1,   d_r2 = sum dz y k' / (p r2),   d_p = sum dz y k' ln(y) / p,   d_a_m = -sum dz min(y, 2^(m - 1))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

#: The lowest gate: e to this power is 0, and its sums are exact in float64.
_RESET = -65536.0


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    weight: Tensor | None = None,
    causal: bool = True,
    window: int | None = None,
    sink_tokens: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    gates: Tensor | None = None,
    relative: tuple[Tensor, Tensor] | None = None,
    positions: Tensor | None = None,
    position_kernel: tuple[str, Tensor] | None = None,
    key_lengths: Tensor | None = None,
    key_starts: Tensor | None = None,
    key_ends: Tensor | None = None,
    document_ids: Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    tile: int = 32,
) -> Tensor:
    """The arguments of :func:`kerple.torch.attention`, and the number of queries and keys in a
    tile.

    Returns:
        ``[B, H, Q, D]``, in the type of q; computed in float32 for half precision.

    Raises:
        ValueError: gates, learned positions or documents, and more queries than keys.
    """
    if q.shape[2] > k.shape[2] and positions is not None:
        raise ValueError(f"positions: {q.shape[2]} queries and {k.shape[2]} keys; there may not be more queries than keys")
    if q.shape[2] > k.shape[2] and gates is not None:
        raise ValueError(f"gates: {q.shape[2]} queries and {k.shape[2]} keys; there may not be more queries than keys")
    if q.shape[2] > k.shape[2] and document_ids is not None:
        raise ValueError(f"document_ids: {q.shape[2]} queries exceed the {k.shape[2]} keys of packed documents")
    limits = _key_limits(q, k, key_starts, key_lengths, key_ends, document_ids)
    clocks = None if gates is None else _cumulative(gates, key_starts, key_lengths)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    kernel, parameters = position_kernel or ("", None)
    x = None if positions is None else _in_place(positions.double(), key_starts, key_lengths, document_ids)
    rule = Rule(causal, window, sink_tokens, scale, softcap, dropout_p, dropout_seed, tile, kernel, *limits)
    return _Attention.apply(q, k, v, bias, weight, sinks, clocks, *(relative or (None, None)), x, parameters, rule)


def _key_limits(
    q: Tensor, k: Tensor, starts: Tensor | None, lengths: Tensor | None, ends: Tensor | None, ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    """For each query the first key that is not hidden by padding, its interval or document borders, and
    one past the last, ``[B, Q]``.
    """
    (batch, _, queries, _), keys = q.shape, k.shape[2]
    first = torch.zeros(batch, queries, dtype=torch.int64, device=q.device)
    end = torch.full_like(first, keys)
    if starts is not None and starts.dim() == 2:
        first = starts
    elif starts is not None:
        first = first.maximum(starts[:, None])
    if ends is not None:
        end = ends
    if lengths is not None:
        end = end.minimum(lengths[:, None])
    if ids is not None:
        order = ids.masked_fill(ids < 0, keys).contiguous()  # padding is at the end
        ids, own = ids[:, keys - queries :], order[:, keys - queries :].contiguous()
        own_first = torch.searchsorted(order, own)
        own_end = torch.searchsorted(order, own, right=True)
        first = first.maximum(own_first)
        end = end.minimum(own_end).masked_fill(ids < 0, 0)
    return first, end


def _cumulative(gates: Tensor, starts: Tensor | None, lengths: Tensor | None) -> Tensor:
    """Cumulative gates in float64, ``[B, H, K]``; gates of padding count 0, whatever their value."""
    at = torch.arange(gates.shape[-1], device=gates.device)
    if starts is not None and starts.dim() == 1:
        gates = gates.masked_fill(at < starts[:, None, None], 0.0)
    if lengths is not None:
        gates = gates.masked_fill(at >= lengths[:, None, None], 0.0)
    return gates.double().clamp(min=_RESET).cumsum(-1)


def _in_place(x: Tensor, starts: Tensor | None, lengths: Tensor | None, ids: Tensor | None) -> Tensor:
    """Learned positions ``[B, H, K]`` with padding where the nearest token is, and that after documents at 0."""
    if ids is not None:
        return x.masked_fill(ids[:, None] < 0, 0.0)
    keys = x.shape[-1]
    nearest = torch.arange(keys, device=x.device).expand(len(x), -1)
    if lengths is not None:
        nearest = nearest.minimum(lengths[:, None] - 1)
    if starts is not None and starts.dim() == 1:
        nearest = nearest.maximum(starts[:, None])
    return x.gather(2, nearest.clamp(0, keys - 1)[:, None].expand_as(x))


@dataclass(frozen=True)
class Rule:
    """Which pairs attend, and how scores are computed."""

    causal: bool
    window: int | None
    sink_tokens: int | None
    scale: float
    softcap: float | None
    dropout_p: float
    dropout_seed: int
    tile: int
    #: Of learned positions.
    kernel: str
    first_key: Tensor
    end_key: Tensor


@dataclass(frozen=True)
class Scores:
    """One tile of scores, ``[B, H, R, C]``."""

    #: After scale and softcap.
    u: Tensor
    #: What the softmax takes; -inf where a query may not attend.
    z: Tensor
    #: The distance of the tile's first query from its last key.
    nearest: int


class Inputs:
    """The tensors of a call in the type of the computation, and their tiles."""

    def __init__(self, tensors: tuple[Tensor | None, ...], rule: Rule) -> None:
        self.q, self.k, self.v, bias, weight, sinks, self.clocks, self.r, profiles, self.x, parameters = tensors
        self.rule = rule
        self.dtype = torch.float32 if self.q.dtype in (torch.float16, torch.bfloat16) else self.q.dtype
        as_computed = lambda x: None if x is None else x.to(self.dtype)  # noqa: E731
        self.bias, self.weight, self.sinks = as_computed(bias), as_computed(weight), as_computed(sinks)
        self.profiles, self.parameters = as_computed(profiles), as_computed(parameters)
        self.batch, self.heads, self.queries, self.features = self.q.shape
        self.kv_heads, self.keys = self.k.shape[1:3]
        self.group = self.heads // self.kv_heads

    def position(self, query: int) -> int:
        """The last query is at the position of the last key."""
        return self.keys - self.queries + query

    def query_tiles(self) -> list[slice]:
        return _cut(0, self.queries, self.rule.tile)

    def key_tiles(self, rows: slice) -> list[slice]:
        """Tiles of the keys that queries may attend to, by causal mask and window: first tokens before the window are
        tiles of their own.
        """
        first, last = self.position(rows.start), self.position(rows.stop - 1)
        start, end, tiles = 0, self.keys, []
        if self.rule.causal:
            end = min(end, last + 1)
        if self.rule.window is not None:
            start = max(start, first - self.rule.window + 1)
            end = min(end, last + self.rule.window)
        if self.rule.sink_tokens is not None:
            first_key = self.rule.first_key[:, rows]
            tiles += _cut(int(first_key.min()), min(int(first_key.max()) + self.rule.sink_tokens, start), self.rule.tile)
        tiles += _cut(start, end, self.rule.tile)
        return tiles

    def queries_of(self, x: Tensor, rows: slice) -> Tensor:
        """``[B, H, R, D]``"""
        return x[:, :, rows].to(self.dtype)

    def keys_of(self, x: Tensor, keys: slice) -> Tensor:
        """For each query head its key head's rows, ``[B, H, C, D]``: head h reads ``h // group``."""
        return x[:, :, keys].to(self.dtype).repeat_interleave(self.group, 1)

    def over_group(self, d: Tensor) -> Tensor:
        """The gradient of key heads, ``[B, G, C, D]``: a sum over their query heads."""
        return d.unflatten(1, (self.kv_heads, self.group)).sum(2)

    def distances(self, rows: slice, keys: slice) -> Tensor:
        """``[R, C]``"""
        i = torch.arange(self.position(rows.start), self.position(rows.stop), device=self.q.device)
        j = torch.arange(keys.start, keys.stop, device=self.q.device)
        return i[:, None] - j

    def columns(self, table: Tensor, d: Tensor) -> Tensor:
        """A table's entries at these distances, ``[H, R, C]``; any where a query may not attend."""
        return table[:, (d + self.origin(table)).clamp(0, table.shape[1] - 1)]

    def origin(self, table: Tensor) -> int:
        """The column of distance 0."""
        return 0 if self.rule.causal else table.shape[1] // 2

    def profile_columns(self, d: Tensor) -> Tensor:
        """The profiles at these distances, ``[N, R, C]``: 0 out of reach."""
        reach = self.profiles.shape[1]
        return self.profiles[:, d.clamp(0, reach - 1)] * ((d >= 0) & (d < reach))

    def gate_sums(self, rows: slice, keys: slice, d: Tensor) -> Tensor:
        """The sum of the gates between the two positions of each pair, ``[B, H, R, C]``."""
        own = self.clocks[:, :, self.position(rows.start) : self.position(rows.stop)]
        between = own[..., :, None] - self.clocks[:, :, None, keys]
        return torch.where(d >= 0, between, -between).to(self.dtype)

    def apart(self, rows: slice, keys: slice, d: Tensor) -> Tensor:
        """How far apart the learned positions of each pair are, ``[B, H, R, C]``."""
        own = self.x[:, :, self.position(rows.start) : self.position(rows.stop)]
        between = own[..., :, None] - self.x[:, :, None, keys]
        return between.abs().to(self.dtype)

    def mask(self, rows: slice, keys: slice, d: Tensor) -> Tensor:
        """Which pairs attend, ``[B, 1, R, C]``."""
        j = torch.arange(keys.start, keys.stop, device=self.q.device)
        first, end = self.rule.first_key[:, rows, None], self.rule.end_key[:, rows, None]
        seen = (j >= first) & (j < end)
        if self.rule.causal:
            seen = seen & (d >= 0)
        if self.rule.window is not None:
            near = d.abs() < self.rule.window
            if self.rule.sink_tokens is not None:
                near = near | (j < first + self.rule.sink_tokens)
            seen = seen & near
        return seen[:, None]

    def scores(self, rows: slice, keys: slice) -> Scores:
        d = self.distances(rows, keys)
        u = self.rule.scale * (self.queries_of(self.q, rows) @ self.keys_of(self.k, keys).mT)
        if self.rule.softcap is not None:
            u = self.rule.softcap * torch.tanh(u / self.rule.softcap)
        z = u
        if self.weight is not None:
            z = z * self.columns(self.weight, d)
        if self.bias is not None:
            z = z + self.columns(self.bias, d)
        if self.r is not None:
            z = z + torch.einsum("bhin,nij->bhij", self.queries_of(self.r, rows), self.profile_columns(d))
        if self.clocks is not None:
            z = z + self.gate_sums(rows, keys, d)
        if self.x is not None:
            z = z + kernel_of(self.rule.kernel, self.parameters, self.apart(rows, keys, d))[0]
        z = z.masked_fill(~self.mask(rows, keys, d), -math.inf)
        return Scores(u, z, self.position(rows.start) - (keys.stop - 1))

    def dropout_factors(self, rows: slice, keys: slice) -> Tensor | float:
        """What weights are multiplied by, ``[B, H, R, C]``: 0 or ``1 / (1 - dropout_p)``."""
        if self.rule.dropout_p == 0:
            return 1.0
        i = torch.arange(rows.start, rows.stop, device=self.q.device)
        j = torch.arange(keys.start, keys.stop, device=self.q.device)
        unit = torch.arange(self.batch * self.heads, device=self.q.device).view(self.batch, self.heads, 1, 1)
        words = _philox(self.rule.dropout_seed, j, i[:, None] // 4, unit)
        word = sum(words[n] * (i[:, None] % 4 == n) for n in range(4))
        kept = word >> 1 >= round(2**31 * self.rule.dropout_p)
        return kept.to(self.dtype) / (1 - self.rule.dropout_p)

    def sinks_of(self, rows: slice) -> Tensor:
        """``[B, H, R]``"""
        return self.sinks[:, None].expand(self.batch, self.heads, rows.stop - rows.start)


def kernel_of(name: str, parameters: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """k, k' and ln u at distances ``[B, H, R, C]``; where positions coincide all are 0, but for a finite k'."""
    first, *more = (x[:, None, None] for x in parameters.unbind(1))
    if name == "spline":
        knots = [2.0**m for m in range(len(more))]
        k = -first * u - sum(a * u.clamp(max=knot) for a, knot in zip(more, knots, strict=True))
        return k, -first - sum(a * (u < knot) for a, knot in zip(more, knots, strict=True)), u
    if name == "log":
        return -first * torch.log1p(more[0] * u), -first * more[0] / (1 + more[0] * u), u
    is_apart = u > 0
    divisor, p = u.where(is_apart, 1.0), more[-1]
    power = divisor**p * is_apart
    if name == "power":
        return -first * power, -first * p * power / divisor, divisor.log()
    inner = more[0] * power
    return -first * torch.log1p(inner), -first * p * inner / ((1 + inner) * divisor), divisor.log()


def _philox(seed: int, *counter: Tensor) -> list[Tensor]:
    """The words of Philox4x32-10 (Salmon et al. 2011) at counters of three numbers and a 0."""
    a, b, c, d = *torch.broadcast_tensors(*counter), 0
    low, high, bits = seed & 0xFFFFFFFF, seed >> 32, 0xFFFFFFFF
    for _ in range(10):
        x, y = a * 0xD2511F53, c * 0xCD9E8D57  # modulo 2^64
        a, b, c, d = (y >> 32 & bits) ^ b ^ low, y & bits, (x >> 32 & bits) ^ d ^ high, x & bits
        low, high = (low + 0x9E3779B9) & bits, (high + 0xBB67AE85) & bits
    return [a, b, c, d]


def _cut(start: int, end: int, size: int) -> list[slice]:
    return [slice(at, min(at + size, end)) for at in range(start, end, size)]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        *tensors, rule = inputs
        given = Inputs(tuple(tensors), rule)
        out, lse = forward(given)
        ctx.rule = rule
        ctx.save_for_backward(*tensors, out, lse)
        return out.to(given.q.dtype)

    @staticmethod
    def backward(ctx, d_out):
        *tensors, out, lse = ctx.saved_tensors
        found = backward(Inputs(tuple(tensors), ctx.rule), out, lse, d_out)
        return *(None if d is None else d.to(x.dtype) for d, x in zip(found, tensors, strict=True)), None


def forward(given: Inputs) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of each row's sum of exponentials; +inf for a row without keys,
    whose weights the backward then finds to be 0.
    """
    out = torch.zeros(given.q.shape, dtype=given.dtype, device=given.q.device)
    lse = torch.zeros(given.q.shape[:3], dtype=given.dtype, device=given.q.device)
    for rows in given.query_tiles():
        total = torch.zeros_like(out[:, :, rows])
        row_max = torch.full_like(lse[:, :, rows], -math.inf)
        row_sum = torch.zeros_like(row_max)
        if given.sinks is not None:
            row_max, row_sum = given.sinks_of(rows), torch.ones_like(row_sum)
        for keys in given.key_tiles(rows):
            z = given.scores(rows, keys).z
            new_max = row_max.maximum(z.amax(-1))
            shift = new_max.masked_fill(new_max == -math.inf, 0.0)  # -inf - -inf is NaN
            p = (z - shift[..., None]).exp()
            rescale = (row_max - shift).exp()
            row_sum = row_sum * rescale + p.sum(-1)
            p = p * given.dropout_factors(rows, keys)
            total = total * rescale[..., None] + p @ given.keys_of(given.v, keys)
            row_max = new_max
        has_keys = row_sum > 0
        out[:, :, rows] = total / row_sum.where(has_keys, 1.0)[..., None]
        lse[:, :, rows] = (row_max + row_sum.log()).where(has_keys, math.inf)
    return out, lse


def backward(given: Inputs, out: Tensor, lse: Tensor, d_out: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of q, k, v, bias, weight, sinks, cumulative gates, of a relative bias's r and P, and of learned positions and the
    parameters of their kernel.
    """
    zeros = lambda x: torch.zeros(x.shape, dtype=given.dtype, device=x.device)  # noqa: E731
    d_q, d_k, d_v = zeros(given.q), zeros(given.k), zeros(given.v)
    d_bias, d_weight = (None if x is None else TableGradient(x, given) for x in (given.bias, given.weight))
    d_clocks = None if given.clocks is None else torch.zeros_like(given.clocks)
    d_relative = None if given.r is None else RelativeGradient(given)
    d_learned = None if given.x is None else PositionGradient(given)
    delta = (d_out.to(given.dtype) * out).sum(-1)
    for rows in given.query_tiles():
        up, q = given.queries_of(d_out, rows), given.queries_of(given.q, rows)
        for keys in given.key_tiles(rows):
            tile = given.scores(rows, keys)
            p = (tile.z - lse[:, :, rows, None]).exp()
            factors = given.dropout_factors(rows, keys)
            d_v[:, :, keys] += given.over_group((p * factors).mT @ up)
            dz = p * (factors * (up @ given.keys_of(given.v, keys).mT) - delta[:, :, rows, None])
            if d_bias is not None:
                d_bias.add(dz, tile.nearest)
            if d_weight is not None:
                d_weight.add(dz * tile.u, tile.nearest)
            if d_clocks is not None:
                _add_to_clocks(d_clocks, given, rows, keys, dz)
            if d_relative is not None:
                d_relative.add(dz, rows, keys, tile.nearest)
            if d_learned is not None:
                d_learned.add(dz, rows, keys)
            ds = given.rule.scale * _before_table(given, rows, keys, dz, tile.u)
            d_q[:, :, rows] += ds @ given.keys_of(given.k, keys)
            d_k[:, :, keys] += given.over_group(ds.mT @ q)
    d_sinks = None
    if given.sinks is not None:
        d_sinks = -((given.sinks[:, None] - lse).exp() * delta).sum((0, 2))
    d_bias, d_weight = (None if d is None else d.table() for d in (d_bias, d_weight))
    d_r, d_profiles = (None, None) if d_relative is None else d_relative.found()
    d_x, d_parameters = (None, None) if d_learned is None else d_learned.found()
    return d_q, d_k, d_v, d_bias, d_weight, d_sinks, d_clocks, d_r, d_profiles, d_x, d_parameters


def _before_table(given: Inputs, rows: slice, keys: slice, dz: Tensor, u: Tensor) -> Tensor:
    """The gradient of scores before weight and softcap."""
    if given.weight is not None:
        dz = dz * given.columns(given.weight, given.distances(rows, keys))
    if given.rule.softcap is not None:
        dz = dz * (1 - (u / given.rule.softcap) ** 2)
    return dz


def _add_to_clocks(d_clocks: Tensor, given: Inputs, rows: slice, keys: slice, dz: Tensor) -> None:
    dz = torch.where(given.distances(rows, keys) >= 0, dz, -dz).double()
    d_clocks[:, :, given.position(rows.start) : given.position(rows.stop)] += dz.sum(-1)
    d_clocks[:, :, keys] -= dz.sum(-2)


class TableGradient:
    """The gradient of a table over distances: sums along the diagonals of all tiles."""

    def __init__(self, table: Tensor, given: Inputs) -> None:
        self.margin = given.rule.tile  # a causal tile also has pairs at negative distances
        self.origin = given.origin(table)
        self.sums = pad(torch.zeros_like(table), (self.margin, self.margin))

    def add(self, dz: Tensor, nearest: int) -> None:
        found = diagonal_sums(dz.sum(0))
        first = self.margin + self.origin + nearest
        self.sums[:, first : first + found.shape[-1]] += found

    def table(self) -> Tensor:
        return self.sums[:, self.margin : -self.margin]


class RelativeGradient:
    """The gradients of the rows and profiles of a relative bias."""

    def __init__(self, given: Inputs) -> None:
        self.given = given
        self.d_r = torch.zeros(given.r.shape, dtype=given.dtype, device=given.r.device)
        # columns for distances out of reach too, which nobody reads
        self.d_profiles = TableGradient(pad(given.profiles, (0, given.keys)), given)

    def add(self, dz: Tensor, rows: slice, keys: slice, nearest: int) -> None:
        columns = self.given.profile_columns(self.given.distances(rows, keys))
        self.d_r[:, :, rows] += torch.einsum("bhij,nij->bhin", dz, columns)
        products = torch.einsum("bhij,bhin->bnij", dz, self.given.queries_of(self.given.r, rows))
        self.d_profiles.add(products, nearest)

    def found(self) -> tuple[Tensor, Tensor]:
        return self.d_r, self.d_profiles.table()[:, : self.given.profiles.shape[1]]


class PositionGradient:
    """The gradients of learned positions and of the parameters of their kernel."""

    def __init__(self, given: Inputs) -> None:
        self.given = given
        self.d_x = torch.zeros_like(given.x)
        self.spline = given.rule.kernel == "spline"
        self.sums = torch.zeros(given.heads, given.parameters.shape[1] if self.spline else 3, dtype=torch.float64, device=given.x.device)

    def add(self, dz: Tensor, rows: slice, keys: slice) -> None:
        given, d = self.given, self.given.distances(rows, keys)
        u = given.apart(rows, keys, d)
        k, slope, ln_u = kernel_of(given.rule.kernel, given.parameters, u)
        d_u = torch.where(d >= 0, dz * slope, -dz * slope).double()
        self.d_x[:, :, given.position(rows.start) : given.position(rows.stop)] += d_u.sum(-1)
        self.d_x[:, :, keys] -= d_u.sum(-2)
        terms = [k, u * slope, u * slope * ln_u]
        if self.spline:
            terms = [u, *(u.clamp(max=2.0**m) for m in range(given.parameters.shape[1] - 1))]
        self.sums += torch.stack([(dz * term).double().sum((0, 2, 3)) for term in terms], 1)

    def found(self) -> tuple[Tensor, Tensor]:
        if self.spline:
            return self.d_x, -self.sums
        parameters = self.given.parameters.double()
        (r1, *more), (of_k, of_slope, of_log) = parameters.unbind(1), self.sums.unbind(1)
        if self.given.rule.kernel == "log":
            return self.d_x, torch.stack([of_k / r1, of_slope / more[0]], 1)
        p = more[-1]
        return self.d_x, torch.stack([of_k / r1, *(of_slope / (p * r2) for r2 in more[:-1]), of_log / p], 1)


def diagonal_sums(x: Tensor) -> Tensor:
    """``[H, R, C]`` to ``[H, R + C - 1]``: entry n is the sum over ``r - c = n - (C - 1)``.

    Row r of the mirrored tile moves r places to the right, by another width of its rows, so that
    diagonals become columns and are added in a fixed order.
    """
    rows, columns = x.shape[-2:]
    moved = pad(x.flip(-1), (0, rows)).flatten(-2)[..., :-rows]
    return moved.unflatten(-1, (rows, rows + columns - 1)).sum(-2)
