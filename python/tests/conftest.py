"""Definitions that the tests hold everything to: whole score matrices in f64."""

import math
import os

import pytest

# PyTorch 2.15 can crash on what an earlier `torch.compile` stored
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

torch = pytest.importorskip("torch")


if os.environ.get("TRITON_INTERPRET") == "1":  # what GPUs run, on the processor
    from kerple.torch import _gpu

    _gpu.interpret()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def spread(table, queries, keys, causal):
    """A table over distances at every pair, ``[H, Q, K]``; pairs that are not seen take some entry."""
    d = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    origin = 0 if causal else table.shape[1] // 2
    return table[:, (origin + d).clamp(0, table.shape[1] - 1)]


def defined(
    q, k, v, bias=None, weight=None, causal=True, window=None, sink_tokens=None, scale=None, softcap=None, sinks=None,
    gates=None, relative=None, key_lengths=None, key_starts=None,
):  # fmt: skip
    """What ``kerple.torch.attention`` must give, from its formula."""
    batch, heads, queries, features = q.shape
    keys = k.shape[2]
    k, v = (x.repeat_interleave(heads // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (features**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if weight is not None:
        scores = scores * spread(weight, queries, keys, causal)
    if bias is not None:
        scores = scores + spread(bias, queries, keys, causal)
    if gates is not None:  # the sum of those after the earlier one of the two, up to the later one
        own = torch.arange(keys - queries, keys)[:, None, None]
        other, at = torch.arange(keys)[:, None], torch.arange(keys)
        among = (at > torch.minimum(own, other)) & (at <= torch.maximum(own, other))
        scores = scores + torch.einsum("ijn,bhn->bhij", among.to(gates.dtype), gates)
    d = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    if relative is not None:  # of a column of the profiles for each distance within reach
        rows, profiles = relative
        within = (d >= 0) & (d < profiles.shape[1])
        scores = scores + torch.einsum("bhir,rij->bhij", rows, profiles[:, d.clamp(0, profiles.shape[1] - 1)] * within)
    seen = torch.ones_like(d, dtype=torch.bool)
    if causal:
        seen &= d >= 0
    seen, at = seen.expand(batch, 1, queries, keys), torch.arange(keys)
    if window is not None:
        starts = torch.zeros(batch) if key_starts is None else torch.as_tensor(key_starts)
        is_first = at < starts[:, None] + (0 if sink_tokens is None else sink_tokens)
        seen = seen & ((d.abs() < window) | is_first[:, None, None])
    if key_lengths is not None:
        seen = seen & (at < torch.as_tensor(key_lengths)[:, None])[:, None, None]
    if key_starts is not None:
        seen = seen & (at >= torch.as_tensor(key_starts)[:, None])[:, None, None]
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        column = sinks[None, :, None, None].expand(batch, heads, queries, 1)
        scores = torch.cat([scores, column], -1)
    lowest = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    exponentials = (scores - lowest).exp()
    sums = exponentials.sum(-1, keepdim=True)
    weights = (exponentials / sums.where(sums > 0, torch.ones_like(sums)))[..., :keys]
    return weights @ v


@pytest.fixture
def definition():
    return defined
