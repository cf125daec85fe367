"""Which keys queries may attend to besides the mask: packed documents, several in one row, none of
which attends to another; and intervals of keys per query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._gpu import DEVICES


def whole_numbers(name: str, x: object, device: torch.device) -> Tensor | None:
    """The argument as int64 where attention reads it: with the tensors of a GPU, else on the processor."""
    if x is None:
        return None
    to = device if device.type in DEVICES else torch.device("cpu")
    if not isinstance(x, Tensor):
        x = torch.as_tensor(x, device=to)
        x = x.to(torch.int64) if x.numel() == 0 else x
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{name}: expected whole numbers, got {x.dtype}")
    return x.to(device=to, dtype=torch.int64)


def documents_of(
    cu_seqlens: Tensor | Sequence[int] | None,
    document_ids: Tensor | Sequence[Sequence[int]] | None,
    k: Tensor,
    key_starts: object,
    key_lengths: object,
    key_ends: object = None,
) -> Tensor | None:
    """The documents as the operation takes them: cumulative lengths ``[N + 1]`` or ids ``[B, K]``.

    Their values are checked where they are used, by the engine of the processor.
    """
    if cu_seqlens is None and document_ids is None:
        return None
    if cu_seqlens is not None and document_ids is not None:
        raise ValueError("document_ids: cu_seqlens are given too; give one of the two")
    name = "cu_seqlens" if document_ids is None else "document_ids"
    for other, value in (("key_lengths", key_lengths), ("key_starts", key_starts), ("key_ends", key_ends)):
        if value is not None:
            raise ValueError(f"{other}: {name} already tell which keys are padding; give one of the two")
    batch, keys = k.shape[0], k.shape[2]
    if document_ids is None:
        cumulative = whole_numbers("cu_seqlens", cu_seqlens, k.device)
        if cumulative.dim() != 1:
            raise ValueError(f"cu_seqlens: expected [N + 1], got shape {tuple(cumulative.shape)}")
        if batch != 1:
            raise ValueError(
                f"cu_seqlens: they describe one row, but q has {batch}; flatten to [1, H, T, D] or give document_ids"
            )
        return cumulative
    ids = whole_numbers("document_ids", document_ids, k.device)
    if ids.shape != (batch, keys):
        raise ValueError(f"document_ids: expected [B, K] = {[batch, keys]}, got shape {tuple(ids.shape)}")
    return ids


def limits_of(
    key_starts: object, key_ends: object, key_lengths: object, q: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Where keys start and end, as the operation takes them: per sequence, ``[B]``, or per query,
    ``[B, Q]``. The number of dimensions tells which.
    """
    starts, ends, lengths = (
        whole_numbers(name, x, q.device)
        for name, x in (("key_starts", key_starts), ("key_ends", key_ends), ("key_lengths", key_lengths))
    )
    if lengths is not None and lengths.dim() == 2:
        raise ValueError(
            f"key_lengths: expected [B] = [{q.shape[0]}], got shape {tuple(lengths.shape)}; of a mask [B, K] of 1 and 0 give mask.sum(1), "
            "and of one interval of keys per query key_ends"
        )
    if ends is None and (starts is None or starts.dim() < 2):
        return starts, lengths
    if lengths is not None:
        name = "key_starts" if ends is None else "key_ends"
        raise ValueError(f"key_lengths: {name} per query already tell which keys are padding; give one of the two")
    wanted = (q.shape[0], q.shape[2])
    for name, x in (("key_starts", starts), ("key_ends", ends)):
        if x is not None and x.shape != wanted:
            per_row = "; the number of keys of each sequence is key_lengths" if name == "key_ends" and x.dim() == 1 else ""
            shape = f"got shape {tuple(x.shape)}"
            raise ValueError(f"{name}: expected [B, Q] = {list(wanted)}, since intervals are per query, {shape}{per_row}")
    return starts, ends


def own_keys(documents: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Of each of ``tokens`` tokens its document's first token and one past the last, ``[B, K]``, where
    each run of equal ids is a document. Both never decrease; of padding they are equal.
    """
    at = torch.arange(tokens, device=documents.device)
    ids = documents if documents.dim() == 2 else torch.searchsorted(documents[1:].contiguous(), at, right=True)[None]
    begins = pad(ids[:, 1:] != ids[:, :-1], (1, 0), value=True)[:, :tokens]
    ends = pad(begins[:, 1:], (0, 1), value=True)[:, :tokens]
    first = torch.where(begins, at, 0).cummax(1).values
    end = torch.where(ends, at + 1, tokens).flip(1).cummin(1).values.flip(1)
    return first, torch.where(ids < 0, first, end)


def sums_after(x: Tensor, documents: Tensor) -> Tensor:
    """Of each key of ``x``, ``[B, H, K]`` or ``[B, H, K, D]``, the sum over the later keys of its document.

    They are added from the document's last key on, one after another, as those of a document alone. Where the documents
    cannot be read without waiting, on GPUs and under ``torch.compile``, sums over 1, 2, 4, .. keys are added up instead.
    Either way no number of another document is added, whatever its value.
    """
    keys = x.shape[2]
    if 0 in x.shape:
        return x
    first, end = own_keys(documents[0, 1] if documents.dim() == 3 else documents, keys)
    at = torch.arange(keys, device=first.device)
    later = (end - 1 - at)[:, None] if x.dim() == 3 else (end - 1 - at)[:, None, :, None]
    sums = x.roll(-1, 2).masked_fill(later < 1, 0.0)
    if _is_read(documents):
        rows = []
        for row, begins in zip(sums.flip(2).unbind(), first == at, strict=True):
            starts = begins.nonzero().flatten().tolist()
            lengths = [after - start for start, after in zip(starts, [*starts[1:], keys], strict=True)]
            rows.append(torch.cat([own.cumsum(1) for own in row.split(lengths[::-1], 1)], 1))
        return torch.stack(rows).flip(2)
    span = 1
    while span < keys:
        sums = sums + sums.roll(-span, 2).masked_fill(later < span, 0.0)
        span *= 2
    return sums


def _is_read(x: Tensor) -> bool:
    """Whether the numbers of a tensor can be read, and without waiting."""
    if torch.compiler.is_compiling() or x.device.type in DEVICES:
        return False
    return x.is_cpu and type(x) is Tensor and not torch._C._functorch.is_batchedtensor(x)


def positions_of(documents: Tensor | None, tokens: int) -> Tensor | None:
    """The position of each of ``tokens`` tokens, of keys where queries have others, in its document, ``[B, K]``."""
    if documents is None:
        return None
    documents = documents[0, 1] if documents.dim() == 3 else documents
    return torch.arange(tokens, device=documents.device) - own_keys(documents, tokens)[0]


def refuse_documents(holder: str, given: dict[str, object]) -> None | NoReturn:
    """Refuses packed documents where a sequence is decoded token by token."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}: {holder} holds one document per row; give each document a row of its own")
