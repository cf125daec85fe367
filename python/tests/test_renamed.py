"""Names of before are refused with those of today."""

import importlib

import pytest
import torch

from kerple._renamed import ARGUMENTS, NAMES
from kerple.runs import Run
from kerple.torch import KerpleLog, attention


@pytest.mark.parametrize(("module", "old", "new"), [(module, *pair) for module, names in NAMES.items() for pair in names.items()])
def test_old_names_of_modules_name_the_new_ones(module, old, new):
    found = importlib.import_module(module)
    with pytest.raises(AttributeError, match=f"{module}.{old} is now {module}.{new}$"):
        getattr(found, old)
    assert new in found.__all__ and getattr(found, new) is not None
    with pytest.raises(ImportError, match=f"{module}.{old} is now {module}.{new}$"):
        exec(f"from {module} import {old}")
    assert not hasattr(found, old)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        found.nonsense  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec(f"from {module} import nonsense")


def test_old_arguments_name_the_new_ones(tmp_path):
    q = torch.zeros(1, 2, 3, 4)
    (tmp_path / "plan.json").write_text("{}")
    calls = {
        "attention": lambda **options: attention(q, q, q, **options),
        "Encoding.forward": lambda **options: KerpleLog(heads=2, head_dim=4)(q, q, q, **options),
        "Run.sample": lambda **options: Run(tmp_path).sample("7", **options),
    }
    assert set(calls) == set(ARGUMENTS)
    for function, call in calls.items():
        for old, new in ARGUMENTS[function].items():
            with pytest.raises(TypeError, match=f"`{old}` is now `{new}`$"):
                call(**{old: 2.0})
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        attention(q, q, q, nonsense=1)
