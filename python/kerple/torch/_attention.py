"""Exact attention with a learned bias over distances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from .._renamed import refuse_arguments
from . import _maps
from ._checks import HALF, check_device, check_tensor, scale_of, softcap_of
from ._documents import documents_of, limits_of, positions_of, sums_after, whole_numbers
from ._gpu import DEVICES, dropout_bound, prefix_sums
from ._ops import call
from ._positions import learned_of

def check_qkv(q: object, k: object, v: object) -> tuple[torch.dtype, torch.dtype]:
    """Refuses unsupported inputs; returns the types of the result and of the computation."""
    check_tensor("q", q)
    check_tensor("k", k, q)
    check_tensor("v", v, q)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{name}: expected [B, H, L, D], got shape {tuple(x.shape)}")
    return q.dtype, torch.float32 if q.dtype in HALF else q.dtype


def as_autocast(*inputs: object) -> tuple:
    """The inputs as autocast passes them to ``scaled_dot_product_attention``: all but float64 are
    cast to its type.
    """
    of = inputs[0].device.type if isinstance(inputs[0], Tensor) else "cpu"
    if of == "meta" or not torch.is_autocast_enabled(of):
        return inputs
    to = torch.get_autocast_dtype(of)
    cast = lambda x: isinstance(x, Tensor) and x.device.type == of and x.dtype in (torch.float32, *HALF)  # noqa: E731
    return tuple(x.to(to) if cast(x) else x for x in inputs)


def beside(name: str, x: object, q: Tensor, dtype: torch.dtype) -> Tensor | None:
    if x is None:
        return None
    check_tensor(name, x)
    check_device(name, x, q)
    return x if x.dtype == dtype else x.to(dtype)


#: The lowest gate, as in the engine: it lets nothing through, and sums that contain it are exact
#: within 1e-11.
_RESET = -65536.0


def gates_of(
    gates: object, heads: int, k: Tensor, starts: Tensor | None, ends: Tensor | None, documents: Tensor | None = None
) -> Tensor:
    """Gates in f64: those of padding and the first of each document become 0, whatever their value,
    since nothing of a document is before them; and none is below the one that lets nothing through.
    """
    check_tensor("gates", gates)
    check_device("gates", gates, k)
    batch, _, keys, _ = k.shape
    if gates.shape != (batch, heads, keys):
        raise ValueError(f"gates: expected [B, H, K] = {[batch, heads, keys]}, got shape {tuple(gates.shape)}")
    at, padding = torch.arange(keys, device=gates.device), None
    for of, outside in ((starts, lambda limit: at < limit), (ends, lambda limit: at >= limit)):
        if of is not None and of.shape == (batch,):
            own = outside(of[:, None, None])
            padding = own if padding is None else padding | own
    if documents is not None:
        padding = (positions_of(documents, keys) == 0)[:, None]
        if documents.dim() == 2:
            padding = padding | (documents < 0)[:, None]
    if padding is not None:
        gates = gates.masked_fill(padding, 0.0)
    return gates.to(torch.float64).clamp(min=_RESET)


def clocks_of(
    gates: object, heads: int, k: Tensor, starts: Tensor | None, ends: Tensor | None, documents: Tensor | None = None
) -> Tensor | None:
    """Cumulative gates in f64, counted from the last key.

    Attention only uses their differences. Counting from the last key, of packed documents that of each, makes the
    gradient of a gate the sum of the gradients of earlier cumulative gates, which is exact from the first one on.
    """
    if gates is None:
        return None
    gates = gates_of(gates, heads, k, starts, ends, documents)
    if documents is not None:
        return -sums_after(gates, documents)
    behind = gates.flip(-1)
    behind = (prefix_sums(behind) if k.device.type in DEVICES else behind.cumsum(-1)).flip(-1)
    return -torch.nn.functional.pad(behind, (0, 1))[..., 1:]


def relative_of(relative: object, q: Tensor, dtype: torch.dtype, causal: object) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Rows and profiles of a relative bias in the type of the computation, after all checks."""
    if relative is None:
        return None, None
    if not isinstance(relative, (tuple, list)) or len(relative) != 2:
        raise TypeError("relative: expected the two tensors (r, P), rows [B, H, Q, R] and profiles [R, E]")
    rows, profiles = (beside(f"relative[{at}]", x, q, dtype) for at, x in enumerate(relative))
    if rows is None or profiles is None:
        raise TypeError("relative: r and P must both be tensors, got None")
    batch, heads, queries, _ = q.shape
    if rows.dim() != 4 or rows.shape[:3] != (batch, heads, queries):
        expected = [batch, heads, queries]
        raise ValueError(f"relative[0]: expected [B, H, Q, R] with B, H, Q = {expected}, got shape {tuple(rows.shape)}")
    if profiles.dim() != 2 or profiles.shape[0] != rows.shape[3]:
        raise ValueError(f"relative[1]: expected [R, E] with R = {rows.shape[3]}, got shape {tuple(profiles.shape)}")
    if profiles.shape[0] == 0 or profiles.shape[1] == 0:
        raise ValueError(f"relative[1]: rank and reach must be at least 1, got shape {tuple(profiles.shape)}")
    if not causal:
        raise ValueError("relative: a bias per row is over distances to earlier keys; use causal=True")
    return rows, profiles


