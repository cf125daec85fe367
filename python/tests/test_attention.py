"""``kerple.torch.attention`` against its definition, and as PyTorch demands of an operation."""

import math

import pytest
import torch
from torch import library as registry

import kerple
from kerple.torch import attention, symmetric

CASES = {
    "plain": dict(),
    "bias": dict(tables="b"),
    "bias and weight": dict(tables="bw"),
    "both directions": dict(tables="bw", causal=False),
    "window": dict(tables="b", window=3),
    "window in both directions": dict(tables="b", window=3, causal=False),
    "first tokens": dict(tables="b", window=3, sink_tokens=2),
    "first tokens, all seen": dict(tables="b", window=3, sink_tokens=50),
    "first tokens and tiles": dict(tables="bw", window=40, sink_tokens=70, queries=131, keys=303, heads=4, kv_heads=2, features=8),
    "first tokens and one query": dict(window=3, sink_tokens=2, queries=1, keys=11),
    "first tokens and more queries": dict(window=2, sink_tokens=1, queries=7, keys=4),
    "first tokens and padding": dict(tables="b", gates=True, window=2, sink_tokens=2, key_starts=[0, 3], key_lengths=[8, 9]),
    "first tokens and all else": dict(
        relative=(4, 7), tables="bw", gates=True, window=3, sink_tokens=2, softcap=2.0, sinks=True, heads=4, kv_heads=2, key_starts=[1, 0]
    ),
    "grouped heads": dict(tables="b", heads=4, kv_heads=2),
    "more keys": dict(tables="bw", queries=3, keys=11),
    "one query": dict(tables="bw", queries=1, keys=11),
    "more queries": dict(tables="b", queries=7, keys=4),
    "more queries in both directions": dict(tables="b", queries=7, keys=4, causal=False),
    "padding behind": dict(tables="b", key_lengths=[9, 4]),
    "padding before": dict(tables="bw", key_starts=[0, 3]),
    "padding on both sides": dict(tables="b", key_starts=[2, 3], key_lengths=[9, 5], causal=False),
    "no key at all": dict(tables="b", key_lengths=[9, 0]),
    "a softcap and sinks": dict(tables="b", softcap=2.0, sinks=True),
    "a scale": dict(tables="b", scale=0.3),
    "longer tables": dict(tables="bw", columns=5),
    "gates": dict(gates=True),
    "gates in both directions": dict(tables="b", gates=True, causal=False),
    "gates and all else": dict(tables="bw", gates=True, window=4, softcap=2.0, sinks=True, heads=4, kv_heads=2),
    "gates of more keys": dict(gates=True, queries=3, keys=11),
    "gates and one query": dict(gates=True, queries=1, keys=11),
    "gates and padding behind": dict(tables="b", gates=True, key_lengths=[9, 4]),
    "gates and padding before": dict(tables="b", gates=True, sinks=True, key_starts=[0, 3]),
    "gates and padding on both sides": dict(gates=True, queries=4, keys=9, key_starts=[2, 7], key_lengths=[9, 8]),
    "gates and nothing but padding": dict(gates=True, key_starts=[9, 2]),
    "a relative bias": dict(relative=(3, 20)),
    "a relative bias of distance 0": dict(relative=(1, 1)),
    "a relative bias and all else": dict(
        relative=(4, 6), tables="bw", gates=True, window=7, softcap=2.0, sinks=True, heads=4, kv_heads=2
    ),
    "a relative bias past its window": dict(relative=(3, 8), window=3),
    "a relative bias and tiles": dict(relative=(5, 70), queries=131, keys=203, heads=4, kv_heads=2, features=8),
    "a relative bias of more keys": dict(relative=(3, 5), queries=3, keys=11),
    "a relative bias and one query": dict(relative=(17, 9), queries=1, keys=11),
    "a relative bias of more queries": dict(relative=(3, 5), queries=7, keys=4),
    "a relative bias and padding behind": dict(relative=(3, 5), key_lengths=[9, 4]),
    "a relative bias and padding before": dict(relative=(3, 5), queries=8, key_starts=[0, 4]),
    "a relative bias and padding on both sides": dict(relative=(3, 5), key_starts=[2, 3], key_lengths=[9, 5]),
    "wide values": dict(tables="bw", values=11, heads=4, kv_heads=2),
    "narrow values": dict(values=1, gates=True, softcap=2.0, sinks=True, queries=131, keys=203, features=8),
    "wide values and one query": dict(tables="b", values=9, queries=1, keys=11, window=4),
}


