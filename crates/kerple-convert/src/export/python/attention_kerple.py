"""Attention of kerple's models in torch: exact, with memory that grows with the length and not with its square.

Queries are worked off in blocks. Scores are float32 whatever the model is; a form says what becomes of them. Where a CUDA
device has the scores of a table over distances, FlexAttention computes them tile by tile.
"""
import math
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .content_kerple import Content, decayed_products, differences, path_bias, position_bias, reflected_products
from .positions_kerple import waves

# Numbers of one temporary array of a block of queries.
MOST_HELD = 1 << 24
MOST_ROWS = 256
# Products within a block are computed feature by feature where these decay.
MOST_DECAYED = 16
LOWEST = torch.finfo(torch.float32).min


@dataclass
class Pass:
    """Where the new positions of a call stand: slots are counted from the start of the cache, padding included."""

    start: int  # slot of the first query
    length: int  # slots of all keys
    positions: torch.Tensor  # of the queries, padding not counted, [B or 1, L]
    key_positions: torch.Tensor  # of the keys, [B or 1, K]
    mask: torch.Tensor | None  # keys that are no padding, [B, K] bool


@dataclass
class Positions:
    """What an encoding hands to one layer."""

    form: dict
    values: dict  # learned values by name, float64
    bias: torch.Tensor | None = None  # [H, K]
    weight: torch.Tensor | None = None
    turn: tuple | None = None  # cosines and sines of the queries, and of all keys where those are kept unrotated
    drawn: torch.Tensor | None = None  # what stands in the place of positions, or of distances


@dataclass
class Scoring:
    """What becomes of scores besides what positions do."""

    scale: float
    cap: float | None
    sinks: torch.Tensor | None  # [H]
    window: int | None
    sink_tokens: int = 0  # first tokens that stay visible under a window
    normalizer: dict | None = None  # of weights, in place of the softmax
    content: Content | None = None  # what an encoding computes from rows
    relative: tuple | None = None  # rows [B, H, L, R] of a bias, and its profiles [R, E]


def attend(q, k, v, at, positions, scoring):
    """Softmax attention of queries [B, H, L, D] over keys and values [B, G, K, D]; keys may have as many heads as queries."""
    if is_flexible(q, positions, scoring):
        return flexible(q, k, v, at, positions, scoring)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    if is_plain(q, at, positions, scoring):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, scale=scoring.scale)
    rows = block_rows(q, k, positions)
    rows = rows if scoring.content is None or scoring.content.decays is None else min(rows, MOST_DECAYED)
    block = lambda first: attend_block(q[:, :, first : first + rows], k, v, first, at, positions, scoring)
    if q.shape[2] <= rows:
        return block(0)
    if torch.is_grad_enabled():
        parts = [checkpoint(block, first, use_reentrant=False) for first in range(0, q.shape[2], rows)]
    else:
        parts = [block(first) for first in range(0, q.shape[2], rows)]
    return torch.cat(parts, 2)


def is_plain(q, at, positions, scoring):
    """Whether it is causal attention over all keys and nothing else."""
    simple = positions.bias is None and positions.weight is None and positions.form["enters"] != "map"
    simple = simple and scoring.cap is None and scoring.sinks is None and "decay_rates" not in positions.form
    simple = simple and scoring.content is None and scoring.relative is None and scoring.normalizer is None
    sees_all = at.mask is None and (scoring.window is None or scoring.window >= at.length)
    return simple and sees_all and (q.shape[2] == 1 or at.start == 0)


def block_rows(q, k, positions):
    """Queries of a block, so that temporary arrays stay below a size that does not depend on the length."""
    form = positions.form
    channels = max(q.shape[1], form.get("hidden", 1), form.get("width", 1) if form.get("map") == "fire" else 1)
    rows = MOST_HELD // max(q.shape[0] * channels * k.shape[2], 1)
    if "decay_rates" in form:
        # factors within a block stay below e^20
        rows = min(rows, int(20.0 / max(form["decay_rates"])) if max(form["decay_rates"]) > 0 else rows)
    return max(1, min(rows, MOST_ROWS))


