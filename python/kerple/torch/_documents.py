"""Packed documents: several documents in one row, none of which attends to another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def _whole(name: str, x: object) -> Tensor:
    """The argument as int64 on the CPU."""
    if not isinstance(x, Tensor):
        x = torch.as_tensor(x, device="cpu")
        x = x.to(torch.int64) if x.numel() == 0 else x
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{name}: expected whole numbers, got {x.dtype}")
    return x.to(device="cpu", dtype=torch.int64)


def documents_of(
    cu_seqlens: Tensor | Sequence[int] | None,
    document_ids: Tensor | Sequence[Sequence[int]] | None,
    k: Tensor,
    key_starts: object,
    key_lengths: object,
) -> Tensor | None:
    """The documents as the operation takes them: cumulative lengths ``[N + 1]`` or ids ``[B, K]``.

    Their values are checked where they are used, by the engine.
    """
    if cu_seqlens is None and document_ids is None:
        return None
    if cu_seqlens is not None and document_ids is not None:
        raise ValueError("document_ids: cu_seqlens are given too; give one of the two")
    name = "cu_seqlens" if document_ids is None else "document_ids"
    for other, value in (("key_lengths", key_lengths), ("key_starts", key_starts)):
        if value is not None:
            raise ValueError(f"{other}: {name} already tell which keys are padding; give one of the two")
    batch, keys = k.shape[0], k.shape[2]
    if document_ids is None:
        cumulative = _whole("cu_seqlens", cu_seqlens)
        if cumulative.dim() != 1:
            raise ValueError(f"cu_seqlens: expected [N + 1], got shape {tuple(cumulative.shape)}")
        if batch != 1:
            raise ValueError(
                f"cu_seqlens: they describe one row, but q has {batch}; flatten to [1, H, T, D] or give document_ids"
            )
        return cumulative
    ids = _whole("document_ids", document_ids)
    if ids.shape != (batch, keys):
        raise ValueError(f"document_ids: expected [B, K] = {[batch, keys]}, got shape {tuple(ids.shape)}")
    return ids


def positions_of(documents: Tensor | None, tokens: int) -> Tensor | None:
    """The position of each of ``tokens`` tokens in its document, ``[B, K]``; of documents that the
    engine accepts.
    """
    if documents is None:
        return None
    at = torch.arange(tokens)
    if documents.shape[-1] == 0:
        return torch.zeros(documents.shape[:-1] + (tokens,), dtype=torch.int64).reshape(-1, tokens)
    if documents.dim() == 1:
        document = torch.searchsorted(documents[1:].contiguous(), at, right=True)
        return (at - documents[document.clamp(max=documents.shape[0] - 1)])[None]
    begins = torch.nn.functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return at - torch.where(begins, at, 0).cummax(1).values
