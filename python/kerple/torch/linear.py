"""Linear attention: features instead of a softmax, with stochastic codes and kernels as decay.

The processor has an engine for all of it. On GPUs features and codes are PyTorch's operations,
:mod:`._linear_features`, and the sums are one operation, which is composed too, :mod:`._linear_sums`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch import library as registry

from .. import _native
from . import _linear_sums
from ._attention import as_autocast, beside, check_qkv, flag, gates_of
from ._checks import whole
from ._documents import documents_of, own_keys, positions_of, refuse_documents, whole_numbers
from ._gpu import DEVICES, prefix_sums
from ._linear_features import GUARDS, Code, coded, features
from ._ops import (
    _check,
    _compiling,
    _dense,
    _library,
    _room,
    _rows,
    _second,
    _transforms,
    encoding,
    refuse_tangents,
    transformable,
)
from ._encoding import Encoding

_OPTIONS = "str encoding, str features, int count, bool causal, int[] noise"
_library.define(
    f"linear(Tensor q, Tensor k, Tensor v, Tensor values, Tensor? gates, Tensor? key_lengths, Tensor? documents, "
    f"{_OPTIONS}) -> (Tensor, Tensor)"
)
_library.define(
    "linear_backward(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor values, Tensor? gates, Tensor? key_lengths, Tensor? documents, "
    f"Tensor out, Tensor denominators, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
# of features, with a column of ones behind the values
_SUMS = "Tensor q, Tensor k, Tensor v, Tensor values, Tensor? gates, Tensor? key_lengths"
_library.define(f"linear_sums({_SUMS}, {_OPTIONS}) -> Tensor")
_library.define(f"linear_sums_backward(Tensor d_out, {_SUMS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
_library.define(f"linear_draw(Tensor like, str what, SymInt first, SymInt[] shape, {_OPTIONS}) -> Tensor")

#: Most numbers of a draw that stays on a device, 16 MiB in f32, and how many draws do.
_MOST_KEPT, _DRAWS_KEPT = 1 << 22, 16


@lru_cache(maxsize=256)
def _rule(
    key: str, features: str, count: int, causal: bool, noise: tuple[int, ...], threads: int
) -> _native.LinearRule:
    return _native.LinearRule(encoding(key), features, count, causal, list(noise), threads)


def _made(key: str, features: str, count: int, causal: bool, noise: list[int]) -> _native.LinearRule:
    return _rule(key, features, count, causal, tuple(noise), torch.get_num_threads())


def _linear(q, k, v, *rest, state: _native.LinearState | None = None) -> tuple[Tensor, Tensor]:
    _check(q, k, v)
    out, denominators = _room(v), q.new_empty(q.shape[:3])
    inputs, options = (_rows(q), _rows(k), _rows(v), *map(_dense, rest[:4])), rest[4:]
    _native.linear_forward(_made(*options), inputs, out, denominators, state)
    return out, denominators


def _linear_fake(q, k, v, *_):
    return _room(v), q.new_empty(q.shape[:3])


def _linear_backward(d_out, q, k, v, values, gates, key_lengths, documents, out, denominators, *options):
    made = _linear_backward_fake(d_out, q, k, v, values, gates)
    inputs = (_rows(q), _rows(k), _rows(v), *map(_dense, (values, gates, key_lengths, documents)))
    told = made if gates is not None else (*made[:4], None)
    _native.linear_backward(_made(*options), inputs, (_rows(out), _dense(denominators), _rows(d_out)), told)
    return made


def _linear_backward_fake(d_out, q, k, v, values, gates, *_):
    beside = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (values, q.new_empty(0) if gates is None else gates))
    return _room(q), _room(k), _room(v), *beside


def _setup(ctx, inputs, output) -> None:
    out, denominators = output
    ctx.mark_non_differentiable(denominators)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:7], out, denominators)
    ctx.options = inputs[7:]


def _gradient(ctx, d_out, _d_denominators):
    if d_out is None:
        return (None,) * 12
    run = torch.ops.kerple.linear_backward if _transforms() is None else _LinearBackward.apply
    made = run(d_out, *ctx.saved_tensors, *ctx.options)
    d_gates = made[4] if ctx.needs_input_grad[4] else None
    return (*made[:4], d_gates, *(None,) * 7)


_Linear = transformable(lambda *inputs: torch.ops.kerple.linear(*inputs), _setup, _gradient)
_LinearBackward = transformable(lambda *inputs: torch.ops.kerple.linear_backward(*inputs))

registry.impl("kerple::linear", "cpu", lib=_library)(_linear)
registry.register_fake("kerple::linear", lib=_library)(_linear_fake)
registry.impl("kerple::linear_backward", "cpu", lib=_library)(_linear_backward)
registry.register_fake("kerple::linear_backward", lib=_library)(_linear_backward_fake)
registry.register_autograd("kerple::linear", _gradient, setup_context=_setup, lib=_library)
registry.register_autograd("kerple::linear_backward", _second, lib=_library)


def _fading(values: Tensor, gates: Tensor | None, like: Tensor, options: tuple) -> _linear_sums.Fading:
    """Of a decay, whose parameters are read, since the number of its terms follows from them."""
    rule = _made(*options)
    if _native.linear_form(rule)[0] != "decay":
        clocks = None if gates is None else prefix_sums(gates.to(torch.float64))
        return _linear_sums.Fading(1, None, None, None, clocks)
    chunk, *parts = _native.linear_decay(rule, values.cpu().contiguous())
    heads = like.shape[1]
    near, rates, weights = (torch.tensor(part, dtype=torch.float64, device=like.device).reshape(heads, len(part) // heads) for part in parts)
    return _linear_sums.Fading(chunk, near.to(like.dtype), rates, weights.to(like.dtype), None)


def _from_behind(q: Tensor, key_lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Places of sequences that are read from their last token, and the queries, that of padding 0."""
    places = _linear_sums.reversed_rows(key_lengths, q)
    padding = None
    if key_lengths is not None:
        padding = (torch.arange(q.shape[2], device=q.device) >= key_lengths[:, None])[:, None, :, None]
    return places, padding


