"""Kernels of learned positions: attention and its gradients, the encoding, and what is refused."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import library as registry

import kerple.torch as kt
from kerple.torch import Encoding, KerplePositions, KVCache, attention, project_
from kerple.torch._ops import call

KERNELS = {"log": 2, "power": 2, "log3": 3, "spline": 5}


def random(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def qkv(queries=9, keys=9, heads=2, kv_heads=2, features=5, batch=2, dtype=torch.float64):
    return [random(batch, heads, queries, features, dtype=dtype)] + [random(batch, kv_heads, keys, features, dtype=dtype) for _ in "kv"]


def learned(kernel, keys=9, heads=2, batch=2):
    """Positions and parameters."""
    positions = (0.2 + 1.6 * torch.rand(batch, heads, keys, dtype=torch.float64)).cumsum(-1)
    parameters = 0.2 + torch.rand(heads, KERNELS[kernel], dtype=torch.float64)
    return positions.requires_grad_(), parameters.requires_grad_()


def price(kernel, parameters, u):
    """The kernel's formula at distances ``[B, H, Q, K]``."""
    first, *more = (x[:, None, None] for x in parameters.unbind(1))
    if kernel == "spline":
        return -first * u - sum(a * u.clamp(max=2.0**m) for m, a in enumerate(more))
    power = torch.where(u > 0, torch.where(u > 0, u, 1.0) ** more[-1], 0.0)
    if kernel == "power":
        return -first * power
    return -first * torch.log1p(more[0] * (u if kernel == "log" else power))


def defined(q, k, v, kernel, positions, parameters, causal=True, window=None, sink_tokens=0, sinks=None, softcap=None, gates=None):
    group, (queries, keys) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    z = q @ k.mT * q.shape[-1] ** -0.5
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    u = positions[:, :, keys - queries :, None] - positions[:, :, None]
    d = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    z = z + price(kernel, parameters, torch.where(d >= 0, u, -u).clamp(min=0))
    if gates is not None:
        c = gates.cumsum(-1)
        z = z + (c[:, :, keys - queries :, None] - c[:, :, None])
    near = torch.ones_like(d, dtype=torch.bool) if window is None else (d.abs() < window) | (torch.arange(keys) < sink_tokens)
    z = z.masked_fill(~(((d >= 0) | (not causal)) & near), -math.inf)
    if sinks is not None:
        z = torch.cat([z, sinks[:, None, None].expand(*z.shape[:3], 1)], -1)
    return z.softmax(-1)[..., :keys] @ v