def dropout_of(p: object, seed: object, q: Tensor) -> tuple[float, Tensor | None]:
    """The probability, and where it is above 0 the seed as the operation takes it: one int64 where q is.

    Without a seed one is drawn by torch's generator of the device, which does not wait for it, and which activation
    checkpointing sets back before it computes a layer again.
    """
    if isinstance(p, bool) or not isinstance(p, (int, float)):
        raise TypeError(f"dropout_p = {p!r} must be a number from 0 to below 1")
    if not 0 <= p < 1:
        raise ValueError(f"dropout_p = {p} must be at least 0 and below 1")
    if isinstance(seed, Tensor):
        check_device("dropout_seed", seed, q)
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise ValueError(f"dropout_seed: expected one int64, got shape {tuple(seed.shape)} of {seed.dtype}")
    elif seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__")):
        raise TypeError(f"dropout_seed = {seed!r} must be a whole number, a tensor of one, or None")
    elif seed is not None and not 0 <= seed < 2**63:
        raise ValueError(f"dropout_seed = {seed} must be at least 0 and below 2^63")
    if p == 0:
        return 0.0, None
    if seed is None:
        return float(p), torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=q.device)
    if isinstance(seed, Tensor):
        return float(p), seed.reshape(1)
    return float(p), torch.full((1,), int(seed), dtype=torch.int64, device=q.device)


