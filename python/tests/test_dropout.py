"""Dropout of attention weights: the mask, the results with it, and what PyTorch expects of randomness."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import kerple.torch as kt
from kerple.conformance.plain import _philox
from kerple.torch import attention, dropout_mask, symmetric


def random(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def qkv(queries=9, keys=9, heads=2, kv_heads=2, features=5, batch=2, dtype=torch.float64):
    return [random(batch, heads, queries, features, dtype=dtype)] + [random(batch, kv_heads, keys, features, dtype=dtype) for _ in "kv"]


def test_the_generator_is_that_of_its_authors():
    """The known answers of Random123 for ``philox4x32 10``, whose last counter is 0 here."""
    words = _philox(0, *[torch.zeros(1, dtype=torch.int64)] * 3)
    assert [int(word) for word in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_a_seed_keeps_its_mask():
    """The values of kerple-core's test: processor and GPUs draw the same."""
    mask = dropout_mask(12_345_678_901_234, 0.3, 1, 8, 8, 32)[0]
    bits = [sum(int(kept) << j for j, kept in enumerate(mask[at])) for at in ((0, 0), (0, 1), (0, 5), (7, 3))]
    assert bits == [0x78ABEC53, 0xD6FFDFED, 0xDFD4FFBB, 0x5F46F7CD]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_weights_are_kept_at_the_rate_and_independently(p):
    kept = dropout_mask(3, p, 2, 3, 200, 300).double()
    deviation = (p * (1 - p)) ** 0.5
    assert abs(kept.mean().item() - (1 - p)) < 5 * deviation / kept.numel() ** 0.5
    centred = kept - kept.mean()
    for dim in range(4):
        together = (centred * centred.roll(1, dim)).mean().item()
        assert abs(together) < 5 * deviation**2 / kept.numel() ** 0.5, dim
    assert dropout_mask(3, p, 1, 3, 50, 70).equal(dropout_mask(3, p, 2, 3, 200, 300)[:1, :, :50, :70]), "sizes do not matter"


