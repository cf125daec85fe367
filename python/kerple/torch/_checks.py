"""Which tensors attention takes: their type, layout and device."""

from __future__ import annotations

import torch
from torch import Tensor

from ._gpu import GPUS

HALF = (torch.float16, torch.bfloat16)


def check_tensor(name: str, x: object, like: Tensor | None = None) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if not x.is_cpu and not x.is_meta and x.device.type not in GPUS:
        raise ValueError(
            f"{name}: is on {x.device}; kerple has kernels for the processor and, through Triton, for "
            f"{' and '.join(GPUS)} tensors, use {name}.cpu()"
        )
    if x.layout is not torch.strided:
        hint = " with cu_seqlens" if x.layout is torch.jagged and name in ("q", "k", "v") else ""
        raise TypeError(f"{name}: layout {x.layout} is not computed with, use a dense tensor{hint}")
    if like is None:
        if x.dtype not in (torch.float32, torch.float64, *HALF):
            raise TypeError(f"{name}: dtype {x.dtype} is not supported; use float32 or float64")
    elif x.dtype != like.dtype:
        raise TypeError(f"{name}: is of {x.dtype}, q of {like.dtype}; they must be alike")
    else:
        check_device(name, x, like)


def number(name: str, value: object, instead: str = "") -> float:
    """A number of a call: of a tensor only the value is used, so one with a gradient is refused, and True would be 1."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name}: expected one number, got shape {tuple(value.shape)}{instead and f'; {instead}'}")
        if value.requires_grad:
            raise ValueError(f"{name}: requires a gradient, but none reaches it; {instead and f'{instead}, or '}give {name}.item()")
    elif isinstance(value, (bool, str)) or not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
        raise TypeError(f"{name} = {value!r} must be a number")
    return float(value)


def scale_of(scale: object, features: int) -> float:
    """What products of queries and keys are multiplied by."""
    return features**-0.5 if scale is None else number("scale", scale, "multiply q by it and give scale=1.0")


def softcap_of(softcap: object) -> float | None:
    return None if softcap is None else number("softcap", softcap)


def whole(name: str, value: object, least: int, hint: str = "") -> int:
    """A whole number of at least this; True would be 1."""
    if isinstance(value, bool) or not (isinstance(value, int) or hasattr(value, "__index__")):
        raise TypeError(f"{name} = {value!r} must be a whole number{hint}")
    if value < least:
        raise ValueError(f"{name} = {value} is out of range, it must be at least {least}{hint}")
    return value if isinstance(value, int) else value.__index__()


def check_device(name: str, x: Tensor, q: Tensor) -> None:
    if x.device != q.device:
        raise ValueError(f"{name}: is on {x.device}, q on {q.device}; they must be on one device")
