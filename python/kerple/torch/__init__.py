"""Attention that learns a bias over distances, and positional encodings, for PyTorch on the CPU."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("kerple.torch needs PyTorch: pip install 'kerple[torch]'") from error

from ._attention import attention, mirrored
from .cache import Cache
from .encodings import (
    T5,
    Alibi,
    Cope,
    Dape,
    Encoding,
    Fire,
    Fox,
    GaussianBias,
    GaussianWeight,
    Kernel,
    KerpleBiasWeight,
    KerpleLog,
    KerpleLog3,
    KerplePower,
    KerplePowerOriginal,
    KerpleWeight,
    NoPositions,
    Rotary,
    Sandwich,
    Shaw,
    StretchedBias,
    StretchedWeight,
    TransformerXl,
    Xpos,
    project_,
)
from .linear import LinearAttention, LinearState

__all__ = [
    "Alibi",
    "Cache",
    "Cope",
    "Dape",
    "Encoding",
    "Fire",
    "Fox",
    "GaussianBias",
    "GaussianWeight",
    "Kernel",
    "KerpleBiasWeight",
    "KerpleLog",
    "KerpleLog3",
    "KerplePower",
    "KerplePowerOriginal",
    "KerpleWeight",
    "LinearAttention",
    "LinearState",
    "NoPositions",
    "Rotary",
    "Sandwich",
    "Shaw",
    "StretchedBias",
    "StretchedWeight",
    "T5",
    "TransformerXl",
    "Xpos",
    "attention",
    "mirrored",
    "project_",
]
