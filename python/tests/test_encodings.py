"""Every positional method as a module, against its formula and its own differences."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from torch import library as registry

import kerple
import kerple.torch as kt
from kerple.torch import Encoding, Inkling, Kernel, KerpleLog, KVCache, attention, project_

CLASSES = {
    one.kind: one for one in vars(kt).values() if isinstance(one, type) and issubclass(one, Encoding) and one.kind
}
#: What enters elsewhere than in the scores of softmax attention.
ELSEWHERE = {"learned", "sinusoidal", "sine_spe", "conv_spe"}


def inputs(queries=7, keys=7, heads=4, features=6, dtype=torch.float64, batch=2, kv_heads=None):
    make = lambda heads, length: torch.randn(batch, heads, length, features, dtype=dtype, requires_grad=True)  # noqa: E731
    return make(heads, queries), make(kv_heads or heads, keys), make(kv_heads or heads, keys)


def module(kind, heads=4, features=6, **options):
    return Encoding(kind, heads, features, train_len=16, seed=3, dtype=torch.float64, **options)


def beside(encoding, batch, length, end=None, begin=0):
    """What a module takes beside queries, keys and values: what it makes of rows, of all keys up to ``end``, or of queries
    those from ``begin`` on.
    """
    if encoding.kind not in ("fox", "grape_ap", "inkling", "kerple_positions", "path", "rotary_positions", "selective_rope", "wall"):
        return {}
    width = encoding.heads * encoding.head_dim
    rows = torch.arange(batch * length * width, dtype=torch.float64).sin().reshape(batch, length, width)
    if encoding.kind == "fox":
        return {"gates": encoding.gates(rows)[..., :end]}
    if encoding.kind in ("kerple_positions", "rotary_positions"):
        return {"positions": encoding.positions(rows)[..., :end]}
    if encoding.kind == "selective_rope":
        return {"angles": encoding.angles(rows)[:, :, :end]}
    if encoding.kind == "wall":
        return {"decays": encoding.decays(rows)[:, :, :end]}
    if encoding.kind == "path":
        return {"householder": tuple(part[:, :, :end] for part in encoding.householder(rows))}
    if encoding.kind == "grape_ap":
        p, r, slopes = encoding.path_bias(rows)
        return {"path_bias": (p[:, :, begin:end], r[:, :, :end], slopes)}
    return {"relative": encoding.relative(rows[:, begin:end])}


def test_every_method_has_a_class():
    assert set(CLASSES) | ELSEWHERE == set(kerple.methods())
    for kind in ELSEWHERE:
        with pytest.raises(ValueError, match=kind):
            Encoding(kind, 4)


#: Whose products would grow ahead of a query, or which are defined for earlier keys only.
CAUSAL_ONLY = {"xpos", "inkling", "wall", "grape_ap", "path", "selective_rope", "rotary_positions"}


@pytest.mark.parametrize(
    ("kind", "causal"), [(kind, causal) for kind in CLASSES for causal in (True, False) if causal or kind not in CAUSAL_ONLY]
)
def test_gradients_are_those_of_differences(kind, causal):
    encoding, (q, k, v) = module(kind), inputs(5, 5, features=6, batch=1)
    with torch.no_grad():  # off the values where derivatives jump
        for number in encoding.parameters():
            number.add_(0.01 * torch.rand_like(number) + 0.003)
    learned = list(encoding.parameters())

    def call(*leaves):
        return encoding(*leaves[:3], causal=causal, **beside(encoding, 1, 5))

    out = call(q, k, v)
    assert out.isfinite().all() and out.shape == q.shape
    up = torch.randn_like(out)
    gradients = torch.autograd.grad((out * up).sum(), [q, k, v, *learned])
    for leaf, gradient in zip([q, k, v, *learned], gradients, strict=True):
        direction = torch.randn_like(leaf)
        step = 1e-6
        with torch.no_grad():
            leaf.add_(step * direction)
            above = (call(q, k, v) * up).sum()
            leaf.sub_(2 * step * direction)
            below = (call(q, k, v) * up).sum()
            leaf.add_(step * direction)
        slope = ((above - below) / (2 * step)).item()
        want = (gradient * direction).sum().item()
        # differences of f64 over 1e-6 carry about 1e-9 of the sum they are of
        assert slope == pytest.approx(want, rel=1e-5, abs=1e-7), kind


@pytest.mark.parametrize("kind", sorted(set(CLASSES) - {"none", "rotary"}))
def test_the_module_is_attention_with_its_table(kind):
    encoding, (q, k, v) = module(kind), inputs(3, 9)
    bias, weight = encoding.table(9, dtype=torch.float64)
    if bias is None and weight is None or encoding._entry == "map":
        pytest.skip("no function of distance alone")
    assert all(rows is None or rows.shape == (4, 9) for rows in (bias, weight))
    torch.testing.assert_close(encoding(q, k, v), attention(q, k, v, bias=bias, weight=weight), rtol=0, atol=0)


@pytest.mark.parametrize("kind", CLASSES)
def test_new_queries_behind_old_keys_are_the_last_rows(kind):
    """Decoding with a cache gives what the whole sequence gives."""
    encoding, (q, k, v) = module(kind), inputs(40, 40)
    with torch.no_grad():
        whole, cache, rows = encoding(q, k, v, **beside(encoding, 2, 40)), KVCache(), []
        for start, end in [(0, 17), (17, 18), (18, 19), (19, 40)]:
            keys, values = cache.append(k[:, :, start:end], v[:, :, start:end])
            rows.append(encoding(q[:, :, start:end], keys, values, **beside(encoding, 2, 40, end, start)))
    torch.testing.assert_close(torch.cat(rows, 2), whole, rtol=0, atol=1e-12)


def turned(x, rates):
    """Features as complex numbers, a pair each, turned by their positions."""
    half = len(rates)
    return torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.exp(1j * torch.arange(x.shape[2])[:, None] * rates)


def test_xpos_is_a_rotation_whose_products_fade():
    encoding, (q, k, v) = module("xpos"), inputs(700, 700, batch=1)
    pair = torch.arange(3, dtype=torch.float64) / 3
    one, two = (turned(x, 10_000.0**-pair) for x in (q, k))
    d = torch.arange(700)[:, None] - torch.arange(700)
    fading = ((pair + 0.4) / 1.4) ** (d.clamp(min=0)[..., None] / 512)
    scores = torch.einsum("bhin,bhjn,ijn->bhij", one, two.conj(), fading.to(one.dtype)).real / math.sqrt(6)
    want = scores.masked_fill(d < 0, -math.inf).softmax(-1) @ v
    torch.testing.assert_close(encoding(q, k, v), want, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="causal"):
        encoding(q, k, v, causal=False)
    with pytest.raises(ValueError, match="the encoding has 4 heads of 6"):
        encoding(*inputs(heads=2))


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind in CAUSAL_ONLY - {"xpos"}] + ["bam"])
def test_what_is_defined_for_causal_attention_only_refuses_both_directions(kind):
    encoding, (q, k, v) = module(kind, **({"theta_mu": 0.3} if kind == "bam" else {})), inputs(5, 5)
    words = f"causal = False: {kind} is defined for causal attention only"
    for call in (lambda: encoding(q, k, v, causal=False, **beside(encoding, 2, 5)), lambda: encoding.table(5, causal=False)):
        with pytest.raises(ValueError, match=words):
            call()
    assert encoding(q, k, v, **beside(encoding, 2, 5)).shape == v.shape[:1] + q.shape[1:3] + v.shape[3:]
    assert module("bam").table(5, causal=False)[0].shape == (4, 9)


@pytest.mark.parametrize("causal", [True, False])
def test_rotations(causal):
    """Also of more queries than keys, whose first stand before the first key."""
    for queries, keys in [(9, 9), (3, 9), (9, 3)]:
        encoding, (q, k, v) = module("rotary", pct=0.7), inputs(queries, keys)
        rates = 10_000.0 ** -(torch.arange(2, dtype=torch.float64) / 2)
        at = [torch.arange(keys - rows, keys, dtype=torch.float64)[:, None] * rates for rows in (queries, keys)]
        found = []
        for x, angle in zip((q, k), at, strict=True):
            pairs = torch.complex(x[..., :2], x[..., 2:4]) * torch.exp(1j * angle)
            found.append(torch.cat([pairs.real, pairs.imag, x[..., 4:]], -1))
        want = attention(*found, v, causal=causal)
        torch.testing.assert_close(encoding(q, k, v, causal=causal), want, rtol=0, atol=1e-12)


def test_rates_that_follow_the_length():
    """NTK's base grows with the length that is seen, by the factor to the power D / (D - 2)."""
    scaled, plain = module("rotary", scaling="ntk"), module("rotary")
    longer = module("rotary", base=10_000 * 4 ** (6 / 4))
    short, long = inputs(16, 16), inputs(64, 64)
    assert torch.equal(scaled(*short), plain(*short))
    torch.testing.assert_close(scaled(*long), longer(*long), rtol=0, atol=1e-12)
    assert (scaled(*long) - plain(*long)).abs().max() > 1e-3


