"""Calls on GPU tensors never wait for the device, so that CUDA graphs can capture them.

Tensors without values, of PyTorch's device "meta", take the place of a GPU's: whoever reads a value of one
gets an error. A dispatch mode refuses copies between devices too, and a launch must get tensors of the
device alone.
"""

import types

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

import kerple.torch as kt  # noqa: E402
from kerple.torch import _gpu, _ops, attention, linear  # noqa: E402

DEVICE = torch.device("meta")


class NoWaiting(TorchDispatchMode):
    """Refuses what makes a host wait for a device, or moves numbers between the two."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero", "item")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not any(name == read or name.startswith(("unique", "_unique")) for read in self.READS), f"{func} reads a value"
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
        # numbers without dimensions are arguments of a kernel
        devices = {x.device.type for x in tensors if x.dim() > 0}
        assert len(devices) < 2, f"{func} is between devices: {[(x.device, tuple(x.shape)) for x in tensors]}"
        return out


class Launch:
    """A kernel that notes its launch."""

    def __init__(self, name, launched):
        self.name, self.launched = name, launched

    def __getitem__(self, grid):
        assert all(isinstance(size, int) and size > 0 for size in grid), grid
        return self._called

    def _called(self, *args, **options):
        for x in tree_leaves((args, options)):
            assert not isinstance(x, torch.Tensor) or x.device == DEVICE, f"{self.name} gets a tensor on {x.device}"
        self.launched.append(self.name)


@pytest.fixture
def launched(monkeypatch):
    """Launches of calls on the device without values."""
    found, kernels = [], _gpu.kernels()
    names = ("forward", "merge", "backward_dq", "fold", "backward_dkv")
    made = types.SimpleNamespace(**{**vars(kernels), **{name: Launch(name, found) for name in names}})
    monkeypatch.setattr(_gpu, "kernels", lambda: made)
    monkeypatch.setattr(_gpu, "_arch", lambda _: "sm_90")
    monkeypatch.setattr(_gpu, "_on", lambda _: torch.no_grad())
    monkeypatch.setattr(_ops, "_is_plain", lambda *_: True)
    _gpu.DEVICES.add("meta")
    yield found
    _gpu.DEVICES.discard("meta")


def empty(*shape, dtype=torch.float32):
    return torch.empty(*shape, device=DEVICE, dtype=dtype, requires_grad=dtype.is_floating_point)


def numbers(*shape):
    return empty(*shape, dtype=torch.int64)


ALL = dict(
    bias=lambda: empty(4, 100), weight=lambda: empty(4, 100), sinks=lambda: empty(4), gates=lambda: empty(2, 4, 100),
    key_starts=lambda: numbers(2), key_lengths=lambda: numbers(2),
)  # fmt: skip
SETTINGS = {
    "bias": (100, dict(bias=ALL["bias"]), dict()),
    "everything": (100, ALL, dict(window=30, softcap=5.0)),
    "first tokens": (100, ALL, dict(window=30, sink_tokens=4)),
    "first tokens of documents": (40, dict(bias=ALL["bias"], document_ids=lambda: numbers(2, 100)), dict(window=30, sink_tokens=4)),
    "both directions": (100, dict(bias=lambda: empty(4, 199), gates=ALL["gates"]), dict(causal=False, window=9)),
    "dropout": (100, dict(bias=ALL["bias"]), dict(dropout_p=0.1)),
    "dropout of a seed": (100, dict(dropout_seed=lambda: numbers(1)), dict(dropout_p=0.1, window=30)),
    "positions": (100, dict(positions=lambda: empty(2, 4, 100, dtype=torch.float64), of_spline=lambda: empty(4, 5)), dict(window=30)),
    "positions of documents": (40, dict(positions=lambda: empty(2, 4, 100, dtype=torch.float64), of_log=lambda: empty(4, 2), document_ids=lambda: numbers(2, 100)), dict()),
    "document_ids": (100, dict(bias=ALL["bias"], document_ids=lambda: numbers(2, 100)), dict()),
    "intervals": (100, dict(bias=lambda: empty(4, 199), key_starts=lambda: numbers(2, 100), key_ends=lambda: numbers(2, 100)), dict(causal=False)),
    "starts of some queries": (40, dict(key_starts=lambda: numbers(2, 40), gates=ALL["gates"]), dict(window=30)),
    "some queries of documents": (40, dict(document_ids=lambda: numbers(2, 100), gates=ALL["gates"]), dict()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SETTINGS)
def test_attention_and_its_gradients_do_not_wait(launched, name, dtype):
    queries, tensors, options = SETTINGS[name]
    given = {key: make() for key, make in tensors.items()}
    q, k, v = empty(2, 4, queries, 16, dtype=dtype), empty(2, 2, 100, 16, dtype=dtype), empty(2, 2, 100, 16, dtype=dtype)
    kernel = next((key for key in given if key.startswith("of_")), None)
    named = {key: x for key, x in given.items() if key != kernel}
    named |= {} if kernel is None else {"position_kernel": (kernel.removeprefix("of_"), given[kernel])}
    with NoWaiting():
        out = attention(q, k, v, **named, **options)
        out.backward(torch.empty_like(out))
    tables = [key for key in ("bias", "weight") if key in given]
    assert launched == ["forward", "backward_dq", *("fold" for _ in tables), *(["fold"] if kernel else []), "backward_dkv"]
    assert all(x.grad is not None and x.grad.device == DEVICE for x in (q, k, v, *given.values()) if x.requires_grad)


def test_cumulative_lengths_do_not_wait(launched):
    q = empty(1, 2, 50, 8)
    with NoWaiting():
        attention(q, q, q, cu_seqlens=numbers(4)).sum().backward()
    assert launched == ["forward", "backward_dq", "backward_dkv"]


def test_decoding_with_a_cache_does_not_wait(launched):
    layer, cache = moved(kt.KerpleLog(4, 16, seed=0)), kt.KVCache()
    with NoWaiting(), torch.no_grad():
        layer(empty(2, 4, 700, 16), *cache.append(empty(2, 2, 700, 16), empty(2, 2, 700, 16)))
        layer(empty(2, 4, 1, 16), *cache.append(empty(2, 2, 1, 16), empty(2, 2, 1, 16)), key_starts=numbers(2))
    assert launched == ["forward", "forward", "merge"]


def moved(module):
    """The module on the device without values."""
    kept = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        return module.to_empty(device=DEVICE)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(kept)


REFUSED = {"grape_ap", "path", "wall"}
#: Computed by operations of PyTorch, which launch none of our kernels.
COMPOSED = {"cope", "dape", "fire", "shaw", "transformer_xl", "xpos"}
KINDS = [
    name for name in kt.__all__
    if isinstance(getattr(kt, name), type) and issubclass(getattr(kt, name), kt.Encoding) and name not in ("Encoding", "Kernel", "LinearAttention")
]  # fmt: skip


#: What modules compute from rows for themselves.
OWN = {
    "Fox": "gates", "Inkling": "relative", "KerplePositions": "positions", "RotaryPositions": "positions", "SelectiveRope": "angles",
    "Wall": "decays", "GrapeAp": "path_bias", "Path": "householder",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in KINDS if getattr(kt, name).kind not in REFUSED])
def test_encodings_do_not_wait(launched, name):
    layer = moved(getattr(kt, name)(2, 8, seed=0))
    q, rows = empty(1, 2, 30, 8), empty(1, 30, 16)
    own = OWN.get(name)
    for causal in (True, layer._causal_only or name == "Xpos"):
        with NoWaiting():
            more = {own: getattr(layer, own)(rows)} if own else {}
            layer(q, q, q, causal=causal, **more).sum().backward()
    assert launched.count("forward") == launched.count("backward_dkv") == (0 if layer.kind in COMPOSED else 2)
    assert all(x.grad is not None for x in layer.parameters())


@pytest.mark.parametrize("keys", [{}, {"emulate": "bf16"}], ids=["plain", "emulated"])
@pytest.mark.parametrize("name", KINDS)
def test_encodings_run_or_are_refused_by_name_and_reason(launched, name, keys):
    """Calls, tables and values of parameters: nothing fails for another reason."""
    try:
        layer = getattr(kt, name)(2, 8, seed=0, **keys)
    except ValueError as error:
        assert keys and "emulate" in str(error), error
        return
    layer = moved(layer)
    q, rows, own = empty(1, 2, 30, 8), empty(1, 30, 16), OWN.get(name)
    for call in (
        lambda: layer(q, q, q, **({own: getattr(layer, own)(rows)} if own else {})),
        lambda: layer.table(30),
    ):
        try:
            with NoWaiting():
                call()
        except NotImplementedError as error:
            assert layer.kind in REFUSED or keys, error
            words = ("emulate",) if layer.kind not in REFUSED else ()
            for word in (layer.kind, "meta", ".cpu()", *words):
                assert word in str(error), (word, error)
        else:
            assert layer.kind not in REFUSED or call.__code__.co_names[-1] == "table"
            assert not keys or layer.kind not in COMPOSED or call.__code__.co_names[-1] == "table"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("learns", [(True, True), (True, False), (False, True), (False, False)])
def test_a_relative_bias_does_not_wait(launched, learns, dtype):
    q, k, bias = empty(2, 4, 60, 16, dtype=dtype), empty(2, 2, 100, 16, dtype=dtype), empty(4, 100)
    relative = [x.requires_grad_(learn) for x, learn in zip((empty(2, 4, 60, 3), empty(3, 20)), learns, strict=True)]
    with NoWaiting():
        attention(q, k, k, bias=bias, relative=relative, window=50, key_starts=numbers(2)).sum().backward()
        attention(q[:, :, :5], k.repeat(1, 1, 7, 1), k.repeat(1, 1, 7, 1), relative=(relative[0][:, :, :5], relative[1]))
    folds = 1 + any(learns)
    assert launched == ["forward", "backward_dq", *["fold"] * folds, "backward_dkv", "forward", "merge"]
    assert [x.grad is not None for x in relative] == list(learns)


def test_rotations_are_copied_to_the_device_once(launched):
    layer = moved(kt.Rotary(2, 8, seed=0))
    _ops._turns_there.cache_clear()
    _ops._turns_on_gpu(layer.inv_freq, layer._key, 0, 30, 30)  # the first call copies
    with NoWaiting():
        made = _ops._turns_on_gpu(layer.inv_freq, layer._key, 0, 30, 30)
    assert [x.device for x in made] == [DEVICE, DEVICE]
    with NoWaiting(), pytest.raises(AssertionError, match="between devices"):
        _ops._turns_on_gpu(layer.inv_freq, layer._key, 0, 31, 31)


def test_layers_of_transformers_do_not_wait(launched):
    pytest.importorskip("transformers")
    import kerple.transformers as ours
    from transformers.models.bloom import modeling_bloom

    sight = ours.Sight.of(True, 5, 30, numbers(2), numbers(2))
    q, k, bias = empty(2, 4, 30, 8), empty(2, 2, 30, 8), empty(4, 30)
    with NoWaiting():
        ours.attend(torch.nn.Module(), q, k, k, sight, position_bias=bias)[0].sum().backward()
    assert bias.grad is not None
    intervals = ours.Sight.of(False, None, 30, None, None, None, (numbers(2, 30), numbers(2, 30)))
    with NoWaiting():
        ours.attend(torch.nn.Module(), q, k, k, intervals)[0].sum().backward()
    config = modeling_bloom.BloomConfig(hidden_size=32, n_head=4, attention_dropout=0.0, hidden_dropout=0.0)
    layer, rows = moved(modeling_bloom.BloomAttention(config, layer_idx=0)), empty(2, 30, 32)
    out, _ = layer(rows, rows, None, sight)  # the slopes are the model's, which copies them
    out.sum().backward()
    passes = ["forward", "backward_dq", "backward_dkv"]
    assert launched == ["forward", "backward_dq", "fold", "backward_dkv", *passes, *passes]
    assert layer.query_key_value.weight.grad.device == DEVICE


@pytest.mark.parametrize("kind", ["none", "rotary", "fox", "sine_spe", "conv_spe"])
def test_linear_attention_does_not_wait(launched, kind):
    """But for decays, whose learned numbers are read, and copies of what is drawn."""
    layer = moved(kt.LinearAttention(kind, 2, 8, seed=0, count=8))
    q, rows, lengths = empty(2, 2, 600, 8), empty(2, 600, 16), numbers(2)
    for causal in (True, False) if kind != "fox" else (True,):
        with NoWaiting():
            gates = {"gates": layer.gates(rows)} if kind == "fox" else {}
            layer(q, q, q, causal=causal, key_lengths=lengths, **gates).sum().backward()  # operations are not run on this device
            options, features, values = layer._options(causal), empty(2, 2, 600, 16), empty(2, 2, 600, 9)
            own = (features, features, values, layer._values(), gates.get("gates"), lengths, *options)
            with torch.no_grad():
                linear._sums_backward(linear._sums(*own), *own)
    assert launched == [] and q.grad is not None and all(x.grad is not None for x in layer.parameters())


def test_draws_of_linear_attention_are_copied_once(launched):
    like, options = empty(1), kt.LinearAttention("none", 2, 8, seed=0, count=8)._options(True)
    linear._kept.cache_clear()
    linear._draw(like, "omega", 0, [8, 4], *options)  # the first call copies
    with NoWaiting():
        made = linear._draw(like, "omega", 0, [8, 4], *options)
    assert made.device == DEVICE and made.shape == (8, 4)


def test_the_key_of_draws_is_read_where_it_changed():
    layer, reads = kt.LinearAttention("none", 2, 8, seed=0, count=8), []

    class Counted(torch.Tensor):
        def tolist(self):
            reads.append(1)
            return super().tolist()

    layer.register_buffer("noise", layer.noise.as_subclass(Counted))
    q = torch.randn(1, 2, 5, 8)
    for _ in range(3):
        layer(q, q, q)
    assert len(reads) == 1
    layer.noise[2] += 1
    layer(q, q, q)
    assert len(reads) == 2 and layer._noise[2] == 1


def test_waiting_would_be_noticed():
    x = torch.ones(3, device=DEVICE)
    for read in (lambda: x.sum().item(), lambda: bool(x.any()), lambda: x.nonzero(), lambda: x.tolist()):
        with NoWaiting(), pytest.raises((AssertionError, RuntimeError)):
            read()
    for move in (lambda: x.cpu(), lambda: torch.ones(3).to(DEVICE), lambda: x + torch.ones(3), lambda: x.copy_(torch.ones(3)), lambda: x[torch.arange(2)]):
        with NoWaiting(), pytest.raises((AssertionError, RuntimeError)):
            move()
