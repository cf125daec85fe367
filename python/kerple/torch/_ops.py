"""The operations that are registered with PyTorch.

``kerple::attention`` and ``kerple::table`` have a CPU kernel, a version for fake tensors, and a
derivative, which is an operation itself. ``kerple::turns`` has no derivative, since positions have
no gradient. So ``torch.compile`` keeps them in one graph.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch import library as registry
from torch._C import _functorch
from torch.autograd import forward_ad

from .. import _native
from . import _gpu

_library = registry.Library("kerple", "DEF")
_OPTIONS = (
    "str encoding, float scale, bool causal, int? window, int? sink_tokens, float? softcap, float dropout_p, str position_kernel"
)
_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? weight, Tensor? sinks, Tensor? numbers, Tensor? clocks, "
    "Tensor? rows, Tensor? profiles, Tensor? positions, Tensor? parameters, Tensor? key_starts, Tensor? key_lengths, "
    "Tensor? documents, Tensor? dropout_seed"
)
_library.define(f"attention({_INPUTS}, {_OPTIONS}) -> (Tensor, Tensor)")
_library.define(
    f"attention_backward(Tensor d_out, {_INPUTS}, Tensor out, Tensor lse, {_OPTIONS}, bool[] wanted)"
    f" -> ({', '.join(['Tensor'] * 12)})"
)
_library.define("table(Tensor values, str encoding, SymInt length) -> (Tensor, Tensor)")
_library.define("table_backward(Tensor d_bias, Tensor d_weight, Tensor values, str encoding, SymInt length) -> Tensor")
_library.define("turns(Tensor rates, str encoding, SymInt start, SymInt rows, SymInt span) -> (Tensor, Tensor)")

#: Of the tensors of a call: those with gradients, up to the parameters of a kernel of positions; and all.
_WITH_GRADIENTS, _TENSORS = 12, 16
#: Numbers, names and flags of a call.
_NUMBERS = 8

#: Bytes of memory of this machine.
_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def encoding_key(keys: str, heads: int, head_dim: int, train_len: int, d_model: int | None) -> str:
    """The name of a native encoding in a graph."""
    return json.dumps([keys, heads, head_dim, train_len, d_model])


@lru_cache(maxsize=1024)
def encoding(key: str) -> _native.Encoding:
    """The native encoding with this name."""
    return _native.Encoding(*json.loads(key))


@lru_cache(maxsize=4096)
def _rule(
    key: str, scale: float, causal: bool, window: int | None, sink_tokens: int | None, softcap: float | None, dropout_p: float, threads: int
) -> _native.Rule:
    return _native.Rule(scale, (causal, window, sink_tokens), softcap, threads, encoding(key) if key else None, dropout_p)


def _rows(x: Tensor) -> Tensor:
    """The tensor, copied only if its features are not contiguous in memory."""
    x = x.resolve_neg() if x.is_neg() else x
    return x if x.is_contiguous() or x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def _room(x: Tensor) -> Tensor:
    """An empty tensor with the memory layout of these rows."""
    if x.is_contiguous() or x.stride(-1) == 1 or x.shape[-1] <= 1:
        return torch.empty_like(x)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _out(q: Tensor, v: Tensor) -> Tensor:
    """An empty output: laid out as queries, with the features of values."""
    return _room(q) if q.shape[3] == v.shape[3] else q.new_empty(*q.shape[:3], v.shape[3])


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{name}: expected [B, H, L, D], got shape {tuple(x.shape)}")
    _check_sizes(q, k, v)


def _check_sizes(q: Tensor, k: Tensor, v: Tensor) -> None:
    most = _MEMORY // 8
    if not q.is_cpu:  # memory of a GPU is PyTorch's to refuse
        return
    if q.numel() <= most and k.numel() <= most and v.numel() <= most:
        return
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.numel() * x.element_size() > _MEMORY:
            size, shape = x.numel() * x.element_size(), tuple(x.shape)
            raise ValueError(f"{name}: an array of shape {shape} takes {size} bytes, this machine has {_MEMORY}")


def _dense(x: Tensor | None) -> Tensor | None:
    if x is not None and x.is_neg():
        x = x.resolve_neg()
    return x if x is None or x.is_contiguous() else x.contiguous()


def _given(q: Tensor, k: Tensor, v: Tensor, *rest) -> tuple[_native.Rule, tuple[Tensor | tuple[Tensor | None, ...] | None, ...]]:
    """The rule and the arrays as the engine reads them; the arguments are those of
    ``kerple::attention``.
    """
    *options, kernel = rest[_TENSORS - 3 : _TENSORS - 3 + _NUMBERS]
    rule = _rule(*options, torch.get_num_threads())
    *tables, rows, profiles, positions, parameters, starts, lengths, documents, seed = rest[: _TENSORS - 3]
    relative = None if rows is None else (_rows(rows), _dense(profiles))
    if not ((positions is None) == (parameters is None) == (kernel == "")):
        raise ValueError("positions: there are positions, parameters and the name of a kernel, or none of the three")
    learned = None if positions is None else (_dense(positions), _dense(parameters), kernel)
    beside = (*map(_dense, tables), relative, learned, tuple(map(_dense, (starts, lengths, documents))), _dense(seed))
    return rule, (_rows(q), _rows(k), _rows(v), *beside)


def _lse_type(dtype: torch.dtype) -> torch.dtype:
    """GPU kernels take halves as they are, and sum in f32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _run(q: Tensor, k: Tensor, v: Tensor, *rest) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = q.shape
    lse_type = _lse_type(q.dtype)
    out, lse = _out(q, v), torch.empty(batch, heads, queries, dtype=lse_type, device=q.device)  # separate sizes take half as long as a tuple
    if q.device.type in _gpu.DEVICES:
        _gpu.forward((q, k, v, *rest), out, lse)
        return out, lse
    rule, inputs = _given(q, k, v, *rest)
    _native.attention_forward(rule, inputs, out, lse)
    return out, lse