def formula(kind, values, d):
    one = lambda name: values[name][:, None]  # noqa: E731
    return {
        "kerple_log": lambda: (-one("r1") * np.log1p(one("r2") * d), None),
        "kerple_power": lambda: (-one("r1") * d ** one("r2"), None),
        "kerple_bias_weight": lambda: (-one("r1") * d ** one("r2"), np.exp(-one("r3") * d ** one("r4"))),
        "kerple_weight": lambda: (None, np.exp(-one("r1") * d ** one("r2"))),
        "kerple_log3": lambda: (-one("r1") * np.log1p(one("r2") * d ** one("r3")), None),
        "gaussian_bias": lambda: (one("r1") * np.exp(-one("r2") * d**2), None),
        "stretched_bias": lambda: (one("r1") * np.exp(-one("r2") * d ** one("r3")), None),
        "gaussian_weight": lambda: (None, np.exp(-one("r1") * d**2)),
        "stretched_weight": lambda: (None, np.exp(-one("r1") * d ** one("r2"))),
        "alibi": lambda: (-np.array([[0.25], [0.0625], [0.015625], [0.00390625]]) * d, None),
        "kerple_power_original": lambda: (-np.array([[0.25], [0.0625], [0.015625], [0.01]]) * d, None),
        "bam": lambda: (-np.exp(one("alpha")) * (d + 1e-5) ** one("beta"), None),
        "sandwich": lambda: (
            4 / (8 * np.arange(1, 5)[:, None]) * (np.cos(d[:, None] * 10_000.0 ** (-np.arange(64) / 64)) - 1).sum(-1), None
        ),
    }[kind]()


@pytest.mark.parametrize(
    "kind", ["kerple_log", "kerple_power", "kerple_bias_weight", "kerple_weight", "kerple_log3", "gaussian_bias",
             "stretched_bias", "gaussian_weight", "stretched_weight", "alibi", "kerple_power_original", "bam", "sandwich"],
)  # fmt: skip
def test_kernels_of_the_paper_are_their_formulas(kind):
    encoding = module(kind)
    values = {name: own.numpy() for name, own in encoding.true_values().items()}
    for got, want in zip(encoding.table(50, dtype=torch.float64), formula(kind, values, np.arange(50.0)), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-12, atol=1e-300 if kind != "sandwich" else 1e-12)


