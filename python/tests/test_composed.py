"""Attention whose scores are more than tables and gates: what is composed of PyTorch's operations for GPUs, here on tensors of the
processor, against the processor's engine.
"""

import pytest
import torch

import kerple.torch as kt
from kerple.torch import _composed, _gpu

LENGTH = 41
PACKED = torch.tensor([[0] * 13 + [1] * 28, [0] * 1 + [1] * 30 + [-1] * 10])
MODULES = [
    ("fire", {}), ("fire", {"init_l": 7.0, "window": 9}), ("dape", {}), ("dape", {"base": "fire"}), ("dape", {"base": "fire", "kernel": 3}),
    ("dape", {"base": "t5", "kernel": 3}), ("dape", {"base": {"kind": "t5", "num_buckets": 8}, "kernel": 5, "edge": "closed"}),
    ("dape", {"base": "rotary"}), ("dape", {"base": "none", "kernel": 3}), ("dape", {"base": "alibi", "variant": "concat"}),
    ("dape", {"variant": "add_residual", "kernel": 3}), ("dape", {"variant": "bias_only"}), ("dape", {"scale": "inside", "window": 11, "kernel": 3}),
    ("dape", {"base": {"kind": "kernel", "bias": "log(b, a)"}}), ("shaw", {}), ("shaw", {"values": True, "max_distance": 5}), ("cope", {"npos_max": 9}),
    ("cope", {"npos_max": 40, "window": 13}), ("transformer_xl", {}), ("xpos", {}), ("xpos", {"scale_base": 20.0, "window": 15}),
]  # fmt: skip
OPTIONS = {
    "plain": {}, "both directions": {"causal": False}, "padding": {"key_lengths": torch.tensor([LENGTH, 23])},
    "padding in both directions": {"key_lengths": torch.tensor([LENGTH, 23]), "causal": False}, "packed": {"document_ids": PACKED},
    "packed in both directions": {"document_ids": PACKED, "causal": False}, "scaled and capped": {"softcap": 1.3, "scale": 0.8},
    "last queries": {"queries": 7}, "one query": {"queries": 1}, "one head of keys": {"kv_heads": 1}, "sinks": {"sinks": True},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 7},
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(_composed, "CHUNK_BYTES", 200_000)
    yield
    _gpu.DEVICES.discard("cpu")


def made(kind, keys, dtype=torch.float64):
    module = kt.Encoding(kind, 2, 4, seed=3, dtype=dtype, train_len=16, **keys)
    with torch.no_grad():  # far from its start
        for x in module.parameters():
            x.add_(0.3 * torch.randn_like(x))
    return module


def computed(module, qkv, composed, sinks=None, **options):
    """The output, and the gradients of everything that has one."""
    (_gpu.DEVICES.add if composed else _gpu.DEVICES.discard)("cpu")
    leaves = [x.detach().clone().requires_grad_() for x in (*qkv, *([] if sinks is None else [sinks]))]
    more = {} if sinks is None else {"sinks": leaves[3]}
    out = module(*leaves[:3], **more, **options)
    up = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    learned = [*leaves, *module.parameters()]
    gradients = torch.autograd.grad((out * up).sum(), learned, allow_unused=True)
    return [out, *(torch.zeros_like(x) if d is None else d for x, d in zip(learned, gradients, strict=True))]


@pytest.mark.parametrize(("kind", "keys"), MODULES, ids=str)
def test_the_processor_computes_the_same(kind, keys):
    module = made(kind, keys)
    for name, options in OPTIONS.items():
        options = dict(options)
        queries, kv_heads = options.pop("queries", LENGTH), options.pop("kv_heads", 2)
        if kind == "xpos" and options.get("causal") is False:
            continue
        qkv = [torch.randn(2, heads, length, 4, dtype=torch.float64) for heads, length in ((2, queries), (kv_heads, LENGTH), (kv_heads, LENGTH))]
        if options.pop("sinks", False):
            options["sinks"] = torch.randn(2, dtype=torch.float64)
        for got, want in zip(computed(module, qkv, True, **options), computed(module, qkv, False, **options), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-10 * max(want.abs().max().item(), 0.1), msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("kind", "keys"), [("fire", {}), ("dape", {"kernel": 3}), ("cope", {"npos_max": 9}), ("shaw", {"values": True}), ("transformer_xl", {}), ("xpos", {})])
