"""The repository of kernels for Hugging Face ``kernels``: it loads, beside this package, and computes the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when `kernels` is imported
pytest.importorskip("triton")
kernels = pytest.importorskip("kernels")

from kerple.torch import attention  # noqa: E402

LAY_OUT = Path(__file__).resolve().parents[2] / "scripts/hub/lay_out.py"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    subprocess.run([sys.executable, LAY_OUT, folder], check=True)
    module = kernels.get_local_kernel(folder)
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.modules[f"{module.__name__}.torch._gpu"].interpret()
    return module


def test_it_is_complete_and_apart_from_this_package(loaded):
    assert set(loaded.__all__) == {"KVCache", "attention", "attention_varlen", "set_float32_precision", "symmetric"}
    assert loaded.attention is not attention
    own = [name for name in sys.modules if name.startswith(loaded.__name__)]
    assert len(own) >= 7 and not any("kerple/" in (sys.modules[name].__file__ or "") for name in own)


def test_options_are_refused_like_here(loaded):
    q = torch.randn(1, 2, 5, 8)
    first_tokens = (dict(sink_tokens=2), dict(window=3, sink_tokens=0), dict(window=3, sink_tokens=65537), dict(window=3, sink_tokens=2, causal=False))
    for given in (dict(window=0), *first_tokens, dict(softcap=-1.0), dict(scale=float("inf")), dict(cap=3.0), dict(bias=torch.zeros(2, 3))):
        messages = []
        for one in (loaded.attention, attention):
            if not os.environ.get("TRITON_INTERPRET") and "bias" in given:
                continue  # the processor's engine says it in other words
            with pytest.raises((ValueError, TypeError)) as error:
                one(q, q, q, **given)
            messages.append((error.type, str(error.value)))
        assert messages == messages[:1] * len(messages)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter computes tensors of the processor")
def test_the_processor_is_the_packages(loaded):
    q = torch.randn(1, 2, 5, 8)
    with pytest.raises(NotImplementedError, match="pip install kerple"):
        loaded.attention(q, q, q)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter, or a GPU")
@pytest.mark.parametrize("queries", [1, 40])
def test_it_computes_the_same_bits(loaded, queries):
    q = torch.randn(1, 4, queries, 16, requires_grad=True)
    k, v = (torch.randn(1, 2, 600 if queries == 1 else 40, 16, requires_grad=True) for _ in range(2))
    bias, sinks = torch.randn(4, k.shape[2], requires_grad=True), torch.randn(4, requires_grad=True)
    leaves, up = (q, k, v, bias, sinks), torch.randn_like(q)
    found = []
    for one in (loaded.attention, attention):
        out = one(q, k, v, bias=bias, sinks=sinks, window=500 if queries == 1 else 9, sink_tokens=4)
        found.append([out.detach(), *torch.autograd.grad(out, leaves, up)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
