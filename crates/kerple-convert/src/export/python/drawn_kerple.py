"""What kerple draws, in torch: streams of random numbers, sorted positions, and the codes of stochastic encodings.

Numbers are those of the run's evaluation. A stream is ChaCha with 8 rounds: 8 words of a key and a number name it, and any part of it
can be made by itself.
"""
import math

import torch
from torch.nn import functional

WORD = (1 << 32) - 1
CONSTANTS = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574]
QUARTERS = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]


def words(key, numbers, first, count):
    """`count` words from word `first` on of the streams `numbers` [S]: [S, count] int64."""
    block = torch.arange(first // 16, (first + count + 15) // 16, device=numbers.device)
    halves = lambda value: [value & WORD, value >> 32 & WORD]
    begin = [torch.tensor(word, device=numbers.device) for word in CONSTANTS + key] + halves(block) + halves(numbers[:, None])
    x = list(begin)
    for _ in range(4):
        for a, b, c, d in QUARTERS:
            for one, other, third, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[one] = x[one] + x[other] & WORD
                mixed = x[third] ^ x[one]
                x[third] = (mixed << turn | mixed >> 32 - turn) & WORD
    found = torch.stack([one + other & WORD for one, other in zip(x, begin)], -1)
    return found.flatten(1)[:, first % 16 :][:, :count]


def normals(key, numbers, first, count, width):
    """`count` rows of independent N(0, 1) numbers from row `first` on of each stream, [S, count, width] float64."""
    pairs = (width + 1) // 2
    halves = words(key, numbers, 4 * pairs * first, 4 * pairs * count).unflatten(1, (-1, 2))
    uniform = ((halves[..., 1] << 21 | halves[..., 0] >> 11).double() * 2.0**-53).unflatten(1, (count, pairs, 2))
    radius = (-2.0 * torch.log(1.0 - uniform[..., 0])).sqrt()
    turns = math.tau * uniform[..., 1]
    return torch.stack([radius * turns.cos(), radius * turns.sin()], -1).flatten(2)[..., :width]


def positions_drawn(form, layer, span):
    """What stands in the place of positions 0..span, or of distances: [span] int64. `layer` is None for the embeddings."""
    what, most, stream = form["what"], form["most"], form["stream"]
    if span > most:
        raise ValueError(f"this model draws from {most} positions, the input has {span} tokens")
    each = one_by_one(stream["key"], stream["number"] + (0 if layer is None else 1 + layer))
    if what == "positions":
        return torch.tensor(sorted_draw(span, most, each))
    return torch.tensor([0] + [lag + 1 for lag in sorted_draw(span - 1, most - 1, each)])


def one_by_one(key, number):
    """The words of a stream."""
    first, numbers = 0, torch.tensor([number])
    while True:
        yield from words(key, numbers, first, 4096)[0].tolist()
        first += 4096


def sorted_draw(count, most, each):
    """`count` of the numbers 0..most in increasing order: each is taken with the share of those wanted among those there."""
    found = []
    for number in range(most):
        if len(found) == count:
            break
        there = most - number
        high, low = divmod(next(each) * there, 1 << 32)
        if low > (1 << 32) - there:
            # one more word takes most of the bias away
            high += low + (next(each) * there >> 32) >> 32
        if high < count - len(found):
            found.append(number)
    return found


def coded(x, plan, own, positions, is_query):
    """Rows contracted with a code of one draw, and with what its gate lets through: [B, H, L, D] to [B, H, L, R]."""
    share, shared = torch.ones(x.shape[1], x.shape[3], dtype=torch.float64, device=x.device), None
    if "gate" in own:
        gate = own["gate"] if plan["gating"] == "jax" else -own["gate"]
        share, shared = torch.sigmoid(gate), torch.sigmoid(-gate)
    width = plan["noise"]["num_realizations"] if "noise" in plan else own["noise"].shape[-1]
    unit = (width * x.shape[3]) ** -0.25
    make = filtered if "noise" in plan else waved
    found = []
    for first in range(0, x.shape[2], 64):
        rows = make(plan, own, positions[:, first : first + 64], unit * share.sqrt(), is_query)
        if shared is not None:
            rows = rows + (unit * shared.sqrt()[..., None] * own["gate_noise"])[:, None]
        part = x[:, :, first : first + 64].double()
        found.append(torch.einsum("bhld,bhldr->bhlr", part, rows.expand(x.shape[0], *rows.shape[1:])))
    return torch.cat(found, 2).float()


def waved(plan, own, positions, factor, is_query):
    """Sums of sinusoids at positions [B, L]: [B, H, L, D, R]."""
    noise = own["noise"]
    heads, dim, _, width = noise.shape
    count = own["freqs"].shape[-1]
    phases = own["offsets"] if is_query else torch.zeros_like(own["offsets"])
    factor = functional.softplus(own["gains"]) * factor[..., None] / math.sqrt(2 * count)
    w = noise.reshape(heads, dim, count, 2, width) * factor[..., None, None]
    turns = 0.5 * torch.sigmoid(own["freqs"])
    angle = math.tau * (turns[:, None] * positions[:, None, :, None, None].double()).frac() + phases[:, None]
    rows = torch.einsum("bhldk,hdkr->bhldr", angle.cos(), w[..., 0, :])
    return rows + torch.einsum("bhldk,hdkr->bhldr", angle.sin(), w[..., 1, :])


def filtered(plan, own, positions, factor, is_query):
    """Noise under a filter at positions [B, L]: [B, H, L, D, R]. Positions of more than one axis are counted row by row."""
    noise, stream = plan["noise"], plan["noise"]["stream"]
    heads, dim = factor.shape
    filters = (own["query" if is_query else "key"].reshape(heads, dim, -1) * factor[..., None])[..., None, None]
    low, high = int(positions.min()), int(positions.max())
    origin, reach = reached(noise, torch.arange(low, high + 1, device=positions.device))
    first, count = int(origin.min()), int(origin.max() - origin.min()) + reach[-1] + 1
    rows = []
    for head in range(heads):
        numbers = (torch.arange(head * dim, (head + 1) * dim, device=positions.device) + 1 << 40) | stream["number"]
        drawn = normals(stream["key"], numbers, first, count, noise["num_realizations"])
        rows.append(sum(filters[head, :, tap] * drawn[:, origin - first + by] for tap, by in enumerate(reach)))
    return torch.stack(rows)[:, :, positions - low].permute(2, 0, 3, 1, 4)


def reached(noise, positions):
    """The noise row of each position's first tap, and how far behind it those of all taps are."""
    origin, reach, stride = torch.zeros_like(positions), [0], 1
    for axis in reversed(range(len(noise["kernel_size"]))):
        place = positions
        if axis > 0:
            place, positions = positions % noise["size"][axis], positions // noise["size"][axis]
        origin = origin + place * stride
        reach = [tap * stride + by for tap in range(noise["kernel_size"][axis]) for by in reach]
        stride = stride * (noise["size"][axis] + noise["kernel_size"][axis] - 1) if axis > 0 else stride
    return origin, reach