def flag(name: str, value: object) -> bool:
    """A switch; a text or a number that happens to be true is a mistake."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} = {value!r} must be True or False")
    return value


def _count(name: str, value: object, none: str) -> int | None:
    """A number of keys; True would be 1 key."""
    if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
        raise TypeError(f"{name} = {value!r} must be a whole number of keys, or None for {none}")
    return value


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    weight: Tensor | None = None,
    causal: bool = True,
    window: int | None = None,
    sink_tokens: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    gates: Tensor | None = None,
    relative: tuple[Tensor, Tensor] | None = None,
    positions: Tensor | None = None,
    position_kernel: tuple[str, Tensor] | None = None,
    angles: Tensor | None = None,
    decays: Tensor | None = None,
    path_bias: tuple[Tensor, Tensor, Sequence[float]] | None = None,
    householder: tuple[Tensor, Tensor] | None = None,
    key_lengths: Tensor | Sequence[int] | None = None,
    key_starts: Tensor | Sequence[int] | Sequence[Sequence[int]] | None = None,
    key_ends: Tensor | Sequence[Sequence[int]] | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    document_ids: Tensor | Sequence[Sequence[int]] | None = None,
    dropout_p: float = 0.0,
    dropout_seed: Tensor | int | None = None,
    **unknown: NoReturn,
) -> Tensor:
    """``softmax(scale * q k^T * weight[i - j] + bias[i - j]) v``, exactly, in memory linear in the
    lengths.

    Query ``i`` of ``Q`` is at position ``K - Q + i``, so the last query is at the position of the
    last key; ``d = i - j`` is the distance between positions. A query that may not attend to any
    key returns zeros. Gradients reach ``q, k, v``, ``bias``, ``weight``, ``sinks``, ``gates``,
    ``relative``, ``positions`` and the parameters of their kernel, ``angles``, ``decays``, ``path_bias`` and ``householder``. Results are bitwise equal at any number of threads; the number is torch's.

    Args:
        q: ``[B, H, Q, D]``, float32 or float64, on the processor or, through Triton, on a GPU with D
            up to 256. Any strides with contiguous features are read in place. float16 and bfloat16
            are computed in float32 and cast back; on GPUs only sums and tables are float32. Under
            autocast q, k and v are cast as for ``scaled_dot_product_attention``.
        k, v: ``[B, G, K, D]`` and ``[B, G, K, E]``, where G divides H (grouped-query attention): query
            head h reads key head ``h // (H // G)``. The result is ``[B, H, Q, E]``. GPUs pad the narrower
            of D and E.
        bias: added to scaled scores, ``[H, L]`` over distances ``0..L - 1`` with ``L >= K``;
            without ``causal`` it is ``[H, 2 L - 1]`` over ``-(L - 1)..L - 1``, ``L >= max(Q, K)``,
            see :func:`symmetric`.
        weight: multiplies scaled scores; same shape as ``bias``.
        causal: a query attends to itself and earlier keys only. Unlike in
            ``scaled_dot_product_attention`` it is the default.
        window: a query attends only to keys with ``|d| < window``; None is no limit.
        sink_tokens: with ``causal`` and a window, a query also attends to the first ``sink_tokens`` keys, at their
            distances, as in StreamingLLM: to key j where ``d < window`` or ``j < sink_tokens``. They are counted after
            padding before a sequence, and within each packed document. At most 65536. Time follows the window and these
            keys. Neither intervals of keys per query nor score modifications support it. ``sinks`` is another thing.
        scale: multiplies ``q k^T``; ``1 / sqrt(D)`` by default. A number: to learn it, multiply q by it.
        softcap: scaled scores become ``softcap tanh(s / softcap)`` before anything else.
        sinks: attention sinks, an extra logit per head without a value, ``[H]``.
        gates: log gates, ``[B, H, K]``: how much of the tokens before it each token lets through.
            The sum of the gates after key j, up to the query's own, is added to the score of key j;
            without ``causal`` the sum between the two, and no gate may be above 0. Sums are
            float64. There may not be more queries than keys. A gate of -65536 or less, including
            -inf, lets nothing through, and gates of padding are not read.
        relative: rows and profiles ``(r, P)`` of a bias that each query computes from its own features,
            as in Inkling: ``r[b, h, i] . P[:, i - j]`` is added to the scores of keys at distances below
            E, and others keep theirs. r is ``[B, H, Q, R]``, with any strides that leave its last
            dimension contiguous, and P is ``[R, E]``, shared by heads. Beside halves both are float32.
            With ``causal`` only, and on GPUs with R up to 64. ``[Q, K]`` and ``[Q, E]`` never exist.
        positions: learned positions x of all keys, ``[B, H, K]`` in float64: running sums of steps of at
            least 0, as of ``torch.cumsum``. Only their differences count, so in packed documents they may
            restart. The score of a pair gains ``k(|x_i - x_j|)``. There may not be more queries than keys,
            nor a relative bias. Positions of padding are not read. On GPUs it is not checked that they do
            not fall.
        position_kernel: the name of k and its parameters per head, ``[H, P]``: ``("log", r1 and r2)`` is
            ``-r1 ln(1 + r2 u)``, ``("power", r1 and p)`` is ``-r1 u^p``, ``("log3", r1, r2 and p)`` is
            ``-r1 ln(1 + r2 u^p)``, and ``("spline", a_0 to a_M)`` is ``-a_0 u - sum of a_m min(u, 2^(m - 1))``
            with up to 24 knots. No parameter but a spline's may be 0, since gradients divide by them. Where
            positions coincide, k and an infinite derivative of it count as 0.
        angles: turns the pairs ``(x[n], x[n + D/2])`` of queries and keys by content (selective RoPE), ``[B, H, K, D/2]`` in
            float64: running sums over tokens, of which only differences count. The last Q are those of queries.
        decays: log decays of each feature, ``[B, H, K, D]``, at most 0 (Wall): the product of a feature of query
            and key is multiplied by ``e^(P_i - P_j)``, where P sums the decays in float64. This argument and the next two
            exclude each other, need ``causal`` and as many keys as queries or more, and are computed on the processor.
            They combine with scale, softcap, a window, sinks, ``key_lengths`` and packed documents, and refuse the
            other arguments by name. ``decays`` take ``gates`` and ``sink_tokens`` too.
        path_bias: ``(p, r, slopes)`` of a bias that every token between adds to (GRAPE-AP): the score of key j gains the
            sum over n = j + 1 .. i of ``slope_h ln sigmoid(p_i . r_n / E)``. p is ``[B, H, Q, E]``, r ``[B, H, K, E]``, and
            slopes are H numbers. Where documents are packed, sums stay within one. Here and with ``householder`` E of v is D.
        householder: ``(w, beta)`` of products of matrices along the path (PaTH): the product of query and key is
            ``q_i' H_i .. H_(j+1) k_j`` with ``H_t = I - beta_t w_t w_t'``. w is ``[B, G, K, D]`` and beta ``[B, G, K, 1]``, of key
            heads. With ``gates`` it is PaTH-FoX.
        key_lengths: number of keys of each sequence, ``[B]``; later keys are padding.
        key_starts: the first key of each sequence, ``[B]``; earlier keys are padding. With two
            dimensions, ``[B, Q]``, it is the first key that each query may attend to.
        key_ends: one past the last key that each query may attend to, ``[B, Q]``. Each query then
            has one interval of keys, from ``key_starts`` (0 where not given) to ``key_ends`` (K
            where not given); one that is empty sees nothing. With ``causal`` a query attends to
            the earlier keys of its interval, without it to all of them, and tables have both sides.
            Positions are those of the whole row. A prefix language model has ``causal=False`` and
            ``key_ends = max(prefix, i + 1)``. Time follows the lengths of the intervals. Not for
            methods that change scores by more than distance. On GPUs values are not checked, and those
            beyond 0 to K are read as 0 or K.
        cu_seqlens: cumulative lengths ``0, n_0, n_0 + n_1, .., K`` of packed documents, ``[N + 1]``,
            for B = 1. No token attends to another document, positions and distances are those
            within a document, and on the processor results have the bits of each document alone; under
            ``torch.compile`` those with ``gates`` or ``decays`` are the same up to rounding.
            Tables need to reach the longest document only; on GPUs they reach all K keys.
            Jagged nested tensors ``[B, H, L, D]`` are packed documents of one sequence each, and
            give a jagged result: ``torch.nested.nested_tensor([..], layout=torch.jagged)`` of
            ``[L, H, D]`` tensors, transposed by ``.transpose(1, 2)``. The rows of ``relative`` are
            then jagged like q, gates and positions ``[B, H, L]`` like k.
        document_ids: the number of each token's document, ``[B, K]``, where rows hold different
            documents: from 0, never decreasing, -1 for padding after the last document. The last Q
            tokens are the queries. On GPUs the values of ``document_ids`` and ``cu_seqlens`` are
            not checked, since reading them would wait for the device: there each run of equal
            numbers is a document.
        dropout_p: the probability with which the weight of a pair, after the softmax, becomes 0; others are divided by
            ``1 - dropout_p``. As in ``scaled_dot_product_attention`` it always applies: pass 0 in evaluation.
            Which weights are dropped follows from the seed, b, h, and the numbers of query and key in their
            rows alone, see :func:`dropout_mask`: the backward drops the same ones.
        dropout_seed: a number below 2^63, or an int64 tensor of one element where q is. None draws it by torch's
            generator of the device of q, so that activation checkpointing repeats it.

    Returns:
        ``[B, H, Q, E]``, with the memory layout of q.

    Raises:
        TypeError: another type of numbers.
        ValueError: shapes, values or devices; the message names the argument and the limit.
        NotImplementedError: ``decays``, ``path_bias`` or ``householder`` of GPU tensors; forward-mode derivatives.
    """
    if unknown:
        refuse_arguments("attention", unknown)
    if angles is not None:
        if any(isinstance(x, Tensor) and x.is_nested for x in (q, k, v)):
            raise ValueError("angles: jagged tensors are not supported; give rows and cu_seqlens")
        q, k, v = turned(*as_autocast(q, k, v), angles)
    if not (decays is path_bias is householder is None):
        beside_it = {
            "bias": bias, "weight": weight, "relative": relative, "positions": positions, "position_kernel": position_kernel,
            "key_starts": key_starts, "key_ends": key_ends, "dropout_p": dropout_p or None,
        }  # fmt: skip
        return attend_by_content(
            q, k, v, (decays, path_bias, householder), beside_it, gates, sinks, key_lengths, cu_seqlens, document_ids, scale, causal,
            window, sink_tokens, softcap,
        )  # fmt: skip
    if any(isinstance(x, Tensor) and x.is_nested for x in (q, k, v)):
        beside_documents = {
            "key_lengths": key_lengths, "key_starts": key_starts, "key_ends": key_ends, "cu_seqlens": cu_seqlens, "document_ids": document_ids,
        }  # fmt: skip
        dropout = (dropout_p, dropout_seed)
        return _attend_jagged(
            q, k, v, beside_documents, gates, relative, positions, position_kernel, bias, weight, sinks, scale, causal, window, sink_tokens,
            softcap, dropout,
        )  # fmt: skip
    if cu_seqlens is not None or document_ids is not None:
        check_qkv(q, k, v)
    return attend(
        q, k, v, bias, weight, sinks, None, gates, key_starts, key_lengths,
        documents_of(cu_seqlens, document_ids, k, key_starts, key_lengths, key_ends), "", scale, causal, window, sink_tokens, softcap,
        key_ends, relative, (dropout_p, dropout_seed), positions, position_kernel,
    )  # fmt: skip


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    sinks: Tensor | None,
    numbers: Tensor | None,
    gates: Tensor | None,
    key_starts: Tensor | Sequence[int] | None,
    key_lengths: Tensor | Sequence[int] | None,
    documents: Tensor | None,
    encoding: str,
    scale: float | None,
    causal: bool,
    window: int | None,
    sink_tokens: int | None,
    softcap: float | None,
    key_ends: Tensor | Sequence[Sequence[int]] | None = None,
    relative: tuple[Tensor, Tensor] | None = None,
    dropout: tuple[float, Tensor | int | None] = (0.0, None),
    positions: Tensor | None = None,
    position_kernel: tuple[str, Tensor] | None = None,
) -> Tensor:
    """:func:`attention`, also with the score modification or the decay of an encoding."""
    q, k, v = as_autocast(q, k, v)
    of, dtype = check_qkv(q, k, v)
    starts, ends = limits_of(key_starts, key_ends, key_lengths, q)
    if scale is None and q.shape[-1] == 0:
        raise ValueError(f"q: expected [B, H, Q, D] with D at least 1, got shape {tuple(q.shape)}")
    scale = scale_of(scale, q.shape[-1])
    if of != dtype and q.device.type not in DEVICES:  # GPUs multiply halves as they are
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    dropout_p, seed = dropout_of(*dropout, q)
    x, parameters, kernel = learned_of(positions, position_kernel, q.shape[1], k, starts, ends, documents)
    if x is not None and relative is not None:
        raise ValueError("positions: they and a relative bias per row (relative) exclude each other")
    values = v.shape[3]
    if q.device.type in DEVICES and values != q.shape[3]:  # kernels take as many of both
        q, k, v = (torch.nn.functional.pad(x, (0, max(q.shape[3], values) - x.shape[3])) for x in (q, k, v))
    made = call(
        q, k, v, beside("bias", bias, q, dtype), beside("weight", weight, q, dtype), beside("sinks", sinks, q, dtype),
        beside("numbers", numbers, q, dtype), clocks_of(gates, q.shape[1], k, starts, ends, documents),
        *relative_of(relative, q, dtype, causal), x, parameters, starts, ends, documents, seed,
        encoding, scale, flag("causal", causal), _count("window", window, "all"), _count("sink_tokens", sink_tokens, "none"),
        softcap_of(softcap), dropout_p, kernel,
    )  # fmt: skip
    made = made if made.shape[3] == values else made[..., :values]
    return made if made.dtype == of else made.to(of)


def turned(q: Tensor, k: Tensor, v: Tensor, angles: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of each query head, turned by angles of all keys, ``[B, H, K, D/2]``."""
    check_qkv(q, k, v)
    wanted = (q.shape[0], q.shape[1], k.shape[2], q.shape[-1] // 2)
    if angles is not None:
        check_tensor("angles", angles)
        check_device("angles", angles, q)
        if angles.dtype != torch.float64:
            raise TypeError(f"angles: is of {angles.dtype}; running sums need float64: use .double() before they are summed")
    if angles is None or tuple(angles.shape) != wanted:
        given = "none" if angles is None else f"shape {tuple(angles.shape)}"
        raise ValueError(f"angles: expected [B, H, K, D/2] = {list(wanted)}, got {given}; make them of rows, with `angles(rows)`")
    if q.shape[-1] % 2:
        raise ValueError(f"angles: they turn pairs of features, and q has {q.shape[-1]} features per head")
    if q.shape[2] > k.shape[2]:
        raise ValueError(f"q: {q.shape[2]} queries exceed the {k.shape[2]} keys, which alone have angles")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"k: {k.shape[1]} heads must divide the {q.shape[1]} heads of q")
    k, v = (_maps.for_each_head(x, q.shape[1]) for x in (k, v))
    return _maps.turned_by(q, angles[:, :, k.shape[2] - q.shape[2] :]), _maps.turned_by(k, angles), v


