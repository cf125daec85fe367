"""Positional methods as modules, with the initial values and ranges of their papers.

A module is attention with one method: ``KerpleLog(heads=12)(q, k, v)``. Where the method is a
function of distance, ``table`` returns it as a tensor through which gradients reach the parameters.
A parameter may have a range. The raw value is trained, formulas use the value within the range, and
:func:`project_` clamps the raw value after an update, as ``kerple train`` does.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from .. import _native, kernels
from .._renamed import refuse_arguments
from . import _closed_forms, _maps
from ._attention import as_autocast, attend, check_qkv, relative_of, symmetric
from ._documents import documents_of, positions_of, whole_numbers
from ._gpu import DEVICES, refuse_encoding
from ._ops import encoding, encoding_key, table
from ._positions import positions_of_logits, spline_parameters


#: What encodings do that enter in these places.
_NOT_IN_TORCH = {
    "feature_gates": "gates every feature of queries and keys",
    "path": "sums a bias over the tokens between query and key",
    "householder": "transforms keys by the tokens between them and a query",
}


class Encoding(nn.Module):
    """Attention with a positional method; ``kerple describe`` lists the kinds.

    Args:
        kind: the method's name, such as ``kerple_log``; subclasses set it.
        heads: H.
        head_dim: D. Of the tables over distances only T5's depends on it.
        train_len: length of the training sequences in tokens; FIRE uses it.
        d_model: M, features of the hidden states that FoX, KerplePositions and Inkling take, H D by default.
        seed: seed of the initial values, which then equal those of ``kerple train``; None draws it
            from torch's generator.
        layer: gives each layer other initial values, in a model whose layers do not share the
            encoding.
        dtype: type of the parameters.
        keys: keys of the method, such as ``max_distance`` of T5, and ``window``, ``sink_tokens`` and ``scale`` of
            all methods. ``reach`` ends a bias: it is 0 for keys at that distance and beyond. ``distance_cap`` treats
            keys further away as if they were at that distance.

    Raises:
        ValueError: a key is invalid; the message contains the key, its value and the limit.
    """

    kind: str = ""

    def __init__(
        self,
        kind: str | None = None,
        heads: int = 1,
        head_dim: int = 64,
        *,
        train_len: int = 512,
        d_model: int | None = None,
        seed: int | None = None,
        layer: int = 0,
        dtype: torch.dtype | None = None,
        _linear: bool = False,
        **keys: Any,
    ) -> None:
        super().__init__()
        kind = kind or self.kind
        native = kernels.encoding(kind, heads, head_dim, train_len, keys, d_model)
        if not _linear and native.entry in ("embeddings", "code"):
            where = "the embeddings" if native.entry == "embeddings" else "linear attention, see LinearAttention"
            raise ValueError(f"kind = {kind!r} enters {where}, not the scores of attention")
        if native.entry in _NOT_IN_TORCH:
            what = _NOT_IN_TORCH[native.entry]
            raise ValueError(f"kind = {kind!r} {what}, which kerple.torch does not compute; `kerple train` does")
        self.kind, self.heads, self.head_dim = kind, heads, head_dim
        self.d_model = heads * head_dim if d_model is None else d_model
        self.window, self.sink_tokens = native.window, native.sink_tokens
        self._entry, self._tables, self._own = native.entry, native.tables, native.own
        self._projected = native.projected
        self._key = encoding_key(native.keys, heads, head_dim, train_len, d_model)
        #: Floor and alpha of the log-length factor.
        self._log_scale = json.loads(native.keys).get("log_scale") if native.entry == "relative" else None
        own = json.loads(native.keys)
        if native.entry == "content_rotation" and own.get("decay"):
            raise ValueError("decay: kerple.torch computes rotations without decays; `kerple train` has both")
        if native.entry == "learned_positions" and own["kernel"] == "table":
            raise ValueError("kernel = 'table': kerple.torch computes 'log', 'power', 'log3' and 'spline'; `kerple train` has tables too")
        if native.entry == "learned_positions" or kind == "rotary_positions":
            self._steps, self._kernel = (own["step"], own.get("step_min", 0.0), own.get("step_max", 2.0)), own.get("kernel")
        #: The encoding, where the engine needs more of the method than tables.
        self._in_engine = self._key if native.entry == "map" or native.fades else ""
        seed = int(torch.randint(2**63 - 1, (), device="cpu")) if seed is None else seed
        self._add(native, torch.tensor(native.initial(seed, layer), dtype=torch.float64), dtype)
        rates = native.rates()
        self.register_buffer("inv_freq", rates and torch.tensor(rates, dtype=torch.float64), persistent=False)
        #: Of a map of queries and keys, and whether its delta is clamped, or its other pairs do not turn.
        self._map_flag = own.get("clamp_delta", own.get("zero_pad", False))
        rates = native.map_rates()
        self.register_buffer("map_freq", rates and torch.tensor(rates, dtype=torch.float64), persistent=False)
        #: What GPUs compute the tables from.
        self._program = _closed_forms.program_of(native)
        constants = _closed_forms.constants_of(native, heads, head_dim) if self._program else None
        self._constants = constants
        self.register_buffer("_table_constants", constants and torch.tensor(constants, dtype=torch.float64), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Encoding:
        super()._apply(fn, recurse)
        if self.inv_freq is not None:  # rates stay in f64 whatever the module is cast to
            self.inv_freq = torch.tensor(encoding(self._key).rates(), dtype=torch.float64, device=self.inv_freq.device)
        if self.map_freq is not None:
            self.map_freq = torch.tensor(encoding(self._key).map_rates(), dtype=torch.float64, device=self.map_freq.device)
        if self._constants is not None:
            self._table_constants = torch.tensor(self._constants, dtype=torch.float64, device=self._table_constants.device)
        return self

    def _add(self, native: _native.Encoding, values: Tensor, dtype: torch.dtype | None) -> None:
        self._names: list[str] = []
        self._ranges: dict[str, tuple[float, float]] = {}
        at = 0
        for name, shape, low, high, _decay in native.parameters():
            count = int(torch.Size(shape).numel())
            own = values[at : at + count].reshape(shape).to(dtype or torch.get_default_dtype())
            attribute = name.replace(".", "_")
            if native.entry == "relative":
                self._add_relative(attribute, own)
            else:
                self.register_parameter(attribute, nn.Parameter(own))
            self._names.append(attribute)
            self._ranges[attribute] = (low, high)
            at += count

    def _add_relative(self, name: str, own: Tensor) -> None:
        """A parameter of a relative bias, under the name and in the layout that it has in transformers."""
        holder = nn.Module()
        if name == "weight":
            holder.weight = nn.Parameter(own.T.contiguous())
            self.r_proj = holder
        else:
            holder.proj = nn.Parameter(own)
            self.rel_logits_proj = holder

    def extra_repr(self) -> str:
        keys = {name: value for name, value in json.loads(json.loads(self._key)[0]).items() if name != "kind"}
        told = "".join(f", {name}={value!r}" for name, value in keys.items())
        width = f", d_model={self.d_model}" if self.d_model != self.heads * self.head_dim else ""
        return f"{self.kind!r}, heads={self.heads}, head_dim={self.head_dim}{width}{told}"

    def _learned(self) -> list[Tensor]:
        if self._entry == "relative":
            return [self.r_proj.weight.T, self.rel_logits_proj.proj]
        return [getattr(self, name) for name in self._names]

    def _values(self) -> Tensor:
        learned = self._learned()
        if not learned:
            return torch.empty(0, dtype=torch.float64, device="cpu")
        return torch.cat([own.reshape(-1).to(torch.float64) for own in learned])

    def true_values(self) -> dict[str, Tensor]:
        """The parameters as formulas use them: within their ranges."""
        with torch.no_grad():
            values = torch.tensor(encoding(self._key).true_values(self._values().cpu().contiguous()), dtype=torch.float64)
            sizes = [own.numel() for own in self._learned()]
            parts = zip(self._names, values.split(sizes), self._learned(), strict=True) if sizes else ()
            return {name: part.reshape(own.shape) for name, part, own in parts}

    def project_(self) -> None:
        """Clamps the parameters to their ranges; call it after each update."""
        if self._projected:
            with torch.no_grad():
                for own, (low, high) in zip(self._learned(), self._ranges.values(), strict=True):
                    own.clamp_(low, high)

    def table(
        self, length: int, *, causal: bool = True, dtype: torch.dtype | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Bias and weight by distance: ``[H, length]``, or ``[H, 2 length - 1]`` without
        ``causal``; None where there is none.

        Both are computed in f64 at every length and cast once.

        Raises:
            ValueError: ``length`` is below 1 or needs more memory than the machine has.
        """
        return self._table(length, causal, dtype or torch.get_default_dtype(), self._device())

    def _device(self) -> torch.device:
        """Where the tables of a call without tensors are made."""
        held = [*self._learned(), *(x for x in (self.inv_freq, self.map_freq, self._table_constants) if x is not None)]
        return held[0].device if held else torch.device("cpu")

    def _table(
        self, length: int, causal: bool, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor | None, Tensor | None]:
        has_bias, has_weight, two_sides = self._tables
        if not (has_bias or has_weight):
            return None, None
        if device.type in DEVICES:
            if self._program is None:
                refuse_encoding(self._key, device)
            made = _closed_forms.table(
                self._program, self._learned(), self._table_constants, self.heads, self.head_dim, length, two_sides, device
            )
        else:
            made = table(self._values(), self._key, length)
        return tuple(
            self._sided(rows, length, causal, two_sides).to(dtype) if has else None
            for rows, has in zip(made, (has_bias, has_weight), strict=True)
        )

    @staticmethod
    def _sided(rows: Tensor, length: int, causal: bool, two_sides: bool) -> Tensor:
        if two_sides:
            return rows[:, length - 1 :] if causal else rows
        return rows if causal else symmetric(rows)

    def _numbers(self, length: int, causal: bool, dtype: torch.dtype) -> Tensor:
        """The inputs of a score modification: a table, then parameters of its own."""
        bias, _ = self.table(length, causal=causal, dtype=torch.float64)
        own = [one.reshape(-1).to(torch.float64) for one in self._learned()[len(self._names) - self._own :]]
        if self.kind == "transformer_xl":
            matrix, u, v = self.weight.to(torch.float64), self.u.to(torch.float64), self.v.to(torch.float64)
            own = [(self._waves(length, causal) @ matrix.T).reshape(-1), (v - u).reshape(-1)]
        return torch.cat(([] if bias is None else [bias.reshape(-1)]) + own).to(dtype)

    def _waves(self, length: int, causal: bool) -> Tensor:
        """Sinusoids ``[sin(d f), cos(d f)]`` of the distances of a call."""
        width = self.heads * self.head_dim
        rates = 10_000.0 ** (-2.0 * torch.arange(width // 2, dtype=torch.float64) / width)
        distances = torch.arange(0 if causal else 1 - length, length, dtype=torch.float64)
        angles = distances[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], 1)

    def _rotated(
        self, q: Tensor, k: Tensor, span: int, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The last queries and keys of a sequence of ``span`` positions, or of documents with these
        positions ``[B, K]``, rotated if the method rotates.
        """
        if self.inv_freq is None:
            return q, k
        if positions is None:
            return self._turned(q, span), self._turned(k, span)
        # what looks at the length sees the longest document
        span = span if torch.compiler.is_compiling() or positions.numel() == 0 else int(positions.max()) + 1
        positions = positions.clamp(0, max(span - 1, 0))
        return self._turned(q, span, positions[:, positions.shape[1] - q.shape[2] :]), self._turned(k, span, positions)

    def _turned(self, x: Tensor, span: int, positions: Tensor | None = None) -> Tensor:
        """Pairs ``(x[j], x[j + half])`` rotated by the angles of their positions: the last ones of
        ``span``, or ``[B, L]``.
        """
        half, rows = self.inv_freq.shape[0], x.shape[2]
        if x.shape[-1] < 2 * half:
            raise ValueError(f"q: {x.shape[-1]} features of a head, the encoding turns {2 * half}")
        rows = rows if positions is None else span
        made = torch.ops.kerple.turns(self.inv_freq, self._key, span - rows, rows, span)
        cos, sin = (one.to(x.dtype) for one in made)
        if positions is not None:
            cos, sin = cos[positions][:, None], sin[positions][:, None]
        low, high = x[..., :half], x[..., half : 2 * half]
        return torch.cat([low * cos - high * sin, high * cos + low * sin, x[..., 2 * half :]], -1)

    def gates(self, rows: Tensor) -> Tensor:
        """Log gates ``[B, H, L]`` of hidden states ``[B, L, M]``: how much of the tokens before
        it each token lets through.

        Raises:
            ValueError: the method has no gates, or the hidden states have another width.
        """
        if self._entry != "gates":
            raise ValueError(f"kind = {self.kind!r} with these keys makes no gates, 'fox' does")
        self._check_rows(rows)
        bias = self.bias.to(rows.dtype)
        logits = rows @ self.weight.to(rows.dtype) + bias if "weight" in self._names else bias.expand(*rows.shape[:2], -1)
        return nn.functional.logsigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32))).transpose(1, 2)

    def relative(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows ``r``, ``[B, H, L, R]``, of hidden states ``[B, L, M]``, and profiles ``P``, ``[R, E]``: what
        ``forward`` and :func:`~kerple.torch.attention` take as ``relative``. The log-length factor is
        not in them.

        Raises:
            ValueError: the method has no relative bias, or the hidden states have another width.
        """
        if self._entry != "relative":
            raise ValueError(f"kind = {self.kind!r} makes no relative bias of rows, 'inkling' does")
        self._check_rows(rows)
        made = nn.functional.linear(rows, self.r_proj.weight.to(rows.dtype))
        return made.unflatten(-1, (self.heads, -1)).transpose(1, 2), self.rel_logits_proj.proj

    def positions(self, rows: Tensor, *, after: Tensor | None = None) -> Tensor:
        """Learned positions ``[B, H, L]`` in float64 of hidden states ``[B, L, M]``: running sums of the steps that
        they set, what ``forward`` and :func:`~kerple.torch.attention` take as ``positions``.

        Args:
            after: the last positions of earlier tokens, ``[B, H]``, which these follow in decoding.

        Raises:
            ValueError: the method has no learned positions, or the hidden states have another width.
        """
        if self._entry != "learned_positions" and self.kind != "rotary_positions":
            raise ValueError(f"kind = {self.kind!r} makes no learned positions, 'kerple_positions' and 'rotary_positions' do")
        self._check_rows(rows)
        logits = rows @ self.weight.to(rows.dtype) + self.bias.to(rows.dtype)
        return positions_of_logits(logits, *self._steps, after)

    def angles(self, rows: Tensor, *, before: Tensor | None = None, after: Tensor | None = None) -> Tensor:
        """Angles ``[B, H, L, D/2]`` in float64 by which hidden states ``[B, L, M]`` turn queries and keys, what
        ``forward`` takes as ``angles``.

        Args:
            before: the hidden states of the 3 tokens before these, ``[B, 3, M]``, in decoding.
            after: the last angles of earlier tokens, ``[B, H, D/2]``, which these follow.

        Raises:
            ValueError: the method has no such angles, or the hidden states have another width.
        """
        if self.kind != "selective_rope":
            raise ValueError(f"kind = {self.kind!r} makes no angles of rows, 'selective_rope' does")
        self._check_rows(rows)
        gate = (self.gate_weight, self.gate_bias) if "gate_weight" in self._names else None
        made = _maps.increments(
            rows, self.weight_in, self.weight_out, self.filters, getattr(self, "angle_bias", None), gate, self.heads, before
        )
        angles = (made.to(torch.float64) * self.map_freq).cumsum(2)
        return angles if after is None else angles + after.to(torch.float64)[:, :, None]

    def _by_content(self, q: Tensor, k: Tensor, v: Tensor, angles: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each query head, turned by angles of all keys, ``[B, H, K, D/2]``."""
        wanted = (q.shape[0], q.shape[1], k.shape[2], q.shape[-1] // 2)
        if angles is None or tuple(angles.shape) != wanted:
            given = "none" if angles is None else f"shape {tuple(angles.shape)}"
            raise ValueError(f"angles: expected [B, H, K, D/2] = {list(wanted)}, got {given}; make them of rows, with `angles(rows)`")
        k, v = (_maps.for_each_head(x, q.shape[1]) for x in (k, v))
        return _maps.turned_by(q, angles[:, :, k.shape[2] - q.shape[2] :]), _maps.turned_by(k, angles), v

    def _mapped(
        self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor | None, starts: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of PoPE or FoPE, of tokens at these positions ``[B, K]``, or counted from the first that
        is no padding.
        """
        if positions is None:
            positions = torch.arange(k.shape[2], device=q.device)[None]
            if starts is not None and starts.dim() == 1:
                positions = positions - starts.to(q.device)[:, None]
        angles = positions.to(torch.float64)[:, None, :, None] * self.map_freq
        of_queries = angles[:, :, k.shape[2] - q.shape[2] :]
        if self.kind == "pope":
            delta = (_maps.clamped(self.delta) if self._map_flag else self.delta).to(torch.float64)
            return _maps.polar(q, of_queries - delta[:, None]), _maps.polar(k, angles), v
        k, v = (_maps.for_each_head(x, q.shape[1]) for x in (k, v))
        turn = lambda x, at: _maps.mixed(x, at, self.cos_mix, self.sin_mix, self._map_flag)  # noqa: E731
        return turn(q, of_queries), turn(k, angles), v

    @property
    def position_kernel(self) -> tuple[str, Tensor]:
        """The kernel of learned positions as :func:`~kerple.torch.attention` takes it: its name, and its parameters
        ``[H, P]`` within their ranges, through which gradients reach those of the module.

        Raises:
            ValueError: the method has no learned positions.
        """
        if self._entry != "learned_positions":
            raise ValueError(f"kind = {self.kind!r} has no kernel of learned positions, 'kerple_positions' has")
        own = [_closed_forms.constrained(getattr(self, name), *self._ranges[name]) for name in self._names[2:]]
        return self._kernel, spline_parameters(*own) if self._kernel == "spline" else torch.stack(own, 1)

    def _check_rows(self, rows: Tensor) -> None:
        if rows.dim() != 3 or rows.shape[2] != self.d_model:
            raise ValueError(f"rows: expected [B, L, M] with M = {self.d_model}, got shape {tuple(rows.shape)}")

    def _sharpened(
        self, q: Tensor, relative: tuple[Tensor, Tensor], keys: int, starts: Tensor | None, documents: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Queries and rows, the last of ``keys`` positions, times the log-length factor of their positions, which
        count neither padding before a sequence nor other documents.
        """
        if self._log_scale is None:
            return q, relative
        rows, profiles = relative
        queries = q.shape[2]
        if documents is not None:
            positions = positions_of(documents, keys)[:, keys - queries :]
        else:
            positions = torch.arange(keys - queries, keys, device=q.device)[None]
            if starts is not None and starts.dim() == 1:
                positions = positions - starts.to(q.device)[:, None]
        counted = ((positions + 1).to(torch.float64) / self._log_scale["floor"]).clamp(min=1.0)
        factors = (1.0 + self._log_scale["alpha"] * counted.log())[:, None, :, None]
        scaled = lambda x: (x * factors.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)  # noqa: E731
        return scaled(q), (scaled(rows), profiles)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool = True,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        gates: Tensor | None = None,
        relative: tuple[Tensor, Tensor] | None = None,
        positions: Tensor | None = None,
        angles: Tensor | None = None,
        key_lengths: Tensor | None = None,
        key_starts: Tensor | None = None,
        key_ends: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        document_ids: Tensor | None = None,
        dropout_p: float = 0.0,
        dropout_seed: Tensor | int | None = None,
        **unknown: NoReturn,
    ) -> Tensor:
        """:func:`~kerple.torch.attention` with this method, with the same arguments and result; the method has the
        kernel of ``positions``. Selective RoPE takes ``angles``, see :meth:`angles`.
        """
        if unknown:
            refuse_arguments("Encoding.forward", unknown)
        q, k, v = as_autocast(q, k, v)
        of, dtype = check_qkv(q, k, v)
        if self._entry == "gates" and gates is None:
            raise ValueError("gates: there are none; make them of the rows that q and k are made of, with `gates(rows)`")
        if self._entry == "relative" and relative is None:
            raise ValueError("relative: there is none; make it of the rows that q and k are made of, with `relative(rows)`")
        kernel = None
        if self._entry == "learned_positions":
            if positions is None:
                raise ValueError("positions: there are none; make them of the rows that q and k are made of, with `positions(rows)`")
            kernel = self.position_kernel
        elif positions is not None and self.kind != "rotary_positions":
            raise ValueError(f"positions: kind = {self.kind!r} has no kernel of them, 'kerple_positions' has; or use kerple.torch.attention")
        if self.kind == "rotary_positions":
            if positions is None:
                raise ValueError("positions: there are none; make them of the rows that q and k are made of, with `positions(rows)`")
            angles, positions = positions[..., None] * self.map_freq, None
        elif angles is not None and self.kind != "selective_rope":
            raise ValueError(f"angles: kind = {self.kind!r} turns nothing by them, 'selective_rope' does")
        if self._in_engine and q.device.type in DEVICES:
            refuse_encoding(self._key, q.device)
        longest = max(q.shape[2], k.shape[2])
        documents = documents_of(cu_seqlens, document_ids, k, key_starts, key_lengths, key_ends)
        q, k = self._rotated(q, k, longest, positions_of(documents, k.shape[2]))
        bias = weight = numbers = None
        if self._entry in ("content_rotation", "query_key_map"):
            scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
            q, k, v = (x if x.device.type in DEVICES else x.to(dtype) for x in (q, k, v))
            if self._entry == "content_rotation":
                q, k, v = self._by_content(q, k, v, angles)
            else:
                starts = whole_numbers("key_starts", key_starts, q.device)
                q, k, v = self._mapped(q, k, v, positions_of(documents, k.shape[2]), starts)
        elif self._entry == "relative":
            q, k, v = (x if x.device.type in DEVICES else x.to(dtype) for x in (q, k, v))
            made = relative_of(relative, q, dtype, causal)
            q, relative = self._sharpened(q, made, k.shape[2], whole_numbers("key_starts", key_starts, q.device), documents)
        elif self._entry == "scores":
            bias, weight = self._table(k.shape[2] if causal else longest, causal, dtype, q.device)
        elif self._entry == "map":
            scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
            numbers = self._numbers(k.shape[2], causal, dtype)
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        if self.kind == "transformer_xl":
            q = q + self.u.to(dtype)[:, None]
        out = attend(
            q, k, v, bias, weight, sinks, numbers, gates, key_starts, key_lengths, documents,
            self._in_engine, scale, causal, self.window, self.sink_tokens, softcap, key_ends, relative, (dropout_p, dropout_seed),
            positions, kernel,
        )  # fmt: skip
        return out.to(of)


def project_(module: nn.Module) -> None:
    """Clamps the parameters of all encodings in a module to their ranges; call it after each
    update.
    """
    for part in module.modules():
        if isinstance(part, Encoding):
            part.project_()


class _Named(Encoding):
    def __init__(self, heads: int, head_dim: int = 64, **options: Any) -> None:
        super().__init__(None, heads, head_dim, **options)


class NoPE(_Named):
    """No positions: only the causal mask orders tokens."""

    kind = "none"


class Rotary(_Named):
    """Rotation of queries and keys by position (RoPE).

    ``keep=0.75`` turns the fastest three quarters of the pairs (p-RoPE, arXiv:2410.06205), and
    ``frequencies=[...]`` lists the rates in radians per token, 0 for pairs that must not turn
    (HoPE, arXiv:2410.21216).
    """

    kind = "rotary"


class Xpos(_Named):
    """Rotary positions with products that decay with distance.

    Sun et al. 2022, arXiv:2212.10554.
    """

    kind = "xpos"


class Alibi(_Named):
    """``b(d) = -slope d``, a fixed slope per head. Press et al. 2021, arXiv:2108.12409."""

    kind = "alibi"


class T5(_Named):
    """``b(d) = sqrt(D) W[bucket(d)]``. Raffel et al. 2020, arXiv:1910.10683."""

    kind = "t5"


class KerpleLog(_Named):
    """``b(d) = -r1 ln(1 + r2 d)``. Chi et al. 2022, arXiv:2205.09921, like the kernels below."""

    kind = "kerple_log"


class KerplePower(_Named):
    """``b(d) = -r1 d^r2``."""

    kind = "kerple_power"


class KerpleBiasWeight(_Named):
    """``b(d) = -r1 d^r2``, ``w(d) = exp(-r3 d^r4)``."""

    kind = "kerple_bias_weight"


class KerpleWeight(_Named):
    """``w(d) = exp(-r1 d^r2)``."""

    kind = "kerple_weight"


class KerplePowerOriginal(_Named):
    """``b(d) = -max(slope, 0.01) d`` with ALiBi's slopes."""

    kind = "kerple_power_original"


class KerpleLog3(_Named):
    """``b(d) = -r1 ln(1 + r2 d^r3)``."""

    kind = "kerple_log3"


class GaussianBias(_Named):
    """``b(d) = r1 exp(-r2 d^2)``."""

    kind = "gaussian_bias"


class StretchedBias(_Named):
    """``b(d) = r1 exp(-r2 d^r3)``."""

    kind = "stretched_bias"


class GaussianWeight(_Named):
    """``w(d) = exp(-r1 d^2)``."""

    kind = "gaussian_weight"


class StretchedWeight(_Named):
    """``w(d) = exp(-r1 d^r2)``, as the appendix names it."""

    kind = "stretched_weight"


class Sandwich(_Named):
    """The product of two sinusoidal positions as a bias. Chi et al. 2023, arXiv:2212.10356."""

    kind = "sandwich"


class Bam(_Named):
    """``b(d) = -e^alpha (|d + mu| + 1e-5)^beta``. Bayesian attention mechanism, arXiv:2505.22842.

    ``theta_mu=0.0`` learns the offset ``mu = 2 sinh(theta_mu)`` from there; without it mu is 0.
    """

    kind = "bam"


class Fire(_Named):
    """A network over distances measured against the query's position.

    Li et al. 2023, arXiv:2310.04418.
    """

    kind = "fire"


class Dape(_Named):
    """A network over heads that adapts a bias to the scores.

    Zheng et al. 2024, arXiv:2405.14722.
    """

    kind = "dape"


class TransformerXl(_Named):
    """Products of queries with projected sinusoids of the distance.

    Dai et al. 2019, arXiv:1901.02860.
    """

    kind = "transformer_xl"


class Shaw(_Named):
    """A learned vector for each distance, added to keys. Shaw et al. 2018, arXiv:1803.02155."""

    kind = "shaw"


class Cope(_Named):
    """Contextual positions: sums of gates between query and key.

    Golovneva et al. 2024, arXiv:2405.18719.
    """

    kind = "cope"


class Fox(_Named):
    """``c_i - c_j``, cumulative gates ``ln sigmoid(w y + b)`` of a layer's hidden states. Lin et
    al. 2025, arXiv:2503.02130.

    ::

        fox = Fox(heads=8, head_dim=64)
        out = fox(q, k, v, gates=fox.gates(rows))    # rows: [B, L, 512], what q, k and v are made of
    """

    kind = "fox"


class KerplePositions(_Named):
    """``k(x_i - x_j)``, a kernel of KERPLE over learned positions x: running sums of steps ``phi(w y + b)`` of a layer's
    hidden states. w starts at 0 and every step at 1, so that a model starts as KERPLE over distances.

    ::

        layer = KerplePositions(heads=8, head_dim=64)
        out = layer(q, k, v, positions=layer.positions(rows))    # rows: [B, L, 512], what q, k and v are made of

    ``kernel`` is ``"log"``, ``"power"``, ``"log3"`` or ``"spline"`` with ``knots``, ``step`` is ``"sigmoid"`` with
    ``step_min`` and ``step_max``, ``"softplus"`` with ``step_min``, or ``"exp"``. Decoding goes on with
    ``layer.positions(new_rows, after=x[..., -1])``, appended to the earlier x.
    """

    kind = "kerple_positions"


class SelectiveRope(_Named):
    """Rotation of queries and keys by angles that the content sets, running sums over tokens. ICLR 2026.

    ::

        rope = SelectiveRope(heads=8, head_dim=64)
        out = rope(q, k, v, angles=rope.angles(rows))    # rows: [B, L, 512], what q, k and v are made of

    ``bias=False`` starts almost without positions, ``gate=True`` gives each head a gate of its angles. Decoding goes on
    with ``rope.angles(new_rows, before=last_3_rows, after=angles[:, :, -1])``, appended to the earlier angles. Angles are
    those of one document: make them document by document where sequences are packed.
    """

    kind = "selective_rope"


class RotaryPositions(_Named):
    """Rotation of queries and keys at learned positions, those of :class:`KerplePositions`: ``layer(q, k, v,
    positions=layer.positions(rows))``.
    """

    kind = "rotary_positions"


class Pope(_Named):
    """Queries and keys with lengths ``softplus(x)`` by content and angles by position. arXiv:2509.10534.

    ``width=32`` makes the first 32 features polar and leaves the others, ``clamp_delta=True`` keeps ``delta`` in [-2 pi, 0].
    """

    kind = "pope"


class Fope(_Named):
    """Pairs of features that turn by learned mixtures of rates. arXiv:2412.17739.

    Rates turn at least once in ``train_len`` tokens. Scores depend on positions, not on distances alone.
    """

    kind = "fope"


class Inkling(_Named):
    """``b_ij = r_i . P[:, i - j]`` for ``i - j < E``, a low-rank bias that each query computes from its own
    features, ``r = W_r y``. transformers 5.23, ``models/inkling``.

    ::

        inkling = Inkling(heads=8, head_dim=64, d_model=512, rank=16, reach=1024)
        out = inkling(q, k, v, relative=inkling.relative(rows), scale=1 / 64)    # rows: [B, L, 512]

    ``log_scale={"floor": 128000, "alpha": 0.1}`` multiplies the scores of the query at position i by
    ``1 + alpha ln(max(1, (i + 1) / floor))``. Positions are those among the keys of the call, so decode
    with all of them: a ``KVCache(window=...)`` that drops keys moves them. ``profiles=0.0`` starts without
    a bias. The names and layouts of ``state_dict`` are those of a layer in transformers,
    ``r_proj.weight`` ``[H R, M]`` and ``rel_logits_proj.proj`` ``[R, E]``. The released models scale by
    ``1 / D`` after norms of queries and keys; both, and short convolutions, are the caller's.
    """

    kind = "inkling"


class Kernel(Encoding):
    """Any expression of the kernel calculus: ``Kernel("log(b, a) + 0.5*power(a, p)", heads=12)``.

    The constructor proves that ``bias`` is a kernel for all values of its parameters, and refuses
    it otherwise; ``unproven=True`` accepts what no rule proves. ``weight`` needs no proof.
    ``keep="smooth"`` keeps values in range by a smooth map.

    ``start`` has initial values in place of drawn ones: a list of ``P`` numbers for all heads, or a list for
    each head, in the order in which the expression names its learned parameters, those of the bias before
    those of the weight: ``Kernel("log(b, a)", heads=2, start=[[1.3, 0.4], [0.7, 0.05]])``. ``kerple kernel
    fit`` prints such lists.

    Raises:
        ValueError: an expression that is no kernel, lists of another length than ``start`` needs, or values
            out of a parameter's range; the message contains the limit.
    """

    kind = "kernel"

    def __init__(self, bias: str | None = None, heads: int = 1, *, weight: str | None = None, **options: Any) -> None:
        self.expression, self._reach = bias, options.get("reach")
        told = {"bias": bias, "weight": weight}
        super().__init__(None, heads, **{key: text for key, text in told.items() if text is not None}, **options)

    def certificate(self, points: str = "0..31") -> kernels.Certificate:
        """The certificate of the bias; see :func:`kerple.certificate`. Nothing is proven of a bias that ends."""
        if self.expression is None:
            raise ValueError("there is no bias to prove, only a weight")
        if self._reach is not None:
            text = f"not proven: the bias ends at distance {self._reach}"
            return kernels.Certificate(self.expression, False, text, {"kind": "ended", "reach": self._reach})
        return kernels.certificate(self.expression, points)