def _attention(q: Tensor, k: Tensor, v: Tensor, *rest) -> tuple[Tensor, Tensor]:
    _check(q, k, v)
    return _run(q, k, v, *rest)


def _attention_fake(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return _out(q, v), q.new_empty(q.shape[:3], dtype=_lse_type(q.dtype))


def _made(
    q: Tensor, k: Tensor, v: Tensor, beside: tuple[Tensor | None, ...], wanted: list[bool]
) -> list[Tensor | None]:
    """Allocates the requested gradients, of the relative bias and of learned positions both or none."""
    *tables, rows, profiles, positions, parameters = beside
    *of_tables, of_rows, of_profiles, of_positions, of_parameters = wanted
    dense = (torch.empty_like(x, memory_format=torch.contiguous_format) if want and x is not None else None
             for x, want in zip(tables, of_tables, strict=True))  # fmt: skip
    relative = [None, None]
    if rows is not None and (of_rows or of_profiles):
        relative = [_room(rows), torch.empty_like(profiles, memory_format=torch.contiguous_format)]
    learned = [None, None]
    if positions is not None and (of_positions or of_parameters):
        learned = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (positions, parameters)]
    return [_room(q), _room(k), _room(v), *dense, *relative, *learned]


def _told(q: Tensor, made: list[Tensor | None]) -> tuple[Tensor, ...]:
    """An operation returns only tensors: an empty one replaces each gradient that is missing."""
    return tuple(q.new_empty(0) if one is None else one for one in made)


def _run_backward(d_out: Tensor, *rest) -> list[Tensor | None]:
    inputs, (out, lse, *options, wanted) = rest[:_TENSORS], rest[_TENSORS:]
    made = _made(*inputs[:3], inputs[3:_WITH_GRADIENTS], wanted)
    if d_out.device.type in _gpu.DEVICES:
        _gpu.backward((*inputs, *options), (_rows(out), lse, _rows(d_out)), made)
        return made
    rule, given = _given(*inputs, *options)
    _native.attention_backward(rule, given, (_rows(out), _dense(lse), _rows(d_out)), made)
    return made


def _attention_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest) -> tuple[Tensor, ...]:
    _check(q, k, v)
    return _told(q, _run_backward(d_out, q, k, v, *rest))


def _attention_backward_fake(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor | None | list[bool]
) -> tuple[Tensor, ...]:
    return _told(q, _made(q, k, v, rest[: _WITH_GRADIENTS - 3], rest[-1]))


def _attention_setup(ctx, inputs, output) -> None:
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_TENSORS], out, lse)
    ctx.options = inputs[_TENSORS:]


def _attention_gradient(ctx, d_out: Tensor | None, _d_lse: Tensor | None):
    if d_out is None:
        return (None,) * (_TENSORS + _NUMBERS)
    needs = ctx.needs_input_grad
    run = torch.ops.kerple.attention_backward if _transforms() is None else _AttentionBackward.apply
    made = run(d_out, *ctx.saved_tensors, *ctx.options, list(needs[3:_WITH_GRADIENTS]))
    beside = _TENSORS + _NUMBERS - _WITH_GRADIENTS
    return (*(d if need else None for d, need in zip(made, needs, strict=False)), *(None,) * beside)


