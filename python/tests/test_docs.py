"""What documents show runs."""

import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


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
    code = blocks("docs/python.md")[1].replace("optimizer.step()\n", "")
    exec(code, names)
    assert names["bias"].shape == (8, 4096) and names["weight"] is None
    assert torch.equal(names["out"], names["v_new"].expand(1, 8, 1, 64)), "one key has all the weight"
