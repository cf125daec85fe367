"""What the modules of :mod:`.encodings` share: parameters, tables, what they make of hidden states, and attention.

A parameter may have a range. The raw value is trained, formulas use the value within the range, and
:func:`project_` clamps the raw value after an update, as ``kerple train`` does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from .. import _native, kernels
from .._renamed import refuse_arguments
from . import _closed_forms, _composed, _maps
from ._attention import (
    as_autocast, attend, attend_by_content, beside, check_qkv, dropout_of, flag, kept_rows, relative_of, symmetric, turned,
)  # fmt: skip
from ._checks import check_tensor, scale_of, softcap_of, whole
from ._documents import documents_of, positions_of, whole_numbers
from ._gpu import DEVICES, check, refuse_encoding
from ._ops import _rule, encoding, encoding_key, table
from ._positions import positions_of_logits, spline_parameters


#: The method and argument of encodings that enter in these places.
_BETWEEN = {"feature_gates": "decays", "path": "path_bias", "householder": "householder"}


def _base_of(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of the encoding that DAPE adapts."""
    return dict(keys["base"]) if isinstance(keys["base"], dict) else {"kind": keys["base"]}


class Encoding(nn.Module):
    """Attention with a positional method; ``kerple describe`` lists the kinds.

    Args:
        kind: the method's name, such as ``kerple_log``; subclasses set it.
        heads: H.
        head_dim: D. Of the tables over distances only T5's depends on it, or those of the others with ``scale="inside"``.
            Where the method depends on it, queries with other numbers of features are refused.
        train_len: length of the training sequences in tokens; FIRE, FoPE, scaled rotary rates and the bounded gates of Wall
            use it.
        d_model: M, features of the hidden states that methods by content take (FoX, KerplePositions, Inkling, SelectiveRope,
            RotaryPositions, Wall, GrapeAp and Path), H D by default.
        seed: seed of the initial values, which then equal those of ``kerple train``; None draws it
            from torch's generator.
        layer: gives each layer other initial values, of parameters that layers do not share: those of most methods, and
            with ``share="layer"`` those of kernels.
        dtype: type of the parameters.
        keys: keys of the method, such as ``max_distance`` of T5, and ``window``, ``sink_tokens`` and ``scale`` of
            all methods. ``reach`` ends a bias: it is 0 for keys at that distance and beyond. ``distance_cap`` treats
            keys further away as if they were at that distance. ``clamp="forward_only"`` leaves stored values free, and
            ``emulate="bf16"`` rounds as the original's runs did. ``randomized`` is refused, and so is ``decayed``, since the
            optimizer is yours.

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
        heads, head_dim, train_len = (
            whole(name, value, 1) for name, value in (("heads", heads), ("head_dim", head_dim), ("train_len", train_len))
        )
        d_model = None if d_model is None else whole("d_model", d_model, 1)
        layer, seed = whole("layer", layer, 0), None if seed is None else whole("seed", seed, 0)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"dtype = {dtype!r} must be a type of real numbers, such as torch.float32")
        native = kernels.encoding(kind or self.kind, heads, head_dim, train_len, keys, d_model)
        kind = native.kind  # its one name: RoPE is rotary
        if kind == "wall" and keys.get("gate_heads", "query") != "query":
            raise ValueError(
                "gate_heads = 'kv': a module has as many heads of keys as of queries; make gates with wall = Wall(heads=KV heads,"
                " d_model=M), M the features of rows, and call"
                " kerple.torch.attention(decays=wall.decays(rows).repeat_interleave(H // KV heads, 1))"
            )
        if keys.get("decayed"):
            raise ValueError("decayed = True: the optimizer of a module is yours; leave it out and give weight_decay to the optimizer")
        if native.entry == "embeddings" or native.entry == "code" and not _linear:
            where = "the embeddings" if native.entry == "embeddings" else "linear attention, see LinearAttention"
            raise ValueError(f"kind = {kind!r} enters {where}, not {'linear attention' if _linear else 'the scores of attention'}")
        self.kind, self.heads, self.head_dim = kind, heads, head_dim
        self.d_model = heads * head_dim if d_model is None else d_model
        self.window, self.sink_tokens = native.window, native.sink_tokens
        self._entry, self._tables, self._own = native.entry, native.tables, native.own
        self._projected, self._causal_only = native.projected, native.causal_only
        self._key, self._train_len = encoding_key(native.keys, heads, head_dim, train_len, d_model), train_len
        #: Floor and alpha of the log-length factor.
        self._log_scale = json.loads(native.keys).get("log_scale") if native.entry == "relative" else None
        own = json.loads(native.keys)
        if native.entry == "learned_positions" and own["kernel"] == "table":
            raise ValueError("kernel = 'table': kerple.torch computes 'log', 'power', 'log3' and 'spline'; `kerple train` has tables too")
        if native.entry == "learned_positions" or kind == "rotary_positions":
            self._steps, self._kernel = (own["step"], own.get("step_min", 0.0), own.get("step_max", 2.0)), own.get("kernel")
        #: What the method does depends on the number of features, which the engine compares for score modifications only.
        self._of_features = (
            native.entry in ("rotation", "query_key_map")
            or native.entry == "feature_gates" and native.rates() is not None
            or kind == "transformer_xl"
            or native.entry == "scores" and (own.get("scale") == "inside") != (kind == "t5")
        )
        #: The encoding, where the engine needs more of the method than tables.
        self._in_engine = self._key if native.entry == "map" or native.fades else ""
        seed = int(torch.randint(2**63 - 1, (), device="cpu")) if seed is None else seed
        self._add(native, torch.tensor(native.initial(seed, layer), dtype=torch.float64), dtype)
        rates = native.rates()
        self.register_buffer("inv_freq", rates and torch.tensor(rates, dtype=torch.float64), persistent=False)
        #: Of a map of queries and keys, and whether its delta is clamped, or its other pairs do not turn.
        self._map_flag = own.get("clamp_delta", own.get("zero_pad", own.get("relative", False)))
        self._path_slopes, self._bound, self._gate_rates = native.path_slopes, own.get("g_max"), native.gate_rates
        self._gate_factor = head_dim**-0.5 if own.get("gate_scale") == "inside" else 1.0
        rates = native.map_rates()
        self.register_buffer("map_freq", rates and torch.tensor(rates, dtype=torch.float64), persistent=False)
        #: What GPUs compute the tables from.
        of_table = native
        if kind == "dape":
            base = _base_of(own)
            passed = {name: own[name] for name in ("scale", "clamp")} if native.tables[0] else {}
            of_table = kernels.encoding(base.pop("kind"), heads, head_dim, train_len, base | passed, d_model)
        self._program = _closed_forms.program_of(of_table)
        constants = _closed_forms.constants_of(of_table, heads, head_dim) if self._program else None
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
            ValueError: ``length`` is below 1 or needs more memory than the machine has, or the method is defined for causal
                attention only.
        """
        dtype = dtype or torch.get_default_dtype()
        if not dtype.is_floating_point:
            raise TypeError(f"dtype = {dtype} must be a type of real numbers, such as torch.float32")
        self._check_causal(causal)
        return self._table(whole("length", length, 1), causal, dtype, self._device())

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
            learned = self._learned()
            made = _closed_forms.table(
                self._program, learned[: len(learned) - self._own], self._table_constants, self.heads, self.head_dim, length, two_sides, device
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
        bias, _ = self._table(length, causal, torch.float64, self._device())
        own = [one.reshape(-1).to(torch.float64) for one in self._learned()[len(self._names) - self._own :]]
        if self.kind == "transformer_xl":
            matrix, u, v = self.weight.to(torch.float64), self.u.to(torch.float64), self.v.to(torch.float64)
            own = [(self._waves(length, causal) @ matrix.T).reshape(-1), (v - u).reshape(-1)]
        return torch.cat(([] if bias is None else [bias.reshape(-1)]) + own).to(dtype)

    def _waves(self, length: int, causal: bool) -> Tensor:
        """Sinusoids ``[sin(d f), cos(d f)]`` of the distances of a call."""
        return self._waves_at(torch.arange(0 if causal else 1 - length, length))

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
            raise ValueError(f"q: {x.shape[-1]} features per head, the encoding turns {2 * half}")
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
        weight_name, bias_name = self._gates_of_heads()
        if bias_name not in self._names:
            raise ValueError(f"kind = {self.kind!r} with these keys makes no gates, 'fox' does")
        self._check_rows(rows)
        bias = getattr(self, bias_name).to(rows.dtype)
        logits = rows @ getattr(self, weight_name).to(rows.dtype) + bias if weight_name in self._names else bias.expand(*rows.shape[:2], -1)
        made = nn.functional.logsigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32))).transpose(1, 2)
        return made if self._gate_factor == 1.0 else made * self._gate_factor

    def _gates_of_heads(self) -> tuple[str, str]:
        """The names of what makes the gates of heads, where a method has them."""
        names = {"gates": ("weight", "bias"), "householder": ("gate_weight", "gate_bias")}
        return names.get(self._entry, ("scalar_weight", "scalar_bias"))

    def _refuse_unless(self, entry: str, kind: str) -> None:
        if self._entry != entry:
            raise ValueError(f"kind = {self.kind!r} makes no {_BETWEEN[entry]}, {kind!r} does")

    def decays(self, rows: Tensor) -> Tensor:
        """Log decays ``[B, H, L, D]`` of each feature of hidden states ``[B, L, M]``, what ``forward`` takes as ``decays``.

        Raises:
            ValueError: the method has no decays of features, or the hidden states have another width.
        """
        of_pairs = "decay_weight" in self._names
        if not of_pairs:
            self._refuse_unless("feature_gates", "wall")
        self._check_rows(rows)
        if of_pairs:
            weights, bias = [self.decay_weight], self.decay_bias
        else:
            weights, bias = [self.weight] if "weight" in self._names else [self.weight_in, self.weight_out], self.bias
        logits = rows
        for weight in weights:
            logits = logits @ weight.to(rows.dtype)
        logits = (logits + bias.to(rows.dtype)).to(torch.promote_types(rows.dtype, torch.float32))
        logits = logits.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if self._gate_rates is None:
            made = _maps.bounded(nn.functional.logsigmoid(logits), self._bound)
        else:
            made = logits.sigmoid() * -torch.tensor(self._gate_rates, dtype=logits.dtype, device=logits.device)[:, None, None]
        return torch.cat([made, made], -1) if of_pairs else made

    def path_bias(
        self, rows: Tensor, *, first: int = 0, cu_seqlens: Tensor | None = None, document_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor, list[float]]:
        """Features p and r, ``[B, H, L, E]``, of hidden states ``[B, L, M]``, and slopes: what ``forward`` takes as ``path_bias``.

        Args:
            first: number of tokens before these, in decoding, where r of all keys is needed.
            cu_seqlens, document_ids: packed documents, as for ``forward``: positions count from the first token of each.

        Raises:
            ValueError: the method has no bias over paths, or the hidden states have another width.
        """
        self._refuse_unless("path", "grape_ap")
        self._check_rows(rows)
        positions = self._positions_in_documents(rows, cu_seqlens, document_ids)
        if whole("first", first, 0) > 0 and positions is not None:
            raise ValueError(f"first = {first}: packed documents have no tokens before these; give one of the two")
        if positions is None:
            positions = torch.arange(first, first + rows.shape[1], device=rows.device)[None]
        return *_maps.path_features(rows, self.weight, self.heads, positions, self._map_flag), self._path_slopes

    def householder(
        self, rows: Tensor, *, before: Tensor | None = None, cu_seqlens: Tensor | None = None, document_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Directions w, ``[B, H, L, D]``, and strengths beta, ``[B, H, L, 1]``, of hidden states ``[B, L, M]``: what ``forward``
        takes as ``householder``.

        Args:
            before: the last hidden states before these, as many as the convolution reads, ``[B, conv - 1, M]``, in decoding, where w and
                beta of all keys are needed.
            cu_seqlens, document_ids: packed documents, as for ``forward``: convolutions begin with each of them.

        Raises:
            ValueError: the method has no such products, or the hidden states have another width.
        """
        self._refuse_unless("householder", "path")
        self._check_rows(rows)
        positions = self._positions_in_documents(rows, cu_seqlens, document_ids)
        earlier = 0 if before is None else before.shape[1]
        if earlier > 0 and positions is not None:
            raise ValueError("before: packed documents have no tokens before these; give one of the two")
        rows = rows if before is None else torch.cat([before.to(rows.dtype), rows], 1)
        parts = _maps.householder_parts(
            rows, (self.weight_in, self.weight_out), self.filters, (self.strength_weight, self.strength_bias), self.heads, positions
        )
        return tuple(part[:, :, earlier:] for part in parts)

    @staticmethod
    def _positions_in_documents(rows: Tensor, cu_seqlens: Tensor | None, document_ids: Tensor | None) -> Tensor | None:
        return positions_of(documents_of(cu_seqlens, document_ids, rows[:, None], None, None), rows.shape[1])

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
        self._check_after(after, rows.shape[0], self.heads)
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
        self._check_after(after, rows.shape[0], self.heads, self.head_dim // 2)
        gate = (self.gate_weight, self.gate_bias) if "gate_weight" in self._names else None
        made = _maps.increments(
            rows, self.weight_in, self.weight_out, self.filters, getattr(self, "angle_bias", None), gate, self.heads, before
        )
        angles = (made.to(torch.float64) * self.map_freq).cumsum(2)
        return angles if after is None else angles + after.to(torch.float64)[:, :, None]

    def _mapped(
        self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor | None, starts: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of PoPE or FoPE, of tokens at these positions ``[B, K]``, or counted from the first that
        is not padding.
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
        check_tensor("rows", rows)
        if rows.dim() != 3 or rows.shape[2] != self.d_model:
            raise ValueError(f"rows: expected [B, L, M] with M = {self.d_model}, got shape {tuple(rows.shape)}")

    @staticmethod
    def _check_after(after: Tensor | None, *wanted: int) -> None:
        """Of another shape, sums of earlier tokens would be those of other sequences or heads."""
        if after is not None:
            check_tensor("after", after)
            if after.shape != wanted:
                letters = "[B, H]" if len(wanted) == 2 else "[B, H, D/2]"
                raise ValueError(f"after: expected {letters} = {list(wanted)}, got shape {tuple(after.shape)}")

    def _check_causal(self, causal: object) -> None:
        """A table of one side must not be mirrored where the method has no other side."""
        if not flag("causal", causal) and self._causal_only:
            raise ValueError(f"causal = False: {self.kind} is defined for causal attention only; use causal=True")

    def _check_features(self, q: Tensor, k: Tensor) -> None:
        """What the method has of each feature, head or key fits those of the call."""
        if self._of_features and q.shape[-1] != self.head_dim:
            some = "; to turn only some features, give `pct` too" if self.kind == "rotary" else ""
            raise ValueError(
                f"q: {q.shape[-1]} features per head, but {self.kind} was made with head_dim = {self.head_dim}; "
                f"make it with head_dim={q.shape[-1]}{some}"
            )
        if self._entry == "query_key_map" or self.kind == "transformer_xl":
            if q.shape[1] != self.heads:
                raise ValueError(f"q: {q.shape[1]} heads, but {self.kind} was made with heads = {self.heads}; make it with heads={q.shape[1]}")
        if self._entry == "query_key_map" and q.shape[2] > k.shape[2]:
            raise ValueError(f"q: {q.shape[2]} queries exceed the {k.shape[2]} keys, which alone have positions in {self.kind}")

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
        decays: Tensor | None = None,
        path_bias: tuple[Tensor, Tensor, Sequence[float]] | None = None,
        householder: tuple[Tensor, Tensor] | None = None,
        key_lengths: Tensor | None = None,
        key_starts: Tensor | None = None,
        key_ends: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        document_ids: Tensor | None = None,
        dropout_p: float = 0.0,
        dropout_seed: Tensor | int | None = None,
        **unknown: NoReturn,
    ) -> Tensor:
        """:func:`~kerple.torch.attention` with this method, with the same result. ``bias``, ``weight`` and
        ``position_kernel`` are the method's, ``window`` and ``sink_tokens`` keys of the module; jagged tensors are refused.
        Selective RoPE takes ``angles``, see :meth:`angles`.
        """
        if unknown:
            refuse_arguments("Encoding.forward", unknown)
        self._check_causal(causal)
        between = {"decays": decays, "path_bias": path_bias, "householder": householder}
        own = "decays" if "decay_weight" in self._names else _BETWEEN.get(self._entry)
        for name, value in between.items():
            if name == own and value is None:
                raise ValueError(f"{name}: there is none; make it of the rows that q and k are made of, with `{name}(rows)`")
            if name != own and value is not None:
                kind = {"decays": "wall", "path_bias": "grape_ap", "householder": "path"}[name]
                raise ValueError(f"{name}: kind = {self.kind!r} does not take it, {kind!r} does; or use kerple.torch.attention")
        of_heads = self._entry == "gates" or self._gates_of_heads()[1] in self._names
        if own is not None and q.device.type in DEVICES:
            refuse_encoding(self._key, q.device)
        if own is not None and not (of_heads and gates is None):
            self._check_features(q, k)
            if self._entry == "content_rotation":
                q, k, v = turned(q, k, v, angles)
                angles = None
            if self.inv_freq is not None:
                documents = documents_of(cu_seqlens, document_ids, k, None, key_lengths)
                q, k = self._rotated(q, k, k.shape[2], positions_of(documents, k.shape[2]))
            beside_it = {
                "relative": relative, "positions": positions, "angles": angles, "key_starts": key_starts, "key_ends": key_ends,
                "dropout_p": dropout_p or None,
            }  # fmt: skip
            return attend_by_content(
                q, k, v, tuple(between.values()), beside_it, gates, sinks, key_lengths, cu_seqlens, document_ids, scale, causal, self.window,
                self.sink_tokens, softcap,
            )  # fmt: skip
        q, k, v = as_autocast(q, k, v)
        of, dtype = check_qkv(q, k, v)
        self._check_features(q, k)
        if of_heads and gates is None:
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
            beside_it = {
                "gates": gates, "relative": relative, "positions": positions, "angles": angles, "key_starts": key_starts, "key_ends": key_ends,
                "sink_tokens": self.sink_tokens,
            }  # fmt: skip
            return self._composed(
                q, k, v, beside_it, flag("causal", causal), scale, softcap, sinks, key_lengths, cu_seqlens, document_ids, dropout_p, dropout_seed
            )
        longest = max(q.shape[2], k.shape[2])
        documents = documents_of(cu_seqlens, document_ids, k, key_starts, key_lengths, key_ends)
        q, k = self._rotated(q, k, longest, positions_of(documents, k.shape[2]))
        bias = weight = numbers = None
        if self._entry in ("content_rotation", "query_key_map"):
            scale = scale_of(scale, q.shape[-1])
            q, k, v = (x if x.device.type in DEVICES else x.to(dtype) for x in (q, k, v))
            if self._entry == "content_rotation":
                q, k, v = turned(q, k, v, angles)
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
            scale = scale_of(scale, q.shape[-1])
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


    def _composed(
        self, q: Tensor, k: Tensor, v: Tensor, beside_it: dict[str, object], causal: bool, scale: float | None, softcap: float | None,
        sinks: Tensor | None, key_lengths: object, cu_seqlens: object, document_ids: object, dropout_p: float, dropout_seed: object,
    ) -> Tensor:  # fmt: skip
        """``forward`` of a method whose scores are more than tables and gates, for tensors on a GPU."""
        keys = json.loads(json.loads(self._key)[0])
        softcap = softcap_of(softcap)
        _rule("", scale_of(scale, 1), causal, self.window, None, softcap, dropout_p, 1)  # refuses what the engine refuses
        if keys["emulate"] != "exact":
            refuse_encoding(self._key, q.device)
        for name, value in beside_it.items():
            if value is not None:
                raise ValueError(f"{name}: {self.kind} does not support it on {q.device.type}; leave it out")
        if (q.shape[1], q.shape[3]) != (self.heads, self.head_dim):
            raise ValueError(f"q: {q.shape[1]} heads of {q.shape[3]} features; the encoding has {self.heads} heads of {self.head_dim}")
        if q.shape[2] > k.shape[2]:
            raise ValueError(f"q: {q.shape[2]} queries exceed the {k.shape[2]} keys, which {self.kind} does not support")
        if not causal and self.kind == "xpos":
            raise ValueError("causal = False: products that decay with distance would grow for keys after the query; use causal=True")
        of, dtype = check_qkv(q, k, v)
        documents = documents_of(cu_seqlens, document_ids, k, None, key_lengths)
        ends, sinks = whole_numbers("key_lengths", key_lengths, q.device), beside("sinks", sinks, q, dtype)
        check(q, k, v, None, None, sinks, None, None, ends, documents, causal)
        if ends is not None and ends.dim() != 1:
            raise ValueError(f"key_lengths: {self.kind} does not support intervals of keys per query; expected [B], got shape {tuple(ends.shape)}")
        length = k.shape[2]
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        if q.shape[2] == 0 or q.shape[0] == 0:
            return (q.new_zeros(*q.shape[:3], v.shape[3]) + (k.sum() + v.sum()) * q.sum()).to(of)
        q, k = self._rotated(q, k, length, positions_of(documents, length))
        scale = scale_of(scale, q.shape[-1])
        dropout_p, seed = dropout_of(dropout_p, dropout_seed, q)
        sizes = (q.shape[0], q.shape[1], length)
        kept = None if seed is None else lambda first, rows: kept_rows(seed, dropout_p, sizes, first, rows)
        values = products = most_rows = None
        learned = self._learned()
        if self.kind == "fire":
            bias = _composed.fire(learned, keys.get("init_l", self._train_len), 0.0, dtype)
            scores, width = (lambda s, _, chunk: s + bias(chunk)), 5 * self.heads + 3 * keys["hidden"]
        elif self.kind == "dape":
            scores = _composed.network(learned[-4:], keys, self._base_bias(keys, causal, length, dtype, q.device), dtype)
            width = 8 * self.heads + 3 * keys["hidden"] + (3 * _base_of(keys).get("hidden", 32))
        elif self.kind == "cope":
            scores, width = _composed.contextual(self.embedding, dtype), 20 * self.heads
        elif self.kind == "shaw":
            scores, values = _composed.shaw(learned, scale, dtype)
            width = 10 * self.heads
        elif self.kind == "transformer_xl":
            weight = self.weight.to(torch.float64)
            scores = _composed.projected(lambda d: self._waves_at(d) @ weight.T, self.v - self.u, self.heads, scale, dtype)
            q, width = q + self.u.to(dtype)[:, None], 10 * self.heads
        else:
            gamma, per = keys["gamma"], keys["scale_base"]
            at = torch.arange(self.head_dim // 2, dtype=torch.float64, device=q.device).repeat(2)
            rates = -((2.0 * at / self.head_dim + gamma) / (1.0 + gamma)).log() / per
            scores, products, width = (lambda s, *_: s), _composed.fading(rates), 4 * self.heads
            # factors among the queries of a chunk stay within e^32
            most_rows = int(32.0 * per / max(math.log((1.0 + gamma) / gamma) if gamma > 0 else math.inf, 1e-9))
        out = _composed.attend(
            q, k, v, scores, values, width, scale=scale, causal=causal, window=self.window, softcap=softcap, sinks=sinks,
            key_lengths=ends, documents=documents, kept=kept, dropout_p=dropout_p, products=products,
            most_rows=most_rows,
        )  # fmt: skip
        return out.to(of)

    def _base_bias(self, keys: dict[str, Any], causal: bool, length: int, dtype: torch.dtype, device: torch.device) -> Any:
        """The bias that DAPE adapts, of some queries and all keys; None where the base adds none."""
        base = _base_of(keys)
        if base["kind"] == "fire":
            return _composed.fire(self._learned()[:-4], base.get("init_l", self._train_len), _composed.SLOPE, dtype)
        made, _ = self._table(length, causal, dtype, device)
        if made is None:
            return None
        return _composed.table(torch.nn.functional.pad(made, (length - 1, 0)) if causal else made)

    def _waves_at(self, distances: Tensor) -> Tensor:
        """Sinusoids ``[sin(d f), cos(d f)]``."""
        width = self.heads * self.head_dim
        rates = 10_000.0 ** (-2.0 * torch.arange(width // 2, dtype=torch.float64, device=distances.device) / width)
        angles = distances.to(torch.float64)[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], 1)


def project_(module: nn.Module) -> None:
    """Clamps the parameters of all encodings in a module to their ranges; call it after each
    update.
    """
    for part in module.modules():
        if isinstance(part, Encoding):
            part.project_()
