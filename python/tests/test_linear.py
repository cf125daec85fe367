"""Linear attention against loops over pairs, differences, and itself row by row: the engine of the processor, and what
is composed of PyTorch's operations for GPUs, here on tensors of the processor.
"""

import pytest
import torch
from torch import library as registry

from kerple.torch import LinearAttention, LinearState, _gpu

KINDS = ["kerple_log", "kerple_power", "alibi", "none", "rotary", "sine_spe", "conv_spe"]


@pytest.fixture(autouse=True, params=["engine", "composed"])
def path(request):
    if request.param == "composed":
        _gpu.DEVICES.add("cpu")
    yield request.param
    _gpu.DEVICES.discard("cpu")


def inputs(length=300, heads=2, features=4, batch=2, values=3, dtype=torch.float64):
    make = lambda width: torch.randn(batch, heads, length, width, dtype=dtype, requires_grad=True)  # noqa: E731
    return make(features), make(features), make(values)


def module(kind, heads=2, head_dim=4, **options):
    return LinearAttention(kind, heads, head_dim, seed=3, dtype=torch.float64, **options)


def gates_of(attention, length=300, batch=2):
    """Gates where a module makes them, which are then of rows."""
    if attention.kind != "fox":
        return {}
    rows = torch.randn(batch, length, attention.heads * attention.head_dim, dtype=torch.float64)
    return {"gates": attention.gates(4 * rows)}


@pytest.mark.parametrize("kind", ["kerple_log", "kerple_power", "alibi", "none"])
@pytest.mark.parametrize("causal", [True, False])
def test_equals_the_sum_over_pairs(kind, causal):
    attention, (q, k, v) = module(kind, features="elu"), inputs()
    got = attention(q, k, v, causal=causal)
    one, two = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    d = torch.arange(300)[:, None] - torch.arange(300)
    products = one @ two.transpose(-1, -2)
    if kind != "none":
        bias, _ = attention.table(300, dtype=torch.float64)
        products = products * bias.exp()[:, d.abs()]
    products = products * (d >= 0) if causal else products
    want = products @ v / (products.sum(-1, keepdim=True) + 1e-6)
    # beyond 256 positions kernels are sums of exponentials within a thousandth
    torch.testing.assert_close(got, want, rtol=0, atol=2e-3 if kind.startswith("kerple") else 1e-10)
    torch.testing.assert_close(got[:, :, :128], want[:, :, :128], rtol=0, atol=2e-3 if not causal else 1e-10)