CASES = {
    "causal": dict(),
    "tiles": dict(queries=131, keys=203, heads=4),
    "one query": dict(queries=1, keys=700),
    "both directions": dict(causal=False, queries=7, keys=12),
    "padding before": dict(queries=8, key_starts=[0, 4]),
    "padding on both sides": dict(key_starts=[2, 3], key_lengths=[9, 5], causal=False),
    "more queries": dict(queries=12, keys=9),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_the_mask(name):
    """Attention to values that tell keys apart shows its weights, which must be the mask times those without dropout."""
    options = dict(CASES[name])
    sizes = {key: options.pop(key) for key in ("queries", "keys", "heads") if key in options}
    q, k, v = qkv(**sizes, features=3)
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    bias = random(heads, keys if options.get("causal", True) else 2 * max(queries, keys) - 1)
    factors = dropout_mask(11, 0.3, 2, heads, queries, keys).double() / 0.7
    ones = torch.eye(keys, dtype=torch.float64).expand(2, k.shape[1], -1, -1)
    pad = lambda x: torch.nn.functional.pad(x, (0, keys - 3))  # noqa: E731
    weights = attention(pad(q), pad(k), ones, bias=bias, scale=0.5, **options)
    grouped = v.repeat_interleave(heads // v.shape[1], 1)
    want = (weights * factors) @ grouped
    got = attention(q, k, v, bias=bias, scale=0.5, dropout_p=0.3, dropout_seed=11, **options)
    up = torch.randn_like(want)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for a, b in zip(*[torch.autograd.grad(x, (q, k, v, bias), up) for x in (got, want)], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_documents_are_counted_along_their_row():
    q, k, v = (random(1, 2, 20, 4) for _ in range(3))
    ones = torch.eye(20, dtype=torch.float64).expand(1, 2, -1, -1)
    pad = lambda x: torch.nn.functional.pad(x, (0, 16))  # noqa: E731
    weights = attention(pad(q), pad(k), ones, scale=0.5, cu_seqlens=[0, 7, 8, 20])
    got = attention(q, k, v, scale=0.5, cu_seqlens=[0, 7, 8, 20], dropout_p=0.4, dropout_seed=5)
    torch.testing.assert_close(got, weights * dropout_mask(5, 0.4, 1, 2, 20, 20) / 0.6 @ v, rtol=0, atol=1e-12)
    rows = [x[0].transpose(0, 1) for x in (q, k, v)]
    packed = kt.attention_varlen(*rows, *[torch.tensor([0, 7, 8, 20])] * 2, 12, 12, causal=True, scale=0.5, dropout_p=0.4, dropout_seed=5)
    assert packed.transpose(0, 1).equal(got[0])
    jagged = [torch.nested.nested_tensor([*x.split([7, 1, 12])], layout=torch.jagged).transpose(1, 2) for x in rows]
    of_jagged = attention(*jagged, scale=0.5, dropout_p=0.4, dropout_seed=5)
    assert torch.cat([x.transpose(0, 1) for x in of_jagged.unbind()]).equal(packed)


@pytest.mark.parametrize("name", ["Dape", "Shaw", "Cope", "TransformerXl", "Fire", "Bam", "KerpleLog", "Xpos"])
def test_gradients_of_encodings_are_those_of_the_same_mask(name):
    module = getattr(kt, name)(2, 4, seed=0, dtype=torch.float64)
    q, k, v = qkv(6, 6, features=4)
    try:
        run = lambda *xs: module(*xs, dropout_p=0.4, dropout_seed=3)  # noqa: E731
        assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)
    except NotImplementedError as error:  # on the kernels of GPUs, by name
        assert module.kind in str(error)
    else:
        assert not run(q, k, v).equal(module(q, k, v))


def test_gradcheck():
    q, k, v = qkv(5, 7, heads=4)
    bias, weight, sinks, gates = random(4, 7), random(4, 7), random(4), -torch.rand(2, 4, 7, dtype=torch.float64)
    rows, profiles = random(2, 4, 5, 3), random(3, 4)

    def run(q, k, v, bias, weight, sinks, gates, rows, profiles):
        mask = dict(window=2, sink_tokens=2)
        beside = dict(bias=bias, weight=weight, sinks=sinks, gates=gates, relative=(rows, profiles), softcap=2.0, **mask)
        return attention(q, k, v, **beside, dropout_p=0.3, dropout_seed=2**40)

    assert torch.autograd.gradcheck(run, (q, k, v, bias, weight, sinks, gates.requires_grad_(), rows, profiles))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types_have_the_same_mask(dtype):
    q, k, v = qkv(40, 40, features=8)
    want = attention(q, k, v, dropout_p=0.25, dropout_seed=1)
    got = attention(*(x.to(dtype) for x in (q, k, v)), dropout_p=0.25, dropout_seed=1)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=0, atol={torch.float32: 1e-5}.get(dtype, 0.05))


def test_seeds():
    q, k, v = qkv()
    run = lambda **seed: attention(q, k, v, dropout_p=0.5, **seed)  # noqa: E731
    assert run(dropout_seed=4).equal(run(dropout_seed=torch.tensor(4)))
    assert not run(dropout_seed=4).equal(run(dropout_seed=5))
    torch.manual_seed(1)
    first, second = run(), run()
    torch.manual_seed(1)
    assert run().equal(first) and run().equal(second) and not first.equal(second)
    torch.manual_seed(1)
    seed = torch.randint(2**63 - 1, (1,))
    assert run(dropout_seed=seed).equal(first)


def test_without_dropout_nothing_is_drawn():
    q, k, v = qkv()
    before = torch.get_rng_state()
    assert attention(q, k, v, dropout_p=0.0, dropout_seed=3).equal(attention(q, k, v))
    assert torch.get_rng_state().equal(before)


def test_activation_checkpointing_repeats_the_mask():
    q, k, v = qkv(40, 40)
    layer = kt.KerpleLog(2, 5, seed=0, dtype=torch.float64)
    run = lambda *xs: layer(layer(*xs, dropout_p=0.3), k, v, dropout_p=0.3)  # noqa: E731
    found = []
    for call in (run, lambda *xs: checkpoint(run, *xs, use_reentrant=False), lambda *xs: checkpoint(run, *xs, use_reentrant=True)):
        torch.manual_seed(3)
        out = call(q, k, v)
        found.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))] if call is run else [out])
        if call is not run:
            for x in (q, k, v):
                x.grad = None
            out.square().sum().backward()
            found[-1] += [x.grad.clone() for x in (q, k, v)]
    for other in found[1:]:
        assert all(a.equal(b) for a, b in zip(found[0], other, strict=True))