class _Direct(torch.autograd.Function):
    """The operation without the dispatcher, which costs several times as much as a small call."""

    @staticmethod
    def forward(ctx, *given):
        *leaves, rest = given  # those with gradients, and what is left
        inputs = (*leaves, *rest[: _TENSORS - _WITH_GRADIENTS])
        ctx.options = rest[_TENSORS - _WITH_GRADIENTS :]
        out, lse = _run(*inputs, *ctx.options)
        ctx.save_for_backward(*inputs, out, lse)
        return out

    @staticmethod
    def backward(ctx, d_out):
        needs = ctx.needs_input_grad
        # the registered operation raises the error where a second derivative is requested
        direct = not torch.is_grad_enabled() and not _functorch.is_legacy_batchedtensor(d_out)
        run = _run_backward if direct else torch.ops.kerple.attention_backward
        if _transforms() is not None:
            run = _AttentionBackward.apply
        made = run(d_out, *ctx.saved_tensors, *ctx.options, list(needs[3:_WITH_GRADIENTS]))
        return (*(d if need else None for d, need in zip(made, needs, strict=False)), None)


def _second(ctx, *_: Tensor):
    raise RuntimeError("kerple's operations have a first derivative only: do not ask for create_graph behind them")


def refuse_tangents(*inputs: Tensor | None) -> None:
    """Refuses forward-mode derivatives, which would silently be lost."""
    if _compiling() or forward_ad._current_level < 0:
        return
    for x in inputs:
        while x is not None:
            if torch._VF._unpack_dual(x, level=forward_ad._current_level)[1] is not None:
                raise NotImplementedError(
                    "kerple's operations have no forward-mode derivative (jvp, jacfwd, make_dual): "
                    "use torch.func.vjp, torch.func.jacrev or backward()"
                )
            x = _functorch.get_unwrapped(x) if _functorch.is_functorch_wrapped_tensor(x) else None


def transformable(op: Callable, setup: Callable | None = None, gradient: Callable = _second) -> type:
    """The operation for ``torch.func``: with a derivative, and with one call after another for
    ``vmap``.
    """

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(*inputs):
            return op(*inputs)

        @staticmethod
        def setup_context(ctx, inputs, output) -> None:
            if setup is not None:
                setup(ctx, inputs, output)

        @staticmethod
        def backward(ctx, *gradients):
            return gradient(ctx, *gradients)

        @staticmethod
        def vmap(info, in_dims, *inputs):
            def one(at: int):
                return Made.apply(*(
                    x.select(d, at) if isinstance(x, Tensor) and d is not None else x
                    for x, d in zip(inputs, in_dims, strict=True)
                ))  # fmt: skip

            found = [one(at) for at in range(info.batch_size)]
            if isinstance(found[0], Tensor):
                return torch.stack(found), 0
            return tuple(torch.stack(parts) for parts in zip(*found, strict=True)), (0,) * len(found[0])

    return Made


_PLAIN = (Tensor, torch.nn.Parameter, type(None))
_compiling, _modes, _tracing = torch.compiler.is_compiling, torch._C._len_torch_dispatch_stack, torch._C._is_tracing
_transforms = torch._C._functorch.peek_interpreter_stack


def _is_plain(q: Tensor, k: Tensor, v: Tensor, beside: tuple[Tensor | None, ...]) -> bool:
    """Whether the dispatcher may be skipped: no tracing, no modes, no transforms, no tensor
    subclasses.
    """
    if _compiling() or _modes() or _tracing() or _transforms() is not None or q.is_meta:
        return False
    for x in (q, k, v, *beside):  # noqa: SIM110, all() takes three times as long
        if type(x) not in _PLAIN:
            return False
    return True


def call(q: Tensor, k: Tensor, v: Tensor, *rest) -> Tensor:
    """The output of attention for four-dimensional tensors; the arguments are those of
    ``kerple::attention``.
    """
    refuse_tangents(q, k, v, *rest[: _TENSORS - 3])
    if not _is_plain(q, k, v, rest[: _TENSORS - 3]):
        run = torch.ops.kerple.attention if _compiling() or _transforms() is None else _Attention.apply
        return run(q, k, v, *rest)[0]
    _check_sizes(q, k, v)
    beside = rest[: _WITH_GRADIENTS - 3]
    if torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad or any(x is not None and x.requires_grad for x in beside)
    ):
        return _Direct.apply(q, k, v, *beside, rest[_WITH_GRADIENTS - 3 :])
    return _run(q, k, v, *rest)[0]


_Attention = transformable(lambda *inputs: torch.ops.kerple.attention(*inputs), _attention_setup, _attention_gradient)
_AttentionBackward = transformable(lambda *inputs: torch.ops.kerple.attention_backward(*inputs))

registry.impl("kerple::attention", ("cpu", "cuda", "xpu"), lib=_library)(_attention)
registry.register_fake("kerple::attention", lib=_library)(_attention_fake)
registry.impl("kerple::attention_backward", ("cpu", "cuda", "xpu"), lib=_library)(_attention_backward)
registry.register_fake("kerple::attention_backward", lib=_library)(_attention_backward_fake)
registry.register_autograd("kerple::attention", _attention_gradient, setup_context=_attention_setup, lib=_library)


