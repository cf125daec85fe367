"""What kerple's encodings compute from the rows of a layer, in torch: gates, learned positions, angles, and directions.

A token leaves some numbers of its own for the tokens after it, which a cache keeps as features of its key; sums over tokens are
made of them anew, in float64, so that they are as exact after a million tokens as after ten.
"""
import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from .positions_kerple import turned

# The triangular systems of products of Householder matrices have so many rows.
TILE = 16


@dataclass
class Content:
    """What scores take from the rows of all keys; float64 where it is a sum over tokens."""

    gate_cumsum: torch.Tensor | None = None  # running sums of gates, or learned positions, [B, H, K]
    kernel: tuple | None = None  # of learned positions: its form and learned values; without one they are added
    decays: torch.Tensor | None = None  # running sums of the gates of features, [B, H, K, D]
    path: tuple | None = None  # features of queries [B, H, L, E] and of keys [B, H, K, E], and slopes
    reflections: tuple | None = None  # directions [B, H, K, D] and strengths [B, H, K, 1]


def projected(x, values, names, bias=None):
    """Rows [B, L, M] times one matrix or two, and a bias, [B, L, N] float32."""
    rows = x.float()
    for name in names:
        if name in values:
            rows = rows @ values[name].float()
    return rows if bias is None else rows + values[bias].float()


def gates_of(logits, form):
    """A gate of its logit."""
    kind = form["kind"]
    if kind == "log_sigmoid":
        return functional.logsigmoid(logits)
    if kind == "sigmoid":
        return form["min"] + (form["max"] - form["min"]) * torch.sigmoid(logits)
    if kind == "softplus":
        return form["min"] + functional.softplus(logits, threshold=100.0)
    if kind == "exp":
        return logits.clamp(-10.0, 10.0).exp()
    raise ValueError(f"config.json: there is no gate `{kind}`")


def feature_gates(logits, form):
    """Gates of features of their logits [B, L, G, P]."""
    if form["rates"] is not None:
        return -torch.tensor(form["rates"], device=logits.device)[:, None] * torch.sigmoid(logits)
    gates = functional.logsigmoid(logits)
    return gates if form["bound"] is None else form["bound"] * torch.expm1(gates / form["bound"])


def left_by(x, form, values, heads, groups):
    """What tokens leave for those after them, from rows [B, L, M]: by name, [B, G, L, F] float32 each."""
    enters, left = form["enters"], {}
    by_head = lambda rows: rows.reshape(*rows.shape[:2], groups, -1).transpose(1, 2)
    if enters == "gates":
        logits = values["bias"].float().expand(*x.shape[:2], -1)
        logits = projected(x, values, ["weight"], "bias") if "weight" in values else logits
        left["gates"] = by_head(gates_of(logits, form["gate"]))
    if enters == "turns":
        left |= turns_left_by(x, form, values, heads, by_head)
    decay = form.get("decay")
    if decay is not None:
        weights = ["decay_weight"] if enters == "turns" else ["weight", "weight_in", "weight_out"]
        logits = projected(x, values, weights, "decay_bias" if enters == "turns" else "bias")
        gates = feature_gates(logits.view(*x.shape[:2], decay["heads"], -1), decay)
        left["decays"] = by_head(gates.flatten(2))
        if decay["scalar"]:
            left["gates"] = by_head(functional.logsigmoid(projected(x, values, ["scalar_weight"], "scalar_bias")))
    if enters == "path":
        left["path"] = by_head(projected(x, values, ["weight"]))
    if enters == "reflections":
        left["directions"] = by_head(projected(x, values, ["weight_in", "weight_out"]))
        left["strengths"] = by_head(2.0 * torch.sigmoid(projected(x, values, ["strength_weight"], "strength_bias")))
        if form["gate_factor"] is not None:
            gates = functional.logsigmoid(projected(x, values, ["gate_weight"], "gate_bias"))
            left["gates"] = by_head(gates * form["gate_factor"])
    return left


