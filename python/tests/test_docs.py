"""What documents show runs."""

import re
from pathlib import Path

import torch

from kerple.torch import KerpleLog, attention, attention_varlen, symmetric

ROOT = Path(__file__).parents[2]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def block(part):
    """The block of the page that contains this."""
    (found,) = [code for code in blocks("docs/python.md") if part in code]
    return found


def test_the_first_lines_of_the_page_run():
    first = blocks("docs/python.md")[0]
    names = {}
    exec(first, names)
    assert names["q"].grad.isfinite().all() and names["kernel"].r1.grad.abs().sum() > 0
    assert names["out"].shape == (1, 12, 2048, 64)
    assert blocks("python/README.md")[0] == first


def test_methods_of_the_page_run():
    names = {
        "torch": torch, "model": torch.nn.Identity(),
        **{name: torch.randn(1, 8, 1, 64) for name in ("q", "k", "v", "q_new", "k_new", "v_new")},
        "rows": torch.randn(1, 1, 512),
    }  # fmt: skip
    exec(block("Dape(").replace("optimizer.step()\n", ""), names)
    assert names["bias"].shape == (8, 4096) and names["weight"] is None
    assert torch.equal(names["out"], names["v_new"].expand(1, 8, 1, 64)), "one key has all the weight"


def test_learned_positions_of_the_page_run():
    names = {"torch": torch, "attention": attention, "steps": torch.ones(1, 2, 9), "r1": torch.ones(2), "r2": torch.full((2,), 0.5)}
    names |= {name: torch.randn(1, 2, 9, 4) for name in "qkv"}
    exec(block("steps.double()"), names)
    table = -torch.log1p(0.5 * torch.arange(9.0)).expand(2, 9)
    torch.testing.assert_close(names["out"], attention(names["q"], names["k"], names["v"], bias=table), rtol=0, atol=1e-6)


def test_first_tokens_of_the_page_run():
    names = {"attention": attention, "KerpleLog": KerpleLog, "b": torch.randn(12, 600)} | {name: torch.randn(1, 12, 600, 4) for name in "qkv"}
    first, second = (eval(line, names) for line in block("sink_tokens=4").strip().split("\n"))
    assert first.shape == second.shape == (1, 12, 600, 4)


def test_packed_documents_and_intervals_of_the_page_run():
    q, k, v = (torch.randn(1, 2, 8192, 4) for _ in range(3))
    flat = {name: x[0].transpose(0, 1) for name, x in (("q", q), ("k", k), ("v", v))}
    names = {
        "torch": torch, "attention": attention, "attention_varlen": attention_varlen, "symmetric": symmetric,
        "q": q, "k": k, "v": v, "b": torch.randn(2, 8192), "B": 1, "ids": torch.arange(8192)[None] // 3000,
        "cu_q": [0, 5000, 8192], "cu_k": [0, 5000, 8192], "max_q": 5000, "max_k": 5000,
    }  # fmt: skip
    first, second, third = block("cu_seqlens=[0, 512").strip().split("\n")
    exec(f"one = {first}\ntwo = {second}", names)
    scope = names | flat
    exec(f"three = {third}", scope)
    assert names["one"].shape == names["two"].shape == (1, 2, 8192, 4) and scope["three"].shape == (8192, 2, 4)
    ends, last = block("key_ends=ends").strip().split("\n")
    exec(f"{ends}\nout = {last}", names)
    prefix = attention(q[:, :, :512], k[:, :, :512], v[:, :, :512], bias=symmetric(names["b"][:, :512]), causal=False)
    torch.testing.assert_close(names["out"][:, :, :512], prefix, rtol=0, atol=1e-5)
