"""``attn_implementation="kerple"`` for models of transformers.

    import kerple.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="kerple")

This module registers the attention with the library's own interface. BLOOM and MPT do not call that
interface, so the module patches their attention. T5 and Inkling compute a bias per pair; the module
computes T5's per distance, and hands on what Inkling's rows compute theirs from. Models run and train unchanged, with KV caches, with padding on either end, with
packed documents, with prefixes and with images whose tokens attend to each other; queries that are
padding return zeros. In training, dropout of attention weights is that of the config. Unsupported options are refused by name.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional

try:
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import (
        bidirectional_mask_function,
        causal_mask_function,
        sliding_window_causal_mask_function,
    )
    from transformers.models.bloom import modeling_bloom
    from transformers.models.mpt import modeling_mpt
    from transformers.models.t5 import modeling_t5
except ImportError as error:
    raise ImportError(
        "kerple.transformers needs transformers 4.56 or later: pip install 'kerple[transformers]'"
    ) from error

try:  # newer than the oldest version that is taken
    from transformers.models.inkling import modeling_inkling
except ImportError:
    modeling_inkling = None
try:
    from transformers.masking_utils import packed_sequence_compatibility_function
except ImportError:
    packed_sequence_compatibility_function = None

from .torch import attention
from .torch._documents import whole_numbers

NAME = "kerple"
_WINDOW = sliding_window_causal_mask_function(1)
_OVERLAY = inspect.getclosurevars(_WINDOW).nonlocals["mask_functions"][0]
#: The library's own mask of packed positions, in its two parts.
_PACKED = packed_sequence_compatibility_function and packed_sequence_compatibility_function(
    causal_mask_function, torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64)
)

#: Arguments that models pass to every attention and that do not change what it computes.
_WITHOUT_BEARING = frozenset(
    {
        "cache_position",
        "deterministic",
        "is_causal",
        "layer_idx",
        "logits_to_keep",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "past_key_value",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


class Sight(Tensor):
    """The attention mask: which keys queries attend to, in place of a mask of all pairs.

    It contains no numbers. It is a tensor of four dimensions because models pass masks on as such,
    and it stays unchanged where they convert one. A model that computes with its mask is refused.
    """

    #: None in a tensor that PyTorch computed from a mask.
    causal: bool | None = None
    #: Queries attend only to keys with ``|d| < window``.
    window: int | None
    #: Number of keys that count; the last query is at the position of the last of them. None: all.
    keys: int | None
    #: Number of keys that the mask covers, with those of a cache that are still empty; None: any.
    covered: int | None
    #: The first key of each sequence and one after its last, ``[B]``; None: no padding.
    starts: Tensor | None
    ends: Tensor | None
    #: The number of each key's packed document, ``[B, K]``, -1 for padding; None: no documents.
    documents: Tensor | None
    #: What the first layer of a pass read, so that others need not wait for a GPU: cumulative lengths with
    #: their documents, and positions.
    read_documents: tuple[Tensor, Tensor] | None
    read_positions: Tensor | None
    #: The first key of each query and one after its last, ``[B, Q]`` each, in place of all else; None: no intervals.
    intervals: tuple[Tensor, Tensor] | None

    @staticmethod
    def of(
        causal: bool,
        window: int | None,
        keys: int | None,
        starts: Tensor | None,
        ends: Tensor | None,
        documents: Tensor | None = None,
        intervals: tuple[Tensor, Tensor] | None = None,
        covered: int | None = None,
    ) -> Sight:
        sight = torch.empty(1, 1, 0, 0).as_subclass(Sight)
        sight.causal, sight.window, sight.keys, sight.starts, sight.ends = causal, window, keys, starts, ends
        sight.documents, sight.intervals, sight.covered = documents, intervals, covered
        sight.read_documents, sight.read_positions = None, None
        return sight

    def to(self, *_: object, **__: object) -> Sight:
        return self

    def contiguous(self, *_: object, **__: object) -> Sight:
        return self

    def detach(self) -> Sight:
        return self

    def _computed(self, *_: object, **__: object) -> NoReturn:
        raise _refuse("the model computes with its attention mask, which is not a matrix of all pairs here")

    __getitem__ = __add__ = __radd__ = __mul__ = __rmul__ = __and__ = __rand__ = __or__ = __ror__ = __invert__ = _computed
    masked_fill = expand = repeat = reshape = view = repeat_interleave = _computed


class RowBias(Tensor):
    """A relative bias per row, as :func:`~kerple.torch.attention` takes it, in place of one of all pairs.

    It contains no numbers. Inkling multiplies its bias by a factor per row, and converts it before and
    after.
    """

    #: ``[B, H, Q, R]`` and ``[R, E]``.
    relative: tuple[Tensor, Tensor]

    @staticmethod
    def of(rows: Tensor, profiles: Tensor) -> RowBias:
        bias = torch.empty(1, 1, 0, 0).as_subclass(RowBias)
        bias.relative = rows, profiles
        return bias

    def __mul__(self, factor: Tensor) -> RowBias:
        rows, profiles = self.relative
        return RowBias.of(rows * factor, profiles)

    def float(self, *_: object, **__: object) -> RowBias:
        return self

    def to(self, *_: object, **__: object) -> RowBias:
        return self


def _refuse(what: str, instead: str = "use attn_implementation='eager' for it") -> ValueError:
    return ValueError(f"attn_implementation='{NAME}': {what}; {instead}")


def _spans(mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Start and end of each sequence of a 2D mask, ``[B, K]``."""
    mask = mask.to(device="cpu", dtype=torch.bool)
    if bool(mask.all()):
        return None, None
    keys, count = mask.shape[1], mask.sum(1)
    starts = torch.where(count > 0, mask.int().argmax(1), 0)
    ends = torch.where(count > 0, keys - mask.flip(1).int().argmax(1), 0)
    holes = (ends - starts != count).nonzero().flatten().tolist()
    if holes:
        raise _refuse(
            f"the attention mask of sequence {holes[0]} hides keys between others, only both ends may be hidden"
        )
    return starts if bool(starts.any()) else None, ends


