"""Attention that learns a bias over distances, and positional encodings, for PyTorch on CPUs and GPUs."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("kerple.torch needs PyTorch: pip install 'kerple[torch]'") from error

from .._renamed import refuse_name as _refuse_name
from ._attention import attention, attention_varlen, dropout_mask, symmetric
from ._encoding import Encoding, project_
from ._gpu import set_float32_precision
from .cache import KVCache
from .encodings import (
    T5,
    Alibi,
    Bam,
    Cope,
    Dape,
    Fire,
    Fope,
    Fox,
    GaussianBias,
    GaussianWeight,
    GrapeAp,
    Inkling,
    Kernel,
    KerpleBiasWeight,
    KerpleLog,
    KerpleLog3,
    KerplePositions,
    KerplePower,
    KerplePowerOriginal,
    KerpleWeight,
    NoPE,
    Path,
    Pope,
    Rotary,
    RotaryPositions,
    Sandwich,
    SelectiveRope,
    Shaw,
    StretchedBias,
    StretchedWeight,
    TransformerXl,
    Wall,
    Xpos,
)
from .linear import LinearAttention, LinearState

__all__ = [
    "Alibi",
    "Bam",
    "Cope",
    "Dape",
    "Encoding",
    "Fire",
    "Fope",
    "Fox",
    "GaussianBias",
    "GaussianWeight",
    "GrapeAp",
    "Inkling",
    "KVCache",
    "Kernel",
    "KerpleBiasWeight",
    "KerpleLog",
    "KerpleLog3",
    "KerplePositions",
    "KerplePower",
    "KerplePowerOriginal",
    "KerpleWeight",
    "LinearAttention",
    "LinearState",
    "NoPE",
    "Path",
    "Pope",
    "Rotary",
    "RotaryPositions",
    "Sandwich",
    "SelectiveRope",
    "Shaw",
    "StretchedBias",
    "StretchedWeight",
    "T5",
    "TransformerXl",
    "Wall",
    "Xpos",
    "attention",
    "attention_varlen",
    "dropout_mask",
    "project_",
    "set_float32_precision",
    "symmetric",
]


def __getattr__(name: str) -> object:
    _refuse_name(__name__, name)