def test_bits_halves_and_padding_that_is_not_read(kind, keys):
    module = made(kind, keys, torch.float32)
    q, k, v = (torch.randn(2, 2, LENGTH, 4) for _ in range(3))
    once, again = (computed(module, (q, k, v), True) for _ in range(2))
    assert all(torch.equal(one, two) for one, two in zip(once, again, strict=True))
    halves = [x.to(torch.bfloat16) for x in (q, k, v)]
    got = module(*halves)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), module(*(x.float() for x in halves)), rtol=2**-8, atol=1e-6)
    lengths = torch.tensor([LENGTH, 23])
    want = module(q, k, v, key_lengths=lengths)
    k[1, :, 23:], v[1, :, 23:] = float("nan"), float("inf")
    torch.testing.assert_close(module(q, k, v, key_lengths=lengths), want, rtol=0, atol=0)
    assert module(q[:, :, :0], k[:, :, :0], v[:, :, :0]).shape == (2, 2, 0, 4) and module(q[:0], k[:0], v[:0]).shape == (0, 2, LENGTH, 4)


def test_memory_does_not_grow_with_the_square():
    """Nothing that is kept for the backward has a number for each pair."""
    module, length = made("dape", {}), 600
    qkv = [torch.randn(1, 2, length, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    kept = {}
    _gpu.DEVICES.add("cpu")
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.update({x.untyped_storage().data_ptr(): x.untyped_storage()}) or x, lambda x: x):
        out = module(*qkv)
    bytes_of = [storage.nbytes() for storage in kept.values()]
    assert max(bytes_of) <= 8 * 2 * length * 8 and sum(bytes_of) < 8 * length * length / 4
    out.sum().backward()


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("fire", {"gates": torch.zeros(1, 2, 5)}, "gates: fire does not support it on cpu"),
        ("dape", {"key_starts": [0]}, "key_starts: dape does not support it on cpu"),
        ("cope", {"softcap": -1.0}, "softcap = -1.0 must be a finite number above 0"),
        ("xpos", {"causal": False}, "causal = False: xpos is defined for causal attention only"),
        ("shaw", {"heads": 3}, "q: 3 heads of 4 features; the encoding has 2 heads of 4"),
        ("shaw", {"keys": 4}, "q: 5 queries exceed the 4 keys"),
        ("fire", {"kv_heads": 3}, "k: 3 heads must divide the 2 heads of q"),
        ("dape", {"values": 5}, "v: expected [B, G, K, D] = [1, 2, 5, 4], got shape (1, 2, 5, 5)"),
        ("cope", {"sinks": torch.zeros(3)}, "sinks: expected [H] = [2]"),
        ("fire", {"key_lengths": [1, 2]}, "key_lengths: expected [B] = [1]"),
        ("fire", {"key_lengths": [[1, 2, 3, 4, 5]]}, "key_lengths: fire does not support intervals of keys per query"),
        ("transformer_xl", {"scale": float("nan")}, "scale = NaN must be finite"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(kind, options, words):
    module, options = made(kind, {}, torch.float32), dict(options)
    heads, keys = options.pop("heads", 2), options.pop("keys", 5)
    kv_heads, values = options.pop("kv_heads", heads), options.pop("values", 4)
    _gpu.DEVICES.add("cpu")
    q, k, v = torch.randn(1, heads, 5, 4), torch.randn(1, kv_heads, keys, 4), torch.randn(1, kv_heads, keys, values)
    with pytest.raises(ValueError) as caught:
        module(q, k, v, **options)
    assert words in str(caught.value), str(caught.value)