#: Pairs of a mask function that are compared at once.
_PAIRS = 1 << 22


def _held(function: Callable, of: Callable) -> dict[str, Any]:
    """The closure of a function that has the code of another one; nothing of one that does not."""
    is_alike = inspect.isfunction(function) and function.__code__ is of.__code__
    return dict(inspect.getclosurevars(function).nonlocals) if is_alike else {}


def _is_window(mask_function: Callable, window: int | None) -> bool:
    """Whether the function is the library's own causal window, by its code and closure."""
    parts = _held(mask_function, _WINDOW).get("mask_functions", ())
    if window is None or len(parts) != 2:
        return False
    overlay, causal = parts
    return causal is causal_mask_function and _held(overlay, _OVERLAY).get("sliding_window") == window


def _packed(mask_function: Callable, batch: int, tokens: int, window: int | None) -> Tensor | None:
    """The documents of the library's own mask of packed positions, ``[B, L]``, by its code and closure; None
    where it is another function.

    Within a document its positions rise by 1, so that their distances are those of the tokens.
    """
    parts = _held(mask_function, _PACKED).get("mask_functions", ()) if _PACKED else ()
    if len(parts) != 2:
        return None
    same, remapped = (_held(*pair) for pair in zip(parts, _held(_PACKED, _PACKED)["mask_functions"], strict=True))
    ids, positions, inner = same.get("packed_sequence_mask"), remapped.get("position_ids"), remapped.get("mask_function")
    if not (_is_window(inner, window) if window else inner is causal_mask_function):
        return None
    if any(x is None or x.shape != (batch, tokens) for x in (ids, positions)):
        return None
    steps, begins = ids.cpu().diff(), positions.cpu().diff() != 1
    if bool((steps < 0).any()) or not torch.equal(steps > 0, begins):
        return None
    return functional.pad(begins.cumsum(1), (1, 0))