def test_buckets_are_those_of_t5():
    bucket = pytest.importorskip("transformers").models.t5.modeling_t5.T5Attention._relative_position_bucket
    encoding = module("t5", num_buckets=32, max_distance=128)
    bias, _ = encoding.table(500, dtype=torch.float64)
    buckets = bucket(-torch.arange(500), bidirectional=False, num_buckets=32, max_distance=128)
    matrix = next(encoding.parameters()).reshape(32, 4)
    torch.testing.assert_close(bias, math.sqrt(6) * matrix[buckets].T, rtol=1e-12, atol=0)


def test_initial_values_and_ranges_are_the_papers():
    kernel = KerpleLog(heads=4000, seed=1)
    assert (
        kernel.r1.min() >= 0.01
        and 1.95 < kernel.r1.max() < 2
        and kernel.r2.min() >= 0.01
        and 0.97 < kernel.r2.max() < 1
    )
    assert kernel.r1.detach().mean().item() == pytest.approx(1, abs=0.05)
    with torch.no_grad():
        kernel.r1[0], kernel.r2[1] = -5.0, 7.0
    assert kernel.true_values()["r1"][0] == 0.01  # used within the range whatever is stored
    project_(torch.nn.Sequential(kernel))
    assert kernel.r1[0].item() == pytest.approx(0.01) and kernel.r2[1] == 7.0


def test_seeds():
    torch.manual_seed(5)
    one, two = KerpleLog(heads=4), KerpleLog(heads=4)
    torch.manual_seed(5)
    again = KerpleLog(heads=4)
    assert torch.equal(one.r1, again.r1) and not torch.equal(one.r1, two.r1)
    layers = [Encoding("shaw", 2, 4, seed=1, layer=layer).keys for layer in (0, 1)]
    assert not torch.equal(*layers)


def test_training_moves_what_is_learned():
    """Targets of a known kernel: its two numbers a head are found from others."""
    target, kernel = KerpleLog(heads=2, head_dim=4, seed=1), KerpleLog(heads=2, head_dim=4, seed=2)
    q, k, v = (x.detach().float() for x in inputs(64, 64, heads=2, features=4))
    with torch.no_grad():
        want = target(q, k, v)
    optimizer = torch.optim.Adam(kernel.parameters(), lr=0.05)
    losses = []
    for _ in range(150):
        loss = (kernel(q, k, v) - want).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kernel.project_()
        losses.append(loss.item())
    assert losses[-1] < 1e-3 * losses[0]


def test_state_is_kept():
    one, two = module("dape"), Encoding("dape", 4, 6, train_len=16, seed=9, dtype=torch.float64)
    two.load_state_dict(one.state_dict())
    q, k, v = inputs()
    assert torch.equal(one(q, k, v), two(q, k, v))
    assert "mix1_weight" in one.state_dict()


def test_forgetting_attention():
    """Of its formula; a gate says how much of what lies before its token is let through."""
    for gate in ("full", "bias_only"):
        fox, (q, k, v), rows = module("fox", gate=gate), inputs(9, 9), torch.randn(2, 9, 24, dtype=torch.float64)
        with torch.no_grad():
            fox.bias.add_(torch.randn(4))
        gates = fox.gates(rows)
        logits = fox.bias[:, None].expand(2, 4, 9)
        if gate == "full":
            logits = logits + torch.einsum("blm,mh->bhl", rows, fox.weight)
        torch.testing.assert_close(gates, torch.log(1 / (1 + torch.exp(-logits))), rtol=0, atol=1e-12)
        clocks = gates.cumsum(-1)
        z = q @ k.transpose(-1, -2) / math.sqrt(6) + clocks[..., None] - clocks[..., None, :]
        z = z.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -math.inf)
        torch.testing.assert_close(fox(q, k, v, gates=gates), z.softmax(-1) @ v, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="gates: there are none"):
        fox(q, k, v)
    with pytest.raises(ValueError, match="rows: expected .* M = 24"):
        fox.gates(rows[..., :5])
    for other in (module("alibi"), module("fox", gate="fixed", spans=[2, 16])):
        with pytest.raises(ValueError, match="makes no gates"):
            other.gates(rows)
    slopes = 1 / (2.0 * 8 ** (torch.arange(4, dtype=torch.float64) / 3))  # 2, 4, 8 and 16 tokens
    torch.testing.assert_close(other.table(9, dtype=torch.float64)[0], -slopes[:, None] * torch.arange(9))
    spans = module("fox", gate="bias_only", spans=[2, 16])
    torch.testing.assert_close(spans.gates(rows)[0, :, 0], -slopes)
    with pytest.raises(ValueError, match="score modifications do not support them"):
        module("dape")(q, k, v, gates=gates)


def low_rank(**options):
    """A module of four heads of 6 features whose bias is not small."""
    options = {"rank": 3, "reach": 5, "log_scale": {"floor": 3.0, "alpha": 0.5}} | options
    inkling = Inkling(4, 6, d_model=10, seed=3, dtype=torch.float64, **options)
    with torch.no_grad():
        for own in inkling.parameters():
            own.mul_(40)
    return inkling