def attend_by_content(
    q: Tensor, k: Tensor, v: Tensor, between: tuple[object, object, object], beside_it: dict[str, object], gates: Tensor | None,
    sinks: Tensor | None, key_lengths: Tensor | Sequence[int] | None, cu_seqlens: object, document_ids: object, scale: float | None,
    causal: bool, window: int | None, sink_tokens: int | None, softcap: float | None,
) -> Tensor:  # fmt: skip
    """:func:`attention` with decays of features, a bias of paths or Householder products."""
    names = ("decays", "path_bias", "householder")
    name = next(name for name, value in zip(names, between, strict=True) if value is not None)
    for other, value in beside_it.items():
        if value is not None:
            raise ValueError(f"{other}: {name} does not support it; leave it out")
    if isinstance(q, Tensor) and q.device.type in DEVICES:
        raise NotImplementedError(f"{name} is not computed on {q.device.type}; move q, k, v and the module to the processor with .cpu()")
    from ._content import attend_between, between_of, decay_sums  # the kernels alone go without the compiled part, which it needs

    if any(isinstance(x, Tensor) and x.is_nested for x in (q, k, v)):
        raise ValueError(f"{name}: jagged tensors are not supported; give rows and cu_seqlens")
    q, k, v = as_autocast(q, k, v)
    of, dtype = check_qkv(q, k, v)
    made = between_of(*between, q, dtype)
    documents = documents_of(cu_seqlens, document_ids, k, None, key_lengths)
    ends = whole_numbers("key_lengths", key_lengths, q.device)
    if name == "decays":
        made = made._replace(first=decay_sums(made.first, k, q.shape[1], ends, documents, _RESET))
    if q.shape[-1] == 0:
        raise ValueError(f"q: expected [B, H, Q, D] with D at least 1, got shape {tuple(q.shape)}")
    out = attend_between(
        q.to(dtype), k.to(dtype), v.to(dtype), made, clocks_of(gates, q.shape[1], k, None, ends, documents), beside("sinks", sinks, q, dtype),
        ends, documents, scale_of(scale, q.shape[-1]), flag("causal", causal), _count("window", window, "all"),
        _count("sink_tokens", sink_tokens, "none"), softcap_of(softcap),
    )  # fmt: skip
    return out.to(of)


