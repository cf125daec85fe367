"""Packed documents: each one equals itself alone, and bad boundaries are refused by entry and value."""

import pytest
import torch

from kerple.torch import (
    Cope, Dape, Encoding, Fire, Fox, KerpleLog, KVCache, LinearAttention, LinearState, Rotary, Shaw, TransformerXl,
    attention, attention_varlen,
)  # fmt: skip

LENGTHS = ([1, 5, 8, 9], [12, 2, 6])


def rows(tokens=23, seed=0, heads=4, groups=2, features=8, batch=2):
    torch.manual_seed(seed)
    make = lambda h: torch.randn(batch, h, tokens, features, dtype=torch.float64, requires_grad=True)  # noqa: E731
    return make(heads), make(groups), make(groups)


def ids_of(lengths, tokens):
    rows = [sum(([number] * n for number, n in enumerate(row)), []) for row in lengths]
    return torch.tensor([row + [-1] * (tokens - len(row)) for row in rows])


def alone(run, tensors, lengths):
    """The outputs of every document alone, back in place; padding gives zeros."""
    rows = []
    for b, row in enumerate(lengths):
        parts, start = [], 0
        for n in row:
            parts.append(run(*(x[b : b + 1, :, start : start + n] for x in tensors)))
            start += n
        padding = tensors[0].shape[2] - start
        rows.append(torch.nn.functional.pad(torch.cat(parts, 2), (0, 0, 0, padding)))
    return torch.cat(rows)