def _sums(q, k, v, values, gates, key_lengths, *options) -> Tensor:
    causal, fading = options[3], _fading(values, gates, q, options)
    if not causal and fading.near is None:
        return q @ (k.mT @ v)
    out, _ = _linear_sums.forward(q, k, v, fading)
    if not causal:
        places, padding = _from_behind(q, key_lengths)
        turn = lambda x: _linear_sums.turned(x, places)  # noqa: E731
        queries = q if padding is None else q.masked_fill(padding, 0.0)
        out = out + turn(_linear_sums.forward(turn(queries), turn(k), turn(v), fading, strict=True)[0])
    return out


def _sums_fake(q, k, v, *_):
    return v.new_empty(v.shape)


def _sums_backward(d_out, q, k, v, values, gates, key_lengths, *options):
    causal, fading = options[3], _fading(values, gates, q, options)
    d_values, d_gates = torch.zeros_like(values), q.new_empty(0) if gates is None else torch.empty_like(gates)
    if not causal and fading.near is None:
        d_sums = q.mT @ d_out
        return d_out @ (k.mT @ v).mT, v @ d_sums.mT, k @ d_sums, d_values, d_gates
    made = _linear_sums.backward(d_out, q, k, v, fading)
    if not causal:
        places, padding = _from_behind(q, key_lengths)
        turn = lambda x: _linear_sums.turned(x, places)  # noqa: E731
        queries = q if padding is None else q.masked_fill(padding, 0.0)
        more = _linear_sums.backward(turn(d_out), turn(queries), turn(k), turn(v), fading, strict=True)
        of_queries = turn(more.q) if padding is None else turn(more.q).masked_fill(padding, 0.0)
        tables = (None if one is None else one + two for one, two in ((made.near, more.near), (made.weights, more.weights)))
        made = _linear_sums.Gradients(made.q + of_queries, made.k + turn(more.k), made.v + turn(more.v), *tables, None)
    if made.clocks is not None:
        d_gates = prefix_sums(made.clocks.to(torch.float64).flip(-1)).flip(-1).to(gates.dtype)
    elif made.near is not None and values.numel():
        told = torch.empty(values.shape, dtype=torch.float64)
        on_host = [x.to(torch.float64).reshape(-1).cpu() for x in (made.near, made.weights)]
        _native.linear_decay_backward(_made(*options), values.cpu().contiguous(), *on_host, told)
        d_values = told.to(values)
    return made.q, made.k, made.v, d_values, d_gates


