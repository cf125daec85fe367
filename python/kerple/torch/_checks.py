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
        raise TypeError(f"{name}: layout {x.layout} is not computed with, use a dense tensor")
    if like is None:
        if x.dtype not in (torch.float32, torch.float64, *HALF):
            raise TypeError(f"{name}: dtype {x.dtype} is not supported; use float32 or float64")
    elif x.dtype != like.dtype:
        raise TypeError(f"{name}: is of {x.dtype}, q of {like.dtype}; they must be alike")
    else:
        check_device(name, x, like)


def check_device(name: str, x: Tensor, q: Tensor) -> None:
    if x.device != q.device:
        raise ValueError(f"{name}: is on {x.device}, q on {q.device}; they must be on one device")