def _sees(mask_function: Callable, sizes: tuple[int, int, int], offsets: tuple[int, int], window: int | None) -> bool:
    """Whether a mask function equals a causal mask or window at every pair."""
    if _is_window(mask_function, window):
        return True
    batch, queries, keys = sizes
    step = max(1, _PAIRS // max(1, keys))
    k = torch.arange(keys, device="cpu")[None] + offsets[1]
    for first in range(0, queries, step):
        q = torch.arange(first, min(first + step, queries), device="cpu")[:, None] + offsets[0]
        d = q - k
        want = (d >= 0) & (d < window) if window else d >= 0
        if not all(torch.equal(mask_function(b, 0, q, k).cpu().expand_as(want), want) for b in range(batch)):
            return False
    return True


def _documents(mask_function: Callable, batch: int, tokens: int, window: int | None) -> Tensor | None:
    """The documents of a mask function, ``[B, L]``; None where it is no mask of packed documents.

    A document begins wherever a token does not see the one before it. The rule is then compared with
    the function at every pair.
    """
    at = torch.arange(tokens, device="cpu")
    ids = torch.zeros(batch, tokens, dtype=torch.int64, device="cpu")
    for b, own in enumerate(ids):
        begins = ~mask_function(b, 0, at[1:], at[:-1]).cpu().expand(max(tokens - 1, 0))
        own[1:] = begins.cumsum(0)
        for some in at.split(max(1, _PAIRS // max(1, tokens))):
            d = some[:, None] - at
            want = (d >= 0) & (own[some][:, None] == own)
            if window:
                want &= d < window
            if not torch.equal(mask_function(b, 0, some[:, None], at[None]).cpu().expand_as(want), want):
                return None
    return ids


def _intervals(mask_function: Callable, batch: int, tokens: int, keys: int) -> tuple[Tensor, Tensor] | None:
    """The interval of keys of each query of a mask function, ``[B, Q]`` bounds; None where rows are no
    intervals with the query's own key in them.

    Both ends are found by bisection, and then compared with the function at every pair.
    """
    at = torch.arange(tokens, device="cpu")
    starts, ends = (torch.zeros(batch, tokens, dtype=torch.int64, device="cpu") for _ in range(2))
    for b in range(batch):
        def sees(q: Tensor, k: Tensor, b: int = b) -> Tensor:
            return torch.as_tensor(mask_function(b, 0, q, k)).cpu().expand(torch.broadcast_shapes(q.shape, k.shape))

        if not bool(sees(at, at).all()):
            return None
        low, first = torch.zeros_like(at), at
        last, high = at, torch.full_like(at, tokens - 1)
        for _ in range(tokens.bit_length()):
            before, behind = (low + first) // 2, (last + high + 1) // 2
            seen = sees(at, before)
            low, first = torch.where(seen, low, torch.minimum(before + 1, first)), torch.where(seen, before, first)
            seen = sees(at, behind)
            last, high = torch.where(seen, behind, last), torch.where(seen, high, torch.maximum(behind - 1, last))
        starts[b], ends[b] = first, last + 1
        of_keys = torch.arange(keys, device="cpu")
        for some in at.split(max(1, _PAIRS // max(1, keys))):
            want = (of_keys >= first[some][:, None]) & (of_keys <= last[some][:, None])
            if not torch.equal(sees(some[:, None], of_keys[None]), want):
                return None
    return starts, ends


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> Sight:
    """Builds the mask for ``kerple``'s attention; transformers calls it once per pass.

    Masks are examined on the processor, and what they say is where attention reads it: with GPU tensors on
    ``device``.
    """
    q_offset = int(q_offset)
    if attention_mask is not None and (attention_mask.dim() != 2 or attention_mask.shape[0] != batch_size):
        raise _refuse(
            f"an attention mask of shape {tuple(attention_mask.shape)} for {batch_size} sequences",
            f"use one of [B, K] with B = {batch_size}, or none",
        )
    causal, window = mask_function is not bidirectional_mask_function, None
    documents = intervals = None
    if causal and mask_function is not causal_mask_function:
        window = local_size
        if q_offset == kv_offset == 0 and q_length == kv_length:
            documents = _packed(mask_function, batch_size, q_length, window)
        if documents is None and not _sees(mask_function, (batch_size, q_length, kv_length), (q_offset, kv_offset), window):
            if q_offset == kv_offset == 0 and q_length == kv_length:
                documents = _documents(mask_function, batch_size, q_length, window)
            if documents is None and q_offset == kv_offset == 0 and q_length <= kv_length:
                intervals = _intervals(mask_function, batch_size, q_length, kv_length)
            if documents is None and intervals is None:
                raise _refuse(
                    "this model's mask is neither causal, nor a window, nor of packed documents, nor one interval of keys per "
                    "query that includes its own, from the first token on"
                )
    keys = min(kv_length, q_offset + q_length - kv_offset) if causal else kv_length
    starts = ends = None
    if attention_mask is not None:
        columns = attention_mask[:, kv_offset : kv_offset + keys]
        starts, ends = _spans(columns)
        if columns.shape[1] < keys and ends is None:
            ends = torch.full((batch_size,), columns.shape[1])
    if documents is not None:
        if starts is not None:
            raise _refuse("an attention mask that hides keys before packed documents", "pad behind them")
        if ends is not None:
            documents, ends = documents.masked_fill(torch.arange(keys, device="cpu") >= ends[:, None], -1), None
    if device is None:
        device = torch.device("cpu") if attention_mask is None else attention_mask.device
    if intervals is not None:
        first, last = intervals
        first = first if starts is None else torch.maximum(first, starts[:, None])
        last = last if ends is None else torch.minimum(last, ends[:, None])
        first, last = (whole_numbers("intervals", x, device) for x in (first, last))
        return Sight.of(False, None, keys, None, None, None, (first, last), kv_length)
    told = (whole_numbers(name, x, device) for name, x in (("starts", starts), ("ends", ends), ("documents", documents)))
    return Sight.of(causal, window, keys, *told, covered=kv_length)


def _told_documents(options: dict[str, Any], sight: Sight, queries: int, keys: int, batch: int) -> Tensor | None:
    """The documents that ``cu_seq_lens_q`` and ``cu_seq_lens_k`` say, or those of the mask."""
    given = {name: options.pop(f"cu_seq_lens_{name}", None) for name in "qk"}
    for name in ("max_length_q", "max_length_k", "seq_idx"):
        options.pop(name, None)
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return sight.documents
    if batch != 1:
        raise _refuse(f"cu_seq_lens_q and cu_seq_lens_k of {batch} rows", "flatten the batch to one row")
    if sight.starts is not None or sight.ends is not None:
        raise _refuse("cu_seq_lens beside an attention mask that hides keys", "leave out the mask and its tokens")
    told = next(iter(given.values()))
    if sight.read_documents is not None and sight.read_documents[0] is told:
        return sight.read_documents[1]
    cumulative = told.to(device="cpu", dtype=torch.int64)
    if any(not torch.equal(value.cpu().to(torch.int64), cumulative) for value in given.values()) or queries != keys:
        raise _refuse("cu_seq_lens_q and cu_seq_lens_k that differ")
    if cumulative.dim() != 1 or cumulative.numel() == 0 or cumulative[0] != 0 or cumulative[-1] != keys:
        raise _refuse(f"cu_seq_lens of {cumulative.tolist()} for {keys} tokens", "they begin with 0 and end there")
    if bool((cumulative.diff() < 0).any()):
        raise _refuse(f"cu_seq_lens of {cumulative.tolist()}, which decrease", "give cumulative lengths")
    documents = torch.searchsorted(cumulative[1:].contiguous(), torch.arange(keys, device="cpu"), right=True)[None]
    own = sight.documents
    if own is not None and not torch.equal(own.cpu().diff() != 0, documents.diff() != 0):
        raise _refuse("cu_seq_lens that are not the documents of position_ids", "give one of the two")
    sight.read_documents = told, whole_numbers("documents", documents, told.device)
    return sight.read_documents[1]


def _warn_of_restarts(position_ids: Tensor | None, tokens: int, sight: Sight) -> None:
    """Positions that restart usually mean documents, which the library packs only without a mask and a cache."""
    if position_ids is None or position_ids.dim() != 2 or position_ids.shape[1] != tokens:
        return
    if sight.read_positions is position_ids:
        return
    sight.read_positions = position_ids
    restarts = (position_ids.diff() != 1).nonzero()
    if len(restarts) > 0:
        warnings.warn(
            f"positions restart at token {int(restarts[0, 1]) + 1} but documents see each other: "
            "pass use_cache=False and no attention_mask",
            stacklevel=3,
        )


def _check(options: dict[str, Any]) -> None:
    if options.pop("output_attentions", None):
        raise _refuse("output_attentions: attention probabilities are never stored")
    for name, value in options.items():
        if value is not None and name not in _WITHOUT_BEARING:
            raise _refuse(f"the model hands {name} to attention, which is not known here")


def _check_covered(sight: Sight, key: Tensor) -> None:
    """Of a mask with more or fewer columns than there are keys, it is not known which tokens they are."""
    if sight.covered is not None and sight.covered != key.shape[2]:
        raise _refuse(
            f"an attention mask of {sight.covered} columns for {key.shape[2]} keys", "give it one column per token, or leave it out"
        )


def _bias_of(position_bias: Tensor, sight: Sight, queries: int, keys: int) -> Tensor | None:
    """A bias per pair, ``[1, H, Q, K]``, as a bias per distance; T5's already is one, ``[H, L]``."""
    if position_bias.dim() == 2:
        return position_bias
    if tuple(position_bias.shape[-2:]) != (queries, keys) or position_bias.shape[0] != 1:
        raise _refuse(f"position_bias: expected [1, H, {queries}, {keys}], got {tuple(position_bias.shape)}")
    behind = position_bias[0, :, -1].flip(-1)  # of the last query, from distance 0 on
    if not sight.causal:
        longest = max(queries, keys)
        if queries != keys:
            if bool(position_bias.any()):
                raise _refuse(f"a position_bias of {queries} queries and {keys} keys")
            return None
        ahead = position_bias[0, :, 0].flip(-1)  # of the first query, up to distance 0
        behind = torch.cat([ahead[:, : longest - 1], behind], 1)
    with torch.no_grad():
        origin = 0 if sight.causal else keys - 1
        on = position_bias.device
        d = torch.arange(keys - queries, keys, device=on)[:, None] - torch.arange(keys, device=on)
        seen = (d >= 0) if sight.causal else torch.ones_like(d, dtype=torch.bool)
        spread = behind[:, (origin + d).clamp(0, behind.shape[1] - 1)]
        if not torch.equal(spread.where(seen, 0), position_bias[0].where(seen, 0)):
            raise _refuse("position_bias is no function of distance")
    return behind


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Sight | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention that transformers calls: ``[B, H, Q, D]`` queries to ``[B, Q, H, D]``."""
    told = options.get("is_causal")
    sight = attention_mask
    if sight is None:
        causal = getattr(module, "is_causal", True) if told is None else told
        sight = Sight.of(bool(causal), None, None, None, None)
    if not isinstance(sight, Sight):
        raise _refuse(
            f"a mask of shape {tuple(sight.shape)}; masks of pairs are not taken", "use one of [B, K], or none"
        )
    if sight.causal is None:
        sight._computed()
    relative = None
    if isinstance(position_bias, RowBias):
        relative, position_bias = position_bias.relative, None
    _check_covered(sight, key)
    if sight.keys is not None and sight.keys < key.shape[2]:
        key, value = key[:, :, : sight.keys], value[:, :, : sight.keys]
        if position_bias is not None and position_bias.dim() == 4 and position_bias.shape[-2] == query.shape[2] > 1:
            position_bias = position_bias[..., : sight.keys]
    bias = None
    if position_bias is not None:
        bias = _bias_of(position_bias, sight, query.shape[2], key.shape[2])
    documents = _told_documents(options, sight, query.shape[2], key.shape[2], query.shape[0])
    _check(options)
    if documents is None and sight.causal and sight.starts is None and sight.ends is None:
        _warn_of_restarts(options.get("position_ids"), key.shape[2], sight)
    out = _call(
        query, key, value, sight, sliding_window, documents, bias=bias, relative=relative, scale=scaling, softcap=softcap,
        sinks=s_aux, dropout_p=dropout,
    )  # fmt: skip
    return out, None


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sight: Sight,
    window: int | None = None,
    documents: Tensor | None = None,
    **options: Any,
) -> Tensor:
    if sight.window is not None:
        window = sight.window
    features, of_values = query.shape[-1], value.shape[-1]
    if options.get("scale") is None:
        options["scale"] = 1 / math.sqrt(features)
    if of_values < features:
        value = functional.pad(value, (0, features - of_values))
    elif of_values > features:
        query, key = (functional.pad(x, (0, of_values - features)) for x in (query, key))
    documents = sight.documents if documents is None else documents
    keys = {"key_starts": sight.starts, "key_lengths": sight.ends, "document_ids": documents}
    if sight.intervals is not None:
        if options.get("bias") is not None or options.get("relative") is not None:
            raise _refuse("a bias by distance beside a mask with keys after the query")
        if documents is not None:
            raise _refuse("cu_seq_lens beside a mask that is not causal", "give one of the two")
        # the intervals tell the window as well
        window, keys = None, dict(zip(("key_starts", "key_ends"), sight.intervals, strict=True))
    out = attention(query, key, value, causal=sight.causal, window=window, **keys, **options)
    return out[..., :of_values].transpose(1, 2)


def _bloom_forward(
    self,
    hidden_states,
    residual,
    alibi,
    attention_mask,
    layer_past=None,
    use_cache=False,
    output_attentions=False,
    **kwargs,
):
    if not isinstance(attention_mask, Sight):
        return _before["bloom"](
            self, hidden_states, residual, alibi, attention_mask, layer_past, use_cache, output_attentions, **kwargs
        )
    if self.pretraining_tp > 1 and self.slow_but_exact:
        raise _refuse("BLOOM with pretraining_tp > 1 and slow_but_exact")
    dropout = self.attention_dropout.p if self.training else 0.0
    _check({"output_attentions": output_attentions})
    query, key, value = self._reshape(self.query_key_value(hidden_states))
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_idx)
    _check_covered(attention_mask, key)
    key, value = (x[:, :, : attention_mask.keys] for x in (key, value))
    # slope * j differs by a constant per row from slope * (j - i), and the softmax ignores it
    slopes = modeling_bloom._get_alibi_slopes(self.num_heads, hidden_states.device).to(torch.float32)
    nearest = 0 if attention_mask.causal else 1 - key.shape[2]
    bias = -slopes[:, None] * torch.arange(nearest, key.shape[2], device=slopes.device)
    out = _call(query, key, value, attention_mask, bias=bias, scale=self.inv_norm_factor, dropout_p=dropout)
    out = self.dense(out.flatten(2))
    return modeling_bloom.dropout_add(out, residual, self.hidden_dropout, self.training), None


def _mpt_forward(self, hidden_states, position_bias, past_key_values=None, attention_mask=None, **kwargs):
    if not isinstance(attention_mask, Sight):
        return _before["mpt"](self, hidden_states, position_bias, past_key_values, attention_mask, **kwargs)
    dropout = self.attn_dropout_p if self.training else 0.0
    batch, length = hidden_states.shape[:2]
    mixed = self.Wqkv(hidden_states)
    if self.clip_qkv:
        mixed = mixed.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    query, key, value = (
        x.view(batch, length, self.n_heads, self.head_dim).transpose(1, 2) for x in mixed.chunk(3, dim=2)
    )
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, self.layer_idx)
    _check_covered(attention_mask, key)
    key, value = (x[:, :, : attention_mask.keys] for x in (key, value))
    # of the last query of the longest sequence: from distance 0 on when read from its end
    bias = None if position_bias is None else position_bias[:, -1].flip(-1)
    out = _call(query, key, value, attention_mask, bias=bias, scale=self.softmax_scale, dropout_p=dropout)
    return self.out_proj(out.flatten(2)), None


def _t5_bias(self, query_length, key_length, device=None, past_seen_tokens=0):
    if self.config._attn_implementation != NAME:
        return _before["t5"](self, query_length, key_length, device, past_seen_tokens)
    longest = max(query_length, key_length)
    d = torch.arange(0 if self.is_decoder else 1 - longest, longest, device=self.relative_attention_bias.weight.device)
    bucket = self._relative_position_bucket(
        -d,
        bidirectional=not self.is_decoder,
        num_buckets=self.relative_attention_num_buckets,
        max_distance=self.relative_attention_max_distance,
    )
    return self.relative_attention_bias(bucket).T


def _inkling_forward(self, *arguments, **options):
    self.rel_logits_proj._kerple_rows = self.config._attn_implementation == NAME
    return _before["inkling"](self, *arguments, **options)


def _inkling_bias(self, relative_states, query_positions, key_positions):
    if not getattr(self, "_kerple_rows", False):
        return _before["inkling_bias"](self, relative_states, query_positions, key_positions)
    return RowBias.of(relative_states.transpose(1, 2), self.proj)


#: Kinds of models whose own attention this module patches.
_TAUGHT = frozenset({"bloom", "inkling_text", "mpt", "t5"})
#: Kinds that call the interface with masks that they modify.
_OWN_MASKS = frozenset({"doge"})


def _checked(self, attn_implementation, *arguments, **options):
    if attn_implementation == NAME:
        kind = getattr(self.config, "model_type", "") or type(self).__name__
        if kind in _OWN_MASKS:
            raise _refuse(f"models of kind {kind} make masks of pairs of their own, which are not taken")
        if not self._supports_attention_backend and kind not in _TAUGHT:
            raise _refuse(
                f"models of kind {kind} do not call the library's attention interface; those that do are taken, "
                f"and {', '.join(sorted(_TAUGHT))}"
            )
    return _before["check"](self, attn_implementation, *arguments, **options)


_before: dict[str, Callable] = {}


def register() -> None:
    """Registers ``attn_implementation="kerple"``; importing this module does it."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)
    of_inkling = modeling_inkling and (
        ("inkling", modeling_inkling.InklingAttention, "forward", _inkling_forward),
        ("inkling_bias", modeling_inkling.InklingRelativeLogits, "forward", _inkling_bias),
    )
    for name, owner, attribute, ours in (
        *(of_inkling or ()),
        ("bloom", modeling_bloom.BloomAttention, "forward", _bloom_forward),
        ("mpt", modeling_mpt.MptAttention, "forward", _mpt_forward),
        ("t5", modeling_t5.T5Attention, "compute_bias", _t5_bias),
        ("check", PreTrainedModel, "_check_and_adjust_attn_implementation", _checked),
    ):
        if name not in _before:
            _before[name] = getattr(owner, attribute)
            setattr(owner, attribute, ours)


register()
