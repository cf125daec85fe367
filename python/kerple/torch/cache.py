"""KV cache: keys and values of earlier tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import whole
from ._documents import refuse_documents


class KVCache:
    """KV cache that appends keys and values.

    It allocates memory for twice as many positions as are needed, so each row is copied once on
    average, and attention reads the rows in place.

    ::

        cache = KVCache()
        for q, k, v in steps:                    # [B, H, 1, D] each, or a whole prompt first
            out = encoding(q, *cache.append(k, v))

    It carries no gradients, and positions are consecutive. With ``window`` it keeps only the
    earlier positions that new queries attend to with this window: not for attention with
    ``sink_tokens``, whose first tokens it would drop.
    """

    def __init__(self, window: int | None = None) -> None:
        self._window = None if window is None else whole("window", window, 1, "; None keeps all")
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._start = 0
        self._end = 0

    def __len__(self) -> int:
        """Number of positions that are kept."""
        return self._end - self._start

    @torch.no_grad()
    def append(
        self, k: Tensor, v: Tensor, *, cu_seqlens: None = None, document_ids: None = None
    ) -> tuple[Tensor, Tensor]:
        """Appends these and returns all keys and values, ``[B, G, K, D]`` each, as views of the
        cache.

        Raises:
            ValueError: shapes that do not follow; packed documents, since a row is one document.
        """
        refuse_documents("a KVCache", {"cu_seqlens": cu_seqlens, "document_ids": document_ids})
        if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
            raise ValueError(f"k, v: expected [B, G, L, D] alike, got {tuple(k.shape)} and {tuple(v.shape)}")
        for name, new, held in zip("kv", (k, v), self._buffers or (k, v), strict=True):
            if (new.shape[0], new.shape[1], new.shape[3], new.dtype, new.device) != (
                held.shape[0],
                held.shape[1],
                held.shape[3],
                held.dtype,
                held.device,
            ):
                raise ValueError(
                    f"{name}: {tuple(new.shape)} of {new.dtype} on {new.device} does not follow "
                    f"{tuple(held.shape)} of {held.dtype} on {held.device}"
                )
        new = k.shape[2]
        if self._window is not None:
            self._start = max(self._start, self._end - (self._window - 1))
        self._reserve(new, k, v)
        rows = slice(self._end, self._end + new)
        for held, one in zip(self._buffers, (k, v), strict=True):
            held[:, :, rows] = one
        self._end += new
        return tuple(held[:, :, self._start : self._end] for held in self._buffers)

    def _reserve(self, new: int, *like: Tensor) -> None:
        if self._buffers is not None and self._end + new <= self._buffers[0].shape[2]:
            return
        kept = self._end - self._start
        buffers = []
        for at, one in enumerate(like):
            batch, heads, _, features = one.shape
            buffer = one.new_empty(batch, heads, max(16, 2 * (kept + new)), features)
            if self._buffers is not None:
                buffer[:, :, :kept] = self._buffers[at][:, :, self._start : self._end]
            buffers.append(buffer)
        self._buffers, self._start, self._end = tuple(buffers), 0, kept
