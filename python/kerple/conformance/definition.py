"""The reference: attention with a bias over distances in f64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

#: The tensors of a call that have a gradient, and the names of these gradients.
GRADIENTS = {name: f"d_{name}" for name in ("q", "k", "v", "bias", "weight", "sinks", "gates", "rows", "profiles", "positions", "parameters")}

#: The lowest gate that is not told apart from -inf: e to this power is 0.
_RESET = -65536.0


class Unsupported(Exception):
    """Raise it in an implementation that lacks a feature, ``Unsupported("sinks")``: the suite then
    reports the check as not supported instead of wrong.
    """


@dataclass(frozen=True)
class Call:
    """The inputs of an implementation.

    Query ``i`` of Q is at position ``K - Q + i``; ``d = i - j`` is the distance from query to key.
    The score of a pair is ``u weight[h, d] + bias[h, d] + rows[b, h, i].profiles[:, d] + c_i - c_j + k(|x_i - x_j|)``,
    where u is ``scale q.k``, or ``softcap tanh(scale q.k / softcap)``, c are cumulative gates, and k is the kernel of
    learned positions x. A
    query attends to keys with ``0 <= d``, or to all without ``causal``, within ``|d| < window`` or among the first
    ``sink_tokens`` of its sequence or document, of its own document, of sequence b only to those from ``key_starts[b]`` on and before ``key_lengths[b]``, and
    of its own interval, where there are any, from ``key_starts[b, i]`` on and before ``key_ends[b, i]``. A query that
    may not attend to any key has the output 0 and passes no gradient on.
    """

    q: Tensor
    """``[B, H, Q, D]``"""
    k: Tensor
    """``[B, G, K, D]``, where G divides H: query head h reads key head ``h // (H // G)``."""
    v: Tensor
    """``[B, G, K, D]``"""
    bias: Tensor | None
    """``[H, K]`` over distances 0 to K - 1; without ``causal`` ``[H, 2 L - 1]`` over ``-(L - 1)`` to
    ``L - 1``, where L is the larger of Q and K. A table may be longer.
    """
    causal: bool
    window: int | None
    key_lengths: Tensor | None
    """``[B]``, one past the last key that is not padding."""
    scale: float
    sink_tokens: int | None = None
    """With ``causal`` and a window: how many first keys are seen beyond it. Padding is not among them."""
    weight: Tensor | None = None
    """Shaped as the bias; multiplies scores."""
    softcap: float | None = None
    sinks: Tensor | None = None
    """``[H]``, logits without a value, which each row's softmax includes."""
    gates: Tensor | None = None
    """Log gates, ``[B, H, K]``: a score gets the sum of the gates after the earlier position, up to
    the later one. Those of padding are not read and may be NaN; -65536 lets nothing through.
    """
    rows: Tensor | None = None
    """``[B, H, Q, R]``, what each query computes its own bias from (a relative bias, as in Inkling)."""
    profiles: Tensor | None = None
    """``[R, E]``, shared by heads: the bias of a key at distance E or more is 0. ``causal`` only."""
    positions: Tensor | None = None
    """Learned positions, ``[B, H, K]`` in f64, which do not decrease within a document. Those of padding are not read and
    may be NaN: it is where the nearest token is.
    """
    parameters: Tensor | None = None
    """Of their kernel, ``[H, P]`` in the order of its formula."""
    kernel: str = ""
    """``log``, ``-r1 ln(1 + r2 u)``; ``power``, ``-r1 u^p``; ``log3``, ``-r1 ln(1 + r2 u^p)``; or ``spline``,
    ``-a_0 u - sum of a_m min(u, 2^(m - 1))``. Where positions coincide, an infinite derivative counts as 0.
    """
    key_starts: Tensor | None = None
    """``[B]``, the first key that is not padding; ``[B, Q]``, the first key of each query."""
    document_ids: Tensor | None = None
    """``[B, K]``, the number of each token's document: from 0, never decreasing, -1 for padding after
    the last document. The last Q tokens are the queries.
    """
    key_ends: Tensor | None = None
    """``[B, Q]``, one past the last key of each query; ``key_starts`` then are per query too."""
    dropout_p: float | None = None
    """The probability of dropping a weight after the softmax; others are divided by ``1 - dropout_p``. An
    implementation with a generator of its own cannot have this mask: it raises :class:`Unsupported`.
    """
    dropout_seed: int | None = None
    """What :func:`kerple.torch.dropout_mask` computes the mask from."""

    def dropout_factors(self) -> Tensor:
        """What weights are multiplied by, ``[B, H, Q, K]`` in f64."""
        from ..torch import dropout_mask

        (batch, heads, queries, _), keys = self.q.shape, self.k.shape[2]
        kept = dropout_mask(self.dropout_seed, self.dropout_p, batch, heads, queries, keys, device=self.q.device)
        return kept.double() / (1 - self.dropout_p)

    def distances(self) -> Tensor:
        """``[Q, K]``"""
        queries, keys = self.q.shape[2], self.k.shape[2]
        own = torch.arange(keys - queries, keys, device=self.q.device)
        return own[:, None] - torch.arange(keys, device=self.q.device)

    def places(self) -> Tensor:
        """How many keys of its sequence or document are before each key, ``[B or 1, K]``."""
        if self.document_ids is not None:
            ids = self.document_ids
            return (ids[:, :, None] == ids[:, None]).tril(-1).sum(-1)
        at = torch.arange(self.k.shape[2], device=self.q.device)[None]
        return at if self.key_starts is None else at - self.key_starts[:, None]

    def seen(self) -> Tensor:
        """The attention mask, ``[B or 1, 1, Q, K]``."""
        d = self.distances()
        seen = (d >= 0 if self.causal else torch.ones_like(d, dtype=torch.bool))[None, None]
        if self.window is not None:
            near = (d.abs() < self.window)[None, None]
            if self.sink_tokens is not None:
                near = near | (self.places() < self.sink_tokens)[:, None, None]
            seen = seen & near
        at = torch.arange(self.k.shape[2], device=self.q.device)
        if self.key_lengths is not None:
            seen = seen & (at < self.key_lengths[:, None])[:, None, None]
        if self.key_starts is not None:
            starts = self.key_starts if self.key_starts.dim() == 2 else self.key_starts[:, None]
            seen = seen & (at >= starts[..., None])[:, None]
        if self.key_ends is not None:
            seen = seen & (at < self.key_ends[..., None])[:, None]
        if self.document_ids is not None:
            ids = self.document_ids
            own = ids[:, ids.shape[1] - self.q.shape[2] :, None]
            same = (own == ids[:, None]) & (own >= 0)
            seen = seen & same[:, None]
        return seen

    def spread(self, table: Tensor | None = None) -> Tensor:
        """A table, by default the bias, per pair, ``[H, Q, K]``; pairs that are not seen have any
        entry.
        """
        table = self.bias if table is None else table
        origin = 0 if self.causal else table.shape[1] // 2
        return table[:, (origin + self.distances()).clamp(0, table.shape[1] - 1)]

    def cumulative_gates(self) -> Tensor:
        """``[B, H, K]`` in f64."""
        at, gates = torch.arange(self.k.shape[2], device=self.q.device), self.gates
        if self.key_lengths is not None:
            gates = gates.masked_fill(at >= self.key_lengths[:, None, None], 0.0)
        if self.key_starts is not None and self.key_starts.dim() == 1:
            gates = gates.masked_fill(at < self.key_starts[:, None, None], 0.0)
        return gates.double().clamp(min=_RESET).cumsum(-1)

    def gate_sums(self) -> Tensor:
        """The sum of the gates between the two positions of a pair, ``[B, H, Q, K]`` in f64."""
        c = self.cumulative_gates()
        between = c[:, :, c.shape[2] - self.q.shape[2] :, None] - c[:, :, None]
        return torch.where(self.distances() >= 0, between, -between)

    def spread_profiles(self) -> Tensor:
        """The profiles per pair, ``[R, Q, K]``: 0 for keys ahead and those out of reach."""
        d, reach = self.distances(), self.profiles.shape[1]
        return self.profiles[:, d.clamp(0, reach - 1)] * ((d >= 0) & (d < reach))

    def apart(self) -> Tensor:
        """How far apart the learned positions of a pair are, ``[B, H, Q, K]`` in f64; 0 of pairs that are not seen."""
        x = self.positions.double()
        if self.key_starts is None or self.key_starts.dim() == 1:
            keys = x.shape[2]
            nearest = torch.arange(keys, device=x.device).expand(x.shape[0], -1)
            if self.key_lengths is not None:
                nearest = nearest.minimum(self.key_lengths[:, None] - 1)
            if self.key_starts is not None:
                nearest = nearest.maximum(self.key_starts[:, None])
            x = x.gather(2, nearest.clamp(0, keys - 1)[:, None].expand_as(x))
        between = x[:, :, x.shape[2] - self.q.shape[2] :, None] - x[:, :, None]
        # not |between|, whose derivative is 0 where positions coincide, but that from above
        return torch.where(self.seen(), torch.where(self.distances() >= 0, between, -between), 0.0)

    def learned_bias(self, u: Tensor) -> Tensor:
        """The kernel at distances ``[B, H, Q, K]``."""
        first, *more = (x[:, None, None] for x in self.parameters.double().unbind(1))
        if self.kernel == "spline":
            return -first * u - sum(a * torch.where(u < 2.0**m, u, 2.0**m) for m, a in enumerate(more))
        if self.kernel == "log":
            return -first * torch.log1p(more[0] * u)
        power = torch.where(u > 0, torch.where(u > 0, u, 1.0) ** more[-1], 0.0)
        return -first * (power if self.kernel == "power" else torch.log1p(more[0] * power))

    def added(self) -> Tensor | None:
        """What is added to scores: bias, relative bias, gates and the kernel of learned positions, ``[B or 1, H, Q, K]``, or
        None.
        """
        added = None if self.bias is None else self.spread()[None]
        if self.rows is not None:
            own = torch.einsum("bhin,nij->bhij", self.rows.to(self.profiles.dtype), self.spread_profiles())
            added = own if added is None else added + own
        if self.gates is not None:
            sums = self.gate_sums()
            added = sums.to(self.gates.dtype) if added is None else added + sums.to(added.dtype)
        if self.positions is not None:
            own = self.learned_bias(self.apart())
            added = own.to(self.parameters.dtype) if added is None else added + own.to(added.dtype)
        return added

    def grouped(self) -> tuple[Tensor, Tensor]:
        """Keys and values for each query head, ``[B, H, K, D]``."""
        group = self.q.shape[1] // self.k.shape[1]
        return self.k.repeat_interleave(group, 1), self.v.repeat_interleave(group, 1)

    def with_gradient(self) -> dict[str, Tensor]:
        """The tensors that have a gradient, by name."""
        return {name: getattr(self, name) for name in GRADIENTS if getattr(self, name) is not None}

    def map(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The call with other tensors in place of those that have a gradient."""
        return replace(self, **{name: change(x) for name, x in self.with_gradient().items()})


def _scores(call: Call) -> tuple[Tensor, Tensor]:
    """Scores after scale and softcap, and after tables, gates and mask; ``[B, H, Q, K]``."""
    call = call.map(Tensor.double)
    scores = call.q @ call.grouped()[0].transpose(-1, -2) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    z = scores if call.weight is None else scores * call.spread(call.weight)
    added = call.added()
    z = z if added is None else z + added
    return scores, z.masked_fill(~call.seen(), -math.inf)


def _weights(call: Call, z: Tensor) -> tuple[Tensor, Tensor]:
    """Attention weights per pair, ``[B, H, Q, K]`` in f64, zeros for a query that may not attend to
    any key; and the weight of the sink, ``[B, H, Q]``.
    """
    batch, heads, queries, keys = z.shape
    if call.sinks is None:
        sink = torch.full_like(z[..., :1], -math.inf)
    else:
        sink = call.sinks.double()[:, None, None].expand(batch, heads, queries, 1)
    z = torch.cat([z, sink], -1)
    lowest = torch.finfo(z.dtype).min
    exponentials = (z - z.amax(-1, keepdim=True).clamp(min=lowest)).exp()
    sums = exponentials.sum(-1, keepdim=True)
    weights = exponentials / sums.where(sums > 0, torch.ones_like(sums))
    return weights[..., :keys], weights[..., keys]


def definition(call: Call) -> Tensor:
    """The output in f64, with whole score matrices; gradients by autograd."""
    weights, _ = _weights(call, _scores(call)[1])
    if call.dropout_p is not None:
        weights = weights * call.dropout_factors()
    return weights @ call.grouped()[1].double()


@torch.no_grad()
def sizes(call: Call, up: Tensor) -> dict[str, Tensor]:
    """For the output and every gradient, shaped as they are: the sum of the magnitudes of the terms
    that are added.

    Rounding is relative to these and not to the results: the gradient of a row with a single key is
    0, a difference of two equal numbers.
    """
    call, up = call.map(lambda x: x.detach().double()), up.double()
    scores, z = _scores(call)
    (k, v), (p, p_sink) = call.grouped(), _weights(call, z)
    kept, products = p, up @ v.transpose(-1, -2)
    if call.dropout_p is not None:
        factors = call.dropout_factors()
        kept, products = p * factors, products * factors
    delta = (p * products).sum(-1, keepdim=True).abs()
    d_z = p * (products.abs() + delta)
    d_s = d_z if call.weight is None else d_z * call.spread(call.weight).abs()
    if call.softcap is not None:
        d_s = d_s * (1 - (scores / call.softcap) ** 2)
    group = lambda x: x.reshape(x.shape[0], call.k.shape[1], -1, *x.shape[2:]).sum(2)  # noqa: E731
    return {
        "out": kept @ v.abs(),
        "d_q": call.scale * (d_s @ k.abs()),
        "d_k": call.scale * group(d_s.transpose(-1, -2) @ call.q.abs()),
        "d_v": group(kept.transpose(-1, -2) @ up.abs()),
        **({} if call.bias is None else {"d_bias": _along_diagonals(call, call.bias, d_z)}),
        **({} if call.weight is None else {"d_weight": _along_diagonals(call, call.weight, d_z * scores.abs())}),
        **({} if call.sinks is None else {"d_sinks": (p_sink * delta[..., 0]).sum((0, 2))}),
        **({} if call.gates is None else {"d_gates": _of_gates(call, d_z)}),
        **({} if call.rows is None else _of_relative(call, d_z)),
        **({} if call.positions is None else _of_positions(call, d_z)),
    }


def _along_diagonals(call: Call, table: Tensor, x: Tensor) -> Tensor:
    """Sums over sequences and pairs of one distance, shaped as the table."""
    origin = 0 if call.causal else table.shape[1] // 2
    places = (origin + call.distances()).clamp(0, table.shape[1] - 1).flatten()
    return torch.zeros_like(table).index_add_(1, places, x.sum(0).flatten(1))


def _of_gates(call: Call, d_z: Tensor) -> Tensor:
    """Sums of rows and columns, and of these from a token on: so gradients of gates are added."""
    sums = d_z.sum(-2)
    sums[..., sums.shape[-1] - d_z.shape[-2] :] += d_z.sum(-1)
    return sums.flip(-1).cumsum(-1).flip(-1)


def _of_relative(call: Call, d_z: Tensor) -> dict[str, Tensor]:
    """Of the rows and profiles of a relative bias."""
    products = torch.einsum("bhij,bhin->nij", d_z, call.rows.abs())
    d, reach = call.distances(), call.profiles.shape[1]
    within = (d >= 0) & (d < reach)
    d_profiles = torch.zeros_like(call.profiles).index_add_(1, d[within], products[:, within])
    return {"d_rows": torch.einsum("bhij,nij->bhin", d_z, call.spread_profiles().abs()), "d_profiles": d_profiles}


def _of_positions(call: Call, d_z: Tensor) -> dict[str, Tensor]:
    """Of learned positions, sums over rows and columns, and of the parameters of their kernel."""
    u, parameters = call.apart(), call.parameters
    kernel = lambda u, parameters: replace(call, parameters=parameters).learned_bias(u)  # noqa: E731
    rate = torch.func.jvp(lambda u: kernel(u, parameters), (u,), (torch.ones_like(u),))[1].abs()
    by_parameter = []
    for n in range(parameters.shape[1]):
        one = torch.zeros_like(parameters)
        one[:, n] = 1.0
        slope = torch.func.jvp(lambda x: kernel(u, x), (parameters,), (one,))[1]
        by_parameter.append((d_z * slope.abs()).sum((0, 2, 3)))
    sums = (d_z * rate).sum(-2)
    sums[..., sums.shape[-1] - d_z.shape[-2] :] += (d_z * rate).sum(-1)
    return {"d_positions": sums, "d_parameters": torch.stack(by_parameter, 1)}