def gradients(out, inputs, seed=9):
    torch.manual_seed(seed)
    return torch.autograd.grad((out * torch.randn_like(out)).sum(), inputs)


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 3}, {"window": 2, "sink_tokens": 2}, {"softcap": 2.0}], ids=str)
def test_documents_have_the_bits_they_have_alone(options):
    q, k, v = rows()
    columns = 12 if options.get("causal", True) else 23
    bias = torch.randn(4, columns, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    run = lambda q, k, v, **documents: attention(q, k, v, bias=bias, sinks=sinks, **options, **documents)  # noqa: E731
    packed = run(q, k, v, document_ids=ids_of(LENGTHS, 23))
    separate = alone(run, (q, k, v), LENGTHS)
    assert torch.equal(packed, separate)
    got, want = (gradients(out, (q, k, v, bias, sinks)) for out in (packed, separate))
    for a, b in zip(got[:3], want[:3], strict=True):
        assert torch.equal(a, b)
    torch.testing.assert_close(got[3:], want[3:], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "method",
    [
        lambda: KerpleLog(4, 8, seed=1, dtype=torch.float64),
        lambda: Rotary(4, 8),
        lambda: KerpleLog(4, 8, seed=1, dtype=torch.float64, window=2, sink_tokens=1),
        lambda: Fire(4, 8, seed=1, dtype=torch.float64, train_len=8),
        lambda: Cope(4, 8, seed=1, dtype=torch.float64, train_len=8),
        lambda: Shaw(4, 8, seed=1, dtype=torch.float64),
        lambda: TransformerXl(4, 8, seed=1, dtype=torch.float64),
        lambda: Dape(4, 8, seed=1, dtype=torch.float64, kernel=3, base={"kind": "kerple_log"}),
    ],
)
def test_methods_restart_in_every_document(method):
    q, k, v = rows(groups=4)
    module = method()
    learned = [p for p in module.parameters() if p.requires_grad]
    packed = module(q, k, v, document_ids=ids_of(LENGTHS, 23))
    separate = alone(module, (q, k, v), LENGTHS)
    # the same roundings but for tables of another length
    torch.testing.assert_close(packed, separate, rtol=1e-12, atol=1e-13)
    got, want = (gradients(out, (q, k, v, *learned)) for out in (packed, separate))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


def test_scaling_sees_the_longest_document():
    q, k, v = rows(tokens=24)
    module = Encoding("rotary", 4, 8, scaling={"kind": "dynamic"}, train_len=4)
    lengths = [[12, 12], [12, 12]]
    packed = module(q, k, v, document_ids=ids_of(lengths, 24))
    torch.testing.assert_close(packed, alone(module, (q, k, v), lengths), rtol=1e-12, atol=1e-13)
    assert not torch.allclose(packed[:, :, :12], module(q, k, v)[:, :, :12], atol=1e-3)


@pytest.mark.parametrize("causal", [True, False])
def test_gates_start_in_every_document(causal):
    q, k, v = rows()
    fox = Fox(4, 8)
    gates = (-torch.rand(2, 4, 23, dtype=torch.float64)).requires_grad_()
    run = lambda q, k, v, gates, **more: fox(q, k, v, gates=gates[..., 0], causal=causal, **more)  # noqa: E731
    packed = run(q, k, v, gates[..., None], document_ids=ids_of(LENGTHS, 23))
    separate = alone(run, (q, k, v, gates[..., None]), LENGTHS)
    torch.testing.assert_close(packed, separate, rtol=1e-11, atol=1e-12)
    got, want = (gradients(out, (q, k, v, gates)) for out in (packed, separate))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
    begins = torch.nn.functional.pad(ids_of(LENGTHS, 23).diff() != 0, (1, 0), value=True)
    assert (got[3].transpose(1, 2)[begins] == 0).all()


OF_CONTENT = {
    "gates": (("gates",), {}), "both directions": (("gates",), {"causal": False}), "decays": (("decays",), {}),
    "decays and gates": (("decays", "gates"), {}), "householder and gates": (("householder", "gates"), {}),
}  # fmt: skip


def of_content(names, tokens=23, heads=4, groups=2, features=8):
    """What is summed over tokens, tokens in the third dimension."""
    make = lambda *shape: torch.rand(2, *shape, dtype=torch.float64)  # noqa: E731
    given = {"gates": -3 * make(heads, tokens, 1), "decays": -make(heads, tokens, features)}
    given["gates"][0, :, 3], given["decays"][1, :, 15] = -float("inf"), -1e5
    w = torch.nn.functional.normalize(make(groups, tokens, features), dim=-1)
    given["householder"] = torch.cat([w, make(groups, tokens, 1)], -1)
    return [given[name].requires_grad_() for name in names]


def run_of(names, options):
    def run(q, k, v, *given, **documents):
        told = dict(zip(names, given, strict=True))
        if "gates" in told:
            told["gates"] = told["gates"][..., 0]
        if "householder" in told:
            told["householder"] = (told["householder"][..., :-1], told["householder"][..., -1:])
        return attention(q, k, v, **told, **options, **documents)

    return run


@pytest.mark.parametrize("setting", OF_CONTENT)
def test_what_is_summed_over_tokens_is_summed_in_each_document_alone(setting):
    names, options = OF_CONTENT[setting]
    leaves, run = (*rows(), *of_content(names)), run_of(names, options)
    packed, separate = run(*leaves, document_ids=ids_of(LENGTHS, 23)), alone(run, leaves, LENGTHS)
    assert torch.equal(packed, separate)
    wanted = gradients(separate, leaves)
    assert all(torch.equal(a, b) for a, b in zip(gradients(packed, leaves), wanted, strict=True))
    first = [x[:1].detach().requires_grad_() for x in leaves]
    of_lengths = run(*first, cu_seqlens=[0, 1, 6, 14, 23])
    assert torch.equal(of_lengths, separate[:1])
    separate = alone(run, first, LENGTHS[:1])
    assert all(torch.equal(a, b) for a, b in zip(gradients(of_lengths, first), gradients(separate, first), strict=True))


@pytest.mark.parametrize("setting", [name for name, (names, _) in OF_CONTENT.items() if "gates" in names])
def test_nan_in_a_gate_stays_in_its_document(setting):
    names, options = OF_CONTENT[setting]
    leaves, run = (*rows(), *of_content(names)), run_of(names, options)
    clean = run(*leaves, document_ids=ids_of(LENGTHS, 23))
    wanted, own = gradients(clean, leaves), slice(6, 14)  # the third document of the first row
    with torch.no_grad():
        leaves[-1][0, :, 10] = float("nan")
    packed = run(*leaves, document_ids=ids_of(LENGTHS, 23))
    assert packed[0, :, own].isnan().any()
    for got, want in zip((packed, *gradients(packed, leaves)), (clean, *wanted), strict=True):
        for x, y in ((got[0, :, :6], want[0, :, :6]), (got[0, :, 14:], want[0, :, 14:]), (got[1], want[1])):
            assert torch.equal(x, y)


@pytest.mark.parametrize("name", ["gates", "decays"])
def test_compiled_sums_of_documents_are_those_of_each(name):
    names, ids = (name,), ids_of(LENGTHS, 23)
    leaves, run = (*rows(), *of_content((name,))), run_of(names, {})
    torch._dynamo.reset()
    compiled = torch.compile(lambda *leaves: run(*leaves, document_ids=ids), fullgraph=True, backend="aot_eager")
    want, got = run(*leaves, document_ids=ids), compiled(*leaves)
    # sums that contain a gate of -65536 are exact within 1e-11
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(gradients(got, leaves), gradients(want, leaves), rtol=1e-9, atol=1e-10)
    if name == "gates":
        with torch.no_grad():
            leaves[-1][0, :, 10] = float("nan")
        got = compiled(*leaves)
        assert torch.equal(got.isnan().any(-1).any(1), run(*leaves, document_ids=ids).isnan().any(-1).any(1))


def test_cumulative_lengths_are_ids_of_one_row():
    q, k, v = rows(batch=1, tokens=23)
    bias = torch.randn(4, 9, dtype=torch.float64)
    by_ids = attention(q, k, v, bias=bias, document_ids=ids_of([LENGTHS[0]], 23))
    for cu in ([0, 1, 6, 14, 23], torch.tensor([0, 1, 6, 14, 23], dtype=torch.int32), [0, 1, 1, 6, 14, 23]):
        assert torch.equal(attention(q, k, v, bias=bias, cu_seqlens=cu), by_ids)
    last = attention(q[:, :, -4:], k, v, bias=bias, cu_seqlens=[0, 1, 6, 14, 23])
    torch.testing.assert_close(last, by_ids[:, :, -4:], rtol=1e-12, atol=1e-13)
    skipped = ids_of([LENGTHS[0]], 23) * 3
    assert torch.equal(attention(q, k, v, bias=bias, document_ids=skipped), by_ids)
    assert attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], cu_seqlens=[0, 0]).shape == (1, 4, 0, 8)