def test_inkling_is_its_formula(definition):
    """Scores of a query, and its bias, grow with the position that the query has among its own tokens."""
    inkling, (q, k, v) = low_rank(), inputs(9, 9, kv_heads=2)
    rows = torch.randn(2, 9, 10, dtype=torch.float64)
    r = torch.einsum("blm,hrm->bhlr", rows, inkling.r_proj.weight.unflatten(0, (4, 3)))
    profiles = inkling.rel_logits_proj.proj
    tau = 1 + 0.5 * torch.log(((torch.arange(9.0, dtype=torch.float64) + 1) / 3).clamp(min=1))[:, None]
    assert tau[2] == 1 < tau[3]
    want = definition(q * tau, k, v, relative=(r * tau, profiles))
    torch.testing.assert_close(inkling(q, k, v, relative=inkling.relative(rows)), want, rtol=0, atol=1e-12)
    last = inkling(q[:, :, 6:], k, v, relative=inkling.relative(rows[:, 6:]))
    torch.testing.assert_close(last, want[:, :, 6:], rtol=0, atol=1e-12)
    # padding before a sequence does not count
    early = torch.cat([tau[:1].expand(4, 1), tau[:5]])
    want = definition(q * early, k, v, relative=(r * early, profiles), key_starts=[4, 4])
    got = inkling(q, k, v, relative=inkling.relative(rows), key_starts=[4, 4])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_inkling_restarts_in_documents():
    inkling, (q, k, v) = low_rank(), inputs(23, 23, batch=1)
    rows = torch.randn(1, 23, 10, dtype=torch.float64, requires_grad=True)
    leaves, cuts = [q, k, v, rows, *inkling.parameters()], [0, 1, 6, 14, 23]
    run = lambda q, k, v, rows, **documents: inkling(q, k, v, relative=inkling.relative(rows), **documents)  # noqa: E731
    parts = [slice(*ends) for ends in zip(cuts, cuts[1:], strict=False)]
    alone = torch.cat([run(*(x[:, :, at] for x in (q, k, v)), rows[:, at]) for at in parts], 2)
    up = torch.randn_like(alone)
    want = torch.autograd.grad(alone, leaves, up)
    for documents in ({"cu_seqlens": cuts}, {"document_ids": [[0] + [1] * 5 + [2] * 8 + [3] * 9]}):
        packed = run(q, k, v, rows, **documents)
        torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.autograd.grad(packed, leaves, up), want, rtol=1e-9, atol=1e-11)


def test_inkling_starts_and_is_named_as_in_transformers():
    names = {"r_proj.weight": (12, 10), "rel_logits_proj.proj": (3, 5)}
    assert {name: tuple(x.shape) for name, x in low_rank().state_dict().items()} == names
    inkling = Inkling(heads=8, head_dim=64, seed=1)
    for own, shape in zip(inkling.parameters(), [(128, 512), (16, 1024)], strict=True):
        assert own.shape == shape and own.std().item() == pytest.approx(0.02, rel=0.05)
    assert Inkling(4, window=7).rel_logits_proj.proj.shape == (16, 7), "the reach is the window unless it is given"
    assert not Inkling(4, profiles=0.0).rel_logits_proj.proj.any()
    project_(inkling)
    assert "d_model=10" in repr(low_rank()) and "rank=3" in repr(low_rank())


def test_inkling_of_a_layer_of_transformers():
    """The module with the weights of a layer gives the bias that the layer adds to its scores."""
    modeling = pytest.importorskip("transformers.models.inkling.modeling_inkling")
    from transformers import InklingTextConfig

    config = InklingTextConfig(
        hidden_size=10, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=4, head_dim=6, d_rel=3, rel_extent=5,
        vocab_size=29,
    )  # fmt: skip
    layer = modeling.InklingAttention(config, layer_idx=5)
    for own in layer.parameters():
        torch.nn.init.normal_(own)
    inkling = Inkling(4, 6, d_model=10, rank=3, reach=5)
    used = {name: own for name, own in layer.state_dict().items() if name.startswith(("r_proj", "rel_logits_proj"))}
    inkling.load_state_dict(used)
    rows, position = torch.randn(2, 9, 10), torch.arange(9)
    r, profiles = inkling.relative(rows)
    of_layer = layer.rel_logits_proj(layer.r_proj(rows).unflatten(-1, (4, 3)), position, position)
    d = position[:, None] - position
    within = (d >= 0) & (d < 5)
    torch.testing.assert_close(torch.einsum("bhir,rij->bhij", r, profiles[:, d.clamp(0, 4)] * within), of_layer)


