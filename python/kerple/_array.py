"""numpy arrays as the border reads them: with the methods that a tensor has."""

from __future__ import annotations

import numpy as np


class Array:
    """An array for the length of a call, which holds on to it."""

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
