"""What PyTorch does around a call: transforms, autocast, devices, views, what is saved; and gates that shut."""

import math

import pytest
import torch
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap

from kerple.torch import Fox, KerpleLog, LinearAttention, Rotary, attention


def made(dtype=torch.float64):
    q = torch.randn(2, 4, 7, 5, dtype=dtype)
    k, v = torch.randn(2, 2, 9, 5, dtype=dtype), torch.randn(2, 2, 9, 5, dtype=dtype)
    return q, k, v, torch.randn(4, 9, dtype=dtype)


def test_gradients_of_functions_are_those_of_backward(definition):
    q, k, v, bias = made()
    for argument in range(4):
        f = lambda call: lambda x: call(*(q, k, v)[:argument], x, *(q, k, v)[argument + 1 :], bias=bias).square().sum()  # noqa: E731, B023
        if argument == 3:
            f = lambda call: lambda x: call(q, k, v, bias=x).square().sum()  # noqa: E731
        at = (q, k, v, bias)[argument]
        torch.testing.assert_close(grad(f(attention))(at), grad(f(definition))(at), rtol=1e-9, atol=1e-10)
    columns = lambda call: lambda b: call(q, k, v, bias=b).sum((0, 2))  # noqa: E731
    torch.testing.assert_close(jacrev(columns(attention))(bias), jacrev(columns(definition))(bias), rtol=1e-9, atol=1e-10)


def test_gradients_of_each_sample(definition):
    q, k, v, bias = made()
    f = lambda call: lambda b, *x: call(*(one[None] for one in x), bias=b).square().sum()  # noqa: E731
    got, want = (vmap(grad(f(call)), in_dims=(None, 0, 0, 0))(bias, q, k, v) for call in (attention, definition))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    stacked = torch.stack([bias, 2 * bias])
    want = torch.stack([attention(q, k, v, bias=b) for b in stacked])
    assert torch.equal(vmap(lambda b: attention(q, k, v, bias=b))(stacked), want)


@pytest.mark.parametrize("kind", ["kernel", "linear"])
def test_modules_are_functions_of_what_they_learn(kind):
    module = KerpleLog(2, 4, seed=1, dtype=torch.float64)
    if kind == "linear":
        module = LinearAttention("kerple_log", 2, 4, seed=1, dtype=torch.float64)
    x = torch.randn(1, 2, 9, 4, dtype=torch.float64)
    values = {name: p.detach() for name, p in module.named_parameters()}
    loss = lambda values, x: functional_call(module, values, (x, x, x)).square().sum()  # noqa: E731
    module(x, x, x).square().sum().backward()
    found = grad(loss)(values, x)
    for name, p in module.named_parameters():
        torch.testing.assert_close(found[name], p.grad)
    each = vmap(grad(loss), in_dims=(None, 0))(values, torch.stack([x, x]))
    torch.testing.assert_close(each["r1"][1], module.r1.grad)
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        jvp(lambda values: loss(values, x), (values,), (values,))


def test_forward_mode_is_refused():
    q, k, v, bias = made()
    refused = pytest.raises(NotImplementedError, match="no forward-mode derivative")
    with refused:
        jvp(lambda b: attention(q, k, v, bias=b), (bias,), (bias,))
    with refused:
        jacfwd(lambda b: attention(q, k, v, bias=b))(bias)
    for wanted in (False, True):
        dual = torch.autograd.forward_ad.dual_level()
        with dual, refused:
            attention(torch.autograd.forward_ad.make_dual(q.clone().requires_grad_(wanted), q), k, v)


def test_batches_of_gradients():
    q, k, v, bias = made()
    bias.requires_grad_()
    out = attention(q, k, v, bias=bias)
    up = torch.randn(3, *out.shape, dtype=out.dtype)
    (got,) = torch.autograd.grad(out, bias, up, is_grads_batched=True, retain_graph=True)
    want = torch.stack([torch.autograd.grad(out, bias, one, retain_graph=True)[0] for one in up])
    torch.testing.assert_close(got, want)


def test_negative_views_are_read_with_their_sign():
    q, k, v, bias = made()
    for name in range(3):
        inputs = [torch._neg_view(x) if at == name else x for at, x in enumerate((q, k, v))]
        want = [-x if at == name else x for at, x in enumerate((q, k, v))]
        assert torch.equal(attention(*inputs, bias=torch._neg_view(bias)), attention(*want, bias=-bias))
    z = torch.randn(1, 2, 5, 1, dtype=torch.complex128).conj().imag
    assert torch.equal(attention(z, z, z), attention(z.clone(), z.clone(), z.clone()))


