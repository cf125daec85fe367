"""Attention whose products depend on the tokens between query and key, against its definitions and reference values."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import library as registry
from torch.nn.functional import logsigmoid

import kerple.torch as kt
from kerple.torch import attention
from kerple.torch._maps import bounded, turned_by

#: Folders of reference values with a `manifest.json`.
FOLDERS = [Path(folder) for folder in os.environ.get("KERPLE_REFERENCE_VALUES", "").split(os.pathsep) if folder] or [
    Path(__file__).resolve().parents[2] / "reference" / name for name in ("clocks", "positions2026")
]


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def made(kind, batch=2, heads=4, kv_heads=2, queries=40, keys=40, features=8, width=6):
    """Queries, keys, values and what is between, with gradients."""
    q, k, v = random(batch, heads, queries, features), random(batch, kv_heads, keys, features), random(batch, kv_heads, keys, features)
    if kind == "decays":
        between = [-random(batch, heads, keys, features).abs() * 0.2]
    elif kind == "path_bias":
        between = [random(batch, heads, queries, width), random(batch, heads, keys, width)]
    else:
        w = random(batch, kv_heads, keys, features)
        between = [w / w.norm(dim=-1, keepdim=True), 2 * torch.rand(batch, kv_heads, keys, 1, dtype=torch.float64)]
    return [x.requires_grad_() for x in (q, k, v, *between)]


SLOPES = [0.5, 0.25, 0.125, 0.0625]


def argument(kind, between):
    """As `attention` takes it."""
    return {kind: between[0] if kind == "decays" else (*between, SLOPES) if kind == "path_bias" else tuple(between)}


def dense(kind, q, k, v, *between, gates=None, sinks=None, window=None, sink_tokens=0, softcap=None, scale=None, key_lengths=None, document_ids=None):
    """By definition, one pair after another."""
    (batch, heads, queries, features), keys = q.shape, k.shape[2]
    group = heads // k.shape[1]
    i, j = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)
    k_of, v = (x.repeat_interleave(group, 1) for x in (k, v))
    if kind == "decays":
        sums = between[0].cumsum(2)
        factors = (sums[:, :, i[:, 0], None] - sums[:, :, None]).clamp(max=0.0).exp()
        s = (q[:, :, :, None] * k_of[:, :, None] * factors).sum(-1)
    elif kind == "path_bias":
        s = q @ k_of.mT
    else:
        w, beta = (x.repeat_interleave(group, 1) for x in between)
        s, now = [], k_of
        for t in range(keys):
            taken = now - beta[:, :, t, None] * (now * w[:, :, t, None]).sum(-1, keepdim=True) * w[:, :, t, None]
            now = torch.where((j < t)[:, None], taken, now)
            if t >= keys - queries:
                s.append((q[:, :, t - (keys - queries), None] * now).sum(-1))
        s = torch.stack(s, 2)
    s = s * (features**-0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    if kind == "path_bias":
        p, r = between
        edges = torch.tensor(SLOPES, dtype=torch.float64)[:heads, None, None] * logsigmoid(p @ r.mT / p.shape[-1])
        run = torch.where(j <= i, edges, 0.0).cumsum(-1)
        s = s + run[..., -1:] - run
    if gates is not None:
        clocks = gates.cumsum(-1)
        s = s + clocks[:, :, i[:, 0], None] - clocks[:, :, None]
    seen = (j <= i)[None, None]
    if window is not None:
        seen = seen & ((i - j < window) | (j < sink_tokens))
    if key_lengths is not None:
        seen = seen & (j < key_lengths[:, None, None, None])
    if document_ids is not None:
        own = document_ids[:, keys - queries :, None] == document_ids[:, None]
        seen = seen & (own & (document_ids >= 0)[:, None])[:, None]
    z = s.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        z = torch.cat([z, sinks[:, None, None].expand(batch, -1, queries, 1)], -1)
    weights = torch.softmax(z, -1).nan_to_num(0.0)[..., :keys]
    return weights @ v


KINDS = ["decays", "path_bias", "householder"]
SETTINGS = {
    "plain": {}, "one head of keys": {"kv_heads": 1}, "as many": {"kv_heads": 4}, "scaled and capped": {"scale": 0.7, "softcap": 1.5},
    "window": {"window": 7}, "sinks": {"sinks": True, "window": 11}, "padding": {"key_lengths": torch.tensor([40, 23])},
    "last queries": {"queries": 5, "keys": 67}, "many tiles": {"queries": 150, "keys": 150, "batch": 1},
    "packed": {"document_ids": torch.tensor([[0] * 13 + [1] * 27, [0] * 1 + [1] * 30 + [-1] * 9])},
    "packed, last queries": {"queries": 20, "document_ids": torch.tensor([[0] * 13 + [1] * 27, [0] * 25 + [1] * 15])},
    "gates": {"gates": True}, "gates of documents": {"gates": True, "document_ids": torch.tensor([[0] * 13 + [1] * 27, [0] * 40])},
    "first tokens": {"window": 6, "sink_tokens": 3},
}  # fmt: skip
SIZES = ("batch", "heads", "kv_heads", "queries", "keys")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_the_definition(kind, setting):
    options = dict(SETTINGS[setting])
    if (kind == "path_bias" and "gates" in options) or (kind != "decays" and "sink_tokens" in options):
        pytest.skip("refused by name, see below")
    leaves = made(kind, **{name: options.pop(name) for name in SIZES if name in options})
    q, k = leaves[:2]
    learned = list(leaves)
    if options.pop("sinks", False):
        options["sinks"] = random(q.shape[1]).requires_grad_()
        learned.append(options["sinks"])
    if options.pop("gates", False):
        options["gates"] = (-random(q.shape[0], q.shape[1], k.shape[2]).abs()).requires_grad_()
        learned.append(options["gates"])
    got = attention(*leaves[:3], **argument(kind, leaves[3:]), **options)
    want = dense(kind, *leaves, **options)
    up = random(*want.shape)
    if "key_lengths" in options:  # what is between padding is not read
        padding = (torch.arange(q.shape[2]) >= options["key_lengths"][:, None])[:, None, :, None]
        got, want, up = (x.masked_fill(padding, 0.0) for x in (got, want, up))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for one, two in zip(
        torch.autograd.grad((got * up).sum(), learned), torch.autograd.grad((want * up).sum(), learned), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_and_opcheck(kind):
    leaves = made(kind, batch=1, heads=2, kv_heads=1, queries=5, keys=6, features=4, width=2)

    def call(*leaves):
        between = leaves[3:]
        own = {kind: between[0] if kind == "decays" else (*between, SLOPES[:2]) if kind == "path_bias" else between}
        return attention(*leaves[:3], **own, softcap=2.0)

    assert torch.autograd.gradcheck(call, leaves)
    q, k, v, first, *second = leaves
    slopes = SLOPES[:2] if kind == "path_bias" else []
    first = first.cumsum(2) if kind == "decays" else first  # the operation takes sums
    operands = (q, k, v, first, second[0] if second else None, None, None, None, None, kind, slopes, 0.5, True, None, None, None)
    registry.opcheck(torch.ops.kerple.content_attention.default, operands)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*leaves), call(*leaves))


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_strides_and_empty_calls(kind):
    leaves = [x.detach() for x in made(kind)]
    halves = [x.to(torch.bfloat16) for x in leaves]
    got = attention(*halves[:3], **argument(kind, halves[3:]))
    assert got.dtype == torch.bfloat16
    want = attention(*(x.float() for x in halves[:3]), **argument(kind, [x.float() for x in halves[3:]]))
    torch.testing.assert_close(got.float(), want, rtol=2**-8, atol=1e-6)
    across = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in leaves]
    assert torch.equal(attention(*across[:3], **argument(kind, across[3:])), attention(*leaves[:3], **argument(kind, leaves[3:])))
    for batch, length in ((0, 5), (2, 0)):
        empty = made(kind, batch=batch, queries=length, keys=length)
        out = attention(*empty[:3], **argument(kind, empty[3:]))
        assert out.shape == (batch, 4, length, 8)
        out.sum().backward()


def tensors(case, part):
    from safetensors.torch import load_file

    return {
        name: load_file(case["folder"] / of["file"])[of["key"]].to(torch.float64)
        for name, of in case[part].items() if isinstance(of, dict) and "file" in of
    }  # fmt: skip


def cases():
    prefixes = ("path/", "positions/wall/", "positions/grape_ap/")
    for folder in FOLDERS:
        for case in json.loads((folder / "manifest.json").read_text())["cases"]:
            if case.get("id", "").startswith(prefixes):
                yield {**case, "folder": folder}


def of_case(case, params):
    """The arguments of a case, of its parameters."""
    told, static = {}, case["static"]
    if case["id"].startswith("path/"):
        w = params["w"]
        told["householder"] = (w / w.norm(dim=-1, keepdim=True), params["beta"][..., None])
        if "g" in params:
            told["gates"] = params["g"] * (static["scale"] if static["gate_scale"] == "inside" else 1.0)
    elif "p" in params:
        p = params["p"]
        turn = -torch.arange(p.shape[2], dtype=torch.float64)[:, None].expand(-1, p.shape[3] // 2)
        r = turned_by(p / (p.square().mean(-1, keepdim=True) + static["rms_eps"]).sqrt(), turn)
        queries = (turned_by(p, turn) if static.get("relative") else p)[:, :, static["L"] - static["Q"] :]
        told["path_bias"] = (queries, r, kt.GrapeAp(p.shape[1], 8)._path_slopes)
    else:
        logits = params.get("a")
        if "W" in params:
            logits = (params["y"] @ params["W"].T + params["b"]).unflatten(-1, (static["H"], -1)).transpose(1, 2)
        gates = params["g"] if logits is None else bounded(logsigmoid(logits), static.get("g_max"))
        told["decays"] = gates.repeat_interleave(static["H"] // gates.shape[1], 1)
        if "a_scalar" in params:
            told["gates"] = logsigmoid(params["a_scalar"])
    if "sigma" in params:
        told["sinks"] = params["sigma"]
    return told


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case["id"])
def test_reference_values(case):
    pytest.importorskip("safetensors")
    inputs, params, want = (tensors(case, part) for part in ("inputs", "params", "expected"))
    static = case["static"]
    leaves = {name: x.requires_grad_() for name, x in {**{name: inputs[name] for name in "qkv"}, **params}.items()}
    q, k, v = (leaves[name] for name in "qkv")
    if "rope_base" in static:
        half = q.shape[-1] // 2
        angles = torch.arange(q.shape[2], dtype=torch.float64)[:, None] * static["rope_base"] ** (-torch.arange(half, dtype=torch.float64) / half)
        q, k = turned_by(q, angles), turned_by(k, angles)
    out = attention(q, k, v, **of_case(case, leaves), scale=static["scale"], window=static.get("window"))
    out.backward(inputs["dout"])
    got = {"out": out, **{f"grad_{name}": x.grad for name, x in leaves.items()}}
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, **{key: case["tolerance"]["f64_arrays"][key] for key in ("rtol", "atol")}, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("kind", "options", "error", "words"),
    [
        ("path_bias", {"gates": torch.zeros(2, 4, 40, dtype=torch.float64)}, ValueError, "gates: path_bias does not support them"),
        ("path_bias", {"window": 5, "sink_tokens": 2}, ValueError, "sink_tokens: path_bias does not support first tokens"),
        ("householder", {"window": 5, "sink_tokens": 2}, ValueError, "sink_tokens: householder does not support first tokens"),
        ("decays", {"causal": False}, ValueError, "causal = False: decays is for causal attention"),
        ("householder", {"bias": torch.zeros(4, 40)}, ValueError, "bias: householder does not support it"),
        ("decays", {"dropout_p": 0.1}, ValueError, "dropout_p: decays does not support it"),
        ("decays", {"key_starts": [0, 1]}, ValueError, "key_starts: decays does not support it"),
        ("householder", {"key_lengths": [1, 41]}, ValueError, "key_lengths[1] = 41 is out of range"),
        ("decays", {"path_bias": (0, 0, [])}, ValueError, "decays and path_bias exclude each other"),
        ("householder", {"window": 0}, ValueError, "window"),
        ("path_bias", {"path_bias": (torch.zeros(2, 4, 40, 6), torch.zeros(2, 4, 40, 6), 1.0)}, TypeError, "path_bias[2] = 1.0 must be a list"),
        (
            "path_bias", {"path_bias": (torch.zeros(2, 4, 40, 6), torch.zeros(2, 4, 40, 6), torch.ones(4, requires_grad=True))}, ValueError,
            "path_bias[2][0]: requires a gradient, but none reaches it",
        ),
        ("decays", {"scale": torch.ones((), requires_grad=True)}, ValueError, "scale: requires a gradient, but none reaches it"),
        ("decays", {"softcap": True}, TypeError, "softcap = True must be a number"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(kind, options, error, words):
    leaves = made(kind)
    with pytest.raises(error) as caught:
        attention(*leaves[:3], **{**argument(kind, leaves[3:]), **options})
    assert words in str(caught.value), str(caught.value)


def test_angles_turn_pairs_and_wrong_ones_are_refused_in_words():
    q, k, v = (torch.randn(1, 2, 7, 4) for _ in range(3))
    angles = random(1, 2, 7, 2).cumsum(2)
    turn = torch.polar(torch.ones_like(angles), angles)
    one, two = (torch.view_as_real(torch.complex(x[..., :2].double(), x[..., 2:].double()) * turn).transpose(-1, -2).flatten(-2) for x in (q, k))
    want = attention(one, two, v.double())
    torch.testing.assert_close(attention(q.double(), k.double(), v.double(), angles=angles), want)
    halves = [x.to(torch.bfloat16) for x in (q, k, v)]
    assert attention(*halves, angles=angles).dtype == torch.bfloat16
    last = attention(q[:, :, 5:].double(), k.double(), v.double(), angles=angles)
    torch.testing.assert_close(last, want[:, :, 5:])
    for call, words in (
        (lambda: attention(q, k, v, angles=angles.float()), "angles: is of torch.float32"),
        (lambda: attention(q, k, v, angles=[0.0]), "angles: expected a torch.Tensor"),
        (lambda: attention(q, k, v, angles=angles[:, :1]), "angles: expected [B, H, K, D/2] = [1, 2, 7, 2]"),
        (lambda: attention(q, torch.cat([k, k[:, :1]], 1), torch.cat([v, v[:, :1]], 1), angles=angles), "k: 3 heads must divide the 2 heads of q"),
        (lambda: attention(q[..., :3], k[..., :3], v, angles=angles[..., :1]), "q has 3 features per head"),
        (lambda: attention(q, k[:, :, :5], v[:, :, :5], angles=angles[:, :, :5]), "7 queries exceed the 5 keys"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert words in str(caught.value), str(caught.value)


def test_wrong_parts_are_refused_in_words():
    q, k, v, gates = made("decays")
    for value, words in (
        (gates.abs() + 1, "must be at most 0"), (gates[:, :2], "decays: expected [B, H, K, D] = [2, 4, 40, 8]"),
        ([0.0], "decays: expected a torch.Tensor"), (gates * float("nan"), "must be at most 0"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError)) as caught:
            attention(q, k, v, decays=value)
        assert words in str(caught.value), str(caught.value)
    _, _, _, p, r = made("path_bias")
    for value, words in (
        ((p, r), "the tuple of p, r and slopes"), ((p, r[..., :4], SLOPES), "path_bias[1]: expected"),
        ((p, r, SLOPES[:3]), "expected 4 finite slopes"), ((p[..., :0], r[..., :0], SLOPES), "0 features"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError)) as caught:
            attention(q, k, v, path_bias=value)
        assert words in str(caught.value), str(caught.value)
    _, _, _, w, beta = made("householder")
    for value, words in (((w, beta[..., 0]), "householder[1]: expected"), ((w[:, :1], beta), "householder[0]: expected"), (w, "the tuple of w and beta")):
        with pytest.raises((TypeError, ValueError)) as caught:
            attention(q, k, v, householder=value)
        assert words in str(caught.value), str(caught.value)
    long = made("householder", queries=41)
    with pytest.raises(ValueError, match="41 queries exceed the 40 keys"):
        attention(*long[:3], householder=tuple(long[3:]))


MODULES = [
    (kt.Wall, {}), (kt.Wall, {"rank": 3, "g_max": 0.86, "scalar_gate": True}), (kt.Wall, {"gate": "bounded", "spans": [16, 64]}),
    (kt.Wall, {"order": "rope_then_channel_decay", "base": 50}), (kt.GrapeAp, {}), (kt.GrapeAp, {"features": 4, "relative": True}),
    (kt.SelectiveRope, {"decay": True, "scalar_gate": True, "rank": 3}),
    (kt.Path, {"rank": 3}), (kt.Path, {"rank": 4, "conv": 2, "gate": True}), (kt.Path, {"gate": True, "gate_scale": "inside"}),
]  # fmt: skip
ARGUMENT = {kt.Wall: "decays", kt.SelectiveRope: "decays", kt.GrapeAp: "path_bias", kt.Path: "householder"}


def told(layer, rows, **options):
    """The arguments that a layer makes of its rows."""
    name = ARGUMENT[type(layer)]
    of_documents = {key: value for key, value in options.items() if name != "decays"}
    given = {name: getattr(layer, name)(rows, **of_documents)}
    if layer._gates_of_heads()[1] in layer._names:
        given["gates"] = layer.gates(rows)
    if isinstance(layer, kt.SelectiveRope):
        given["angles"] = layer.angles(rows)
    return given


@pytest.mark.parametrize(("make", "keys"), MODULES)
def test_modules_compute_their_formulas(make, keys):
    layer = make(3, 4, d_model=12, seed=5, dtype=torch.float64, **keys)
    with torch.no_grad():  # far from their start
        for x in layer.parameters():
            x.add_(0.3 * torch.randn_like(x))
    rows = random(2, 25, 12)
    given = told(layer, rows)
    if make is kt.Wall:
        weight = layer.weight_in @ layer.weight_out if "rank" in keys else layer.weight
        logits = (rows @ weight + layer.bias).view(2, 25, 3, 4).transpose(1, 2)
        gates = logsigmoid(logits)
        if "g_max" in keys:
            gates = 0.86 * (torch.exp(gates / 0.86) - 1)
        if "gate" in keys:
            gates = -torch.sigmoid(logits) * torch.tensor([2 / 16, 2 / 32, 2 / 64], dtype=torch.float64)[:, None, None]
        torch.testing.assert_close(given["decays"], gates)
    elif make is kt.SelectiveRope:
        gates = logsigmoid(rows @ layer.decay_weight + layer.decay_bias).view(2, 25, 3, 2).transpose(1, 2)
        torch.testing.assert_close(given["decays"], torch.cat([gates, gates], -1))
    elif make is kt.GrapeAp:
        p = (rows @ layer.weight).view(2, 25, 3, -1).transpose(1, 2)
        half = p.shape[-1] // 2
        turn = torch.polar(torch.ones(25, 1, dtype=torch.float64), -torch.arange(25.0, dtype=torch.float64)[:, None])
        def turned(x):
            z = torch.complex(x[..., :half], x[..., half:]) * turn
            return torch.cat([z.real, z.imag], -1)
        got_p, got_r, slopes = given["path_bias"]
        torch.testing.assert_close(got_p, turned(p) if keys else p)
        torch.testing.assert_close(got_r, turned(p / p.square().mean(-1, keepdim=True).sqrt()), rtol=1e-12, atol=1e-12)
        alibi = kt.Alibi(3).table(2)[0]
        torch.testing.assert_close(torch.tensor(slopes, dtype=torch.float64), -alibi[:, 1].double(), rtol=1e-6, atol=0)
    else:
        projected, taps = rows @ layer.weight_in @ layer.weight_out, layer.filters.shape[1]
        u = torch.zeros_like(projected)
        for t in range(25):
            for w in range(taps):
                if t - (taps - 1) + w >= 0:
                    u[:, t] += layer.filters[:, w] * projected[:, t - (taps - 1) + w]
        u = (u * torch.sigmoid(u)).view(2, 25, 3, 4).transpose(1, 2)
        w, beta = given["householder"]
        torch.testing.assert_close(w, u / (u.square().sum(-1, keepdim=True) + 1e-6).sqrt())
        torch.testing.assert_close(beta[..., 0], 2 * torch.sigmoid(rows @ layer.strength_weight + layer.strength_bias).transpose(1, 2))
    if "gates" in given:
        name = "gate" if make is kt.Path else "scalar"
        gates = logsigmoid(rows @ getattr(layer, f"{name}_weight") + getattr(layer, f"{name}_bias")).transpose(1, 2)
        torch.testing.assert_close(given["gates"], gates * (0.5 if keys.get("gate_scale") == "inside" else 1.0))
    q, k, v = (random(2, 3, 25, 4) for _ in range(3))
    out = layer(q, k, v, **given)
    if "order" in keys:
        angles = torch.arange(25, dtype=torch.float64)[:, None] * torch.tensor([1.0, 50**-0.5], dtype=torch.float64)
        q, k = turned_by(q, angles), turned_by(k, angles)
    torch.testing.assert_close(out, attention(q, k, v, **given))
    out.sum().backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in layer.parameters())


def value_and_next(layer, rows, angles):
    """The angles of all tokens, where those of the last are made alone."""
    new = layer.angles(rows[:, 29:], before=rows[:, 26:29], after=angles[:, :, -1])
    return torch.cat([angles, new], 2)


@pytest.mark.parametrize(("make", "keys"), MODULES)
def test_decoding_goes_on_and_documents_are_what_they_are_alone(make, keys):
    layer = make(3, 4, d_model=12, seed=5, dtype=torch.float64, **keys)
    rows, (q, k, v) = random(1, 30, 12), (random(1, 3, 30, 4) for _ in range(3))
    whole = layer(q, k, v, **told(layer, rows))
    last = {}
    for name, value in told(layer, rows[:, :29]).items():
        if name == "angles":
            last[name] = value_and_next(layer, rows, value)
            continue
        more = {"path_bias": {"first": 29}, "householder": {"before": rows[:, 29 - (keys.get("conv", 3) - 1) : 29]}}.get(name, {})
        new = getattr(layer, name)(rows[:, 29:], **more)
        if name == "path_bias":
            last[name] = (new[0], torch.cat([value[1], new[1]], 2), new[2])
        elif name == "householder":
            last[name] = tuple(torch.cat(parts, 2) for parts in zip(value, new, strict=True))
        else:
            last[name] = torch.cat([value, new], 2)
    torch.testing.assert_close(layer(q[:, :, 29:], k, v, **last), whole[:, :, 29:], rtol=0, atol=1e-12)
    if make is kt.SelectiveRope:
        return  # whose angles are those of one document
    packed = layer(q, k, v, **told(layer, rows, cu_seqlens=[0, 12, 30]), cu_seqlens=[0, 12, 30])
    for piece in (slice(0, 12), slice(12, 30)):
        alone = layer(q[:, :, piece], k[:, :, piece], v[:, :, piece], **told(layer, rows[:, piece]))
        torch.testing.assert_close(packed[:, :, piece], alone, rtol=0, atol=1e-12)


def test_modules_refuse_the_parts_of_others():
    wall, path, q = kt.Wall(2, 4, seed=0), kt.Path(2, 4, seed=0), torch.randn(1, 2, 5, 4)
    rows = torch.randn(1, 5, 8)
    for call, words in (
        (lambda: wall(q, q, q), "decays: there is none; make it of the rows that q and k are made of, with `decays(rows)`"),
        (lambda: kt.GrapeAp(2, 4, seed=0)(q, q, q, householder=path.householder(rows), path_bias=(q, q, [1, 1])), "householder: kind = 'grape_ap' does not take it, 'path' does"),
        (lambda: kt.KerpleLog(2, 4)(q, q, q, path_bias=(q, q, [1, 1])), "path_bias: kind = 'kerple_log' does not take it, 'grape_ap' does"),
        (lambda: wall.householder(rows), "kind = 'wall' makes no householder, 'path' does"),
        (lambda: wall.gates(rows), "makes no gates"),
        (
            lambda: kt.Wall(2, 8, order="rope_then_channel_decay")(q, q, q, decays=wall.decays(rows)),
            "q: 4 features per head, but wall was made with head_dim = 8; make it with head_dim=4",
        ),
        (lambda: kt.Wall(2, 4, gate_heads="kv"), "gate_heads = 'kv': a module has as many heads of keys as of queries"),
        (lambda: kt.Path(2, 4, gate=True)(q, q, q, householder=path.householder(rows)), "gates: there are none"),
        (lambda: path.householder(rows, before=rows[:, :2], cu_seqlens=[0, 5]), "before: packed documents"),
        (lambda: wall.decays(rows[..., :7]), "rows: expected [B, L, M] with M = 8"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)


def test_gates_of_key_heads_are_made_as_the_hint_says():
    with pytest.raises(ValueError, match=r"wall = Wall\(heads=KV heads, d_model=M\), M the features of rows"):
        kt.Wall(4, 8, gate_heads="kv")
    wall, rows, q, k = kt.Wall(heads=2, head_dim=8, d_model=32), torch.randn(1, 5, 32), torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    decays = wall.decays(rows)
    out = attention(q, k, k, decays=decays.repeat_interleave(4 // 2, 1))
    torch.testing.assert_close(out[:, 2:], wall(q[:, 2:], k[:, [1, 1]], k[:, [1, 1]], decays=decays[:, [1, 1]]))


def test_gpu_tensors_are_refused_by_name():
    q, gates = torch.empty(1, 2, 5, 4, device="meta"), torch.empty(1, 2, 5, 4, device="meta")
    from kerple.torch import _gpu

    _gpu.DEVICES.add("meta")
    try:
        with pytest.raises(NotImplementedError, match="decays is not computed on meta.*cpu()"):
            attention(q, q, q, decays=gates)
    finally:
        _gpu.DEVICES.discard("meta")