def _sums_backward_fake(d_out, q, k, v, values, gates, *_):
    return tuple(torch.empty_like(x) for x in (q, k, v, values, q.new_empty(0) if gates is None else gates))


def _sums_setup(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.options = inputs[6:]


def _sums_gradient(ctx, d_out):
    run = torch.ops.kerple.linear_sums_backward if _transforms() is None else _SumsBackward.apply
    *made, d_gates = run(d_out, *ctx.saved_tensors, *ctx.options)
    return (*made, d_gates if ctx.needs_input_grad[4] else None, *(None,) * 6)


_Sums = transformable(lambda *inputs: torch.ops.kerple.linear_sums(*inputs), _sums_setup, _sums_gradient)
_SumsBackward = transformable(lambda *inputs: torch.ops.kerple.linear_sums_backward(*inputs))


def _draw(like: Tensor, what: str, first: int, shape: list[int], *options) -> Tensor:
    size, where = torch.Size(shape), (like.device, like.dtype)
    if size.numel() > _MOST_KEPT:
        return _drawn(what, first, size, options, *where)
    return _kept(what, first, size, (*options[:4], tuple(options[4])), *where).clone()


def _drawn(what: str, first: int, shape: torch.Size, options: tuple, device: torch.device, dtype: torch.dtype) -> Tensor:
    out, rule = torch.empty(shape, dtype=torch.float64), _made(*options[:4], list(options[4]))
    if what == "omega":
        _native.linear_omega(rule, out)
    else:
        _native.linear_noise(rule, what == "gate", first, out)
    return out.to(dtype).to(device)


_kept = lru_cache(maxsize=_DRAWS_KEPT)(_drawn)


def _draw_fake(like: Tensor, what: str, first: int, shape: list[int], *_) -> Tensor:
    return like.new_empty(shape)


for _name, _run in (("sums", _sums), ("sums_backward", _sums_backward), ("draw", _draw)):
    registry.impl(f"kerple::linear_{_name}", ("cpu", "cuda", "xpu"), lib=_library)(_run)
registry.register_fake("kerple::linear_sums", lib=_library)(_sums_fake)
registry.register_fake("kerple::linear_sums_backward", lib=_library)(_sums_backward_fake)
registry.register_fake("kerple::linear_draw", lib=_library)(_draw_fake)
registry.register_autograd("kerple::linear_sums", _sums_gradient, setup_context=_sums_setup, lib=_library)
registry.register_autograd("kerple::linear_sums_backward", _second, lib=_library)


class LinearState:
    """State of decoding: sums over the earlier positions, of constant size."""

    def __init__(self) -> None:
        self._native = _native.LinearState()
        #: On a GPU: what the sums are of, and the sums.
        self._of: tuple | None = None
        self._values: Tensor | None = None
        self._past: _linear_sums.Past | None = None

    def __len__(self) -> int:
        return len(self._native) if self._past is None else self._past.length

    def bytes(self) -> int:
        """Size of the state in bytes."""
        if self._past is None:
            return self._native.bytes()
        return sum(x.numel() * x.element_size() for x in self._past[:3])


class LinearAttention(Encoding):
    """``sum_j a(i - j) phi(q_i).phi(k_j) v_j`` divided by the same without ``v``, in time linear in
    the length.

    ``a`` is the decay ``exp(b)`` of a kernel, ``kerple_log``, ``kerple_power``, ``kerple_power_original`` or ``alibi``:
    exact for near positions, and for the others a sum of decaying exponentials, within a thousandth up to distance
    1048576. ``r1`` of ``kerple_log`` is at most 4: :meth:`project_` clamps it.
    ``sine_spe`` and ``conv_spe`` are stochastic codes of queries and keys. ``rotary`` rotates them,
    ``none`` has no positions; both accept ``gates``, and ``fox`` computes them. Other methods are
    refused.

    Args:
        kind, heads, head_dim: as in :class:`Encoding`.
        features: ``favor``, positive random features of the softmax kernel; ``relu`` or ``elu``.
        count: number of random features, even; only ``favor`` draws any.
        seed: seed of initial values, features and codes. Training draws new ones with
            :meth:`redraw_`, evaluation never does. The draws follow from the buffer ``noise``,
            which ``state_dict`` contains.
        keys: keys of the method.
    """

    def __init__(
        self, kind: str = "kerple_log", heads: int = 1, head_dim: int = 64, *, features: str = "favor", count: int = 128,
        seed: int | None = None, layer: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(kind, heads, head_dim, seed=seed, layer=layer, _linear=True, **options)
        seed = int(torch.randint(2**62, (), device="cpu")) if seed is None else seed
        if not 0 <= seed < 1 << 63:
            raise ValueError(f"seed = {seed} is out of range, it must be 0 to 2^63 - 1")
        count = whole("count", count, 2)
        self.features, self.count, self._noise = features, count, [seed, layer, 0]
        self._noise_read: tuple[int, int | None] | None = None
        self._takes, code = _native.linear_form(self._rule(True))
        self._code = None if code is None else Code(*code)
        if features == "favor" or self._entry == "code":
            # the draws follow from these: seed, layer, and number of the draw
            self.register_buffer("noise", torch.tensor(self._noise, dtype=torch.int64))
        if self.kind == "kerple_log":  # larger amplitudes have the effect of this one
            self._ranges["r1"] = (self._ranges["r1"][0], 4.0)

    def _read_noise(self) -> None:
        """Reads the buffer where it is another one or was changed, since reading it waits for a device."""
        noise = self._buffers.get("noise")
        if noise is None or noise.is_meta:
            return
        version = None if noise.is_inference() else noise._version
        if version is None or self._noise_read != (id(noise), version):
            self._noise, self._noise_read = noise.tolist(), (id(noise), version)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "noise":
            self._read_noise()

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *rest: Any) -> None:
        errors, name = rest[-1], prefix + "noise"
        if "noise" in self._buffers and name not in state_dict:
            errors.append(
                f"{name} is missing: what features and codes were drawn from was not saved, so others would be computed with; "
                f"hint: of a module made with a seed, add state_dict[{name!r}] = torch.tensor([seed, layer, 0])"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._read_noise()

    def _options(self, causal: bool) -> tuple:
        if not _compiling():
            self._read_noise()
        seed, layer, draw = self._noise
        return self._key, self.features, self.count, causal, [seed, draw if self.training else 0, layer]

    def _rule(self, causal: bool) -> _native.LinearRule:
        return _made(*self._options(causal))

    def redraw_(self) -> None:
        """Draws new random features and codes for later calls in training; evaluation keeps its
        own.
        """
        seed, layer, draw = self._noise
        self._noise = [seed, layer, draw + 1]
        if "noise" in self._buffers:
            self.noise = torch.tensor(self._noise, dtype=torch.int64, device=self.noise.device)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool = True,
        gates: Tensor | None = None,
        key_lengths: Tensor | None = None,
        state: LinearState | None = None,
        cu_seqlens: Tensor | None = None,
        document_ids: Tensor | None = None,
    ) -> Tensor:
        """Attends with ``[B, H, L, D]`` queries and keys and ``[B, H, L, E]`` values at the same
        positions.

        ``gates``, ``[B, H, L]``, are log gates: the product of a query and a key decays by the
        gates after the key, up to the query's own.

        ``cu_seqlens`` and ``document_ids`` describe packed documents, as for
        :func:`~kerple.torch.attention`: sums, decays and codes start again in every document.

        With ``state`` the positions follow those that the state contains, and are added to it. It
        has no gradients.

        Raises:
            TypeError, ValueError: as :func:`~kerple.torch.attention`.
            ValueError: packed documents with a state, which is that of one document per row.
        """
        if state is not None:
            refuse_documents("a LinearState", {"cu_seqlens": cu_seqlens, "document_ids": document_ids})
        q, k, v = as_autocast(q, k, v)
        of, dtype = check_qkv(q, k, v)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        documents = documents_of(cu_seqlens, document_ids, k, None, key_lengths)
        span = q.shape[2] + (0 if state is None else len(state))
        q, k = self._rotated(q, k, span, positions_of(documents, k.shape[2]))
        ends = whole_numbers("key_lengths", key_lengths, q.device)
        gates = beside("gates", gates, q, dtype)
        if gates is not None:
            gates = gates_of(gates, q.shape[1], q, None, ends, documents).to(dtype)
        arguments = (q, k, v, self._values(), gates, ends, documents, *self._options(flag("causal", causal)))
        refuse_tangents(*arguments[:7])
        if q.device.type in DEVICES:
            return self._composed(*arguments[:7], arguments[7:], state).to(of)
        if state is not None:
            with torch.no_grad():
                return _linear(*arguments, state=state._native)[0].to(of)
        run = torch.ops.kerple.linear if _compiling() or _transforms() is None else _Linear.apply
        return run(*arguments)[0].to(of)

    def _composed(
        self, q: Tensor, k: Tensor, v: Tensor, values: Tensor, gates: Tensor | None, ends: Tensor | None, documents: Tensor | None,
        options: tuple, state: LinearState | None, span: int | None = None,
    ) -> Tensor:  # fmt: skip
        """The same of PyTorch's operations, for tensors on a GPU, where values of gates and lengths are not checked."""
        causal = options[3]
        if (q.shape[1], q.shape[3]) != (self.heads, self.head_dim):
            raise ValueError(f"q: {q.shape[1]} heads of {q.shape[3]} features; the encoding has {self.heads} heads of {self.head_dim}")
        for name, x, letters, wanted in (("k", k, "B, H, L, D", q.shape), ("v", v, "B, H, L, E", (*q.shape[:3], v.shape[3]))):
            if x.shape != torch.Size(wanted):
                raise ValueError(f"{name}: expected [{letters}] = {list(wanted)}, got {list(x.shape)}")
        if ends is not None and ends.shape != q.shape[:1]:
            raise ValueError(f"key_lengths: expected [B] = [{q.shape[0]}], got shape {tuple(ends.shape)}")
        self._check_gates(gates is not None, causal)
        if state is not None and (not causal or ends is not None):
            raise ValueError("state: it requires causal=True and neither padding nor packed documents")
        if documents is not None:
            return self._of_documents(q, k, v, values, gates, documents, options)
        first = 0 if state is None else len(state)
        q, k = self._features(q, k, first, span or first + q.shape[2], options)
        if ends is not None:
            padding = (torch.arange(k.shape[2], device=k.device) >= ends[:, None])[:, None, :, None]
            k, v = k.masked_fill(padding, 0.0), v.masked_fill(padding, 0.0)
        v = torch.cat([v, v.new_ones(*v.shape[:3], 1)], 3)
        if state is not None:
            sums = self._extended(q, k, v, values, gates, options, state)
        else:
            values = values if values.numel() else q.new_empty(0, dtype=torch.float64)
            run = torch.ops.kerple.linear_sums if _compiling() or _transforms() is None else _Sums.apply
            sums = run(q, k, v, values, gates, ends, *options)
        below = sums[..., -1:] + GUARDS[self.features]
        nothing = below.abs() < torch.finfo(below.dtype).tiny
        return torch.where(nothing, 0.0, sums[..., :-1]) / torch.where(nothing, 1.0, below)

    def _check_gates(self, given: bool, causal: bool) -> None:
        if not given and self._takes == "gates":
            raise ValueError(f"gates: {self.kind} requires them; compute them from the rows that give q and k")
        if given and self._takes == "decay":
            raise ValueError(f"gates: {self.kind} already decays products, so gates are not supported")
        if given and not causal:
            raise ValueError("gates: linear attention supports them with causal=True only")

    def _features(self, q: Tensor, k: Tensor, first: int, span: int, options: tuple) -> tuple[Tensor, Tensor]:
        """Features of queries and keys at positions from ``first`` on, of sequences of ``span`` positions."""
        like = q.detach()
        if self._code is not None:
            streams, width = q.shape[1] * q.shape[3], self._code.realisations
            draw = lambda what, row, rows: torch.ops.kerple.linear_draw(like, what, row, (streams, rows, width), *options)  # noqa: E731
            q, k = (coded(x, self._code, self._learned(), draw, side, first, span) for side, x in enumerate((q, k)))
        omega = None
        if self.features == "favor":
            omega = torch.ops.kerple.linear_draw(like, "omega", 0, (q.shape[3], self.count // 2), *options)
        return features(q, self.features, omega, True), features(k, self.features, omega, False)

    @torch.no_grad()
    def _extended(
        self, q: Tensor, k: Tensor, v: Tensor, values: Tensor, gates: Tensor | None, options: tuple, state: LinearState
    ) -> Tensor:
        """Sums after the tokens of a state, to which these are added."""
        of = (options, q.shape[:2], q.shape[3], v.shape[3], q.dtype, q.device)
        if state._of is not None and not (state._of == of and torch.equal(state._values, values)):
            raise ValueError("state: it has other sizes, features or learned values; start a new one")
        sums, state._past = _linear_sums.forward(q, k, v, _fading(values, gates, q, options), past=state._past)
        state._of, state._values = of, values.clone()
        return sums

    def _of_documents(
        self, q: Tensor, k: Tensor, v: Tensor, values: Tensor, gates: Tensor | None, documents: Tensor, options: tuple
    ) -> Tensor:
        """Each document as a row of its own, those of similar length together, for which their lengths are read."""
        first, end = own_keys(documents, q.shape[2])
        begins = (first == torch.arange(q.shape[2], device=q.device)) & (end > first)
        rows, starts = (x.tolist() for x in begins.nonzero(as_tuple=True))
        lengths = (end - first)[begins].tolist()
        groups: dict[int, list[int]] = {}
        for at, length in enumerate(lengths):
            groups.setdefault((length - 1).bit_length(), []).append(at)
        out = v.new_zeros(v.shape)
        for members in groups.values():
            of_row, of_start, own = (torch.tensor([x[at] for at in members], device=q.device) for x in (rows, starts, lengths))
            longest = max(lengths[at] for at in members)
            places = of_start[:, None] + torch.arange(longest, device=q.device)
            padding = places >= (of_start + own)[:, None]
            places = places.clamp(max=q.shape[2] - 1)
            pick = lambda x: x.transpose(1, 2)[of_row[:, None], places].transpose(1, 2)  # noqa: B023, E731
            alone = None if gates is None else pick(gates).masked_fill(padding[:, None], 0.0)
            made = self._composed(pick(q), pick(k), pick(v), values, alone, own, None, options, None, max(lengths))
            out = out.transpose(1, 2).index_put((of_row[:, None].expand_as(places)[~padding], places[~padding]), made.transpose(1, 2)[~padding]).transpose(1, 2)
        return out