def test_threads_do_not_change_a_bit():
    q, k, v = qkv(300, 300, heads=4, batch=1, dtype=torch.float32)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            out = attention(q, k, v, dropout_p=0.2, dropout_seed=9)
            found.append([out, *torch.autograd.grad(out.sum(), (q, k, v))])
    finally:
        torch.set_num_threads(threads)
    assert all(a.equal(b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_compiled_and_vmapped():
    q, k, v = qkv(12, 12)
    compiled = torch.compile(lambda *xs: attention(*xs, dropout_p=0.3, dropout_seed=7), backend="aot_eager", fullgraph=True)
    for a, b in zip(*[torch.autograd.grad(f.sum(), (q, k, v)) for f in (compiled(q, k, v), attention(q, k, v, dropout_p=0.3, dropout_seed=7))], strict=True):
        assert a.equal(b)
    drawn = torch.compile(lambda *xs: attention(*xs, dropout_p=0.3), backend="aot_eager", fullgraph=True)(q, k, v)
    exact = torch.autograd.grad(drawn.sum(), v)[0]
    assert exact.isfinite().all() and not drawn.equal(attention(q, k, v))
    stacked = torch.stack([q.detach()] * 2)
    one = lambda x: attention(x, k.detach(), v.detach(), dropout_p=0.5)  # noqa: E731
    same = torch.vmap(one, randomness="same")(stacked)
    assert same[0].equal(same[1])
    different = torch.vmap(one, randomness="different")(stacked)
    assert not different[0].equal(different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(one)(stacked)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (dict(dropout_p=1.0), ValueError, "dropout_p = 1.0 must be at least 0 and below 1"),
        (dict(dropout_p=-0.1), ValueError, "dropout_p = -0.1"),
        (dict(dropout_p=float("nan")), ValueError, "dropout_p = nan"),
        (dict(dropout_p="0.1"), TypeError, "dropout_p = '0.1'"),
        (dict(dropout_p=True), TypeError, "dropout_p = True"),
        (dict(dropout_p=0.1, dropout_seed=-1), ValueError, "dropout_seed = -1"),
        (dict(dropout_p=0.1, dropout_seed=2**63), ValueError, "below 2\\^63"),
        (dict(dropout_p=0.1, dropout_seed=1.5), TypeError, "dropout_seed = 1.5"),
        (dict(dropout_p=0.1, dropout_seed=torch.zeros(2, dtype=torch.int64)), ValueError, "one int64"),
        (dict(dropout_p=0.1, dropout_seed=torch.zeros(1)), ValueError, "one int64"),
        (dict(dropout_p=0.1, dropout_seed=torch.zeros(1, dtype=torch.int64, device="meta")), ValueError, "one device"),
    ],
)
def test_refusals(given, error, words):
    with pytest.raises(error, match=words):
        attention(*qkv(), **given)


def test_a_mask_has_a_seed():
    with pytest.raises(TypeError, match="dropout_seed: None draws another seed in every call"):
        dropout_mask(None, 0.5, 1, 1, 2, 2)


def test_both_directions_of_a_symmetric_bias():
    q, k, v = qkv(6, 6)
    bias = symmetric(random(2, 6))
    first, second = (attention(q, k, v, bias=bias, causal=False, dropout_p=0.5, dropout_seed=seed) for seed in (1, 2))
    assert first.isfinite().all() and not first.equal(second)