def test_products_fade_by_the_gates_between():
    fox, (q, k, v) = module("fox", features="elu"), inputs()
    told = gates_of(fox)
    one, two = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    clocks = told["gates"].cumsum(-1)
    fallen = (clocks[..., :, None] - clocks[..., None, :]).tril().exp().tril()
    products = one @ two.transpose(-1, -2) * fallen
    want = products @ v / (products.sum(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(fox(q, k, v, **told), want, rtol=0, atol=1e-10)
    fixed = module("fox", features="elu", gate="fixed", spans=[2, 16])
    alike = -1 / torch.tensor([2.0, 16.0], dtype=torch.float64)[:, None].expand(2, 2, 300)
    torch.testing.assert_close(fixed(q, k, v), module("none", features="elu")(q, k, v, gates=alike), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_are_those_of_differences(kind, causal):
    attention, leaves = module(kind, count=8), inputs(150, batch=1)
    follow_differences(attention, leaves, lambda: attention(*leaves, causal=causal))


def test_gradients_of_gates_are_those_of_differences():
    fox, leaves, rows = module("fox", count=8), inputs(150, batch=1), torch.randn(1, 150, 8, dtype=torch.float64)
    rows.requires_grad_()
    follow_differences(fox, [*leaves, rows], lambda: fox(*leaves, gates=fox.gates(rows)))


def follow_differences(attention, leaves, call):
    learned = [*leaves, *attention.parameters()]
    out = call()
    up = torch.randn_like(out)
    gradients = torch.autograd.grad((out * up).sum(), learned, allow_unused=True)
    for leaf, gradient in zip(learned, gradients, strict=True):
        direction, step = torch.randn_like(leaf), 1e-6
        with torch.no_grad():
            leaf.add_(step * direction)
            above = (call() * up).sum()
            leaf.sub_(2 * step * direction)
            below = (call() * up).sum()
            leaf.add_(step * direction)
        slope = ((above - below) / (2 * step)).item()
        assert slope == pytest.approx((gradient * direction).sum().item(), rel=2e-4, abs=1e-5), attention


@pytest.mark.parametrize("kind", [*KINDS, "fox"])
def test_a_state_goes_on(kind):
    attention, (q, k, v) = module(kind, features="relu" if kind.endswith("spe") else "favor", count=8).eval(), inputs()
    with torch.no_grad():
        told, state, rows = gates_of(attention), LinearState(), []
        whole = attention(q, k, v, **told)
        for start, end in [(0, 130), (130, 131), (131, 132), (132, 300)]:
            piece = slice(start, end)
            of_piece = {name: gates[..., piece] for name, gates in told.items()}
            rows.append(attention(q[:, :, piece], k[:, :, piece], v[:, :, piece], state=state, **of_piece))
    assert len(state) == 300 and state.bytes() > 0
    torch.testing.assert_close(torch.cat(rows, 2), whole, rtol=0, atol=1e-9)


def test_a_state_stays_as_large_as_it_is():
    attention, (q, k, v) = module("kerple_log", features="elu"), inputs(256)
    state, sizes = LinearState(), []
    for _ in range(3):
        attention(q, k, v, state=state)
        sizes.append(state.bytes())
    assert len(state) == 768 and sizes[1] == sizes[2]


def test_draws():
    attention, qkv = module("sine_spe"), inputs(40)
    first = attention(*qkv)
    assert torch.equal(first, attention(*qkv))
    attention.redraw_()
    assert not torch.equal(first, attention(*qkv))
    attention.eval()
    still = attention(*qkv)
    attention.redraw_()
    assert torch.equal(still, attention(*qkv))


def test_padding_compiling_and_threads(path):
    attention, (q, k, v) = module("kerple_log"), inputs(200)
    padded = attention(q, k, v, key_lengths=[200, 60])
    torch.testing.assert_close(
        padded[1:, :, :60], attention(q[1:, :, :60], k[1:, :, :60], v[1:, :, :60]), rtol=0, atol=1e-12
    )
    compiled = torch.compile(lambda q, k, v: attention(q, k, v) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), attention(q, k, v) * 2)
    if path == "composed":
        return  # bits are those of PyTorch's products
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out = attention(q, k, v)
            found.append([out, *torch.autograd.grad(out.sum(), [q, *attention.parameters()])])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize("documents", [None, torch.tensor([[0] * 7 + [1] * 13, [0] * 19 + [-1]])], ids=["alone", "packed"])
@pytest.mark.parametrize("kind", ["kerple_log", "sine_spe", "fox"])
def test_opcheck(kind, documents, path):
    attention, (q, k, v) = module(kind, count=8), inputs(20, dtype=torch.float32)
    gates = gates_of(attention, 20).get("gates")
    gates = None if gates is None else gates.detach().to(torch.float32).contiguous().requires_grad_()
    if path == "engine":
        operands = (q, k, v, attention._values(), gates, None, documents, *attention._options(True))
        registry.opcheck(torch.ops.kerple.linear.default, operands)
    elif documents is None:
        for causal in (True, False) if gates is None else (True,):
            lengths = None if causal else torch.tensor([20, 9])
            registry.opcheck(torch.ops.kerple.linear_sums.default, (q, k, v, attention._values(), gates, lengths, *attention._options(causal)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LinearAttention("t5", 2), "does not support t5"),
        (lambda: LinearAttention("sinusoidal", 2), "kind = 'sinusoidal' enters the embeddings, not linear attention"),
        (lambda: LinearAttention("learned", 2), "kind = 'learned' enters the embeddings, not linear attention"),
        (lambda: LinearAttention("kerple_log", 2, features="cosine"), "favor, relu, elu"),
        (lambda: LinearAttention("kerple_log", 2, count=7), "count = 7"),
        (lambda: LinearAttention("kerple_log", 2, count=2.5), "count = 2.5 must be a whole number"),
        (lambda: LinearAttention("kerple_log", 2, 5)(*inputs()), "2 heads of 5"),
        (lambda: module("kerple_log")(*inputs(), key_lengths=[1, 301]), "key_lengths[1] = 301"),
        (lambda: module("kerple_log")(*inputs(), causal=False, state=LinearState()), "state"),
        (lambda: module("fox")(*inputs()), "gates: fox requires them"),
        (lambda: module("kerple_log")(*inputs(), gates=torch.zeros(2, 2, 300)), "gates: kerple_log already decays products, so gates are not supported"),
        (lambda: module("none")(*inputs(), causal=False, gates=torch.zeros(2, 2, 300)), "causal=True only"),
        (lambda: module("none")(*inputs(), gates=torch.zeros(2, 2, 299)), "gates: expected"),
        (lambda: module("none")(*inputs(), gates=torch.ones(2, 2, 300)), "gates: 1 is out of range"),
        (lambda: module("none")(*inputs(), gates=torch.zeros(2, 2, 300, device="meta")), "gates: is on meta, q on cpu"),
        (lambda: module("none")(*inputs(), gates=[0.0]), "gates: expected a torch.Tensor, got list"),
        (lambda: module("none")(*inputs(), key_lengths=[5]), "key_lengths: expected [B] = [2]"),
        (lambda: module("none")(*inputs(), key_lengths=[[5, 5]]), "key_lengths: expected [B] = [2]"),
        (lambda: module("none")(*inputs(), key_lengths=[5.0, 5.0]), "key_lengths: expected whole numbers"),
        (lambda: module("none")(*inputs()[:2], inputs(299)[2]), "v: expected [B, H, L, E] = [2, 2, 300, 3], got [2, 2, 299, 3]"),
        (lambda: module("none")(inputs()[0], inputs(299)[1], inputs()[2]), "k: expected [B, H, L, D] = [2, 2, 300, 4], got [2, 2, 299, 4]"),
        (lambda: module("none")(*(x.long() for x in inputs())), "q: dtype torch.int64"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(make, words, path):
    if path == "composed" and words in ("key_lengths[1] = 301", "gates: 1 is out of range"):
        pytest.skip("values on GPUs are not checked, since reading them would wait")
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert words in str(caught.value), str(caught.value)


def test_a_state_of_another_model_is_refused():
    state, qkv = LinearState(), inputs(20)
    module("kerple_log")(*qkv, state=state)
    with pytest.raises(ValueError, match="start a new one"):
        LinearAttention("kerple_log", 2, 4, seed=4, dtype=torch.float64)(*qkv, state=state)
    assert len(state) == 20


def computed(attention, leaves, composed, **options):
    """The output, and the gradients of everything that has one."""
    (_gpu.DEVICES.add if composed else _gpu.DEVICES.discard)("cpu")
    leaves = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
    out = attention(**leaves, **options)
    up = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    learned = [*leaves.values(), *attention.parameters()]
    return [out, *torch.autograd.grad((out * up).sum(), learned, allow_unused=True)]


PADDED = {
    "alone": {}, "padding": {"key_lengths": torch.tensor([600, 333])},
    "packed": {"document_ids": torch.tensor([[0] * 300 + [1] * 300, [0] * 10 + [1] * 500 + [-1] * 90])},
}  # fmt: skip


#: For tests that take both paths themselves.
once = pytest.mark.parametrize("path", ["engine"], indirect=True)
BOTH = [*((kind, "favor", causal) for kind in KINDS for causal in (True, False)), ("fox", "favor", True)]
BOTH += [(kind, features, causal) for kind, features in (("none", "relu"), ("none", "elu"), ("alibi", "relu")) for causal in (True, False)]


@once
@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize(("kind", "features", "causal"), BOTH)
def test_both_paths_compute_the_same(kind, features, causal, padded):
    """Outputs and all gradients, over more than two blocks of 256."""
    attention = module(kind, features=features, count=8)
    leaves = dict(zip("qkv", (x.detach() for x in inputs(600)), strict=True))
    options = {"causal": causal, **PADDED[padded]}
    if kind == "fox":
        leaves["gates"] = -0.1 * torch.rand(2, 2, 600, dtype=torch.float64)
    if kind == "kerple_power":  # a decay within reach of padding, whose sums would be 0 to rounding
        with torch.no_grad():
            attention.r2.clamp_(max=1.2)
    for got, want in zip(computed(attention, leaves, True, **options), computed(attention, leaves, False, **options), strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            torch.testing.assert_close(got, want, rtol=0, atol=1e-11 * max(want.abs().max().item(), 1e-3))


@once
@pytest.mark.parametrize(("length", "keys"), [(320, {"kernel_size": [7]}), (330, {"kernel_size": [3, 4], "size": [30, 11]}), (540, {"kernel_size": [2, 3, 2], "size": [27, 5, 4]})])
def test_filters_over_lines_planes_and_volumes(length, keys):
    attention = module("conv_spe", count=8, train_len=length, **keys)
    leaves = dict(zip("qkv", (x.detach() for x in inputs(length)), strict=True))
    for got, want in zip(computed(attention, leaves, True), computed(attention, leaves, False), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-11 * want.abs().max().item())


@pytest.mark.parametrize("kind", ["kerple_log", "sine_spe", "fox"])
def test_halves_are_computed_in_single_precision(kind, path):
    attention = LinearAttention(kind, 2, 4, seed=3, count=8)
    q, k, v = (x.detach().to(torch.bfloat16) for x in inputs(300))
    told = {} if kind != "fox" else {"gates": attention.gates(torch.randn(2, 300, 8))}
    got = attention(q, k, v, **told)
    assert got.dtype == torch.bfloat16
    want = attention(q.float(), k.float(), v.float(), **told)
    torch.testing.assert_close(got.float(), want, rtol=2**-8, atol=1e-6)


def test_empty_calls(path):
    for kind in ("none", "kerple_log", "sine_spe", "fox"):
        attention = module(kind, count=8)
        for batch, length in ((2, 0), (0, 5)):
            q, k, v = (x[:batch, :, :length] for x in inputs(9))
            told = {} if kind != "fox" else {"gates": torch.zeros(batch, 2, length, dtype=torch.float64)}
            for causal in (True, False) if kind != "fox" else (True,):
                out = attention(q, k, v, causal=causal, **told)
                assert out.shape == (batch, 2, length, 3)
                out.sum().backward()