@pytest.mark.parametrize("module", [KerpleLog, Rotary, LinearAttention])
def test_autocast_makes_inputs_alike(module):
    module = module(heads=4, head_dim=8)
    q = torch.randn(2, 4, 9, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = torch.nn.functional.scaled_dot_product_attention(q, q, q.bfloat16()).dtype
        assert module(q, q, q.bfloat16()).dtype == want == torch.bfloat16
    with pytest.raises(TypeError, match="v: is of torch.bfloat16"):
        module(q, q, q.bfloat16())


def test_rates_of_a_half_module_are_not_rounded():
    q = torch.randn(1, 2, 300, 8).bfloat16()
    whole, half = Rotary(heads=2, head_dim=8), Rotary(heads=2, head_dim=8).bfloat16()
    assert half.inv_freq.dtype == torch.float64 and torch.equal(half(q, q, q), whole(q, q, q))


def test_modules_are_made_without_memory():
    with torch.device("meta"):
        modules = [KerpleLog(heads=4), Rotary(heads=4), LinearAttention("sine_spe", heads=4)]
        q = torch.randn(1, 4, 3, 8, device="cpu")
        assert attention(q, q, q).is_cpu
    assert all(p.is_meta for module in modules for p in module.parameters())


@pytest.mark.parametrize("kind", ["kerple_log", "sine_spe", "conv_spe"])
def test_what_was_drawn_is_saved(kind):
    one, two = (LinearAttention(kind, heads=4, head_dim=8) for _ in range(2))
    x = torch.randn(1, 4, 9, 8)
    one.redraw_()
    assert not torch.equal(one(x, x, x), two(x, x, x))
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(x, x, x), two(x, x, x)) and torch.equal(one.eval()(x, x, x), two.eval()(x, x, x))
    old = {name: value for name, value in one.state_dict().items() if name != "noise"}
    with pytest.raises(RuntimeError, match="noise is missing: .* hint"):
        two.load_state_dict(old, strict=False)


@pytest.mark.parametrize("shut", [-1e5, -1e30, -math.inf])
@pytest.mark.parametrize("causal", [True, False])
def test_a_gate_that_shuts_forgets_what_was_before(definition, shut, causal):
    q, k, v, _ = (x.requires_grad_() for x in made())
    q = torch.randn(2, 4, 9, 5, dtype=torch.float64, requires_grad=True)
    gates = torch.nn.functional.logsigmoid(torch.randn(2, 4, 9, dtype=torch.float64))
    gates[:, :, 4] = shut
    far = gates.clamp(min=-1e3).requires_grad_()
    gates.requires_grad_()
    out, want = attention(q, k, v, gates=gates, causal=causal), definition(q, k, v, gates=far, causal=causal)
    torch.testing.assert_close(out, want, rtol=0, atol=1e-10)
    up = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v, gates), up)
    for one, two in zip(found, torch.autograd.grad(want, (q, k, v, far), up), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-9)


@pytest.mark.parametrize("padding", [dict(key_lengths=[9, 6]), dict(key_starts=[0, 3])])
def test_gates_of_padding_are_not_read(padding):
    q, k, v, _ = (x.requires_grad_() for x in made())
    gates = torch.nn.functional.logsigmoid(torch.randn(2, 4, 9, dtype=torch.float64))
    known, unknown = gates.clone(), gates.clone()
    at = slice(6, None) if "key_lengths" in padding else slice(0, 3)
    known[1, :, at], unknown[1, :, at] = 0.0, math.nan
    found = []
    for one in (known.requires_grad_(), unknown.requires_grad_()):
        out = attention(q, k, v, gates=one, **padding)
        found.append((out, *torch.autograd.grad(out.sum(), (q, k, v, one))))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert not found[1][4][1, :, at].any()


def test_linear_attention_forgets_and_ignores_padding_alike():
    fox = LinearAttention("fox", 2, 4, features="elu", seed=1, dtype=torch.float64)
    x = torch.randn(2, 2, 200, 4, dtype=torch.float64, requires_grad=True)
    gates = Fox(2, 4, dtype=torch.float64).gates(torch.randn(2, 200, 8, dtype=torch.float64)).detach()
    found = []
    for shut, padding in ((-800.0, 0.0), (-math.inf, math.nan)):
        own = gates.clone()
        own[:, :, [40, 128, 129]], own[1, :, 150:] = shut, padding
        own.requires_grad_()
        out = fox(x, x, x, gates=own, key_lengths=[200, 150])
        found.append((out, *torch.autograd.grad(out.sum(), (x, own))))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
