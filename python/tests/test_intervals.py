"""One interval of keys per query: against masks of pairs, differences, and what intervals contain as cases."""

import pytest
import torch

from kerple.torch import Fire, KerpleLog, Rotary, Xpos, attention, symmetric

B, H, G, L, D = 2, 4, 2, 150, 8


def rows(queries=L, keys=L, dtype=torch.float64):
    torch.manual_seed(3)
    make = lambda h, n: torch.randn(B, h, n, D, dtype=dtype, requires_grad=True)  # noqa: E731
    return make(H, queries), make(G, keys), make(G, keys)


def any_bounds(queries=L, keys=L):
    torch.manual_seed(4)
    return torch.randint(keys + 1, (B, queries)), torch.randint(keys + 1, (B, queries))


def prefix(length, queries=L, keys=L):
    ends = torch.arange(keys - queries, keys).add(1).clamp(min=length)
    return None, ends.expand(B, -1)


def blocks(length):
    return None, ((torch.arange(L) // length + 1) * length).clamp(max=L).expand(B, -1)


def pairs(q, k, v, bias, causal, starts, ends, own=0.0):
    """Attention with a mask of all pairs, and what each pair's score gets."""
    queries, keys = q.shape[2], k.shape[2]
    j, at = torch.arange(keys), torch.arange(keys - queries, keys)
    d = at[:, None] - j
    seen = torch.ones(B, queries, keys, dtype=torch.bool)
    seen = seen if starts is None else seen & (j >= starts[..., None])
    seen = seen if ends is None else seen & (j < ends[..., None])
    seen = (seen & (d >= 0) if causal else seen)[:, None]
    k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / D**0.5 + bias[:, d.clamp(min=0) if causal else d + max(queries, keys) - 1]
    weights = (scores + own).masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0.0)
    return weights @ v


KINDS = {
    "any": any_bounds, "prefix": lambda: prefix(40), "blocks": lambda: blocks(20),
    "starts": lambda: (any_bounds()[0], None),
}  # fmt: skip


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_equal_those_of_a_mask_of_pairs(kind, causal):
    starts, ends = KINDS[kind]()
    q, k, v = rows()
    bias = torch.randn(H, L if causal else 2 * L - 1, dtype=torch.float64, requires_grad=True)
    got = attention(q, k, v, bias=bias, causal=causal, key_starts=starts, key_ends=ends)
    want = pairs(q, k, v, bias, causal, starts, ends)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)
    up = torch.randn_like(got)
    for one, two in zip(*(torch.autograd.grad((out * up).sum(), (q, k, v, bias)) for out in (got, want)), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


def test_gradients_are_those_of_differences():
    torch.manual_seed(5)
    q, k, v = (torch.randn(1, 2, n, 3, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7))
    bias = torch.randn(2, 13, dtype=torch.float64, requires_grad=True)
    starts, ends = torch.randint(8, (1, 5)), torch.randint(8, (1, 5))
    call = lambda q, k, v, bias: attention(q, k, v, bias=bias, causal=False, key_starts=starts, key_ends=ends)  # noqa: E731
    assert torch.autograd.gradcheck(call, (q, k, v, bias))


def test_lengths_and_documents_are_intervals():
    q, k, v = (x.detach() for x in rows())
    bias = torch.randn(H, L, dtype=torch.float64)
    ends = torch.tensor([[90] * L, [L] * L])
    torch.testing.assert_close(
        attention(q, k, v, bias=bias, key_ends=ends), attention(q, k, v, bias=bias, key_lengths=[90, L]), rtol=0, atol=1e-12
    )
    ids = torch.arange(L) // 40
    starts, ends = ((ids * 40).expand(B, -1), ((ids + 1) * 40).clamp(max=L).expand(B, -1))
    for module in (KerpleLog(H, D, seed=1, dtype=torch.float64), Rotary(H, D)):
        by_interval = module(q, k, v, key_starts=starts, key_ends=ends)
        by_document = module(q, k, v, document_ids=ids.expand(B, -1))
        torch.testing.assert_close(by_interval, by_document, rtol=0, atol=1e-11)


@pytest.mark.parametrize("queries", [1, L])
def test_a_relative_bias_takes_intervals(queries):
    """Its scores, written as a table of distances of each row, are those of a mask of pairs."""
    q, k, v = rows(queries=queries)
    starts, ends = any_bounds(queries)
    r, profiles = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((B, H, queries, 3), (3, 70)))
    got = attention(q, k, v, relative=(r, profiles), key_starts=starts, key_ends=ends)
    d = torch.arange(L - queries, L)[:, None] - torch.arange(L)
    within = torch.nn.functional.pad(profiles, (0, L - 70))[:, d.clamp(0, L - 1)] * (d >= 0)
    own = torch.einsum("bhir,rij->bhij", r, within)
    want = pairs(q, k, v, torch.zeros(H, L, dtype=torch.float64), True, starts, ends, own)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)
    up = torch.randn_like(got)
    for one, two in zip(*(torch.autograd.grad(out, (q, k, v, r, profiles), up) for out in (got, want)), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


def test_a_single_query_reads_its_interval():
    q, k, v = (x.detach() for x in rows(queries=1))
    starts, ends = torch.tensor([[30], [70]]), torch.tensor([[60], [70]])
    out = attention(q, k, v, key_starts=starts, key_ends=ends)
    alone = attention(q[:1], k[:1, :, 30:60], v[:1, :, 30:60])
    torch.testing.assert_close(out[:1], alone, rtol=0, atol=1e-12)
    assert (out[1] == 0).all()


def test_nan_outside_of_an_interval_changes_no_bit():
    q, k, v = rows(dtype=torch.float32)
    _, ends = blocks(20)
    starts = ends - 20
    whole = attention(q, k, v, causal=False, key_starts=starts, key_ends=ends)
    found = torch.autograd.grad(whole[:, :, :80].sum(), (q, k, v))
    with torch.no_grad():
        k[:, :, 101], v[:, :, 101] = float("nan"), float("inf")
    broken = attention(q, k, v, causal=False, key_starts=starts, key_ends=ends)
    others = [i for i in range(L) if not 100 <= i < 120]
    assert torch.equal(whole[:, :, others], broken[:, :, others]) and broken[:, :, 100:120].isnan().all()
    again = torch.autograd.grad(broken[:, :, :80].sum(), (q, k, v))
    for one, two in zip(found, again, strict=True):
        assert torch.equal(one[:, :, :100], two[:, :, :100])


def test_transforms_and_graphs_take_intervals():
    q, k, v = (x.detach() for x in rows(dtype=torch.float32))
    _, ends = prefix(40)
    call = lambda q, k, v, ends: attention(q, k, v, causal=False, key_ends=ends)  # noqa: E731
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v, ends), call(q, k, v, ends))
    mapped = torch.func.vmap(call)(*(x[:, None] for x in (q, k, v, ends)))
    assert torch.equal(mapped[:, 0], call(q, k, v, ends))
    half = call(q.half(), k.half(), v.half(), ends)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), call(q, k, v, ends), rtol=0, atol=1e-2)