def _table_room(values: Tensor, key: str, length: int) -> tuple[Tensor, Tensor]:
    native_heads = json.loads(key)[1]
    has_bias, has_weight, two_sides = encoding(key).tables
    columns = 2 * length - 1 if two_sides else length
    make = lambda has: values.new_empty((native_heads, columns) if has else (0, 0))  # noqa: E731
    return make(has_bias), make(has_weight)


def _some(x: Tensor) -> Tensor | None:
    return x if x.dim() == 2 and x.shape[0] > 0 else None


def _table(values: Tensor, encoding_: str, length: int) -> tuple[Tensor, Tensor]:
    if not 1 <= length < 1 << 40:
        raise ValueError(f"length = {length} is out of range, it must be at least 1 and have room in memory")
    heads = json.loads(encoding_)[1]
    if 2 * heads * length * 8 > _MEMORY:
        raise ValueError(
            f"length = {length}: tables of {heads} heads take more bytes than the {_MEMORY} of this machine"
        )
    bias, weight = _table_room(values, encoding_, length)
    encoding(encoding_).table(_dense(values), length, _some(bias), _some(weight))
    return bias, weight


def _table_backward(d_bias: Tensor, d_weight: Tensor, values: Tensor, encoding_: str, length: int) -> Tensor:
    d_values = torch.empty_like(values, memory_format=torch.contiguous_format)
    native = encoding(encoding_)
    native.table_backward(_dense(values), length, _dense(_some(d_bias)), _dense(_some(d_weight)), d_values)
    return d_values


def _table_backward_fake(d_bias: Tensor, d_weight: Tensor, values: Tensor, encoding_: str, length: int) -> Tensor:
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def _table_setup(ctx, inputs, output) -> None:
    values, ctx.encoding, ctx.length = inputs
    ctx.save_for_backward(values)


def _table_gradient(ctx, d_bias: Tensor, d_weight: Tensor):
    (values,) = ctx.saved_tensors
    run = torch.ops.kerple.table_backward if _transforms() is None else _TableBackward.apply
    return run(d_bias, d_weight, values, ctx.encoding, ctx.length), None, None


_Table = transformable(lambda *inputs: torch.ops.kerple.table(*inputs), _table_setup, _table_gradient)
_TableBackward = transformable(lambda *inputs: torch.ops.kerple.table_backward(*inputs))


def table(values: Tensor, key: str, length: int) -> tuple[Tensor, Tensor]:
    """Bias and weight over distances in f64, empty where there is none."""
    refuse_tangents(values)
    run = torch.ops.kerple.table if _compiling() or _transforms() is None else _Table.apply
    return run(values, key, length)


def _turns_fake(rates: Tensor, encoding_: str, start: int, rows: int, span: int) -> tuple[Tensor, Tensor]:
    return rates.new_empty(rows, rates.shape[0]), rates.new_empty(rows, rates.shape[0])


def _turns(rates: Tensor, encoding_: str, start: int, rows: int, span: int) -> tuple[Tensor, Tensor]:
    made = _turns_fake(rates, encoding_, start, rows, span)
    encoding(encoding_).turns(start, span, *made)
    return made


@lru_cache(maxsize=64)
def _turns_there(device: torch.device, encoding_: str, start: int, rows: int, span: int) -> tuple[Tensor, Tensor]:
    rates = torch.tensor(encoding(encoding_).rates(), dtype=torch.float64)
    return tuple(made.to(device) for made in _turns(rates, encoding_, start, rows, span))


def _turns_on_gpu(rates: Tensor, encoding_: str, start: int, rows: int, span: int) -> tuple[Tensor, Tensor]:
    """Copied to the device once for the positions of a call, which all layers share."""
    return tuple(made.clone() for made in _turns_there(rates.device, encoding_, start, rows, span))


registry.impl("kerple::turns", "cpu", lib=_library)(_turns)
registry.impl("kerple::turns", ("cuda", "xpu"), lib=_library)(_turns_on_gpu)
registry.register_fake("kerple::turns", lib=_library)(_turns_fake)
registry.impl("kerple::table", "cpu", lib=_library)(_table)
registry.register_fake("kerple::table", lib=_library)(_table_room)
registry.impl("kerple::table_backward", "cpu", lib=_library)(_table_backward)
registry.register_fake("kerple::table_backward", lib=_library)(_table_backward_fake)
registry.register_autograd("kerple::table", _table_gradient, setup_context=_table_setup, lib=_library)
for _name in ("kerple::attention_backward", "kerple::table_backward"):
    registry.register_autograd(_name, _second, lib=_library)