def turns_left_by(x, form, values, heads, by_head):
    if form["step"] is not None:
        return {"turns": by_head(gates_of(projected(x, values, ["weight"], "bias"), form["step"]))}
    parts = x.float().view(*x.shape[:2], heads, -1)
    parts = parts / (parts.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    rows, left = parts.flatten(2), {}
    left["turns"] = by_head(projected(rows, values, ["weight_in", "weight_out"]))
    if "gate_weight" in values:
        left["turn_gates"] = by_head(torch.sigmoid(projected(rows, values, ["gate_weight"], "gate_bias")))
    return left


def convolved(rows, filters, mask):
    """Causal convolution of `rows` [B, K, C] by filters [C, W]; padding counts as nothing."""
    if mask is not None:
        rows = rows * mask[:, :, None]
    width = filters.shape[1]
    padded = functional.pad(rows.transpose(1, 2), (width - 1, 0))
    return functional.conv1d(padded, filters[:, None], groups=filters.shape[0]).transpose(1, 2)


def of_tokens(left):
    """Features left by tokens [B, G, K, F] as rows [B, K, G F]."""
    return left.transpose(1, 2).flatten(2)


def of_heads(left, heads):
    """Features left by tokens [B, G, K, F] of each head, [B, H, K, F / (H / G)], where the heads of a group have some each."""
    batch, groups, keys, _ = left.shape
    return left.view(batch, groups, keys, heads // groups, -1).transpose(2, 3).reshape(batch, heads, keys, -1)


def content_of(left, positions, at, heads):
    """What scores take from all that tokens have left."""
    form, values, content = positions.form, positions.values, Content()
    if "gates" in left:
        content.gate_cumsum = of_heads(left["gates"], heads)[..., 0].double().cumsum(-1)
        content.kernel = (form["kernel"], values) if form.get("kernel") is not None else None
    if "decays" in left:
        gates = of_heads(left["decays"], form["decay"]["heads"]).double()
        gates = torch.cat([gates, gates], -1) if form["decay"]["pairs"] else gates
        content.decays = gates.cumsum(2).repeat_interleave(heads // gates.shape[1], 1)
    if "path" in left:
        p = of_heads(left["path"], heads)
        root = (p.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()
        places = at.key_positions if positions.drawn is None else positions.drawn[at.key_positions]
        angle = places.double()[:, None, :, None].expand(-1, -1, -1, p.shape[-1] // 2)
        turn = angle.cos().float(), -angle.sin().float()
        queries = turned(p, *turn) if form["relative"] else p
        content.path = (queries[:, :, -at.positions.shape[1] :], turned(p / root, *turn), form["slopes"])
    if "directions" in left:
        rows = functional.silu(convolved(of_tokens(left["directions"]), values["filters"].float(), at.mask))
        groups = left["directions"].shape[1]
        rows = rows.view(*rows.shape[:2], groups, -1).transpose(1, 2)
        w = rows / (rows.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        content.reflections = tuple(part.repeat_interleave(heads // groups, 1) for part in (w, left["strengths"]))
    return content


def content_turn(left, form, values, at, heads):
    """Cosines and sines of the angles of all keys, [B, H, K, P] float32."""
    rates = torch.tensor(form["rates"], dtype=torch.float64, device=at.positions.device)
    if form["step"] is not None:
        turns = of_heads(left["turns"], heads)
    else:
        rows = convolved(of_tokens(left["turns"]), values["filters"].float(), at.mask)
        rows = rows + values["angle_bias"].float().exp() if "angle_bias" in values else rows
        turns = rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)
        turns = turns * of_heads(left["turn_gates"], heads) if "turn_gates" in left else turns
    angle = (turns.double() * rates).cumsum(2)
    return angle.cos().float(), angle.sin().float()


# Maps of queries and keys by position.


def placed(x, turn, form, values, is_query):
    """Queries or keys [B, H, L, D] at the positions of these cosines and sines."""
    cos, sin = turn
    if form["enters"] == "polar":
        return polar(x, cos, sin, values["delta"] if is_query else None, form["clamp"])
    if form["enters"] == "mixed_rotation":
        cos, sin = cos @ values["cos_mix"].float(), sin @ values["sin_mix"].float()
        rest = (0, x.shape[-1] // 2 - cos.shape[-1])
        cos = functional.pad(cos, rest, value=1.0)
        sin = functional.pad(sin, rest, value=0.0 if form["zero_pad"] else 1.0)
    return turned(x, cos, sin)


def polar(x, cos, sin, delta, clamp):
    """Lengths by content and angles by position, the latter less `delta` [H, R] of queries."""
    width = cos.shape[-1]
    if delta is not None:
        if clamp:
            inside = delta.detach().clamp(-math.tau, 0.0)
            delta = torch.where(inside == delta, delta, inside)
        of, off = (part.float()[:, None] for part in (delta.cos(), delta.sin()))
        cos, sin = cos * of + sin * off, sin * of - cos * off
    length = functional.softplus(x[..., :width].float(), threshold=100.0)
    return torch.cat([(length * cos).to(x.dtype), (length * sin).to(x.dtype), x[..., width:]], -1)


# Scores of a block of queries, the last `rows` of these keys.


def differences(sums, rows, keys):
    """Cumulative gates, or learned positions, of the last `rows` of these keys less those of each key, [B, H, rows, keys]."""
    own = sums[..., keys.stop - rows : keys.stop, None]
    return own - sums[..., None, keys.start : keys.stop]


def position_bias(u, kernel):
    """The bias of learned positions that are `u` apart, [B, H, R, K] float64."""
    form, values = kernel
    kind, u = form["kind"], u.clamp(min=0.0)
    of = lambda name: values[name][..., None, None]
    apart = torch.where(u > 0.0, u, 1.0)
    if kind == "log":
        return -of("r1") * torch.log1p(of("r2") * u)
    if kind == "power":
        return torch.where(u > 0.0, -of("r1") * apart ** of("r2"), 0.0)
    if kind == "log3":
        return torch.where(u > 0.0, -of("r1") * torch.log1p(of("r2") * apart ** of("r3")), 0.0)
    if kind == "spline":
        bias = -of("slope") * u
        for knot, rise in enumerate(of("rises")):
            bias = bias - rise * (u / 2.0**knot).clamp(max=1.0)
        return bias
    if kind == "table":
        table = values["table"].T[None, :, None].expand(*u.shape[:3], -1)
        last = table.shape[-1] - 1
        place = (u / form["grid"]).clamp(max=float(last))
        low = place.floor().long()
        share = place - low
        return (1.0 - share) * table.gather(-1, low) + share * table.gather(-1, (low + 1).clamp(max=last))
    raise ValueError(f"config.json: there is no kernel of positions `{kind}`")


def decayed_products(q, k, sums):
    """Products whose features decay by what their running sums [B, H, K, D] fall from key to query."""
    rows, first = q.shape[2], k.shape[2] - q.shape[2]
    before, own = sums[:, :, :first], sums[:, :, first:]
    # each of two factors is at most 1
    start = own[:, :, :1]
    far = (q * (own - start).exp().float()) @ (k[:, :, :first] * (start - before).exp().float()).transpose(-1, -2)
    between = (own[:, :, :, None] - own[:, :, None]).clamp(max=0.0).exp().float()
    return torch.cat([far, torch.einsum("bhid,bhjd,bhijd->bhij", q, k[:, :, first:], between)], -1)


def path_bias(queries, keys, slopes, seen):
    """What every token after a key, up to the query, takes off the key's score."""
    slopes = torch.tensor(slopes, dtype=torch.float64, device=seen.device)[:, None, None]
    edges = functional.logsigmoid((queries @ keys.transpose(-1, -2)) / queries.shape[-1]).masked_fill(~seen, 0.0)
    sums = edges.double().flip(-1).cumsum(-1).flip(-1)
    return (slopes * functional.pad(sums[..., 1:], (0, 1))).float()


def reflected_products(q, k, directions, strengths):
    """`q H_i .. H_(j+1) k` with `H = I - strength w w'`, for queries that are the last of these keys.

    Tile by tile from right to left. A query leaves the tile it is in, and passes each tile before it, as a product with one matrix:
    of the tile's directions W and strengths b, X = (I + tril(W W') b)^-1 gives all its partial products.
    """
    rows, keys = q.shape[2], k.shape[2]
    tiles = -(-keys // TILE)
    # zeros before the first key change nothing
    lead = tiles * TILE - keys
    first_tile = (lead + keys - rows) // TILE
    tiled = lambda x, lead: functional.pad(x, (0, 0, lead, 0)).unflatten(2, (-1, TILE))
    w, k, b = (tiled(x, lead) for x in (directions, k, strengths))
    q = tiled(q, lead + keys - rows - first_tile * TILE)
    of = lambda x: x.transpose(-1, -2)
    system = torch.eye(TILE, device=q.device) + (w @ of(w)).tril(-1) * of(b)
    solved = torch.linalg.solve_triangular(system, torch.cat([w, (w @ of(k)).tril(-1)], -1), upper=False, unitriangular=True) * b
    y, z = solved[..., : w.shape[-1]], solved[..., w.shape[-1] :]
    passed, transport = k - of(z) @ w, torch.eye(w.shape[-1], device=q.device) - of(w) @ y
    meeting = (q @ of(w[:, :, first_tile:])).tril()
    own, leaving = q @ of(k[:, :, first_tile:]) - meeting @ z[:, :, first_tile:], q - meeting @ y[:, :, first_tile:]
    moving, columns = None, []
    for tile in reversed(range(tiles)):
        at = tile - first_tile
        parts = [] if moving is None else [moving @ of(passed[:, :, tile])]
        moving = None if moving is None else moving @ transport[:, :, tile]
        if at >= 0:
            parts.insert(0, own[:, :, at])
            moving = leaving[:, :, at] if moving is None else torch.cat([leaving[:, :, at], moving], 2)
        column = torch.cat(parts, 2)
        columns.insert(0, functional.pad(column, (0, 0, q.shape[2] * TILE - column.shape[2], 0)))
    return torch.cat(columns, -1)[:, :, -rows:, lead:]