def seen_by(first, rows, at, window, keys, sink_tokens=0):
    """Distances [R, K] of a block of queries from some of the keys, and which are seen, [B or 1, 1, R, K]."""
    query = torch.arange(at.start + first, at.start + first + rows, device=at.positions.device)
    distance = query[:, None] - torch.arange(keys.start, keys.stop, device=query.device)
    near = distance < (at.length if window is None else window)
    if sink_tokens:
        near = near | (at.key_positions[:, None, None, keys.start : keys.stop] < sink_tokens)
    seen = (distance >= 0) & near
    seen = seen if seen.dim() == 4 else seen[None, None]
    if at.mask is not None:
        seen = seen & at.mask[:, None, None, keys.start : keys.stop]
    return distance.clamp(min=0), seen


def attend_block(q, k, v, first, at, positions, scoring):
    form, rows = positions.form, q.shape[2]
    # maps that see neighbours take all keys from the first on
    from_first = form["enters"] == "map" or scoring.window is None or scoring.sink_tokens
    keys = range(0 if from_first else max(at.start + first - scoring.window + 1, 0), at.start + first + rows)
    k, v = k[:, :, keys.start : keys.stop], v[:, :, keys.start : keys.stop]
    distance, seen = seen_by(first, rows, at, scoring.window, keys, scoring.sink_tokens)
    content = scoring.content or Content()
    if content.decays is not None:
        s = decayed_products(q.float(), k.float(), content.decays[:, :, keys.start : keys.stop])
    elif content.reflections is not None:
        s = reflected_products(q.float(), k.float(), *(part[:, :, keys.start : keys.stop] for part in content.reflections))
    else:
        s = products(q, k, distance, form)
    s = scoring.scale * s
    if scoring.cap is not None:
        s = scoring.cap * torch.tanh(s / scoring.cap)
    add_values = None
    if form["enters"] == "map":
        s, add_values = MAPS[form["map"]](s, Block(q.float(), first, distance, seen, at, positions, scoring.scale))
    else:
        s = s if positions.weight is None else s * positions.weight[:, distance]
        s = s if positions.bias is None else s + positions.bias[:, distance]
    if scoring.relative is not None:
        own, profiles = scoring.relative
        s = s + relative_bias(own[:, :, first : first + rows], profiles, distance)
    if content.gate_cumsum is not None:
        fall = differences(content.gate_cumsum, rows, keys)
        s = s + (fall if content.kernel is None else position_bias(fall, content.kernel)).float()
    if content.path is not None:
        of_queries, of_keys, slopes = content.path
        s = s + path_bias(of_queries[:, :, first : first + rows], of_keys[:, :, keys.start : keys.stop], slopes, seen)
    if scoring.normalizer is not None:
        weights = NORMALIZERS[scoring.normalizer["kind"]](s, seen, distance, scoring.normalizer)
        return weights.to(v.dtype) @ v
    s = s.masked_fill(~seen, LOWEST)
    if scoring.sinks is not None:
        sinks = scoring.sinks.float()[None, :, None, None].expand(s.shape[0], -1, rows, 1)
        weights = torch.softmax(torch.cat([s, sinks], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(s, -1)
    out = weights.to(v.dtype) @ v
    return out if add_values is None else out + add_values(weights).to(out.dtype)


def stick_breaking(s, seen, distance, choices):
    """Every key, from the query to the left, takes a share of what the keys before it have left."""
    own = torch.zeros_like(distance, dtype=torch.bool)
    own[:, distance.shape[1] - distance.shape[0] :].fill_diagonal_(True)
    taking = seen if choices["attend_current"] else seen & ~own
    s = s.masked_fill(~taking, 0.0)
    others = functional.logsigmoid(-s).masked_fill(~taking, 0.0)
    left = others.double().flip(-1).cumsum(-1).flip(-1).float()
    weights = (s + left).exp().masked_fill(~taking, 0.0)
    return weights + left[..., :1].exp() * (seen & own) if choices["remainder"] else weights


def softpick(s, seen, distance, choices):
    """Weights may be 0, and need not sum to 1."""
    s = s.masked_fill(~seen, LOWEST)
    most = s.detach().amax(-1, keepdim=True).clamp(min=0.0)
    above = ((s - most).exp() - (-most).exp()).masked_fill(~seen, 0.0)
    return torch.relu(above) / (above.abs().sum(-1, keepdim=True) + 1e-8)


NORMALIZERS = {"stick_breaking": stick_breaking, "softpick": softpick}


def relative_bias(rows, profiles, distance):
    """The bias that each row makes of its own features, [B, H, R, K]; 0 at distances without a profile."""
    reach = profiles.shape[1]
    bias = (rows @ profiles).gather(3, distance.clamp(max=reach - 1).expand(*rows.shape[:2], *distance.shape))
    return bias.masked_fill(distance >= reach, 0.0)


def products(q, k, distance, form):
    """`q . k` in float32; damped ones fade with distance, feature by feature."""
    q, k = q.float(), k.float()
    if "decay_rates" not in form:
        return q @ k.transpose(-1, -2)
    rate = torch.tensor(form["decay_rates"], dtype=torch.float64, device=q.device).repeat(2)
    rate = functional.pad(rate, (0, q.shape[-1] - len(rate)))
    rows, keys = distance.shape
    # counted from the position of the block's first query, which is `rows` before the end of the keys
    after = torch.arange(rows, dtype=torch.float64, device=q.device)[:, None]
    before = torch.arange(keys, dtype=torch.float64, device=q.device)[:, None] - (keys - rows)
    return (q * torch.exp(-rate * after).float()) @ (k * torch.exp(rate * before).float()).transpose(-1, -2)


# Score maps: scores of all heads of a block of queries together, [B, H, R, K].


@dataclass
class Block:
    """What a map may look at."""

    q: torch.Tensor
    first: int
    distance: torch.Tensor
    seen: torch.Tensor
    at: Pass
    positions: Positions
    scale: float

    def value(self, name):
        return self.positions.values[name].float()

    def lags(self):
        """The distances that stand in the place of 0 .. L."""
        drawn = self.positions.drawn
        return torch.arange(self.at.length, device=self.q.device) if drawn is None else drawn


def fire(s, block):
    return s + fire_bias(block, 0.0), None


def fire_bias(block, slope):
    """`W2 act(w1 t + b1) + b2` of the distance, measured against the query's position."""
    values, form = block.positions.values, block.positions.form
    c, m = values["c"], values["multiplier"]
    psi = lambda x: torch.log1p((c * x).abs())
    rows = slice(block.first, block.first + block.q.shape[2])
    of = lambda positions: positions if block.positions.drawn is None else block.positions.drawn[positions]
    query = of(block.at.positions[:, rows])
    largest = torch.maximum(query.double(), (m * form["init_l"]).abs())
    inverse = (1.0 / (psi(largest) + 1e-6)).float()[:, None, :, None]
    if block.positions.drawn is None:
        apart = psi(torch.arange(block.at.length, dtype=torch.float64, device=c.device)).float()[block.distance]
    else:
        key = of(block.at.key_positions[:, : block.distance.shape[1]])
        apart = psi((query[..., None] - key[:, None]).clamp(min=0).double()).float()[:, None]
    t = apart * inverse
    hidden = block.value("weight1")[:, 0] * t[:, 0, ..., None] + block.value("bias1")
    bias = functional.leaky_relu(hidden, slope) @ block.value("weight2").T + block.value("bias2")
    return bias.permute(0, 3, 1, 2)


def dape(s, block):
    """`s + b + f(s, b)`: a network over the heads of each query and key, and perhaps over neighbouring keys."""
    form, seen = block.positions.form, block.seen
    s = s.masked_fill(~seen, 0.0)
    bias = None
    if form["base"] == "fire":
        bias = fire_bias(block, 0.01)
    elif block.positions.bias is not None:
        bias = block.positions.bias[:, block.distance][None]
    inputs = [s]
    if bias is not None:
        bias = bias.masked_fill(~seen, 0.0).expand_as(s)
        inputs = {"concat_residual": [s, bias], "concat": [s, bias], "add_residual": [s + bias], "bias_only": [bias]}
        inputs = inputs[form["variant"]]
    mapped = s + network(torch.cat(inputs, 1), block, form)
    return mapped if bias is None or form["variant"] == "concat" else mapped + bias, None


def network(u, block, form):
    k, keys = form["kernel"], u.shape[-1]
    first, second = (block.value(name) for name in ("mix1.weight", "mix2.weight"))
    first, second = (w.reshape(w.shape[0], w.shape[1], 1, k) for w in (first, second))
    reach = k // 2
    # hidden units of a few keys beyond the last one that the block sees
    hidden = functional.conv2d(functional.pad(u, (reach, 2 * reach)), first, block.value("mix1.bias"))
    hidden = functional.leaky_relu(hidden, 0.01)
    if reach > 0:
        hidden = hidden * exists(block, keys + reach, form["edge"])
    hidden = functional.pad(hidden, (reach, 0))
    return functional.conv2d(hidden, second, block.value("mix2.bias"))


def exists(block, columns, edge):
    """Which columns stand for keys, [B or 1, 1, 1, columns]: none before the first, none after the last of a closed end."""
    at = block.at
    there = torch.ones(1, at.length, dtype=torch.bool, device=block.q.device) if at.mask is None else at.mask
    if edge == "open":
        there = functional.pad(there.cumsum(1) > 0, (0, max(columns - at.length, 0)), value=True)
    else:
        there = functional.pad(there, (0, max(columns - at.length, 0)), value=False)
    return there[:, None, None, :columns].float()


def cope(s, block):
    """Positions count the open gates between key and query."""
    embedding = block.value("embedding")
    last = embedding.shape[1] - 1
    gates = torch.sigmoid(s).masked_fill(~block.seen, 0.0).double()
    place = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=float(last))
    low = place.floor()
    share = (place - low).float()
    low = low.long()
    z = block.q @ embedding
    return s + (1.0 - share) * z.gather(-1, low) + share * z.gather(-1, (low + 1).clamp(max=last)), None


def shaw(s, block):
    """`q . (k + a[d])`, and values with vectors of their own."""
    reach = block.positions.form["reach"]
    lag = block.lags()[block.distance].clamp(max=reach)
    vectors = block.value("keys")[reach:]
    near = block.scale * (block.q @ vectors.T)
    s = s + near.gather(-1, lag.expand_as(s))
    if not block.positions.form["values"]:
        return s, None

    def add_values(weights):
        sums = torch.zeros(*weights.shape[:3], reach + 1, device=weights.device)
        return sums.scatter_add(-1, lag.expand_as(weights), weights) @ block.value("values")[reach:]

    return s, add_values


def transformer_xl(s, block):
    """`(q + v) . r[d]`; the queries hold `u` already."""
    heads, dim = block.value("u").shape
    vectors = waves({"base": 10_000.0}, heads * dim, block.lags()) @ block.positions.values["weight"].T
    vectors = vectors.float().reshape(-1, heads, dim).permute(1, 2, 0)
    q = block.q + (block.value("v") - block.value("u"))[:, None]
    return s + block.scale * (q @ vectors).gather(-1, block.distance.expand_as(s)), None


MAPS = {"fire": fire, "dape": dape, "cope": cope, "shaw": shaw, "transformer_xl": transformer_xl}


# FlexAttention: tiles of scores, changed by a table, on CUDA.


def is_flexible(q, positions, scoring):
    simple = positions.form["enters"] != "map" and "decay_rates" not in positions.form
    simple = simple and scoring.normalizer is None and not scoring.sink_tokens
    return simple and q.is_cuda and q.shape[2] > 1 and (positions.bias is not None or positions.weight is not None)


_compiled = {}


def flexible(q, k, v, at, positions, scoring):
    """The same by FlexAttention: memory grows with the length alone, forward and backward."""
    from torch.nn.attention import flex_attention as flex

    start, cap, window, mask = at.start, scoring.cap, scoring.window, at.mask
    bias, weight = positions.bias, positions.weight

    def seen(b, h, i, j):
        d = i + start - j
        far = d >= 0 if window is None else (d >= 0) & (d < window)
        return far if mask is None else far & mask[b, j]

    def score(s, b, h, i, j):
        d = (i + start - j).clamp(min=0)
        s = s if cap is None else cap * torch.tanh(s / cap)
        s = s if weight is None else s * weight[h, d]
        return s if bias is None else s + bias[h, d]

    if q.is_cuda and "cuda" not in _compiled:
        _compiled["cuda"] = torch.compile(flex.flex_attention, dynamic=True)
    run = _compiled["cuda"] if q.is_cuda else flex.flex_attention
    batch, dim = None if mask is None else q.shape[0], q.shape[-1]
    blocks = flex.create_block_mask(seen, batch, None, q.shape[2], k.shape[2], device=q.device)
    # its tiles have a power of two features
    room = max(16, 1 << (dim - 1).bit_length()) - dim
    q, k, v = (functional.pad(x, (0, room)) for x in (q, k, v))
    options = {"block_mask": blocks, "scale": scoring.scale, "enable_gqa": q.shape[1] != k.shape[1]}
    if scoring.sinks is None:
        return run(q, k, v, score_mod=score, **options)[..., :dim]
    out, lse = run(q, k, v, score_mod=score, return_lse=True, **options)
    share = torch.sigmoid(lse - scoring.sinks.float()[:, None])
    return (out * share[..., None].to(out.dtype))[..., :dim]


# Linear attention: features of queries and keys in the place of a softmax.


def attend_linear(q, k, v, at, plan, own, gate_cumsum=None):
    """Linear attention with features as the plan says, of queries and keys [B, H, L, D] or their codes.

    `own` holds what an encoding learns, a layer's random directions and its decay. Every pair is met: time is quadratic.
    """
    omega = own["omega"].float() if "omega" in own else None
    q, k = features(q.float(), plan["feature_map"], omega, True), features(k.float(), plan["feature_map"], omega, False)
    rows = max(1, min(MOST_HELD // max(q.shape[0] * q.shape[1] * k.shape[2], 1), MOST_ROWS))
    out = []
    for first in range(0, q.shape[2], rows):
        part = q[:, :, first : first + rows]
        keys = range(0, at.start + first + part.shape[2])
        distance, seen = seen_by(first, part.shape[2], at, None, keys)
        pairs = part @ k[:, :, : keys.stop].transpose(-1, -2)
        if "near" in own:
            pairs = pairs * decay(own, plan["chunk"], distance, first, at)
        if gate_cumsum is not None:
            pairs = pairs * differences(gate_cumsum, part.shape[2], keys).clamp(max=0.0).exp().float()
        pairs = pairs.masked_fill(~seen, 0.0)
        total = pairs.sum(-1, keepdim=True)
        if plan["feature_map"] in ("favor", "relu_rf", "elu"):
            total = total + 1e-6
        elif plan["feature_map"] == "favor_jax":
            total = total + 2e-6 * (total.abs() <= 1e-6)
        out.append(pairs @ v[:, :, : keys.stop].float() / torch.where(total == 0, 1.0, total))
    return torch.cat(out, 2).to(v.dtype)


def features(x, kind, omega, is_query):
    if kind == "relu":
        return torch.relu(x) + 1e-3
    if kind == "elu":
        return functional.elu(x) + 1.0
    if kind == "relu_rf":
        return torch.relu(x @ omega)
    width, both = x.shape[-1], kind == "favor"
    z = x @ omega * width**-0.25
    norm = (x * x).sum(-1, keepdim=True) * (0.5 / math.sqrt(width))
    if is_query and both:
        less = z.abs().amax(-1, keepdim=True)
    else:
        less = norm + z.amax(-1, keepdim=True) if is_query else norm
    z = torch.cat([z, -z], -1) if both else z
    floor = 0.0 if both else 1e-6 / math.sqrt(omega.shape[1])
    return torch.exp(z - less) / math.sqrt(z.shape[-1]) + floor


def decay(own, chunk, distance, first, at):
    """The factor of each pair: a table between neighbouring chunks of positions, a sum of exponentials beyond."""
    near, rates, weights = own["near"].float(), own["rates"], own["weights"]
    factor = near[:, distance.clamp(max=near.shape[1] - 1)][None]
    if weights.shape[1] == 0:
        far = torch.zeros(near.shape[0], distance.shape[1], device=near.device)
    else:
        d = torch.arange(at.length, dtype=torch.float64, device=near.device)
        far = sum(w[:, None] * torch.exp(-r[:, None] * d) for w, r in zip(weights.double().T, rates.double().T)).float()
    query = at.positions[:, first : first + distance.shape[0], None] // chunk
    same = query - at.key_positions[:, None, : distance.shape[1]] // chunk < near.shape[1] // chunk
    return torch.where(same[:, None], factor, far[:, distance][None])
