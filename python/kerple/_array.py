"""numpy arrays with the methods of a tensor that the compiled part calls."""

from __future__ import annotations

import numpy as np


class Array:
    """Wraps an array for the duration of a call and keeps it alive."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def data_ptr(self) -> int:
        return self._array.__array_interface__["data"][0]

    def stride(self) -> tuple[int, ...]:
        if any(step % self._array.itemsize for step in self._array.strides):
            raise ValueError(f"strides {self._array.strides} are no whole numbers of {self._array.itemsize} bytes")
        return tuple(step // self._array.itemsize for step in self._array.strides)

    def element_size(self) -> int:
        return self._array.itemsize

    def is_floating_point(self) -> bool:
        return self._array.dtype.kind == "f" and self._array.dtype.isnative