def test_varlen_has_the_layout_of_flash_attention():
    torch.manual_seed(1)
    cu_q, cu_k = [0, 3, 4, 4, 8, 10, 15], [0, 5, 9, 12, 14, 14, 19]
    q = torch.randn(15, 4, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(19, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bias = torch.randn(4, 5, dtype=torch.float64)
    out = attention_varlen(q, k, v, cu_q, cu_k, 5, 5, bias=bias, causal=True)
    parts = []
    for n in range(6):
        one = [x[a[n] : a[n + 1]].transpose(0, 1)[None] for x, a in ((q, cu_q), (k, cu_k), (v, cu_k))]
        parts.append(attention(*one, bias=bias)[0].transpose(0, 1))
    assert torch.equal(out, torch.cat(parts))
    for got, want in zip(gradients(out, (q, k, v)), gradients(torch.cat(parts), (q, k, v)), strict=True):
        assert torch.equal(got, want)
    with pytest.raises(ValueError, match="max_seqlen_k = 4 is less than the 5 tokens"):
        attention_varlen(q, k, v, cu_q, cu_k, 5, 4, causal=True)
    with pytest.raises(ValueError, match="cu_seqlens_q has 6 documents and cu_seqlens_k has 2"):
        attention_varlen(q, k, v, cu_q, [0, 5, 19], 5, 14, causal=True)
    with pytest.raises(TypeError, match="causal"):
        attention_varlen(q, k, v, cu_q, cu_k, 5, 5)


def test_varlen_and_jagged_tensors_take_gates_and_learned_positions():
    torch.manual_seed(3)
    lengths, of_keys = [3, 4, 0, 2], [5, 4, 2, 6]
    cu_q, cu_k = ([0, *torch.tensor(of).cumsum(0).tolist()] for of in (lengths, of_keys))
    q, k, v = (torch.randn(n, h, 8, dtype=torch.float64, requires_grad=True) for n, h in ((9, 4), (17, 2), (17, 2)))
    gates = (-torch.rand(17, 4, dtype=torch.float64)).requires_grad_()
    steps = torch.rand(17, 4, dtype=torch.float64, requires_grad=True)
    parameters = (0.5 + torch.rand(4, 2, dtype=torch.float64)).requires_grad_()
    leaves = (q, k, v, gates, steps, parameters)

    def alone():
        parts = []
        for n in range(4):
            of_q, of_k = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
            one = [x[of].transpose(0, 1)[None] for x, of in ((q, of_q), (k, of_k), (v, of_k))]
            x = steps.cumsum(0)[of_k].T[None]
            more = dict(gates=gates[of_k].T[None], positions=x, position_kernel=("log", parameters))
            parts.append(attention(*one, **more)[0].transpose(0, 1))
        return torch.cat(parts)

    def jagged_of(x, cu):
        return torch.nested.nested_tensor_from_jagged(x, offsets=torch.tensor(cu)).transpose(1, 2)

    want = alone()
    wanted = gradients(want, leaves)
    kernel = ("log", parameters)
    varlen = attention_varlen(q, k, v, cu_q, cu_k, 4, 6, causal=True, gates=gates, positions=steps.cumsum(0), position_kernel=kernel)
    ragged = attention(
        jagged_of(q, cu_q), jagged_of(k, cu_k), jagged_of(v, cu_k), gates=jagged_of(gates, cu_k),
        positions=jagged_of(steps.cumsum(0), cu_k), position_kernel=kernel,
    )  # fmt: skip
    for got in (varlen, ragged.transpose(1, 2).values()):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradients(got, leaves), wanted, rtol=1e-9, atol=1e-11)
    assert all(d.abs().max() > 1e-3 for d in wanted)
    with pytest.raises(ValueError, match=r"gates: expected \[Tk, H\], got shape \(1, 4, 17\)"):
        attention_varlen(q, k, v, cu_q, cu_k, 4, 6, causal=True, gates=gates.T[None])
    with pytest.raises(ValueError, match=r"positions: expected \[B, H, K\] = \[1, 4, 17\], got shape \(1, 4, 16\)"):
        attention_varlen(q, k, v, cu_q, cu_k, 4, 6, causal=True, positions=steps.cumsum(0)[:16], position_kernel=kernel)
    with pytest.raises(ValueError, match="gates: its sequences have other lengths than those of k"):
        attention(jagged_of(q, cu_q), jagged_of(k, cu_k), jagged_of(v, cu_k), gates=jagged_of(gates, [0, 4, 9, 11, 17]))
    with pytest.raises(TypeError, match=r"gates: expected a jagged \[B, H, L\], as q, k and v are"):
        attention(jagged_of(q, cu_q), jagged_of(k, cu_k), jagged_of(v, cu_k), gates=gates.T[None])


REFUSED = [
    ({"cu_seqlens": [[0, 23]]}, ValueError, r"expected \[N \+ 1\]"),
    ({"cu_seqlens": [1, 23]}, ValueError, r"cu_seqlens\[0\] = 1"),
    ({"cu_seqlens": [0, 9, 4, 23]}, ValueError, r"cu_seqlens\[2\] = 4 is less than cu_seqlens\[1\] = 9"),
    ({"cu_seqlens": [0, 22]}, ValueError, r"cu_seqlens\[1\] = 22, but there are 23 tokens"),
    ({"cu_seqlens": [0.0, 23.0]}, TypeError, "whole numbers"),
    ({"cu_seqlens": [False, True]}, TypeError, "whole numbers"),
    ({"document_ids": [[0] * 22]}, ValueError, r"expected \[B, K\] = \[1, 23\]"),
    ({"document_ids": [[-2] + [0] * 22]}, ValueError, r"document_ids\[0, 0\] = -2"),
    ({"document_ids": [[0, 0, 1, 0] + [2] * 19]}, ValueError, "document 0 of row 0 comes back at token 3"),
    ({"document_ids": [[0, -1] + [1] * 21]}, ValueError, "token 1 of row 0 is padding"),
    ({"document_ids": [[0] * 23], "key_lengths": [23]}, ValueError, "key_lengths: document_ids already"),
    ({"cu_seqlens": [0, 23], "key_starts": [0]}, ValueError, "key_starts: cu_seqlens already"),
    ({"cu_seqlens": [0, 23], "document_ids": [[0] * 23]}, ValueError, "give one of the two"),
    ({"cu_seqlens": [0, 3, 23], "bias": torch.zeros(4, 19)}, ValueError, "20 keys of document 1 of row 0 need 20"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED)
def test_bad_documents_are_refused(arguments, error, message):
    q, k, v = (x.detach().float() for x in rows(batch=1))
    with pytest.raises(error, match=message):
        attention(q, k, v, **arguments)


def test_cumulative_lengths_describe_one_row():
    q, k, v = rows()
    with pytest.raises(ValueError, match=r"flatten to \[1, H, T, D\] or give document_ids"):
        attention(q, k, v, cu_seqlens=[0, 23])


def test_compiled_graphs_do_not_specialise_on_lengths():
    q, k, v = (x.detach().float() for x in rows(batch=1))
    module = KerpleLog(4, 8, seed=1)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()
    for cu in ([0, 1, 6, 14, 23], [0, 12, 14, 20, 23]):
        cu = torch.tensor(cu)
        assert torch.equal(compiled(q, k, v, cu_seqlens=cu), module(q, k, v, cu_seqlens=cu))


def test_caches_and_states_hold_one_document_a_row():
    q, k, v = (x.detach().float() for x in rows(batch=1, groups=4))
    ids, cu = torch.zeros(1, 23, dtype=torch.int64), [0, 23]
    with pytest.raises(ValueError, match="document_ids: a KVCache holds one document per row"):
        KVCache().append(k, v, document_ids=ids)
    linear = LinearAttention("none", 4, 8, seed=1)
    with pytest.raises(ValueError, match="cu_seqlens: a LinearState holds one document per row"):
        linear(q, k, v, state=LinearState(), cu_seqlens=cu)


LINEAR = ["kerple_log", "alibi", "none", "rotary", "sine_spe", "conv_spe", "fox"]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", LINEAR)
def test_linear_attention_restarts_in_every_document(kind, causal):
    if kind == "fox" and not causal:
        pytest.skip("gates are for causal linear attention")
    lengths = ([1, 5, 130, 9], [12, 0, 133])
    q, k, v = rows(tokens=147, groups=4)
    module = LinearAttention(kind, 4, 8, seed=3, dtype=torch.float64, count=8)
    inputs = (q, k, v)
    if kind == "fox":
        inputs += ((-torch.rand(2, 4, 147, 1, dtype=torch.float64)).requires_grad_(),)

    def run(q, k, v, gates=None, **documents):
        return module(q, k, v, causal=causal, gates=None if gates is None else gates[..., 0], **documents)

    packed, separate = run(*inputs, document_ids=ids_of(lengths, 147)), alone(run, inputs, lengths)
    got, want = (gradients(out, inputs) for out in (packed, separate))
    if kind == "fox":  # the first gate of a document is 0, so sums of gates are rounded otherwise
        torch.testing.assert_close((packed, *got), (separate, *want), rtol=1e-9, atol=1e-11)
    else:
        assert all(torch.equal(a, b) for a, b in zip((packed, *got), (separate, *want), strict=True))
    learned = [p for p in module.parameters() if p.requires_grad]
    if learned and not kind.endswith("spe"):  # gradients of a code are counted from the middle of the longest document
        got = gradients(run(*inputs, document_ids=ids_of(lengths, 147)), learned)
        want = gradients(alone(run, inputs, lengths), learned)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


def test_linear_attention_refuses_what_attention_refuses():
    q, k, v = (x.detach() for x in rows(batch=1, groups=4))
    linear = LinearAttention("none", 4, 8, seed=1, dtype=torch.float64)
    assert torch.equal(linear(q, k, v, cu_seqlens=[0, 9, 23]), linear(q, k, v, document_ids=[[0] * 9 + [1] * 14]))
    for arguments, error, message in REFUSED:
        if not {"bias", "key_starts"} & set(arguments):
            with pytest.raises(error, match=message):
                linear(q, k, v, **arguments)


def jagged(parts):
    """``[B, H, L, D]`` of sequences of several lengths, and their leaf."""
    leaf = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    return leaf, leaf.transpose(1, 2)


@pytest.mark.parametrize("causal", [True, False])
def test_jagged_tensors_are_packed_documents(causal):
    torch.manual_seed(2)
    lengths, of_keys = [3, 0, 7, 1], [5, 2, 7, 4]
    part = lambda n, heads: torch.randn(n, heads, 8, dtype=torch.float64)  # noqa: E731
    bias = torch.randn(4, 7 if causal else 13, dtype=torch.float64)
    for q_lengths in (of_keys, lengths):
        (q, tq), (k, tk), (v, tv) = (jagged([part(n, h) for n in of]) for of, h in ((q_lengths, 4), (of_keys, 2), (of_keys, 2)))
        if q_lengths is of_keys:  # offsets of one tensor
            (k, tk), (v, tv) = ((x, x.transpose(1, 2)) for x in (torch.nested.nested_tensor_from_jagged(
                torch.randn(18, 2, 8, dtype=torch.float64), q.offsets()).requires_grad_() for _ in range(2)))  # fmt: skip
        out = attention(tq, tk, tv, bias=bias, causal=causal)
        assert out.shape == tq.shape and (out + tq).layout is torch.jagged
        up = [part(n, 4).transpose(0, 1) for n in q_lengths]
        sum((one * d).sum() for one, d in zip(out.unbind(), up, strict=True)).backward()
        got = [x.grad.unbind() for x in (q, k, v)]
        for n, found in enumerate(out.unbind()):
            one = [x.unbind()[n].detach().transpose(0, 1)[None].requires_grad_() for x in (q, k, v)]
            alone = attention(*one, bias=bias, causal=causal)
            assert torch.equal(found[None], alone)
            for a, b in zip(got, torch.autograd.grad((alone[0] * up[n]).sum(), one), strict=True):
                assert torch.equal(a[n].transpose(0, 1)[None], b)


def test_jagged_tensors_that_do_not_fit_are_refused():
    part = lambda n: torch.randn(n, 4, 8)  # noqa: E731
    (raw, q), (_, k), (_, v) = (jagged([part(n) for n in of]) for of in ([3, 4], [3, 4], [4, 3]))
    for module in (KerpleLog(4, 8, seed=1), LinearAttention("none", 4, 8, seed=1)):
        with pytest.raises(TypeError, match=r"q: layout torch.jagged is not computed with, use a dense tensor with cu_seqlens"):
            module(q, q, q)
        dense = q.values()[None]
        made = module(dense, dense, dense, cu_seqlens=q.offsets())
        assert torch.equal(made[:, :, 3:], module(*[dense[:, :, 3:]] * 3))
    with pytest.raises(TypeError, match="k: q, k and v must all be jagged"):
        attention(q, torch.randn(2, 4, 7, 8), k)
    with pytest.raises(ValueError, match="v: its sequences have other lengths than those of k"):
        attention(q, k, v)
    with pytest.raises(ValueError, match=r"q: expected a jagged \[B, H, L, D\]"):
        attention(raw, k, k)
    with pytest.raises(ValueError, match="v: 3 sequences, but q has 2"):
        attention(q, k, jagged([part(n) for n in (3, 3, 1)])[1])
    with pytest.raises(ValueError, match="key_lengths: jagged nested tensors already"):
        attention(q, k, k, key_lengths=[3, 4])