REFERENCE = Path(__file__).resolve().parents[2] / "reference" / "positions2026"
INKLING = {
    case["id"]: case
    for case in json.loads((REFERENCE / "manifest.json").read_text())["cases"]
    if case["static"]["family"] == "inkling"
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", INKLING)
def test_inkling_meets_the_reference_values(name, dtype):
    case = INKLING[name]
    static = case["static"]
    with safetensors.safe_open(REFERENCE / "inkling.safetensors", "pt") as file:
        given = {key: file.get_tensor(entry["key"]).to(dtype) for key, entry in {**case["inputs"], **case["params"]}.items()}
        expected = {key: file.get_tensor(entry["key"]) for key, entry in case["expected"].items()}
    q, k, v, r, profiles = leaves = [given[key].requires_grad_() for key in ("q", "k", "v", "r", "P")]
    keys = {key: static[key] for key in ("window",) if static.get(key)}
    if static.get("log_scale_floor"):
        keys["log_scale"] = {"floor": static["log_scale_floor"], "alpha": static["log_scale_alpha"]}
    inkling = Inkling(q.shape[1], q.shape[3], rank=profiles.shape[0], reach=profiles.shape[1], **keys)
    out = inkling(q, k, v, relative=(r, profiles), scale=static["scale"], key_lengths=static.get("lengths"))
    found = dict(zip(("q", "k", "v", "r", "P"), torch.autograd.grad(out, leaves, given["dout"]), strict=True))
    tolerance = case["tolerance"]["f64_arrays" if dtype == torch.float64 else "if_you_compute_in_f32"]
    for key, want in expected.items():
        got = out if key == "out" else found[key.removeprefix("grad_")]
        torch.testing.assert_close(got.double(), want, **tolerance, msg=lambda text, key=key: f"{key}: {text}")


def test_a_relative_bias_that_does_not_fit_is_refused():
    inkling, (q, k, v) = low_rank(), inputs(9, 9)
    rows = torch.randn(2, 9, 10, dtype=torch.float64)
    r, profiles = inkling.relative(rows)
    for call, error, words in [
        (lambda: inkling(q, k, v), ValueError, "relative: there is none"),
        (lambda: inkling.relative(rows[..., :9]), ValueError, "M = 10"),
        (lambda: module("alibi").relative(rows), ValueError, "'alibi' makes no relative bias"),
        (lambda: inkling(q, k, v, relative=(r, profiles), causal=False), ValueError, "use causal=True"),
        (lambda: attention(q, k, v, relative=r), TypeError, r"two tensors \(r, P\)"),
        (lambda: attention(q, k, v, relative=(r, None)), TypeError, "both be tensors"),
        (lambda: attention(q, k, v, relative=(r[:, :2], profiles)), ValueError, r"relative\[0\]: .* \[2, 4, 9\]"),
        (lambda: attention(q, k, v, relative=(r[..., :2], profiles)), ValueError, r"relative\[1\]: .* R = 2"),
        (lambda: attention(q, k, v, relative=(r, profiles[:, :0])), ValueError, "at least 1"),
        (lambda: module("dape")(q, k, v, relative=(r, profiles)), ValueError, "do not support a bias per row"),
        (lambda: kt.LinearAttention("inkling", 4, 6), ValueError, "inkling"),
    ]:
        with pytest.raises(error, match=words):
            call()


def test_gates_of_half_precision_are_logarithms_in_single():
    fox = Encoding("fox", 4, 6, seed=1)
    rows = torch.randn(2, 9, 24).bfloat16()
    assert fox.gates(rows).dtype == torch.float32
    q, k, v = (x.detach().bfloat16() for x in inputs(9, 9))
    assert fox(q, k, v, gates=fox.gates(rows)).dtype == torch.bfloat16


def test_compile_keeps_a_module_in_one_graph():
    for kind in ("kerple_log", "t5", "dape", "fire", "transformer_xl", "cope", "shaw", "rotary", "xpos", "fox", "kerple_positions", "inkling"):
        encoding, qkv = module(kind), inputs()

        def call(q, k, v, encoding=encoding):
            return encoding(q, k, v, **beside(encoding, 2, 7)).square().sum()

        want = call(*qkv)
        learned = [*qkv, *encoding.parameters()]
        d_want = torch.autograd.grad(want, learned)
        got = torch.compile(call, fullgraph=True, backend="aot_eager")(*qkv)
        torch.testing.assert_close(got, want)
        for one, two in zip(torch.autograd.grad(got, learned), d_want, strict=True):
            torch.testing.assert_close(one, two)
        torch._dynamo.reset()


def test_compiled_by_inductor():
    rotary, kernel, qkv = module("rotary"), module("kerple_log"), inputs()

    def call(q, k, v):
        return kernel(rotary(q, k, v), k, v).square().sum()

    want = torch.autograd.grad(call(*qkv), [*qkv, kernel.r1])
    got = torch.autograd.grad(torch.compile(call, fullgraph=True)(*qkv), [*qkv, kernel.r1])
    for one, two in zip(got, want, strict=True):
        torch.testing.assert_close(one, two)


def test_opcheck_of_tables():
    rotary = module("rotary")
    registry.opcheck(torch.ops.kerple.turns.default, (rotary.inv_freq, rotary._key, 3, 5, 9))
    for kind in ("kerple_log", "kerple_weight", "kerple_bias_weight", "t5"):
        encoding = module(kind)
        registry.opcheck(torch.ops.kerple.table.default, (encoding._values(), encoding._key, 9))


def test_the_window_of_the_keys_is_kept():
    encoding, (q, k, v) = module("kerple_log", window=3), inputs(9, 9)
    bias, _ = encoding.table(9, dtype=torch.float64)
    assert torch.equal(encoding(q, k, v), attention(q, k, v, bias=bias, window=3))
    with torch.no_grad():
        cache, rows = KVCache(window=3), []
        for at in range(9):
            rows.append(encoding(q[:, :, at : at + 1], *cache.append(k[:, :, at : at + 1], v[:, :, at : at + 1])))
        assert len(cache) == 3
        torch.testing.assert_close(torch.cat(rows, 2), encoding(q, k, v), rtol=0, atol=1e-12)


def test_first_tokens_stay_visible_under_the_window_of_the_keys():
    for kind in ("kerple_log", "rotary", "xpos"):
        encoding, (q, k, v) = module(kind, window=3, sink_tokens=2), inputs(9, 9)
        whole, windowed = module(kind)(q, k, v), module(kind, window=3)(q, k, v)
        # with 5 keys a window of 3 and 2 first tokens are all
        torch.testing.assert_close(encoding(q, k, v)[:, :, :5], whole[:, :, :5], rtol=0, atol=1e-12)
        assert not torch.allclose(encoding(q, k, v)[:, :, 5:], whole[:, :, 5:]) and not torch.allclose(encoding(q, k, v), windowed)
        with torch.no_grad():
            cache, rows = KVCache(), []
            for at in range(9):
                rows.append(encoding(q[:, :, at : at + 1], *cache.append(k[:, :, at : at + 1], v[:, :, at : at + 1])))
            torch.testing.assert_close(torch.cat(rows, 2), encoding(q, k, v), rtol=0, atol=1e-12)
    encoding = module("kerple_log", window=3, sink_tokens=2)
    bias, _ = encoding.table(9, dtype=torch.float64)
    q, k, v = inputs(9, 9)
    assert torch.equal(encoding(q, k, v), attention(q, k, v, bias=bias, window=3, sink_tokens=2))


def test_grouped_heads_and_padding():
    for kind in ("kerple_log", "dape", "shaw"):
        encoding, (q, k, v) = module(kind), inputs(9, 9, kv_heads=2)
        wide = [x.repeat_interleave(2, 1) for x in (k, v)]
        torch.testing.assert_close(encoding(q, k, v), encoding(q, *wide), rtol=0, atol=1e-12)
        padded = encoding(q, k, v, key_lengths=[9, 5])
        short = encoding(q[1:, :, :5], k[1:, :, :5], v[1:, :, :5])
        torch.testing.assert_close(padded[1:, :, :5], short, rtol=0, atol=1e-12)


def test_half_precision_of_modules():
    for kind in ("kerple_log", "dape", "rotary"):
        encoding = Encoding(kind, 4, 6, seed=1)
        q, k, v = (x.detach().bfloat16() for x in inputs())
        out = encoding(q, k, v)
        want = encoding(q.float(), k.float(), v.float())
        assert out.dtype == torch.bfloat16
        assert (out.float() - want).abs().max() < 0.05


def test_kernel_expressions_and_certificates():
    kernel = Kernel("log(b, a) + 0.5*power(a, p=1)", heads=2, seed=1)
    proof = kernel.certificate()
    assert proof and proof.is_valid and "conditionally positive definite" in str(proof)
    assert proof.data["kind"] == "family"
    bias, weight = kernel.table(8)
    assert weight is None and bias[0, 0] == 0 and (bias.diff() < 0).all()
    assert not kerple.certificate("power(1, 2.5)", "0..7")
    with pytest.raises(ValueError, match="positive definite"):
        Kernel("power(a, 1)*log(b, 1)", heads=2)
    with pytest.raises(ValueError, match="bias"):
        Kernel("log(b,", heads=2)
    assert Kernel(weight="exp(1, a, p)", heads=2).table(4)[0] is None


def test_kernels_start_from_given_values():
    distances = torch.arange(40, dtype=torch.float64)

    def logarithm(b, a):
        return -b * torch.log1p(a * distances)

    rows = [[1.3, 0.4], [0.7, 0.05]]
    want = torch.stack([logarithm(*row) for row in rows])
    for seed in (0, 1):
        bias, weight = Kernel("log(b, a)", heads=2, start=rows, seed=seed).table(40)
        assert weight is None
        torch.testing.assert_close(bias.double(), want, rtol=1e-6, atol=1e-6)
    shared, _ = Kernel("log(b, a)", heads=2, start=rows[0]).table(40)
    torch.testing.assert_close(shared.double(), logarithm(*rows[0]).expand(2, -1), rtol=1e-6, atol=1e-6)
    # the same numbers without PyTorch, in f64
    table, _ = kerple.table("kernel", 2, 40, bias="log(b, a)", start=rows)
    torch.testing.assert_close(torch.from_numpy(table), want, rtol=1e-6, atol=1e-6)
    # those of the bias come first
    _, weight = Kernel("log(b, a)", weight="exp(1, a, p=1)", heads=1, start=[1.3, 0.4, 0.25]).table(40)
    torch.testing.assert_close(weight[0].double(), torch.exp(-0.25 * distances), rtol=1e-6, atol=1e-6)
    for start, message in [
        ([[1.3, 0.4]] * 3, "3 lists for 2 heads"),
        ([1.3], "1 values for 2 learned parameters"),
        ([1.3, -0.4], "a is -0.4, it must be"),
        ("log", "a list of numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            Kernel("log(b, a)", heads=2, start=start)
    with pytest.raises(ValueError, match="starts of its own"):
        Kernel("log(b~1.3, a)", heads=2, start=[1.3, 0.4])


ENDING = {
    "kerple_log": {},
    "kerple_power": {"scale": "inside"},
    "t5": {"scale": "inside"},
    "t5 encoder": {"bidirectional": True},
    "alibi": {"window": 11},
    "alibi encoder": {"behind": 0.5},
    "bam": {"theta_mu": 0.3, "scale": "inside"},
    "sandwich": {},
    "kernel": {"bias": "log(b, a) + 0.5*power(a, p)", "keep": "smooth"},
}


@pytest.mark.parametrize("reach", [1, 6])
@pytest.mark.parametrize("name", ENDING)
def test_a_bias_that_ends_is_the_whole_one_with_zeros(name, reach):
    from kerple.torch import _closed_forms

    kind, keys = name.split()[0], ENDING[name]
    ended, whole = module(kind, reach=reach, **keys), module(kind, **keys)
    length, two_sides = 14, ended._tables[2]
    made = {"causal": not two_sides, "dtype": torch.float64}
    bias, weight = ended.table(length, **made)
    plain, _ = whole.table(length, **made)
    d = torch.arange(1 - length if two_sides else 0, length).abs()
    assert weight is None and bias.shape == plain.shape == (4, d.numel())
    torch.testing.assert_close(bias, torch.where(d < reach, plain, 0.0), rtol=0, atol=0)
    # what GPU tensors get, here on the processor
    learned = [getattr(ended, name) for name in ended._names]
    of_gpu, _ = _closed_forms.table(
        ended._program, learned, ended._table_constants, 4, 6, length, two_sides, torch.device("cpu")
    )
    torch.testing.assert_close(of_gpu, bias, rtol=1e-12, atol=1e-12)
    if learned:
        up = torch.randn_like(bias)
        gradients = [torch.autograd.grad((rows * up).sum(), learned, retain_graph=True) for rows in (bias, of_gpu)]
        near = torch.autograd.grad((whole.table(length, **made)[0] * up)[:, d < reach].sum(), list(whole.parameters()))
        for engine, gpu, want in zip(*gradients, near, strict=True):
            torch.testing.assert_close(engine, want, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(gpu, want, rtol=1e-10, atol=1e-10)
    if not two_sides and "theta_mu" not in keys:
        q, k, v = inputs(9, 9)
        window = keys.get("window")
        torch.testing.assert_close(
            ended(q, k, v), attention(q, k, v, bias=ended.table(9, dtype=torch.float64)[0], window=window), rtol=0, atol=0
        )


def test_a_bias_that_ends_is_not_proven():
    proof = Kernel("log(b, a)", heads=2, distance_cap=64).certificate()
    assert not proof and proof.text == "not proven: keys at distance 64 and beyond share one bias"
    assert proof.data == {"kind": "capped", "distance_cap": 64}
    assert Kernel(heads=2).certificate().expression == Kernel(heads=2).expression == "log(b, a)"
    with pytest.raises(ValueError, match="only a weight"):
        Kernel(heads=2, weight="exp(1, a, p=1)").certificate()
    proof = Kernel("log(b, a)", heads=2, reach=64).certificate()
    assert not proof and str(proof) == "not proven: the bias ends at distance 64"
    assert Kernel("log(b, a)", heads=2).certificate()
    assert kerple.table("kerple_log", 2, 9, reach=4)[0][:, 4:].tolist() == [[0.0] * 5] * 2


def test_tables_without_torch_are_the_same():
    for kind in ("kerple_log", "t5", "alibi"):
        bias, _ = kerple.table(kind, 4, 20, seed=3, head_dim=6, train_len=16)
        np.testing.assert_array_equal(bias, module(kind).table(20, dtype=torch.float64)[0].detach().numpy())
    with pytest.raises(ValueError, match="rotary.*no table"):
        kerple.table("rotary", 4, 20)


def test_parameters_of_a_table_without_torch_have_one_order():
    # two rows of two: per head or per parameter?
    with pytest.raises(ValueError, match=r"values: expected one list, the first parameter of all heads, .* \(2, 2\)"):
        kerple.table("kerple_log", 2, 5, values=[[1.0, 2.0], [3.0, 4.0]])
    rows, _ = kerple.table("kerple_log", 2, 2, values=[1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(rows[:, 1], [-np.log1p(3.0), -2 * np.log1p(4.0)])
    for made in (dict(heads=-2, length=5), dict(heads=2, length=-1)):
        with pytest.raises(ValueError, match="is out of range, it must be at least 1"):
            kerple.table("kerple_log", **made)
    with pytest.raises(TypeError, match="length = 2.5 must be a whole number"):
        kerple.table("kerple_log", 2, 2.5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Encoding("kerple_lag", 4), "unknown encoding `kerple_lag`"),
        (lambda: KerpleLog(heads=0), "heads = 0"),
        (lambda: Encoding("t5", 4, num_buckets=3), "num_buckets"),
        (lambda: Encoding("kerple_log", 4, window=0), "window"),
        (lambda: Encoding("kerple_log", 4, sink_tokens=2), "`sink_tokens`: first tokens stay visible under a window only"),
        (lambda: Encoding("kerple_log", 4, window=3, sink_tokens=0), "`sink_tokens`: 0"),
        (lambda: Encoding("dape", 4, window=3, sink_tokens=2), "`sink_tokens`: `dape` modifies the scores"),
        (lambda: module("kerple_log", window=3, sink_tokens=2)(*inputs(9, 9), causal=False), "sink_tokens = 2: first tokens need causal=True"),
        (lambda: kt.LinearAttention("none", 4, window=3, sink_tokens=2), "does not support none-window3-sink_tokens2"),
        (lambda: Encoding("kerple_log", 4, r1="x"), "r1"),
        (lambda: Encoding("kerple_log", 4, reach=0), "`reach`: a bias that ends at distance 0 is none"),
        (lambda: Encoding("kerple_weight", 4, reach=8), "`reach`: `kerple_weight` multiplies scores"),
        (lambda: Encoding("dape", 4, reach=8), "`reach`: `dape` changes the scores"),
        (lambda: kt.LinearAttention("kerple_log", 4, reach=8), "does not support kerple_log-reach8"),
        (lambda: KerpleLog(heads=4, no_such=1), "no_such"),
        (lambda: KerpleLog(heads=4, decayed=True), "decayed = True: the optimizer of a module is yours"),
        (lambda: KerpleLog(heads=2).table(0), "length = 0"),
        (lambda: KerpleLog(heads=2).table(2**50), "length = "),
        (lambda: Encoding("dape", 4, 6)(*inputs(heads=2)), "4 heads of 6"),
        (lambda: Encoding("dape", 4, 6)(*inputs(9, 3)), "9 queries"),
        (lambda: Encoding("kerple_log", 4, randomized=64), "randomized"),
        (lambda: Encoding("rotary", 4, 8, scaling="self_extend"), "`scaling`: only `kerple eval`"),
        (lambda: KVCache().append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 4, 4)), "alike"),
        (lambda: KVCache(window=0), "window = 0"),
        (lambda: KerpleLog(heads=-1), "heads = -1 is out of range"),
        (lambda: KerpleLog(heads=2, seed=-1), "seed = -1 is out of range"),
        (lambda: kt.GrapeAp(2, 4).path_bias(torch.zeros(1, 3, 8), first=2, cu_seqlens=[0, 3]), "first = 2: packed documents"),
        (lambda: kt.GrapeAp(2, 4).path_bias(torch.zeros(1, 3, 8), first=-1), "first = -1 is out of range"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: KerpleLog(heads=2.5), "heads = 2.5 must be a whole number"),
        (lambda: KerpleLog(heads=True), "heads = True must be a whole number"),
        (lambda: KerpleLog(heads=2, layer=1.5), "layer = 1.5 must be a whole number"),
        (lambda: KerpleLog(heads=2, dtype=torch.complex64), "dtype = torch.complex64 must be a type of real numbers"),
        (lambda: KerpleLog(heads=2).table(2.5), "length = 2.5 must be a whole number"),
        (lambda: KerpleLog(heads=2).table(4, dtype=torch.int32), "dtype = torch.int32 must be a type of real numbers"),
        (lambda: KerpleLog(heads=2).table(4, causal=0), "causal = 0 must be True or False"),
        (lambda: KVCache(window=2.5), "window = 2.5 must be a whole number; None keeps all"),
        # its weights would be cast to whole numbers
        (lambda: kt.Fox(2, 4).gates(torch.zeros(1, 3, 8, dtype=torch.int64)), "rows: dtype torch.int64 is not supported"),
    ],
)
def test_types_that_do_not_fit_are_refused_in_words(make, words):
    with pytest.raises(TypeError) as caught:
        make()
    assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("rotary", {}), ("rotary", {"pct": 0.5}), ("xpos", {}), ("pope", {}), ("fope", {}), ("transformer_xl", {}), ("t5", {}), ("alibi", {"scale": "inside"})],
)
def test_other_features_per_head_than_it_was_made_for_are_refused(kind, options):
    """Fewer would turn only some features, and tables that depend on them would be too large or too small."""
    x = inputs(heads=2)[0]
    Encoding(kind, 2, 6, **options)(x, x, x)
    for features in (4, 12):
        with pytest.raises(ValueError, match=f"q: 6 features per head, but {kind} was made with head_dim = {features}; make it with head_dim=6"):
            Encoding(kind, 2, features, **options)(x, x, x)
    if kind in ("pope", "fope", "transformer_xl"):
        with pytest.raises(ValueError, match=f"q: 2 heads, but {kind} was made with heads = 4; make it with heads=2"):
            Encoding(kind, 4, 6, **options)(x, x, x)
    if kind in ("pope", "fope"):
        with pytest.raises(ValueError, match=f"which alone have positions in {kind}"):
            Encoding(kind, 2, 6, **options)(x, x[:, :, 1:], x[:, :, 1:])