def case(
    dtype, tables="", queries=9, keys=9, heads=2, kv_heads=None, columns=0, sinks=False, gates=False, relative=None, features=5,
    values=None, batch=2, **options,
):  # fmt: skip
    make = lambda *shape: torch.randn(*shape, dtype=dtype, requires_grad=True)  # noqa: E731
    inputs = [make(batch, heads, queries, features)] + [make(batch, kv_heads or heads, keys, width) for width in (features, values or features)]
    length = keys + columns if options.get("causal", True) else 2 * (max(queries, keys) + columns) - 1
    named = {name: make(heads, length) for name in ("bias", "weight") if name[0] in tables}
    if sinks:
        named["sinks"] = make(heads)
    if gates:
        named["gates"] = torch.nn.functional.logsigmoid(make(batch, heads, keys)).detach().requires_grad_()
    if relative is not None:  # rows as a linear layer returns them
        rank, reach = relative
        named["rows"] = make(batch, queries, heads, rank).detach().transpose(1, 2).requires_grad_()
        named["profiles"] = make(rank, reach)
    return inputs, named, options


def arguments(named, leaves=None):
    """What attention takes of these, by name."""
    given = dict(zip(named, named.values() if leaves is None else leaves, strict=True))
    if "rows" in given:
        given["relative"] = (given.pop("rows"), given.pop("profiles"))
    return given


@pytest.mark.parametrize("name", CASES)
def test_equals_its_definition_in_outputs_and_all_gradients(name, definition):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 3e-5)):
        inputs, named, options = case(dtype, **CASES[name])
        leaves = [*inputs, *named.values()]
        exact = [x.detach().double().requires_grad_() for x in leaves]
        out = attention(*inputs, **arguments(named), **options)
        want = definition(*exact[:3], **arguments(named, exact[3:]), **options)
        assert out.dtype == dtype and out.shape == (*inputs[0].shape[:3], inputs[2].shape[3])
        torch.testing.assert_close(out.double(), want, rtol=0, atol=tolerance)
        up = torch.randn(want.shape, dtype=torch.float64)
        got = torch.autograd.grad(out, leaves, up.to(dtype))
        for x, d, d_want in zip(leaves, got, torch.autograd.grad(want, exact, up), strict=True):
            assert d.shape == x.shape and d.dtype == dtype
            scale = 1 + d_want.abs().max().item()
            torch.testing.assert_close(d.double(), d_want, rtol=0, atol=10 * tolerance * scale)


@pytest.mark.parametrize(
    "name",
    [
        "bias and weight", "both directions", "grouped heads", "padding before", "a softcap and sinks", "gates and padding before",
        "a relative bias and all else", "a relative bias and padding before", "first tokens and all else", "wide values",
    ],
)  # fmt: skip
def test_gradcheck(name):
    inputs, named, options = case(torch.float64, **{"queries": 5 if "sink_tokens" in CASES[name] else 4, "keys": 5, **CASES[name]}, features=3)

    def call(*leaves):
        return attention(*leaves[:3], **arguments(named, leaves[3:]), **options)

    assert torch.autograd.gradcheck(call, (*inputs, *named.values()))


def operands(**of):
    inputs, named, options = case(torch.float32, **of)
    beside = [named.get("bias"), named.get("weight"), named.get("sinks"), None, named.get("gates"), *map(named.get, ("rows", "profiles"))]
    if beside[4] is not None:  # clocks
        beside[4] = beside[4].detach().double().cumsum(-1).requires_grad_()
    keys = [torch.tensor(options[name]) if name in options else None for name in ("key_starts", "key_lengths")]
    mask = options.get("causal", True), options.get("window"), options.get("sink_tokens")
    seed = torch.tensor([5]) if options.get("dropout_p") else None
    return (*inputs, *beside, None, None, *keys, None, seed, "", 0.4, *mask, options.get("softcap"), options.get("dropout_p", 0.0), "")


