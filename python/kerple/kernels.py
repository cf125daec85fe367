"""Kernels of distance without PyTorch: the list of methods, proofs, and tables as numpy arrays."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native
from ._array import Array


def methods() -> dict[str, dict[str, str]]:
    """Every positional method by name: formula, learned parameters, behaviour beyond the training
    length, source.
    """
    return dict(_native.methods())


@dataclass(frozen=True)
class Certificate:
    """The derivation that proves a kernel expression valid, or the reason that it is not; ``print``
    shows it.
    """

    expression: str
    #: Whether the kernel is conditionally positive definite: on the points, or for all values of
    #: its parameters.
    is_valid: bool
    text: str
    #: The same as data.
    data: dict[str, Any]

    def __bool__(self) -> bool:
        return self.is_valid

    def __str__(self) -> str:
        return self.text


def certificate(expression: str, points: str = "0..31") -> Certificate:
    """Examines a kernel expression, such as ``log(b, a)`` or ``log(1, 0.5) + 0.5*power(0.1, 1)``.

    An expression of numbers is examined by its eigenvalues on the points; one with learned
    parameters is proved for all their values.

    Raises:
        ValueError: the expression or the points cannot be parsed; the message names the position
            and what is allowed.
    """
    is_valid, text, data = _native.check_kernel(expression, points)
    return Certificate(expression, is_valid, text, json.loads(data))


def encoding(
    kind: str, heads: int, head_dim: int, train_len: int, keys: dict[str, Any], d_model: int | None = None
) -> _native.Encoding:
    """The native encoding with these keys.

    Raises:
        ValueError: a key is invalid; the message contains the key, its value and the limit.
    """
    try:
        text = json.dumps({"kind": kind, **keys}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"keys of {kind}: {error}; use finite numbers, strings, lists and dictionaries") from None
    return _native.Encoding(text, heads, head_dim, train_len, d_model)


def table(
    kind: str,
    heads: int,
    length: int,
    *,
    values: Any = None,
    head_dim: int = 64,
    train_len: int = 512,
    seed: int = 0,
    **keys: Any,
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Bias and weight over distances, ``[H, length]`` each in f64; None where a method has none.

    ``values`` are the learned parameters, concatenated: the first one of all heads, then the second; by
    default the initial values. Methods that distinguish later keys from earlier ones have
    ``2 length - 1`` columns, from distance ``-(length - 1)`` on.
    """
    for name, value in (("heads", heads), ("length", length)):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{name} = {value!r} must be a whole number")
        if value < 1:
            raise ValueError(f"{name} = {value} is out of range, it must be at least 1")
    native = encoding(kind, heads, head_dim, train_len, keys)
    has_bias, has_weight, two_sides = native.tables
    if not (has_bias or has_weight):
        raise ValueError(f"kind = {kind!r} has no table over distances")
    stored = np.array(native.initial(seed, 0) if values is None else values, dtype=np.float64)
    if stored.ndim != 1:  # rows of heads and rows of parameters may have the same shape
        raise ValueError(f"values: expected one list, the first parameter of all heads, then the second, got shape {stored.shape}")
    shape = (heads, 2 * length - 1 if two_sides else length)
    bias, weight = (np.empty(shape) if has else None for has in (has_bias, has_weight))
    native.table(
        Array(stored), length, bias if bias is None else Array(bias), weight if weight is None else Array(weight)
    )
    return bias, weight