CASES = {
    "causal": dict(), "tiles": dict(queries=131, keys=131, heads=4), "more keys": dict(queries=3, keys=70),
    "one query": dict(queries=1, keys=700), "both directions": dict(causal=False, queries=40, keys=40), "window": dict(queries=40, keys=70, window=9),
    "first tokens": dict(queries=40, keys=70, window=9, sink_tokens=5),
    "a softcap and sinks": dict(softcap=2.0, sinks=True), "gates": dict(gates=True, sinks=True, queries=35, keys=35),
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_definitions(name, kernel):
    options = dict(CASES[name])
    sizes = {key: options.pop(key) for key in ("queries", "keys", "heads") if key in options}
    q, k, v = qkv(**sizes)
    heads, keys = q.shape[1], k.shape[2]
    positions, parameters = learned(kernel, keys, heads)
    leaves = [q, k, v, positions, parameters]
    if options.get("sinks"):
        options["sinks"] = random(heads)
        leaves.append(options["sinks"])
    if options.get("gates"):
        options["gates"] = (-torch.rand(2, heads, keys, dtype=torch.float64)).requires_grad_()
        leaves.append(options["gates"])
    want = defined(q, k, v, kernel, positions, parameters, **options)
    got = attention(q, k, v, positions=positions, position_kernel=(kernel, parameters), **options)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    up = torch.randn_like(want)
    for a, b in zip(*[torch.autograd.grad(x, leaves, up) for x in (got, want)], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("causal", [True, False])
def test_gradcheck(kernel, causal):
    q, k, v = qkv(5, 7, heads=4)
    positions, parameters = learned(kernel, 7, 4)
    bias, sinks = random(4, 7 if causal else 13), random(4)

    def run(q, k, v, positions, parameters, bias, sinks):
        mask = dict(window=2, sink_tokens=2) if causal else dict(window=5, causal=False)
        beside = dict(bias=bias, sinks=sinks, softcap=2.0, **mask)
        return attention(q, k, v, positions=positions, position_kernel=(kernel, parameters), **beside, dropout_p=0.2, dropout_seed=3)

    assert torch.autograd.gradcheck(run, (q, k, v, positions, parameters, bias, sinks))


def test_steps_of_one_are_kerple():
    layer, (q, k, v) = kt.KerpleLog(4, 5, seed=1, dtype=torch.float64), qkv(20, 50, heads=4)
    parameters = torch.stack([layer.r1, layer.r2], 1)
    positions = torch.arange(50, dtype=torch.float64).expand(2, 4, 50)
    found = [attention(q, k, v, positions=x, position_kernel=("log", parameters)) for x in (positions, positions + 1e6)]
    for got in found:
        torch.testing.assert_close(got, layer(q, k, v), rtol=0, atol=1e-12)


def test_only_differences_count_in_float32_too():
    q, k, v = qkv(150, 150, dtype=torch.float32)
    positions, parameters = learned("log", 150)
    near, far = (attention(q, k, v, positions=positions + at, position_kernel=("log", parameters)) for at in (0.0, 2.0**40))
    torch.testing.assert_close(near, far, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_documents_are_what_they_are_alone(kernel):
    q, k, v = qkv(40, 40, batch=1)
    positions, parameters = learned(kernel, 40, batch=1)
    borders = [0, 13, 14, 40]
    cut = lambda x, at: x[:, :, borders[at] : borders[at + 1]]  # noqa: E731
    alone = [attention(*(cut(x, at) for x in (q, k, v)), positions=cut(positions, at), position_kernel=(kernel, parameters)) for at in range(3)]
    restarted = torch.cat([cut(positions, at) - cut(positions, at)[..., :1].detach() for at in range(3)], -1)
    ids = torch.tensor([[0] * 13 + [1] + [2] * 26])
    up = torch.randn_like(q)
    leaves = (q, k, v, positions, parameters)
    wanted = torch.autograd.grad(torch.cat(alone, 2), leaves, up)
    for x, named in ((positions, dict(cu_seqlens=borders)), (positions, dict(document_ids=ids)), (restarted, dict(cu_seqlens=borders))):
        packed = attention(q, k, v, positions=x, position_kernel=(kernel, parameters), **named)
        torch.testing.assert_close(packed, torch.cat(alone, 2), rtol=0, atol=1e-12)
        for a, b in zip(torch.autograd.grad(packed, leaves, up), wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_padding_is_not_read():
    q, k, v = qkv(12, 12)
    positions, parameters = learned("log", 12)
    starts, ends = [0, 4], [9, 12]
    with torch.no_grad():
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            positions[row, :, :start], positions[row, :, end:] = math.nan, math.nan
    out = attention(q, k, v, positions=positions, position_kernel=("log", parameters), key_starts=starts, key_lengths=ends)
    grads = torch.autograd.grad(out[0, :, :9].sum() + out[1, :, 4:].square().sum(), (q, k, v, positions, parameters))
    assert out.isfinite().all() and all(d.isfinite().all() for d in grads)
    x = positions[1:, :, 4:].detach()
    want = attention(q[1:, :, 4:], k[1:, :, 4:], v[1:, :, 4:], positions=x, position_kernel=("log", parameters))
    torch.testing.assert_close(out[1:, :, 4:], want, rtol=0, atol=1e-12)
    empty = attention(q, k, v, positions=positions, position_kernel=("log", parameters), key_lengths=[0, 0])
    assert not empty.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types(dtype):
    q, k, v = qkv(40, 40, features=8)
    positions, parameters = learned("log3", 40)
    run = lambda to: attention(*(x.to(to) for x in (q, k, v)), positions=positions, position_kernel=("log3", parameters))  # noqa: E731
    got = run(dtype)
    assert got.dtype == dtype
    tolerance = {torch.float32: 1e-5}.get(dtype, 0.05)
    torch.testing.assert_close(got.double(), run(torch.float64), rtol=0, atol=tolerance)
    found, wanted = (torch.autograd.grad(run(to).sum(), (positions, parameters)) for to in (dtype, torch.float64))
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == torch.float64
        torch.testing.assert_close(a, b, rtol=0, atol=10 * tolerance)


def test_threads_do_not_change_a_bit():
    q, k, v = qkv(200, 200, heads=4, dtype=torch.float32)
    positions, parameters = learned("power", 200, 4)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            out = attention(q, k, v, positions=positions, position_kernel=("power", parameters))
            found.append([out, *torch.autograd.grad(out.sum(), (q, k, v, positions, parameters))])
    finally:
        torch.set_num_threads(threads)
    assert all(a.equal(b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_one_of_the_two_learns():
    q, k, v = (x.detach() for x in qkv())
    for at in range(2):
        given = [x.requires_grad_(at == n) for n, x in enumerate(x.detach() for x in learned("log"))]
        attention(q, k, v, positions=given[0], position_kernel=("log", given[1])).sum().backward()
        assert [x.grad is not None for x in given] == [at == 0, at == 1]


@pytest.mark.parametrize("kernel", ["log3", "spline"])
def test_operation(kernel):
    q, k, v = qkv(6, 9, heads=4)
    positions, parameters = learned(kernel, 9, 4)
    beside = (None,) * 7
    given = (q, k, v, *beside, positions, parameters, *[None] * 4, "", 0.4, True, 7, None, 3.0, 0.0, kernel)
    registry.opcheck(torch.ops.kerple.attention.default, given)
    leaves = (q, k, v, positions, parameters)
    run = lambda q, k, v, x, p: attention(q, k, v, positions=x, position_kernel=(kernel, p))  # noqa: E731
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for a, b in zip(*[torch.autograd.grad(f(*leaves).sum(), leaves) for f in (compiled, run)], strict=True):
        assert a.equal(b)
    torch._dynamo.reset()
    stacked = torch.vmap(lambda x: run(x, k.detach(), v.detach(), positions.detach(), parameters.detach()))(torch.stack([q.detach()] * 2))
    assert stacked[0].equal(run(*(x.detach() for x in leaves)))


def without(**changed):
    positions, parameters = (x.detach() for x in learned("log"))
    return dict(positions=positions, position_kernel=("log", parameters)) | changed


ROWS = (torch.zeros(2, 2, 9, 3, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (lambda: without(position_kernel=None), ValueError, "positions: position_kernel is not given"),
        (lambda: without(positions=None), ValueError, "position_kernel: positions is not given"),
        (lambda: without(position_kernel="log"), TypeError, 'such as \\("log", parameters\\)'),
        (lambda: without(position_kernel=("exp", torch.ones(2, 2))), ValueError, "'exp' is unknown; use one of 'log', 'power'"),
        (lambda: without(position_kernel=("log3", torch.ones(2, 2))), ValueError, "'log3', P = 3"),
        (lambda: without(position_kernel=("spline", torch.ones(2, 26))), ValueError, "P from 2 to 25"),
        (lambda: without(position_kernel=("log", [1, 2])), TypeError, r"position_kernel\[1\]: expected a torch.Tensor"),
        (lambda: without(positions=torch.zeros(2, 2, 9)), TypeError, "float32; running sums need float64"),
        (lambda: without(positions=torch.zeros(2, 2, 8, dtype=torch.float64)), ValueError, r"expected \[B, H, K\] = \[2, 2, 9\]"),
        (lambda: without(relative=ROWS), ValueError, "positions: they and a relative bias per row \\(relative\\) exclude"),
    ],
)  # fmt: skip
def test_refusals(given, error, words):
    with pytest.raises(error, match=words):
        attention(*qkv(), **given())


def falling():
    positions, parameters = (x.detach() for x in learned("log"))
    positions[1, 0, 4] = positions[1, 0, 3] - 0.5
    return dict(positions=positions, position_kernel=("log", parameters))


def test_refusals_of_the_engine():
    """Of values, which only the processor reads, and of what follows from sizes."""
    on_processor = not kt._gpu.DEVICES & {"cpu"}
    zero = ("power", torch.tensor([[1.0, 0.5], [0.3, 0.0]]))
    if on_processor:
        with pytest.raises(ValueError, match=r"parameter at \[1, 1\] is 0, which only a spline takes"):
            attention(*qkv(), **without(position_kernel=zero))
        with pytest.raises(ValueError, match=r"positions: they fall from .* at \[1, 0, 4\]; they are running sums of steps"):
            attention(*qkv(), **falling())
        with pytest.raises(ValueError, match=r"without causal=True they do not support padding before the keys \(key_starts\)"):
            attention(*qkv(), **without(causal=False, key_starts=[0, 2]))
        with pytest.raises(ValueError, match="or none of the three"):
            call(*(x.detach() for x in qkv()), *[None] * 13, "", 0.4, True, None, None, None, 0.0, "log")
        with pytest.raises(ValueError, match="exclude each other"):  # the operation itself
            positions, parameters = (x.detach() for x in learned("log"))
            call(*(x.detach() for x in qkv()), *[None] * 5, *ROWS, positions, parameters, *[None] * 4, "", 0.4, True, None, None, None, 0.0, "log")
    with pytest.raises(ValueError, match="12 queries exceed the 9 keys, which alone have positions"):
        attention(*qkv(12, 9), **without())
    assert attention(*qkv(), **without(position_kernel=("spline", torch.zeros(2, 3)))).isfinite().all()
    rows = [torch.nested.nested_tensor([torch.randn(n, 2, 4) for n in (3, 5)], layout=torch.jagged).transpose(1, 2) for _ in "qkv"]
    with pytest.raises(TypeError, match=r"positions: expected a jagged \[B, H, L\], as q, k and v are"):
        attention(*rows, **without())


def test_reference_values():
    """Made by autograd in f64 from the formulas: outputs, and gradients of steps and parameters."""
    safetensors = pytest.importorskip("safetensors")
    folder = Path(__file__).resolve().parent.parent.parent / "reference" / "clocks"
    if not folder.is_dir():
        pytest.skip("only a clone has the reference values")

    def read(of):
        with safetensors.safe_open(folder / of["file"], "pt") as file:
            return file.get_tensor(of["key"]).double()

    count = 0
    for case in json.loads((folder / "manifest.json").read_text())["cases"]:
        name = case["id"].removeprefix("kclock/")
        if name in (case["id"], "table_uniform"):  # kerple.torch has no tables, see below
            continue
        q, k, v, up = (read(case["inputs"][key]).requires_grad_() for key in ("q", "k", "v", "dout"))
        given = {key: read(of).requires_grad_() for key, of in case["params"].items()}
        kernel = {"log3": "log3", "spline": "spline"}.get(name, "log")
        names = {"log": ("r1", "r2"), "log3": ("r1", "r2", "p"), "spline": ("a0", "am")}[kernel]
        parameters = torch.cat([given[key].reshape(q.shape[1], -1) for key in names], 1)
        static = case["static"]
        steps = static["step_max"] * torch.sigmoid(given["a"]) if static.get("step") == "sigmoid" else given["steps"]
        gates = torch.nn.functional.logsigmoid(given["a"]) if name == "log_plus_fox" else None
        out = attention(q, k, v, positions=steps.cumsum(-1), position_kernel=(kernel, parameters), gates=gates, scale=static["scale"])
        leaves = {"grad_q": q, "grad_k": k, "grad_v": v} | {f"grad_{key}": x for key, x in given.items()}
        found = dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), up), strict=True)) | {"out": out.detach()}
        for key, got in found.items():
            torch.testing.assert_close(got, read(case["expected"][key]), rtol=1e-9, atol=1e-9, msg=lambda text, key=key, name=name: f"{name} {key}: {text}")
        count += 1
    assert count == 5


# the encoding


KEYS = [
    dict(), dict(kernel="power", step_min=0.05), dict(kernel="log3", step="softplus", step_min=0.1), dict(kernel="spline", knots=6, step="exp"),
    dict(step_max=3.5, step_min=0.2),
]  # fmt: skip


@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_a_layer_starts_as_kerple(keys):
    layer = KerplePositions(4, 6, seed=3, dtype=torch.float64, **keys)
    rows, (q, k, v) = torch.randn(2, 12, 24, dtype=torch.float64), qkv(12, 12, heads=4, kv_heads=4, features=6)
    positions = layer.positions(rows)
    torch.testing.assert_close(positions, torch.arange(1, 13, dtype=torch.float64).expand(2, 4, 12), rtol=1e-14, atol=0)
    kernel = keys.get("kernel", "log")
    own = {"log": ("r1", "r2"), "power": ("r1", "r2"), "log3": ("r1", "r2", "r3"), "spline": ("slope", "rises")}[kernel]
    assert set(layer.state_dict()) == {"weight", "bias", *own}
    assert layer.weight.shape == (24, 4) and not layer.weight.any()
    d = (torch.arange(12.0)[:, None] - torch.arange(12.0)).clamp(min=0).double()
    if kernel == "spline":  # -ln(1 + d) at the knots
        of_table = price(kernel, layer.position_kernel[1], d[None, None])[0, 0]
        at = torch.tensor([1, 2, 4, 8])
        torch.testing.assert_close(of_table[at, 0], -math.log(2.0) * sum((at / 2.0**m).clamp(max=1.0) for m in range(6)).double())
    want = defined(q, k, v, kernel, positions, layer.position_kernel[1])
    torch.testing.assert_close(layer(q, k, v, positions=positions), want, rtol=0, atol=1e-12)
    if not keys:
        plain = Encoding("kerple_log", 4, 6, dtype=torch.float64)
        with torch.no_grad():
            plain.r1.copy_(layer.r1)
            plain.r2.copy_(layer.r2)
        torch.testing.assert_close(layer(q, k, v, positions=positions), plain(q, k, v), rtol=0, atol=1e-12)


@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_steps_are_their_formulas(keys):
    layer, rows = KerplePositions(2, 3, seed=3, dtype=torch.float64, **keys), torch.randn(2, 9, 6, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.normal_()
    a = (rows @ layer.weight + layer.bias).transpose(1, 2)
    low, high = keys.get("step_min", 0.0), keys.get("step_max", 2.0)
    steps = {
        "sigmoid": lambda: low + (high - low) / (1 + (-a).exp()), "softplus": lambda: low + torch.log1p(a.exp()), "exp": lambda: a.clamp(-10, 10).exp(),
    }[keys.get("step", "sigmoid")]()  # fmt: skip
    torch.testing.assert_close(layer.positions(rows), steps.cumsum(-1), rtol=1e-12, atol=0)
    q, k, v = qkv(9, 9, features=3)
    with torch.no_grad():
        for name, (low, high) in layer._ranges.items():
            getattr(layer, name).clamp_(low + 0.1, high)

    def run(*learned):
        out = torch.func.functional_call(layer, dict(zip(names, learned, strict=True)), (q, k, v), dict(positions=positions_of(*learned)))
        return out

    def positions_of(*learned):
        with torch.nn.utils.stateless._reparametrize_module(layer, dict(zip(names, learned, strict=True))):
            return layer.positions(rows)

    names = [name for name, _ in layer.named_parameters()]
    assert torch.autograd.gradcheck(run, [x.detach().clone().requires_grad_() for x in layer.parameters()], fast_mode=True)


def test_values_out_of_range_are_used_within():
    layer = KerplePositions(2, 3, seed=3, kernel="power", step_min=0.05)
    with torch.no_grad():
        layer.r1[0], layer.r2[1] = -4.0, 7.0
    name, parameters = layer.position_kernel
    assert name == "power" and parameters.dtype == torch.float64
    assert [parameters[0, 0].item(), parameters[1, 1].item()] == pytest.approx([0.01, 2.0], rel=1e-12)
    assert torch.autograd.grad(parameters.sum(), layer.r1)[0].tolist() == [1.0, 1.0]
    project_(torch.nn.Sequential(layer))
    assert layer.r1[0].item() == pytest.approx(0.01) and layer.r2[1] == 2.0


def test_decoding_goes_on():
    layer, (q, k, v) = KerplePositions(4, 6, seed=3, dtype=torch.float64), [x.detach() for x in qkv(40, 40, heads=4, features=6)]
    rows = torch.randn(2, 40, 24, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.normal_(std=0.3)
        whole = layer(q, k, v, positions=layer.positions(rows))
        cache, held, found = KVCache(), None, []
        for start, end in [(0, 17), (17, 18), (18, 19), (19, 40)]:
            keys, values = cache.append(k[:, :, start:end], v[:, :, start:end])
            new = layer.positions(rows[:, start:end], after=None if held is None else held[..., -1])
            held = new if held is None else torch.cat([held, new], -1)
            found.append(layer(q[:, :, start:end], keys, values, positions=held))
    torch.testing.assert_close(torch.cat(found, 2), whole, rtol=0, atol=1e-12)


def test_half_precision_sums_in_double():
    layer, rows = KerplePositions(4, 6, seed=1).bfloat16(), torch.randn(2, 9, 24).bfloat16()
    positions = layer.positions(rows)
    assert positions.dtype == torch.float64
    q, k, v = (x.detach().bfloat16() for x in qkv(9, 9, heads=4, features=6))
    out = layer(q, k, v, positions=positions)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16 and all(x.grad.isfinite().all() for x in layer.parameters())


def test_what_a_layer_refuses():
    layer, (q, k, v) = KerplePositions(2, 5, seed=1), qkv()
    for run, words in [
        (lambda: layer(q, k, v), r"positions: there are none; make them .* `positions\(rows\)`"),
        (lambda: layer.positions(torch.zeros(1, 3, 11)), "with M = 10"),
        (lambda: layer.positions(torch.zeros(2, 3, 10), after=torch.zeros(2, dtype=torch.float64)), r"after: expected \[B, H\] = \[2, 2\]"),
        (lambda: kt.SelectiveRope(2, 6).angles(torch.zeros(2, 3, 12), after=torch.zeros(2, 3)), r"after: expected \[B, H, D/2\] = \[2, 2, 3\]"),
        (lambda: kt.KerpleLog(2).positions(torch.zeros(1, 3, 128)), "'kerple_log' makes no learned positions"),
        (lambda: kt.Fox(2).position_kernel, "'fox' has no kernel of learned positions"),
        (lambda: kt.KerpleLog(2, 5)(q, k, v, positions=learned("log")[0]), "'kerple_log' has no kernel of them"),
        (lambda: kt.LinearAttention("kerple_positions", 2, 5), "kerple_positions"),
        (lambda: KerplePositions(2, kernel="power"), "step_min"),
        (lambda: KerplePositions(2, knots=3), "knots"),
        (lambda: layer.gates(torch.zeros(1, 3, 10)), "makes no gates"),
    ]:
        with pytest.raises(ValueError, match=words):
            run()
    assert layer.table(9) == (None, None)


def test_tables_are_refused_by_name():
    with pytest.raises(ValueError, match="kernel = 'table'.*`kerple train` has tables too"):
        kt.KerplePositions(2, kernel="table")