def test_tables_that_do_not_depend_on_features_are_for_any_number_of_them():
    x = inputs(heads=2)[0]
    assert torch.equal(KerpleLog(2, seed=0)(x, x, x), KerpleLog(2, 6, seed=0)(x, x, x))


@pytest.mark.parametrize("kind", ["rotary", "pope", "fope", "transformer_xl", "fire", "kerple_log"])
def test_another_spelling_of_a_kind_is_the_same_kind(kind):
    """`kerple train` takes it, too."""
    spelt = {"rotary": "RoPE", "pope": "PoPE", "fope": "FoPE", "transformer_xl": "Transformer-XL", "fire": "FIRE", "kerple_log": "KERPLE-log"}[kind]
    x = inputs(heads=2)[0]
    other, own = Encoding(spelt, 2, 6, seed=3), Encoding(kind, 2, 6, seed=3)
    assert other.kind == kind and torch.equal(other(x, x, x), own(x, x, x))


def test_keys_that_are_no_numbers_are_refused():
    with pytest.raises((TypeError, ValueError), match="r1|kerple_log"):
        KerpleLog(heads=2, r1=math.nan)
    with pytest.raises(TypeError, match="kerple_log"):
        KerpleLog(heads=2, r1=object())


@pytest.mark.parametrize("name", ["pope/plain", "pope/clamped", "pope/partial_gqa", "pope/decode", "fope/released"])
def test_reference_values_of_maps(name):
    """Made by autograd in f64 from the formulas: outputs and all gradients."""
    folder = Path(__file__).resolve().parent.parent.parent / "reference" / "positions2026"
    if not folder.is_dir():
        pytest.skip("only a clone has the reference values")

    def read(of):
        with safetensors.safe_open(folder / of["file"], "pt") as file:
            return file.get_tensor(of["key"]).double()

    cases = json.loads((folder / "manifest.json").read_text())["cases"]
    case = next(case for case in cases if case["id"] == f"positions/{name}")
    q, k, v, up = (read(case["inputs"][key]).requires_grad_() for key in ("q", "k", "v", "dout"))
    static, heads, features = case["static"], q.shape[1], q.shape[3]
    if name.startswith("pope"):
        layer = kt.Pope(heads, features, width=static["rotated"], clamp_delta=static.get("clamp", False), dtype=torch.float64)
        learned = {"delta": layer.delta}
    else:  # the slowest of its rates turns once in 628 tokens
        layer = kt.Fope(heads, features, train_len=700, zero_pad=False, dtype=torch.float64)
        learned = {"C": layer.cos_mix, "S": layer.sin_mix}
    with torch.no_grad():
        for key, own in learned.items():
            own.copy_(read(case["params"][key]))
    out = layer(q, k, v)
    leaves = {"q": q, "k": k, "v": v} | learned
    gradients = torch.autograd.grad(out, list(leaves.values()), up)
    found = {"out": out.detach()} | {f"grad_{key}": d for key, d in zip(leaves, gradients, strict=True)}
    assert set(found) == set(case["expected"])
    for key, got in found.items():
        torch.testing.assert_close(got, read(case["expected"][key]), rtol=1e-9, atol=1e-10)