@pytest.mark.parametrize(
    "name",
    [
        "plain", "bias and weight", "both directions", "padding before", "a softcap and sinks", "gates and all else",
        "a relative bias", "a relative bias and all else", "first tokens and all else", "wide values",
    ],
)  # fmt: skip
def test_opcheck(name):
    registry.opcheck(torch.ops.kerple.attention.default, operands(**CASES[name]))


@pytest.mark.parametrize("documents", [[0, 3, 5, 9], [[0] * 4 + [1] * 4 + [-1]]], ids=["lengths", "ids"])
def test_opcheck_of_packed_documents(documents):
    given = list(operands(queries=9, keys=9, batch=1))
    given[14] = torch.tensor(documents)
    registry.opcheck(torch.ops.kerple.attention.default, tuple(given))


class Listening(torch.utils._python_dispatch.TorchDispatchMode):
    """Hears of every operation, and so makes kerple's be dispatched."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CASES)
def test_the_operation_equals_the_direct_call(name):
    inputs, named, options = case(torch.float32, **CASES[name])
    leaves = [*inputs, *named.values()]
    out = attention(*inputs, **arguments(named), **options)
    up = torch.randn_like(out)
    with Listening():
        listened = attention(*inputs, **arguments(named), **options)
    assert listened.grad_fn.name() != out.grad_fn.name()
    assert torch.equal(out, listened)
    for one, two in zip(torch.autograd.grad(out, leaves, up), torch.autograd.grad(listened, leaves, up), strict=True):
        assert torch.equal(one, two)


def test_compile_keeps_one_graph():
    inputs, named, options = case(torch.float32, tables="b")
    leaves = [*inputs, named["bias"]]

    def call(q, k, v, bias):
        return attention(q * 2, k, v, bias=bias * 3).square().sum()

    want = call(*leaves)
    d_want = torch.autograd.grad(want, leaves)
    explained = torch._dynamo.explain(call)(*leaves)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    got = compiled(*leaves)
    torch.testing.assert_close(got, want)
    for d, d_of in zip(torch.autograd.grad(got, leaves), d_want, strict=True):
        torch.testing.assert_close(d, d_of)


def test_gates_of_a_long_sequence_are_as_exact_as_those_of_a_short_one():
    """Clocks of -7e4 leave f32 no room for what two neighbours differ by."""
    length = 100_000
    gates = torch.full((1, 1, length), -0.7)
    gates[..., 0] = 3e3  # counts for nobody: the first key's own
    q, k, v = (torch.randn(1, 1, length, 4) for _ in range(3))
    out = attention(q[:, :, -64:], k, v, gates=gates)
    near = [x[:, :, -256:] for x in (k, v)]  # what lies further back has weights below e^-100
    want = attention(q[:, :, -64:].double(), *(x.double() for x in near), gates=gates[..., -256:].double())
    torch.testing.assert_close(out.double(), want, rtol=0, atol=2e-6)


def test_gradients_of_gates_are_those_of_alibi():
    """The same gate at every token is a slope: both gradients of it agree, and the first gate has none."""
    (q, k, v), slope = (torch.randn(2, 3, 50, 8, dtype=torch.float64) for _ in "qkv"), torch.tensor(0.1, dtype=torch.float64)
    gates = (-slope.expand(2, 3, 50)).clone().requires_grad_()
    bias = (-slope * torch.arange(50.0, dtype=torch.float64)).expand(3, 50).clone().requires_grad_()
    up = torch.randn(2, 3, 50, 8, dtype=torch.float64)
    out, want = attention(q, k, v, gates=gates), attention(q, k, v, bias=bias)
    torch.testing.assert_close(out, want, rtol=0, atol=1e-12)
    (d_gates,), (d_bias,) = torch.autograd.grad(out, gates, up), torch.autograd.grad(want, bias, up)
    torch.testing.assert_close(d_gates.sum(), (d_bias * torch.arange(50)).sum(), rtol=1e-10, atol=0)
    assert not d_gates[..., 0].any()


@pytest.mark.parametrize("causal", [True, False])
def test_the_bits_do_not_depend_on_threads(causal):
    inputs, named, _ = case(
        torch.float32, tables="bw", gates=True, queries=700, keys=700, heads=3, features=16, causal=causal
    )
    leaves, before = [*inputs, *named.values()], torch.get_num_threads()
    up, found = torch.randn_like(inputs[0]), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            out = attention(*inputs, **named, causal=causal)
            found.append([out, *torch.autograd.grad(out, leaves, up)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("layout", ["packed", "rows of heads", "expanded heads", "features apart", "every other row"])
def test_strides(layout, definition):
    if layout == "packed":
        q, k, v = torch.randn(2, 6, 3, 3, 4, dtype=torch.float64).unbind(3)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    elif layout == "rows of heads":
        q, k, v = (torch.randn(2, 6, 3, 4, dtype=torch.float64).transpose(1, 2) for _ in range(3))
    elif layout == "expanded heads":
        q, (k, v) = torch.randn(2, 3, 6, 4, dtype=torch.float64), torch.randn(2, 2, 1, 6, 4, dtype=torch.float64)
        k, v = k.expand(2, 3, 6, 4), v.expand(2, 3, 6, 4)
    elif layout == "features apart":
        q, k, v = (torch.randn(2, 3, 4, 6, dtype=torch.float64).transpose(2, 3) for _ in range(3))
    else:
        q, k, v = (torch.randn(2, 3, 12, 4, dtype=torch.float64)[:, :, ::2] for _ in range(3))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, want = attention(*leaves), definition(*leaves)
    torch.testing.assert_close(out, want, rtol=0, atol=1e-12)
    if layout == "rows of heads":
        assert out.stride() == q.stride(), "heads are joined behind attention without a copy"
    up = torch.randn_like(want)
    for d, d_want in zip(torch.autograd.grad(out, leaves, up), torch.autograd.grad(want, leaves, up), strict=True):
        torch.testing.assert_close(d, d_want, rtol=0, atol=1e-12)


def test_half_precision_is_computed_in_single():
    q, k, v = (torch.randn(1, 2, 9, 8).bfloat16() for _ in range(3))
    bias = torch.randn(2, 9)
    out = attention(q, k, v, bias=bias)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, attention(q.float(), k.float(), v.float(), bias=bias).bfloat16())


def test_symmetric_depends_on_the_absolute_distance():
    assert symmetric(torch.tensor([[0.0, 1.0, 2.0]])).tolist() == [[2.0, 1.0, 0.0, 1.0, 2.0]]
    q, k, v = (torch.randn(1, 2, 6, 4, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(2, 6, dtype=torch.float64)
    d = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    want = (q @ k.transpose(-1, -2) / 2 + bias[:, d]).softmax(-1) @ v
    torch.testing.assert_close(attention(q, k, v, bias=symmetric(bias), causal=False), want, rtol=0, atol=1e-12)


def test_a_table_of_another_shape_is_not_made_symmetric():
    for shape in ((3,), (1, 2, 3)):
        with pytest.raises(ValueError, match=r"table: expected \[H, L\]"):
            symmetric(torch.zeros(shape))


def test_numbers_may_be_tensors_without_a_gradient():
    q, k, v = tensors()
    want = attention(q, k, v, scale=0.25, softcap=2.0)
    assert torch.equal(attention(q, k, v, scale=torch.tensor([0.25]), softcap=torch.tensor(2.0)), want)


def test_a_second_derivative_is_refused():
    q = torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True)
    (d,) = torch.autograd.grad(attention(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivative only"):
        torch.autograd.grad(d.square().sum(), q)


def test_numbers_that_are_none_stay_where_they_are_seen():
    q, k, v = (torch.randn(1, 1, 5, 4) for _ in range(3))
    v[0, 0, 3] = math.nan
    out = attention(q, k, v)
    assert out[0, 0, 3:].isnan().all()


def test_keys_between_first_tokens_and_the_window_are_not_read():
    q, k, v = (torch.randn(1, 2, 400, 8) for _ in range(3))
    whole = attention(q, k, v, window=40, sink_tokens=4)
    for x in (k, v):
        x[:, :, 100:200] = math.nan
    assert torch.equal(attention(q, k, v, window=40, sink_tokens=4)[:, :, 300:], whole[:, :, 300:])


@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys"])
def test_nothing_gives_nothing(empty):
    sizes = {"batch": 2, "heads": 2, "queries": 3, "keys": 3} | {empty: 0}
    q = torch.randn(sizes["batch"], sizes["heads"], sizes["queries"], 4, requires_grad=True)
    k = torch.randn(sizes["batch"], sizes["heads"] or 1, sizes["keys"], 4)
    out = attention(q, k, k)
    assert out.shape == q.shape and not out.any()
    assert torch.autograd.grad(out.sum(), q)[0].shape == q.shape


def tensors(**changed):
    named = dict(q=(1, 2, 4, 3), k=(1, 2, 4, 3), v=(1, 2, 4, 3)) | changed
    return [torch.zeros(named[name]) for name in "qkv"]


@pytest.mark.parametrize(
    ("given", "options", "error", "words"),
    [
        (tensors(q=(2, 4, 3)), {}, ValueError, ["q", "B, H"]),
        (tensors(k=(1, 2, 4, 5)), {}, ValueError, ["k", "[1, 2, 4, 3]", "[1, 2, 4, 5]"]),
        (tensors(v=(1, 2, 5, 3)), {}, ValueError, ["v", "[1, 2, 5, 3]"]),
        (tensors(q=(1, 3, 4, 3)), {}, ValueError, ["k: 2 heads", "3 heads of q"]),
        (tensors(q=(1, 2, 4, 0), k=(1, 2, 4, 0), v=(1, 2, 4, 0)), {}, ValueError, ["q", "D at least 1"]),
        (tensors(), dict(bias=torch.zeros(2, 3)), ValueError, ["bias: 3 columns", "need 4"]),
        (tensors(), dict(bias=torch.zeros(3, 4)), ValueError, ["bias: 3 rows", "2 heads"]),
        (tensors(), dict(bias=torch.zeros(4)), ValueError, ["bias", "[H, C]", "[4]"]),
        (tensors(), dict(bias=torch.zeros(2, 8), causal=False), ValueError, ["bias", "odd"]),
        (tensors(), dict(weight=torch.zeros(2, 5), causal=False), ValueError, ["weight: 5 columns", "need 7"]),
        (tensors(), dict(bias=torch.zeros(2, 4), weight=torch.zeros(2, 5)), ValueError, ["[2, 4]", "[2, 5]"]),
        (tensors(), dict(window=0), ValueError, ["window = 0", "at least 1"]),
        (tensors(), dict(window=True), TypeError, ["window = True", "whole number"]),
        (tensors(), dict(causal="no"), TypeError, ["causal = 'no'", "True or False"]),
        (tensors(), dict(window=-3), ValueError, ["window = -3"]),
        (tensors(), dict(window=2, sink_tokens=0), ValueError, ["sink_tokens = 0", "1 to 65536"]),
        (tensors(), dict(window=2, sink_tokens=65537), ValueError, ["sink_tokens = 65537", "1 to 65536"]),
        (tensors(), dict(window=2, sink_tokens=-1), ValueError, ["sink_tokens = -1", "1 to 65536"]),
        (tensors(), dict(window=2, sink_tokens=True), TypeError, ["sink_tokens = True", "whole number"]),
        (tensors(), dict(sink_tokens=4), ValueError, ["sink_tokens = 4", "window"]),
        (tensors(), dict(window=2, sink_tokens=4, causal=False), ValueError, ["sink_tokens = 4", "causal=True"]),
        (tensors(), dict(window=2, sink_tokens=4, key_starts=[[0] * 4]), ValueError, ["sink_tokens", "intervals of keys per query"]),
        (tensors(), dict(scale=math.nan), ValueError, ["scale = NaN"]),
        (tensors(), dict(scale=True), TypeError, ["scale = True", "a number"]),
        (tensors(), dict(scale="1"), TypeError, ["scale = '1'", "a number"]),
        (tensors(), dict(scale=torch.ones(2)), ValueError, ["scale", "(2,)", "multiply q by it"]),
        (tensors(), dict(scale=torch.ones((), requires_grad=True)), ValueError, ["scale", "none reaches it", "multiply q by it", "scale.item()"]),
        (tensors(), dict(softcap=0.0), ValueError, ["softcap"]),
        (tensors(), dict(softcap=True), TypeError, ["softcap = True", "a number"]),
        (tensors(), dict(softcap=torch.ones((), requires_grad=True)), ValueError, ["softcap", "none reaches it", "softcap.item()"]),
        (tensors(), dict(sinks=torch.zeros(3)), ValueError, ["sinks", "[H] = [2]", "[3]"]),
        (tensors(), dict(gates=torch.zeros(1, 2, 3)), ValueError, ["gates", "[B, H, K] = [1, 2, 4]", "(1, 2, 3)"]),
        (tensors(), dict(gates=[0.0]), TypeError, ["gates", "torch.Tensor"]),
        (tensors(), dict(gates=torch.ones(1, 2, 4), causal=False), ValueError, ["gates", "at most 0"]),
        (tensors(), dict(gates=torch.zeros(1, 2, 4), causal=False, key_starts=[1]), ValueError, ["key_starts", "gates"]),
        (tensors(q=(1, 2, 5, 3)), dict(gates=torch.zeros(1, 2, 4)), ValueError, ["q: 5 queries", "4 keys"]),
        (tensors(), dict(key_lengths=[5]), ValueError, ["key_lengths[0] = 5", "0 to 4"]),
        (tensors(), dict(key_lengths=[-1]), ValueError, ["key_lengths[0] = -1"]),
        (tensors(), dict(key_starts=[1, 2]), ValueError, ["key_starts", "[B] = [1]", "[2]"]),
        (tensors(), dict(key_lengths=[1.5]), TypeError, ["key_lengths", "whole numbers"]),
        # a mask of 1 and 0 is not the end of an interval of each query
        (tensors(), dict(key_lengths=[[1, 1, 1, 0]]), ValueError, ["key_lengths", "[B] = [1]", "(1, 4)", "mask.sum(1)", "key_ends"]),
        (tensors(), dict(causal=False, key_lengths=[[1, 1, 1, 0]], key_starts=[[0] * 4]), ValueError, ["key_lengths", "[B] = [1]"]),
        ([[1.0], torch.zeros(1), torch.zeros(1)], {}, TypeError, ["q", "torch.Tensor", "list"]),
        ([x.int() for x in tensors()], {}, TypeError, ["q", "int32", "float32"]),
        ([tensors()[0], tensors()[1].double(), tensors()[2]], {}, TypeError, ["k", "float64", "float32"]),
        (tensors(), dict(bias=[[0.0]]), TypeError, ["bias", "list"]),
        ([torch.zeros(1).expand(1, 1, 2**50, 1)] * 3, {}, ValueError, ["q", "bytes", "this machine has"]),
        ([torch.zeros(1, 2, 4, 3).to_sparse()] * 3, {}, TypeError, ["q", "sparse"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_words(given, options, error, words):
    with pytest.raises(error) as caught:
        attention(*given, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_other_devices_are_told_what_there_is():
    class Elsewhere(torch.Tensor):
        device, is_cpu = torch.device("mps:0"), False

    q = torch.zeros(1, 1, 2, 2).as_subclass(Elsewhere)
    with pytest.raises(ValueError, match="on mps:0.*cuda and xpu.*q.cpu()"):
        attention(q, q, q)


def test_meta_tensors_have_shapes():
    q = torch.empty(1, 2, 100_000, 64, device="meta")
    assert attention(q, q, q).shape == q.shape


def test_memory_grows_with_the_length_only():
    """At 16384 positions one head's scores alone would take 1 GiB; the whole call has less."""
    import resource

    q = torch.randn(1, 1, 16_384, 8, requires_grad=True)
    bias = torch.zeros(1, 16_384, requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attention(q, q, q, bias=bias).sum().backward()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) < 200 * 1024, f"{after - before} KiB"
    assert bias.grad.abs().sum() > 0


@pytest.mark.parametrize("set_", ["portable", "avx2", "avx512"])
def test_instruction_sets_are_named(set_):
    known = ["portable", "avx2", "avx512"]
    assert kerple.instruction_set() in known
    used = kerple.limit_instruction_set("avx512")
    assert used == kerple.instruction_set()
    with pytest.raises(ValueError, match="use one of"):
        kerple.limit_instruction_set(f"{set_}-x")
