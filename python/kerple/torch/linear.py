"""Linear attention: features instead of a softmax, with stochastic codes and kernels as decay."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch import library as registry

from .. import _native
from ._gpu import GPUS
from ._attention import as_autocast, beside, check_qkv, flag, gates_of
from ._documents import documents_of, positions_of, refuse_documents, whole_numbers
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
from .encodings import Encoding

_OPTIONS = "str encoding, str features, int count, bool causal, int[] noise"
_library.define(
    f"linear(Tensor q, Tensor k, Tensor v, Tensor values, Tensor? gates, Tensor? key_lengths, Tensor? documents, "
    f"{_OPTIONS}) -> (Tensor, Tensor)"
)
_library.define(
    "linear_backward(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor values, Tensor? gates, Tensor? key_lengths, Tensor? documents, "
    f"Tensor out, Tensor denominators, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


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


class LinearState:
    """State of decoding: sums over the earlier positions, of constant size."""

    def __init__(self) -> None:
        self._native = _native.LinearState()

    def __len__(self) -> int:
        return len(self._native)

    def bytes(self) -> int:
        """Size of the state in bytes."""
        return self._native.bytes()


class LinearAttention(Encoding):
    """``sum_j a(i - j) phi(q_i).phi(k_j) v_j`` divided by the same without ``v``, in time linear in
    the length.

    ``a`` is the decay ``exp(b)`` of a kernel, ``kerple_log``, ``kerple_power`` or ``alibi``: exact
    for near positions, and for the others a sum of decaying exponentials within a thousandth.
    ``sine_spe`` and ``conv_spe`` are stochastic codes of queries and keys. ``rotary`` rotates them,
    ``none`` has no positions; both accept ``gates``, and ``fox`` computes them. Other methods are
    refused.

    Args:
        kind, heads, head_dim: as in :class:`Encoding`.
        features: ``favor``, positive random features of the softmax kernel; ``relu`` or ``elu``.
        count: number of random features, even.
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
        self.features, self.count, self._noise = features, count, [seed, layer, 0]
        self._rule(True)
        if features == "favor" or self._entry == "code":
            # the draws follow from these: seed, layer, and number of the draw
            self.register_buffer("noise", torch.tensor(self._noise, dtype=torch.int64))
        if kind == "kerple_log":  # larger amplitudes have the effect of this one
            self._ranges["r1"] = (self._ranges["r1"][0], 4.0)

    def _read_noise(self) -> None:
        noise = self._buffers.get("noise")
        if noise is not None and not noise.is_meta:
            self._noise = noise.tolist()

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
        if q.device.type in GPUS:
            raise ValueError(f"q: is on {q.device}; linear attention is computed on the processor, use .cpu()")
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
        if state is not None:
            with torch.no_grad():
                return _linear(*arguments, state=state._native)[0].to(of)
        run = torch.ops.kerple.linear if _compiling() or _transforms() is None else _Linear.apply
        return run(*arguments)[0].to(of)
