"""Linear attention: features instead of a softmax, with stochastic codes and kernels that fade."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch import library as registry

from .. import _native
from ._attention import beside, check_qkv, keys_of
from ._ops import _check, _dense, _library, _room, _rows, encoding
from .encodings import Encoding

_OPTIONS = "str encoding, str features, int count, bool causal, int[] noise"
_library.define(
    f"linear(Tensor q, Tensor k, Tensor v, Tensor values, Tensor? gates, Tensor? key_lengths, {_OPTIONS}) -> (Tensor, Tensor)"
)
_library.define(
    "linear_backward(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor values, Tensor? gates, Tensor? key_lengths, "
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
    inputs, options = (_rows(q), _rows(k), _rows(v), *map(_dense, rest[:3])), rest[3:]
    _native.linear_forward(_made(*options), inputs, out, denominators, state)
    return out, denominators


def _linear_fake(q, k, v, *_):
    return _room(v), q.new_empty(q.shape[:3])


def _linear_backward(d_out, q, k, v, values, gates, key_lengths, out, denominators, *options):
    made = _linear_backward_fake(d_out, q, k, v, values, gates)
    inputs = (_rows(q), _rows(k), _rows(v), _dense(values), _dense(gates), _dense(key_lengths))
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
    ctx.save_for_backward(*inputs[:6], out, denominators)
    ctx.options = inputs[6:]


def _gradient(ctx, d_out, _d_denominators):
    if d_out is None:
        return (None,) * 11
    made = torch.ops.kerple.linear_backward(d_out, *ctx.saved_tensors, *ctx.options)
    d_gates = made[4] if ctx.needs_input_grad[4] else None
    return (*made[:4], d_gates, *(None,) * 6)


def _no_second_derivative(ctx, *_: Tensor):
    raise RuntimeError("kerple::linear has a first derivative only: do not ask for create_graph behind it")


registry.impl("kerple::linear", "cpu", lib=_library)(_linear)
registry.register_fake("kerple::linear", lib=_library)(_linear_fake)
registry.impl("kerple::linear_backward", "cpu", lib=_library)(_linear_backward)
registry.register_fake("kerple::linear_backward", lib=_library)(_linear_backward_fake)
registry.register_autograd("kerple::linear", _gradient, setup_context=_setup, lib=_library)
registry.register_autograd("kerple::linear_backward", _no_second_derivative, lib=_library)


class LinearState:
    """What decoding knows of the positions before: sums of a size that does not grow."""

    def __init__(self) -> None:
        self._native = _native.LinearState()

    def __len__(self) -> int:
        return len(self._native)

    def bytes(self) -> int:
        """Of all its numbers."""
        return self._native.bytes()


class LinearAttention(Encoding):
    """``sum_j a(i - j) phi(q_i).phi(k_j) v_j`` divided by the same without ``v``, in time linear in the length.

    ``a`` is ``exp(b)`` of a kernel that fades, ``kerple_log``, ``kerple_power`` or ``alibi``: near positions as it is, the
    others by decaying exponentials within a thousandth. ``sine_spe`` and ``conv_spe`` are stochastic codes of queries and keys.
    ``rotary`` turns them, ``none`` has no positions; both take ``gates``, and ``fox`` makes them. Other methods are refused.

    Args:
        kind, heads, head_dim: as in :class:`Encoding`.
        features: ``favor``, positive random features of the softmax kernel; ``relu`` or ``elu``.
        count: random features, an even number.
        seed: of initial values, features and codes; training draws anew with :meth:`redraw_`, evaluation never.
        keys: the method's own.
    """

    def __init__(
        self, kind: str = "kerple_log", heads: int = 1, head_dim: int = 64, *, features: str = "favor", count: int = 128,
        seed: int | None = None, layer: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(kind, heads, head_dim, seed=seed, layer=layer, _linear=True, **options)
        noise = int(torch.randint(2**62, ())) if seed is None else seed
        self.features, self.count, self._noise, self._draw = features, count, (noise, layer), 0
        self._rule(True)
        if kind == "kerple_log":  # larger amplitudes are used as this one
            self._ranges["r1"] = (self._ranges["r1"][0], 4.0)

    def _options(self, causal: bool) -> tuple:
        seed, layer = self._noise
        draw = self._draw if self.training else 0
        return self._key, self.features, self.count, causal, [seed, draw, layer]

    def _rule(self, causal: bool) -> _native.LinearRule:
        return _made(*self._options(causal))

    def redraw_(self) -> None:
        """Draws random features and codes anew for the calls that follow in training; evaluation keeps its own."""
        self._draw += 1

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
    ) -> Tensor:
        """Of ``[B, H, L, D]`` queries and keys and ``[B, H, L, E]`` values at the same positions.

        ``gates``, ``[B, H, L]``, are logarithms of what tokens let through of what lies before them: the product of a query and a
        key fades by those after the key, up to the query's own.

        ``state`` makes the positions follow those that it holds; it then holds these too. It has no gradients.

        Raises:
            TypeError, ValueError: as :func:`~kerple.torch.attention`.
        """
        of, dtype = check_qkv(q, k, v)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        q, k = self._rotated(q, k, q.shape[2] + (0 if state is None else len(state)))
        gates = beside("gates", gates, dtype)
        if gates is not None and gates.device != q.device:
            raise ValueError(f"gates: is on {gates.device}, q on {q.device}")
        arguments = (q, k, v, self._values(), gates, keys_of("key_lengths", key_lengths), *self._options(causal))
        if state is not None:
            with torch.no_grad():
                return _linear(*arguments, state=state._native)[0].to(of)
        return torch.ops.kerple.linear(*arguments)[0].to(of)