def _jagged_parts(name: str, x: object, shape: str = "[B, H, L, D]") -> tuple[Tensor, Tensor]:
    """The rows ``[H, T, D]``, or ``[H, T]``, of all sequences of a jagged tensor, and their cumulative lengths."""
    if not isinstance(x, Tensor) or x.layout is not torch.jagged:
        all_or_none = "q, k and v must all be jagged nested tensors (layout=torch.jagged), or none of them"
        raise TypeError(f"{name}: {all_or_none if name in 'qkv' else f'expected a jagged {shape}, as q, k and v are'}")
    if x.dim() != shape.count(",") + 1 or x._ragged_idx != 2:
        swapped = shape.replace("H, L", "L, H")
        raise ValueError(f"{name}: expected a jagged {shape}, got shape {tuple(x.shape)}; make one of {swapped} by .transpose(1, 2)")
    if x.lengths() is not None:
        raise ValueError(f"{name}: its sequences leave gaps between them; close them by .contiguous()")
    return x.values(), x.offsets()


def _attend_jagged(
    q: Tensor, k: Tensor, v: Tensor, beside_documents: dict[str, object],
    gates: Tensor | None, relative: tuple[Tensor, Tensor] | None, positions: Tensor | None, position_kernel: tuple[str, Tensor] | None,
    bias: Tensor | None, weight: Tensor | None, sinks: Tensor | None, scale: float | None, causal: bool, window: int | None, sink_tokens: int | None,
    softcap: float | None, dropout: tuple[float, Tensor | int | None],
) -> Tensor:  # fmt: skip
    """:func:`attention` of jagged nested tensors: packed documents whose offsets are cumulative lengths."""
    for name, value in beside_documents.items():
        if value is not None:
            raise ValueError(f"{name}: jagged nested tensors already tell where sequences begin and end")
    (q_rows, of_queries), (k_rows, of_keys), (v_rows, of_values) = (
        _jagged_parts(name, x) for name, x in (("q", q), ("k", k), ("v", v))
    )
    for name, offsets in (("k", of_keys), ("v", of_values)):
        if offsets.shape != of_queries.shape:
            raise ValueError(f"{name}: {offsets.shape[0] - 1} sequences, but q has {of_queries.shape[0] - 1}")
    if of_values is not of_keys and not torch.equal(of_values, of_keys):
        raise ValueError("v: its sequences have other lengths than those of k")

    def own(name: str, x: object, shape: str, of: str, offsets: Tensor) -> Tensor:
        rows, own_offsets = _jagged_parts(name, x, shape)
        if own_offsets is not offsets and not (own_offsets.shape == offsets.shape and torch.equal(own_offsets, offsets)):
            raise ValueError(f"{name}: its sequences have other lengths than those of {of}")
        return rows[None]

    if isinstance(relative, (tuple, list)) and len(relative) == 2:
        relative = (own("relative[0]", relative[0], "[B, H, L, R]", "q", of_queries), relative[1])
    gates, positions = (
        None if x is None else own(name, x, "[B, H, L]", "k", of_keys) for name, x in (("gates", gates), ("positions", positions))
    )
    alike = of_keys is of_queries or torch.equal(of_keys, of_queries)
    out = attend(
        q_rows[None], k_rows[None], v_rows[None], bias, weight, sinks, None, gates, None, None,
        of_queries if alike else torch.stack([of_queries, of_keys])[None], "", scale, causal, window, sink_tokens, softcap,
        relative=relative, dropout=dropout, positions=positions, position_kernel=position_kernel,
    )  # fmt: skip
    return torch.nested.nested_tensor_from_jagged(out[0], offsets=of_queries, jagged_dim=2)


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | Sequence[int],
    cu_seqlens_k: Tensor | Sequence[int],
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool,
    bias: Tensor | None = None,
    weight: Tensor | None = None,
    window: int | None = None,
    sink_tokens: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    gates: Tensor | None = None,
    relative: tuple[Tensor, Tensor] | None = None,
    positions: Tensor | None = None,
    position_kernel: tuple[str, Tensor] | None = None,
    dropout_p: float = 0.0,
    dropout_seed: Tensor | int | None = None,
) -> Tensor:
    """:func:`attention` over packed documents, with the layout and order of arguments of
    FlashAttention's ``flash_attn_varlen_func``.

    A document may have other numbers of queries and keys; its last query is at the position of its
    last key. Queries before its first key return zeros.

    Args:
        q: ``[Tq, H, D]``.
        k, v: ``[Tk, G, D]`` and ``[Tk, G, E]``.
        cu_seqlens_q, cu_seqlens_k: cumulative lengths of the documents' queries and keys,
            ``[N + 1]``. On GPUs both must be the same tensor.
        max_seqlen_q, max_seqlen_k: no document has more queries or keys; compared with cumulative
            lengths on the processor only, since reading a GPU's would wait for it.
        causal: has no default, since FlashAttention's is False and :func:`attention`'s is True.
        bias, weight, window, sink_tokens, scale, softcap, sinks, position_kernel, dropout_p, dropout_seed: as for
            :func:`attention`.
        gates, positions: as for :func:`attention`, but ``[Tk, H]``.
        relative: ``(r, P)`` as for :func:`attention`, with r of ``[Tq, H, R]``.

    Returns:
        ``[Tq, H, E]``.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
        if x.dim() != 3:
            raise ValueError(f"{name}: expected [T, H, D], got shape {tuple(x.shape)}")
    named = (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k))
    given = [whole_numbers(name, x, q.device) for name, x in named]
    most = ((given[0], "max_seqlen_q", max_seqlen_q), (given[1], "max_seqlen_k", max_seqlen_k))
    for name, cumulative in zip(("cu_seqlens_q", "cu_seqlens_k"), given, strict=True):
        if cumulative.dim() != 1:
            raise ValueError(f"{name}: expected [N + 1], got shape {tuple(cumulative.shape)}")
    if given[0].shape != given[1].shape:
        documents = [max(one.shape[0] - 1, 0) for one in given]
        raise ValueError(f"cu_seqlens_q has {documents[0]} documents and cu_seqlens_k has {documents[1]}")
    for cumulative, name, limit in most:
        if isinstance(limit, bool) or not hasattr(limit, "__index__"):
            raise TypeError(f"{name} = {limit!r} must be a whole number of tokens")
        unread = torch.compiler.is_compiling() or not cumulative.is_cpu or len(cumulative) < 2
        longest = 0 if unread else int(cumulative.diff().max())
        if longest > limit:
            raise ValueError(f"{name} = {limit} is less than the {longest} tokens of the longest document")
    if isinstance(relative, (tuple, list)) and len(relative) == 2:
        check_tensor("relative[0]", relative[0])
        if relative[0].dim() != 3:
            raise ValueError(f"relative[0]: expected [T, H, R], got shape {tuple(relative[0].shape)}")
        relative = (relative[0].transpose(0, 1)[None], relative[1])
    of_keys = {"gates": gates, "positions": positions}
    for name, x in of_keys.items():
        if x is not None:
            check_tensor(name, x)
            if x.dim() != 2:
                raise ValueError(f"{name}: expected [Tk, H], got shape {tuple(x.shape)}")
            of_keys[name] = x.T[None]
    alike = cu_seqlens_q is cu_seqlens_k and q.shape[0] == k.shape[0]
    out = attend(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), bias, weight, sinks, None, of_keys["gates"], None, None,
        given[0] if alike else torch.stack(given)[None], "", scale, causal, window, sink_tokens, softcap, relative=relative,
        dropout=(dropout_p, dropout_seed), positions=of_keys["positions"], position_kernel=position_kernel,
    )  # fmt: skip
    return out[0].transpose(0, 1)


_M0, _M1, _W0, _W1, _32_BITS = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85, 0xFFFFFFFF


def _philox(counter: list[Tensor], seed: Tensor) -> list[Tensor]:
    """Four words of 32 bits, in int64, by ten rounds of Philox4x32. Salmon et al. 2011, doi:10.1145/2063384.2063405."""
    k0, k1 = seed & _32_BITS, (seed >> 32) & _32_BITS
    c0, c1, c2, c3 = counter
    for _ in range(10):
        of_0, of_2 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (of_2 >> 32) & _32_BITS ^ c1 ^ k0, of_2 & _32_BITS, (of_0 >> 32) & _32_BITS ^ c3 ^ k1, of_0 & _32_BITS
        k0, k1 = (k0 + _W0) & _32_BITS, (k1 + _W1) & _32_BITS
    return [c0, c1, c2, c3]


def dropout_mask(
    seed: Tensor | int, p: float, batch: int, heads: int, queries: int, keys: int, *, device: torch.device | str = "cpu"
) -> Tensor:
    """Which weights :func:`attention` keeps under dropout, ``[B, H, Q, K]``: to compare with other attention.

    Query i draws word ``i % 4`` of Philox4x32-10 whose key is the seed, its low 32 bits first, and whose counter is
    ``j, i // 4, b H + h, 0``. The weight is kept if the upper 31 bits are at least ``round(2^31 p)``, which is at most
    ``2^31 - 1``. Here i and j count from the first query and the first key of a row, also where it holds several documents.
    """
    if seed is None:
        raise TypeError("dropout_seed: None draws another seed in every call; give the one that attention was given")
    p, seed = dropout_of(p, seed, torch.empty(0, device=device))
    if seed is None:
        return torch.ones(batch, heads, queries, keys, dtype=torch.bool, device=device)
    return kept_rows(seed, p, (batch, heads, keys), 0, queries)


def kept_rows(seed: Tensor, p: float, sizes: tuple[int, int, int], first: int, queries: int) -> Tensor:
    """:func:`dropout_mask` of some queries from ``first`` on, a multiple of four."""
    batch, heads, keys = sizes
    at = lambda n: torch.arange(n, device=seed.device)  # noqa: E731
    groups, unit = (queries + 3) // 4, at(batch * heads)[:, None, None]
    counter = [x.expand(batch * heads, groups, keys) for x in (at(keys), first // 4 + at(groups)[:, None], unit, torch.zeros_like(unit))]
    words = torch.stack(_philox(counter, seed), 2).flatten(1, 2)[:, :queries]
    return (words >> 1 >= dropout_bound(p)).unflatten(0, (batch, heads))


def symmetric(table: Tensor) -> Tensor:
    """The table ``[H, 2 L - 1]`` over both directions, which depends on ``|d|`` alone, from a table
    ``[H, L]`` over ``d >= 0``.
    """
    if table.dim() != 2:
        raise ValueError(f"table: expected [H, L], got shape {tuple(table.shape)}")
    return torch.cat([table[:, 1:].flip(1), table], 1)