REFUSED = [
    ({"key_ends": [5, 5]}, ValueError, r"key_ends: expected \[B, Q\] = \[2, 150\].*the number of keys of each sequence is key_lengths"),
    ({"key_ends": torch.zeros(2, 149, dtype=torch.int64)}, ValueError, r"key_ends: expected \[B, Q\] = \[2, 150\]"),
    ({"key_starts": torch.zeros(2, 3, dtype=torch.int64)}, ValueError, r"key_starts: expected \[B, Q\]"),
    ({"key_ends": torch.full((2, 150), 151)}, ValueError, r"key_ends\[0, 0\] = 151 is out of range; a row has 150 keys"),
    ({"key_starts": torch.full((2, 150), -1)}, ValueError, r"key_starts\[0, 0\] = -1 is out of range"),
    ({"key_ends": torch.zeros(2, 150)}, TypeError, "key_ends: expected whole numbers"),
    ({"key_ends": torch.zeros(2, 150, dtype=torch.int64), "key_lengths": [5, 5]}, ValueError, "key_lengths: key_ends per query already"),
    ({"key_ends": torch.zeros(2, 150, dtype=torch.int64), "key_starts": [5, 5]}, ValueError, r"key_starts: expected \[B, Q\]"),
    ({"key_ends": torch.zeros(2, 150, dtype=torch.int64), "document_ids": torch.zeros(2, 150, dtype=torch.int64)}, ValueError, "key_ends: document_ids already"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED)
def test_bad_intervals_are_refused(arguments, error, message):
    q, k, v = (x.detach() for x in rows(dtype=torch.float32))
    with pytest.raises(error, match=message):
        attention(q, k, v, **arguments)


def test_methods_that_change_scores_otherwise_are_refused():
    q, k, v = (x.detach() for x in rows())
    _, ends = prefix(40)
    with pytest.raises(ValueError, match="key_starts, key_ends: score modifications do not take intervals"):
        Fire(H, D, seed=1, dtype=torch.float64, train_len=8)(q, k, v, key_ends=ends)
    with pytest.raises(ValueError, match="causal"):
        Xpos(H, D)(q, k, v, causal=False, key_ends=ends)
    table = torch.randn(H, L, dtype=torch.float64)
    with pytest.raises(ValueError, match="need 299"):
        attention(q, k, v, bias=table, causal=False, key_ends=ends)
    both = attention(q, k, v, bias=symmetric(table), causal=False, key_ends=ends)
    torch.testing.assert_close(both, pairs(q, k, v, symmetric(table), False, None, ends), rtol=0, atol=1e-11)
