"""Attention on GPUs: checks, tiles and launches of :mod:`triton_kernels`.

Nothing here waits for the device, and no result depends on how many processors it has.
"""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

#: Types of GPUs in PyTorch; ROCm's is "cuda" too.
GPUS = ("cuda", "xpu")
#: Types of devices whose tensors go to the kernels.
DEVICES = set(GPUS)
#: Parameters per head of each kernel of learned positions, in the order of its formula; a spline has one and then one per knot.
KERNEL_PARAMETERS = {"log": range(2, 3), "power": range(2, 3), "log3": range(3, 4), "spline": range(2, 26)}

_HALF = (torch.float16, torch.bfloat16)


class Tile(NamedTuple):
    """Rows of queries, of keys, and warps of a program."""

    rows: int
    keys: int
    warps: int


class Tiles(NamedTuple):
    forward: Tile
    dq: Tile
    dkv: Tile
    decode: Tile


def _decode_tile(arch: str, bits: int, features: int) -> Tile:
    """As few rows as matrix units take, and 8 KiB of keys: registers for many programs at once, since decoding reads."""
    return Tile(16, max(16, min(128, (64 << 10) // (features * bits))), _most_warps(arch))


def _most_warps(arch: str) -> int:
    """Of a small tile, whose registers they share out: AMD's have twice as many threads."""
    return 4 if arch.startswith("gfx") else 8


def _few_registers(arch: str, bits: int, features: int) -> Tiles:
    """Small tiles for what is seldom, a relative bias or learned positions in full precision or beside tables, gates and softcaps:
    larger ones spill.
    """
    warps = _most_warps(arch)
    small = Tile(16, 16, warps)
    if bits == 16:
        return Tiles(Tile(32, 32, warps), small, small, _decode_tile(arch, bits, features))
    return Tiles(small, small, small, small)


#: Programs of the dq pass, and so rows of partial sums of a table's gradient. It is a constant, not the
#: number of processors, so that the bits are those of any GPU of one architecture.
PROGRAMS = 512
#: Most bytes of partial sums of one table, beyond one row per head.
PARTIAL_BYTES = 64 << 20
#: Columns of a program that folds partial sums.
FOLD = 128
#: So few queries are decoded: their keys are cut into parts of at least so many, at most so many parts.
#: Like everything here they follow from shapes alone, and not from the batch either.
DECODED, PART_KEYS, MOST_PARTS = 16, 256, 128
#: Parts that a program of ``merge`` reads at once.
MERGE = 16
#: How rows and profiles of a relative bias, which are f32, are multiplied beside halves: as sums of two
#: bfloat16 each, with an error of 2^-16, far below that of the halves.
OF_ROWS_OF_HALF = "bf16x3"


class Shape(NamedTuple):
    """What a compiled kernel's registers depend on: the architecture, bits of a number, features per head
    up to, and what the call has, one of :data:`TERMS`.
    """

    arch: str
    bits: int
    features: int
    terms: str


#: A bias and sinks; a weight, gates, a softcap, a window and padding too; a relative bias per row, sinks, a window and
#: padding; all of it, with what is seldom too, dropout and first tokens under a window; and these beside all but the relative
#: bias. Learned positions, sinks, a window and padding; and all but a relative bias, with what is seldom too.
TERMS = _PLAIN, _FULL, _OF_ROWS, _ALL, _SELDOM, _OF_POSITIONS, _POSITIONS_AND_ALL = (
    "bias", "all", "rows", "rows, all", "all, seldom", "positions", "positions, all, seldom"
)  # fmt: skip
#: Most features of a row that a relative bias is computed from. With more than 16 kernels spill.
MOST_RANK = 64
#: Every configuration that is launched, and that `scripts/check_triton.py code` compiles, with --all for each direction and kernel of
#: learned positions. In half precision two spill, both with 256 features: a relative bias and all else on sm_80, and learned positions and
#: all else on sm_100. Float32 with more than 128 features, with a relative bias beside all else at 128, and float64 do; no tile was found
#: that does not.
#: Rows, keys and warps of the passes forward, dq and dkv. Tiles of the backward are square, since sums
#: along diagonals need it.
TILES = {
    Shape(arch, bits, features, terms): Tiles(*(Tile(*tile) for tile in tiles), _decode_tile(arch, bits, features))
    for (arch, bits), shapes in {
        ("sm_80", 16): {
            (64, _PLAIN): ((64, 64, 4), (32, 32, 4), (32, 32, 8)),
            (64, _FULL): ((64, 32, 4), (32, 32, 4), (32, 32, 8)),
            (64, _OF_ROWS): ((64, 64, 8), (32, 32, 8), (32, 32, 4)),
            (128, _PLAIN): ((64, 64, 8), (32, 32, 4), (32, 32, 4)),
            (128, _FULL): ((32, 32, 4), (32, 32, 8), (32, 32, 8)),
            (128, _OF_ROWS): ((32, 64, 4), (32, 32, 8), (32, 32, 4)),
            (256, _PLAIN): ((32, 32, 8), (32, 32, 8), (32, 32, 8)),
            (256, _FULL): ((32, 32, 8), (16, 16, 4), (16, 16, 4)),
            (256, _OF_ROWS): ((32, 64, 8), (16, 16, 4), (32, 32, 8)),
            (64, _OF_POSITIONS): ((64, 64, 8), (32, 32, 8), (32, 32, 8)),
            (128, _OF_POSITIONS): ((64, 64, 8), (32, 32, 8), (32, 32, 8)),
            (256, _OF_POSITIONS): ((64, 32, 8), (32, 32, 8), (16, 16, 8)),
        },
        ("sm_90", 16): {
            (64, _PLAIN): ((64, 64, 4), (32, 32, 4), (64, 64, 8)),
            (64, _FULL): ((64, 32, 4), (32, 32, 4), (32, 32, 4)),
            (64, _OF_ROWS): ((64, 64, 8), (32, 32, 8), (32, 32, 4)),
            (128, _PLAIN): ((64, 64, 4), (32, 32, 4), (32, 32, 4)),
            (128, _FULL): ((64, 32, 4), (32, 32, 8), (32, 32, 4)),
            (128, _OF_ROWS): ((64, 64, 8), (32, 32, 8), (32, 32, 4)),
            (256, _PLAIN): ((32, 32, 4), (32, 32, 8), (32, 32, 8)),
            (256, _FULL): ((32, 32, 8), (32, 32, 8), (32, 32, 8)),
            (256, _OF_ROWS): ((32, 64, 8), (16, 16, 4), (32, 32, 8)),
            (64, _OF_POSITIONS): ((64, 64, 8), (32, 32, 8), (32, 32, 4)),
            (128, _OF_POSITIONS): ((64, 32, 4), (32, 32, 8), (32, 32, 8)),
            (256, _OF_POSITIONS): ((32, 32, 4), (16, 16, 8), (32, 32, 8)),
        },
        ("sm_100", 16): {
            (64, _PLAIN): ((64, 64, 4), (32, 32, 4), (64, 64, 4)),
            (64, _FULL): ((64, 64, 4), (32, 32, 4), (32, 32, 4)),
            (64, _OF_ROWS): ((64, 64, 8), (32, 32, 8), (32, 32, 4)),
            (128, _PLAIN): ((64, 64, 4), (32, 32, 8), (32, 32, 4)),
            (128, _FULL): ((64, 64, 8), (32, 32, 4), (32, 32, 4)),
            (128, _OF_ROWS): ((64, 64, 8), (32, 32, 8), (32, 32, 4)),
            (256, _PLAIN): ((32, 32, 8), (32, 32, 8), (32, 32, 8)),
            (256, _FULL): ((32, 32, 8), (16, 16, 4), (32, 32, 8)),
            (256, _OF_ROWS): ((32, 64, 8), (16, 16, 4), (32, 32, 8)),
            (64, _OF_POSITIONS): ((64, 64, 4), (32, 32, 8), (32, 32, 8)),
            (128, _OF_POSITIONS): ((64, 32, 4), (32, 32, 8), (32, 32, 8)),
            (256, _OF_POSITIONS): ((64, 32, 8), (16, 16, 8), (16, 16, 8)),
        },
        ("gfx942", 16): {
            (64, _PLAIN): ((64, 64, 4), (64, 64, 4), (64, 64, 4)),
            (64, _FULL): ((64, 64, 4), (32, 32, 4), (16, 16, 4)),
            (64, _OF_ROWS): ((64, 64, 4), (32, 32, 4), (32, 32, 4)),
            (128, _PLAIN): ((64, 64, 4), (64, 64, 4), (64, 64, 4)),
            (128, _FULL): ((64, 64, 4), (32, 32, 4), (16, 16, 4)),
            (128, _OF_ROWS): ((64, 64, 4), (32, 32, 4), (32, 32, 4)),
            (256, _PLAIN): ((32, 32, 4), (32, 32, 4), (32, 32, 4)),
            (256, _FULL): ((32, 32, 4), (16, 16, 4), (16, 16, 4)),
            (256, _OF_ROWS): ((64, 64, 4), (16, 16, 4), (32, 32, 4)),
            (64, _OF_POSITIONS): ((64, 64, 4), (16, 16, 4), (32, 32, 4)),
            (128, _OF_POSITIONS): ((64, 64, 4), (16, 16, 4), (32, 32, 4)),
            (256, _OF_POSITIONS): ((64, 32, 4), (16, 16, 4), (16, 16, 4)),
        },
        ("sm_80", 32): {
            (64, _PLAIN): ((32, 32, 8), (32, 32, 8), (32, 32, 8)),
            (64, _FULL): ((32, 32, 8), (32, 32, 8), (16, 16, 4)),
            (128, _PLAIN): ((32, 32, 8), (16, 16, 8), (16, 16, 8)),
            (128, _FULL): ((32, 32, 8), (16, 16, 8), (16, 16, 8)),
            (256, _PLAIN): ((16, 16, 8), (16, 16, 8), (16, 16, 8)),
            (256, _FULL): ((16, 16, 8), (16, 16, 8), (16, 16, 8)),
        },
        ("sm_90", 32): {
            (64, _PLAIN): ((32, 32, 8), (32, 32, 8), (32, 32, 8)),
            (64, _FULL): ((32, 32, 8), (16, 16, 4), (32, 32, 8)),
            (128, _PLAIN): ((32, 32, 4), (16, 16, 8), (16, 16, 8)),
            (128, _FULL): ((32, 32, 8), (16, 16, 8), (16, 16, 8)),
            (256, _PLAIN): ((16, 16, 8), (16, 16, 8), (16, 16, 8)),
            (256, _FULL): ((16, 16, 8), (16, 16, 8), (16, 16, 8)),
        },
        ("sm_100", 32): {
            (64, _PLAIN): ((32, 32, 8), (32, 32, 8), (32, 32, 8)),
            (64, _FULL): ((32, 32, 8), (32, 32, 8), (32, 32, 8)),
            (128, _PLAIN): ((32, 32, 8), (16, 16, 8), (16, 16, 8)),
            (128, _FULL): ((32, 32, 8), (16, 16, 8), (16, 16, 8)),
            (256, _PLAIN): ((16, 16, 8), (16, 16, 8), (16, 16, 8)),
            (256, _FULL): ((16, 16, 8), (16, 16, 8), (16, 16, 8)),
        },
        ("gfx942", 32): {
            (64, _PLAIN): ((32, 32, 8), (32, 32, 8), (16, 16, 4)),
            (64, _FULL): ((32, 32, 8), (16, 16, 4), (16, 16, 4)),
            (128, _PLAIN): ((16, 16, 4), (16, 16, 4), (16, 16, 4)),
            (128, _FULL): ((16, 16, 4), (16, 16, 4), (16, 16, 4)),
            (256, _PLAIN): ((16, 16, 8), (16, 16, 8), (16, 16, 4)),
            (256, _FULL): ((16, 16, 8), (16, 16, 8), (16, 16, 4)),
        },
    }.items()
    for (features, terms), tiles in shapes.items()
} | {
    Shape(arch, bits, features, terms): _few_registers(arch, bits, features)
    for arch in ("sm_80", "sm_90", "sm_100", "gfx942")
    for bits, terms in ((16, _ALL), (32, _OF_ROWS), (32, _ALL), (64, _OF_ROWS), (64, _ALL),
                        (16, _POSITIONS_AND_ALL), *((bits, terms) for bits in (32, 64) for terms in (_OF_POSITIONS, _POSITIONS_AND_ALL)))
    for features in ((64, 128, 256) if bits < 64 else (64,))
} | {
    # for gradients checked in f64, not for speed
    Shape(arch, 64, 64, terms): Tiles(*[Tile(16, 16, 4)] * 4)
    for arch in ("sm_80", "sm_90", "sm_100", "gfx942")
    for terms in (_PLAIN, _FULL)
}

#: Passes that spill in the tile of :data:`_FULL` once weights are dropped as well or first tokens are seen, and the tile that
#: they have then. In backward_dkv of float32 with 128 features NVIDIA's spill in every tile.
_TILES_OF_SELDOM = {
    ("sm_80", 16, 64): dict(dq=(32, 32, 8)), ("sm_80", 16, 256): dict(dq=(16, 16, 8)), ("sm_80", 32, 64): dict(dq=(16, 16, 4), dkv=(16, 16, 8)),
    ("sm_90", 16, 128): dict(forward=(64, 32, 8), dkv=(32, 32, 8)), ("sm_90", 16, 256): dict(dq=(16, 16, 8), dkv=(16, 16, 8)),
    ("sm_90", 32, 64): dict(forward=(16, 16, 8), dkv=(16, 16, 4)), ("sm_90", 32, 128): dict(dkv=(16, 16, 16)),
    ("sm_100", 16, 64): dict(forward=(64, 32, 8)), ("sm_100", 16, 128): dict(dq=(32, 32, 8), dkv=(32, 32, 8)),
    ("sm_100", 16, 256): dict(dq=(16, 16, 8), dkv=(16, 16, 8)), ("sm_100", 32, 64): dict(forward=(16, 16, 8), dq=(16, 16, 4)),
}  # fmt: skip
TILES |= {
    shape._replace(terms=_SELDOM): tiles._replace(**{name: Tile(*tile) for name, tile in _TILES_OF_SELDOM.get(shape[:3], {}).items()})
    for shape, tiles in TILES.items()
    if shape.terms == _FULL
}

#: Other passes that spill in the tile of their kind, and their own.
_OWN_TILES = {
    Shape("sm_100", 16, 128, _SELDOM): dict(decode=(16, 32, 4)), Shape("sm_90", 16, 256, _ALL): dict(forward=(16, 32, 8)),
    **{Shape("sm_100", 16, 256, terms): dict(decode=(16, 16, 16)) for terms in (_FULL, _SELDOM)},
    **{Shape(arch, 16, 64, _OF_POSITIONS): dict(decode=(16, 64, 4)) for arch in ("sm_90", "sm_100")},
    **{Shape(arch, 16, 64, _POSITIONS_AND_ALL): dict(decode=(16, 64, warps)) for arch, warps in (("sm_80", 16), ("sm_90", 4), ("sm_100", 16))},
    **{Shape(arch, 16, 128, _POSITIONS_AND_ALL): dict(decode=(16, 32, 4)) for arch in ("sm_80", "sm_90")},
    Shape("sm_90", 16, 256, _POSITIONS_AND_ALL): dict(decode=(16, 16, 16)),
    Shape("sm_100", 16, 256, _POSITIONS_AND_ALL): dict(dkv=(16, 16, 16), decode=(16, 16, 16)),
}  # fmt: skip
TILES |= {shape: TILES[shape]._replace(**{name: Tile(*tile) for name, tile in own.items()}) for shape, own in _OWN_TILES.items()}

#: Whose tiles other architectures get, by how their names begin, instead of those of sm_80; sm_120 spills in those of sm_100.
_FAMILIES = {"sm_9": "sm_90", "sm_10": "sm_100", "sm_11": "sm_100", "gfx9": "gfx942"}
#: The interpreter's own, small so that tests cross their borders.
_INTERPRETED = Tiles(*[Tile(32, 32, 4)] * 3, Tile(16, 16, 4))


def tiles_of(arch: str, dtype: torch.dtype, features: int, terms: str) -> Tiles:
    """The tiles for a device, of its nearest relative where it has none of its own."""
    if arch == "interpreter":
        return _INTERPRETED
    family = next((family for prefix, family in _FAMILIES.items() if arch.startswith(prefix)), "sm_80")
    limit = next(limit for limit in (64, 128, 256) if features <= limit)
    return TILES[Shape(family, 8 * dtype.itemsize, limit, terms)]


@cache
def kernels() -> ModuleType:
    """The kernels, imported when the first GPU tensor comes."""
    try:
        from . import triton_kernels
    except ImportError as error:
        raise ImportError(
            f"attention on GPUs needs Triton, which PyTorch for Linux brings along: pip install triton ({error})"
        ) from error
    return triton_kernels


@cache
def _arch(device: torch.device) -> str:
    if device.type == "cpu":
        return "interpreter"
    if device.type != "cuda":
        return device.type
    if torch.version.hip:
        return torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


_precision = "ieee"


def set_float32_precision(precision: str) -> None:
    """How attention multiplies float32 tensors on GPUs: ``"ieee"``, the default, in float32 proper, or
    ``"tf32x3"``, three products of the matrix units' 19 bits, whose error is near float32's; AMD's have none, and calls there
    are refused.

    It holds for the process. A backward pass uses what holds when it runs.

    Raises:
        ValueError: another name; ``"tf32"`` alone is not offered.
    """
    global _precision
    if precision not in ("ieee", "tf32x3"):
        raise ValueError(f'precision = {precision!r} is unknown; use "ieee" or "tf32x3"')
    _precision = precision


def interpret() -> None:
    """Sends CPU tensors of this process through the kernels in Triton's interpreter, which tests use.

    Raises:
        RuntimeError: ``TRITON_INTERPRET=1`` was not set when Triton was imported.
    """
    if not kernels()._INTERPRETED.value:
        raise RuntimeError("set TRITON_INTERPRET=1 before Python starts: Triton reads it when it is imported")
    from triton.runtime import interpreter

    patched = set()

    def of_kernel(function, *given, **named):
        if function.fn.__module__ not in patched:
            patched.add(function.fn.__module__)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*given, **named)

    # A launch patches Triton's language. Each function that a kernel calls would do so again, in a third of the time.
    interpreter.InterpretedFunction.__call__ = of_kernel
    # another third goes to sums of integers in 64 bits, which only a debugging interpreter looks at
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    DEVICES.add("cpu")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def check(
    q: Tensor, k: Tensor, v: Tensor, bias, weight, sinks, clocks, key_starts, key_lengths, documents, causal: bool
) -> None:
    """The shapes that the kernels rely on, and PyTorch's operations in their place."""
    (batch, heads, queries, features), (_, kv_heads, keys, _) = q.shape, k.shape
    _require(features > 0, "q: 0 features per head; there must be at least 1")
    for name, x in (("k", k), ("v", v)):
        wanted = (batch, kv_heads, keys, features)
        _require(x.shape == wanted, f"{name}: expected [B, G, K, D] = {list(wanted)}, got shape {tuple(x.shape)}")
    _require(kv_heads > 0 and heads % kv_heads == 0, f"k: {kv_heads} heads must divide the {heads} heads of q")
    longest = max(queries, keys)
    _require(longest * max(q.stride(2), k.stride(2), v.stride(2)) < 2**62, f"q: {longest} positions are too many")
    _require(longest < 2**30, f"q, k: {longest} positions; kernels take fewer than 2^30")
    tables = [(name, x) for name, x in (("bias", bias), ("weight", weight)) if x is not None]
    for name, x in tables:
        shape = f"got shape {tuple(x.shape)}"
        _require(x.dim() == 2 and x.shape[0] == heads, f"{name}: expected [H, C] with H = {heads}, {shape}")
        _require(x.shape == tables[0][1].shape, f"weight: expected the shape of bias, {tuple(tables[0][1].shape)}, {shape}")
        needed = keys if causal else 2 * longest - 1
        _require(x.shape[1] >= needed, f"{name}: {x.shape[1]} columns; {queries} queries and {keys} keys need {needed}")
        _require(causal or x.shape[1] % 2 == 1, f"{name}: {x.shape[1]} columns; without causal=True the number must be odd")
    if sinks is not None:
        _require(sinks.shape == (heads,), f"sinks: expected [H] = [{heads}], got shape {tuple(sinks.shape)}")
    if clocks is not None:
        wanted = (batch, heads, keys)
        _require(clocks.shape == wanted, f"gates: expected [B, H, K] = {list(wanted)}, got shape {tuple(clocks.shape)}")
        _require(queries <= keys, f"q: {queries} queries exceed the {keys} keys, which alone have gates")
    for name, x in (("key_starts", key_starts), ("key_lengths", key_lengths)):
        if x is not None:
            shapes = f"[B] = [{batch}] or, per query, [B, Q] = {[batch, queries]}"
            _require(x.shape in ((batch,), (batch, queries)), f"{name}: expected {shapes}, got shape {tuple(x.shape)}")
    if documents is not None:
        _check_documents(documents, batch, queries, keys, q.device)
    for name, x in (("k", k), ("v", v), *tables, ("sinks", sinks), ("gates", clocks), ("key_starts", key_starts), ("key_lengths", key_lengths), ("documents", documents)):
        if x is not None and x.device != q.device:
            raise ValueError(f"{name}: is on {x.device}, q on {q.device}; they must be on one device")


def _check_learned(q: Tensor, keys: int, x: Tensor | None, parameters: Tensor | None, kernel: str) -> None:
    """Values are not checked, for which the host would wait."""
    is_whole = x is not None and parameters is not None and parameters.dim() == 2
    _require(is_whole and kernel in KERNEL_PARAMETERS, "positions: expected them [B, H, K], and a kernel with parameters [H, P]")
    (batch, heads, queries, _), (of_heads, count) = q.shape, parameters.shape
    wanted = (batch, heads, keys)
    _require(x.shape == wanted, f"positions: expected [B, H, K] = {list(wanted)}, got shape {tuple(x.shape)}")
    shape = f"got shape {tuple(parameters.shape)}"
    _require(of_heads == heads and count in KERNEL_PARAMETERS[kernel], f"position_kernel[1]: expected [H, P] of {kernel!r} with H = {heads}, {shape}")
    _require(x.dtype == parameters.dtype == torch.float64, "positions, position_kernel[1]: expected float64")
    _require(queries <= keys, f"q: {queries} queries exceed the {keys} keys, which alone have positions")
    for name, one in (("positions", x), ("position_kernel[1]", parameters)):
        _require(one.device == q.device, f"{name}: is on {one.device}, q on {q.device}; they must be on one device")


def _check_relative(q: Tensor, rows: Tensor | None, profiles: Tensor | None, causal: bool) -> None:
    (batch, heads, queries, _), is_whole = q.shape, rows is not None and profiles is not None
    _require(is_whole and rows.dim() == 4 and profiles.dim() == 2, "relative: expected rows [B, H, Q, R] and profiles [R, E]")
    rank, wanted = profiles.shape[0], [batch, heads, queries]
    _require(list(rows.shape[:3]) == wanted, f"relative[0]: expected [B, H, Q, R] with B, H, Q = {wanted}, got shape {tuple(rows.shape)}")
    _require(rows.shape[3] == rank, f"relative[1]: expected [R, E] with R = {rows.shape[3]}, got shape {tuple(profiles.shape)}")
    _require(profiles.shape[1] > 0, f"relative[1]: the reach must be at least 1, got shape {tuple(profiles.shape)}")
    _require(1 <= rank <= MOST_RANK, f"relative[1]: rank {rank}; kernels take 1 to {MOST_RANK}")
    _require(rank * profiles.stride(0) < 2**31, f"relative[1]: {profiles.shape[1]} distances are too many")
    _require(causal, "relative: a bias per row is over distances to earlier keys; use causal=True")
    for at, x in enumerate((rows, profiles)):
        if x.device != q.device:
            raise ValueError(f"relative[{at}]: is on {x.device}, q on {q.device}; they must be on one device")


def dropout_bound(p: float) -> int:
    """The least upper 31 bits of a random word that keep a weight."""
    return min(round(p * 2**31), 2**31 - 1)


def _check_dropout(seed: Tensor | None, p: float, device: torch.device) -> None:
    _require((seed is not None) == (p > 0), "dropout_seed: there is one if and only if dropout_p is above 0")
    if seed is not None:
        _require(seed.shape == (1,) and seed.dtype == torch.int64, f"dropout_seed: expected one int64, got {tuple(seed.shape)} of {seed.dtype}")
        _require(seed.device == device, f"dropout_seed: is on {seed.device}, q on {device}; they must be on one device")


def _check_documents(documents: Tensor, batch: int, queries: int, keys: int, device: torch.device) -> None:
    if documents.dim() == 3:
        raise NotImplementedError(
            f"cu_seqlens_q, cu_seqlens_k: documents whose queries and keys differ are not computed on {device.type}: "
            "give the same tensor twice, or move the tensors to the processor with .cpu()"
        )
    _require(documents.dim() == 2 or batch == 1, f"cu_seqlens: they describe one row, but q has {batch}; give document_ids")
    shape = tuple(documents.shape)
    _require(documents.dim() == 1 or shape == (batch, keys), f"document_ids: expected [B, K] = {[batch, keys]}, got shape {shape}")
    _require(queries <= keys, f"q: {queries} queries exceed the {keys} keys of packed documents")


class _Call:
    """One call as the kernels take it."""

    def __init__(
        self, q, k, v, bias, weight, sinks, numbers, clocks, relative_rows, profiles, positions, parameters, key_starts, key_lengths,
        documents, dropout_seed, encoding, scale, causal, window, sink_tokens, softcap, dropout_p, position_kernel,
    ) -> None:  # fmt: skip
        from . import _ops

        _ops._rule("", scale, causal, window, sink_tokens, softcap, dropout_p, 1)  # refuses what the engine refuses
        if numbers is not None or encoding:
            refuse_encoding(encoding, q.device)
        if relative_rows is not None or profiles is not None:
            _check_relative(q, relative_rows, profiles, causal)
            _require(positions is None, "positions: they and a relative bias per row (relative) exclude each other")
        if positions is not None or parameters is not None or position_kernel:
            _check_learned(q, k.shape[2], positions, parameters, position_kernel)
        check(q, k, v, bias, weight, sinks, clocks, key_starts, key_lengths, documents, causal)
        most = 64 if q.dtype == torch.float64 else 256
        _require(q.shape[3] <= most, f"q: {q.shape[3]} features per head; kernels take 1 to {most} of {q.dtype}")
        _check_dropout(dropout_seed, dropout_p, q.device)
        arch = _arch(q.device)
        _require(
            q.dtype != torch.float32 or _precision == "ieee" or not arch.startswith("gfx"),
            f'set_float32_precision({_precision!r}): Triton has no such products for {arch}; use "ieee"',
        )
        has_intervals = any(x is not None and x.dim() == 2 for x in (key_starts, key_lengths))
        _require(sink_tokens is None or not has_intervals, "sink_tokens: intervals of keys per query have no first tokens; leave it out")
        self.kernels = kernels()
        self.q, self.k, self.v = (_ops._rows(x) for x in (q, k, v))
        self.bias, self.weight, self.sinks, self.clocks = (_ops._dense(x) for x in (bias, weight, sinks, clocks))
        self.relative_rows, self.profiles = (None if x is None else _ops._rows(x) for x in (relative_rows, profiles))
        self.x, self.parameters, self.position_kernel = _ops._dense(positions), _ops._dense(parameters), position_kernel
        self.batch, self.heads, self.queries, self.features = q.shape
        self.kv_heads, self.keys = k.shape[1:3]
        self.causal, self.window, self.sink_tokens = causal, window, sink_tokens
        self.number = torch.float32 if q.dtype in _HALF else q.dtype
        tables = [x for x in (bias, weight) if x is not None]
        self.columns = tables[0].shape[1] if tables else 0
        # a number argument is f32 in Triton, a constant keeps its precision
        exact = lambda x: self.kernels.tl.constexpr(x) if x is not None and self.number == torch.float64 else x  # noqa: E731
        self.scale, self.softcap = exact(scale), exact(softcap)
        self.dropout = self.kernels.Dropout(None, 0, 0.0)
        if dropout_seed is not None:
            self.dropout = self.kernels.Dropout(dropout_seed, dropout_bound(dropout_p), exact(1 / (1 - dropout_p)))
        self.intervals = self._intervals(key_starts, key_lengths, documents)
        if positions is not None:
            more = (bias, weight, clocks, softcap, dropout_seed, sink_tokens)
            terms = _OF_POSITIONS if all(x is None for x in more) else _POSITIONS_AND_ALL
        elif profiles is None:
            more = (weight, clocks, softcap, window, key_starts, key_lengths, documents)
            terms = _PLAIN if all(x is None for x in more) else _FULL
            terms = terms if dropout_seed is None and sink_tokens is None else _SELDOM
        else:
            terms = _OF_ROWS if all(x is None for x in (bias, weight, clocks, softcap, dropout_seed, sink_tokens)) else _ALL
        self.tiles = tiles_of(arch, q.dtype, self.features, terms)

    def _intervals(self, starts: Tensor | None, ends: Tensor | None, documents: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """First and last + 1 of the keys of each query, but for the mask's other parts; padding and documents
        are intervals too.
        """
        from ._documents import own_keys

        if starts is None and ends is None and documents is None:
            return None
        if documents is not None:  # queries are the last tokens
            first, last = (x[:, self.keys - self.queries :] for x in own_keys(documents, self.keys))
        else:
            of = lambda x: (x if x.dim() == 2 else x[:, None]).clamp(0, self.keys)  # noqa: E731
            first, last = (None if x is None else of(x) for x in (starts, ends))
            first = torch.zeros_like(last) if first is None else first
            last = torch.full_like(first, self.keys) if last is None else last
        is_empty = first >= last
        shape, to = (self.batch, self.queries), dict(dtype=torch.int32)
        first, last = first.masked_fill(is_empty, self.keys), last.masked_fill(is_empty, 0)
        return first.to(**to).expand(shape).contiguous(), last.to(**to).expand(shape).contiguous()

    def mask(self, rows: int | None = None):
        """The mask of a pass, with the bounds of tiles of so many rows where it reads them."""
        if self.intervals is None:
            return self.kernels.Mask(self.window, self.sink_tokens, None, None, None, None)
        bounds = (None, None)
        if rows is not None:
            pad = lambda x, value: torch.nn.functional.pad(x, (0, -self.queries % rows), value=value)  # noqa: E731
            first, last = self.intervals
            bounds = pad(first, self.keys).unflatten(1, (-1, rows)).amin(2), pad(last, 0).unflatten(1, (-1, rows)).amax(2)
        return self.kernels.Mask(self.window, self.sink_tokens, *self.intervals, *bounds)

    def rows(self, x: Tensor):
        return self.kernels.Rows(x, *x.stride()[:3])

    @property
    def sizes(self):
        return self.kernels.Sizes(self.heads, self.kv_heads, self.queries, self.keys)

    @property
    def terms(self):
        return self.kernels.Terms(self.scale, self.softcap, self.weight, self.bias, self.columns, self.clocks)

    def relative(self, rows: Tensor | None = None):
        """The relative bias as a pass reads it, or nothing; few queries bring their rows in another shape."""
        if self.profiles is None:
            return self.kernels.Relative(None, 0, 0, 0, None, 0, 0)
        rows = self.relative_rows if rows is None else rows
        return self.kernels.Relative(rows, *rows.stride()[:3], self.profiles, self.profiles.stride(0), self.profile_reach)

    @property
    def learned(self):
        """Learned positions and their kernel as a pass reads them, or nothing."""
        if self.x is None:
            return self.kernels.Learned(None, None, 0)
        return self.kernels.Learned(self.x, self.parameters.to(self.number), self.parameters.shape[1])

    @property
    def sums(self) -> int:
        """Sums that the gradient of the parameters follows from, a power of two."""
        return 4 if self.position_kernel != "spline" else max(4, 1 << (self.parameters.shape[1] - 1).bit_length())

    def _of_parameters(self, sums: Tensor) -> Tensor:
        """The gradient of the parameters ``[H, P]``, given the sums ``[H, S]`` over all pairs."""
        if self.position_kernel == "spline":
            return -sums[:, : self.parameters.shape[1]]
        (r1, *r2, last), (of_k, of_slope, of_log, _) = self.parameters.unbind(1), sums.unbind(1)
        if self.position_kernel == "log":
            return torch.stack([of_k / r1, of_slope / last], 1)
        return torch.stack([of_k / r1, *(of_slope / (last * r) for r in r2), of_log / last], 1)

    @property
    def profile_reach(self) -> int:
        """Distances 0 .. reach - 1 that have profiles and that a pair may have."""
        return min(self.profiles.shape[1], self.keys, self.furthest)

    def options(self, tile: Tile) -> dict:
        rank = 0 if self.profiles is None else self.profiles.shape[0]
        precision = _precision if self.q.dtype == torch.float32 else "ieee"
        return dict(
            D=self.features, WIDTH=_width(self.features), RANK=rank, RANKS=_width(rank), KERNEL=self.position_kernel,
            CAUSAL=self.causal, PRECISION=precision,
            OF_ROWS=OF_ROWS_OF_HALF if self.q.dtype in _HALF else precision, **_compiled(tile.warps),
        )  # fmt: skip

    def forward(self, out: Tensor, lse: Tensor) -> None:
        if self.parts > 1:
            self._decode(out, lse)
        else:
            self._forward(self.tiles.forward, self.q, self.relative(), out, lse)

    def _forward(self, tile: Tile, q: Tensor, relative, out: Tensor, lse: Tensor, parts: int = 1, together: int = 1) -> None:
        programs = _tiles(self.queries * together, tile.rows) * self.batch * parts * self.heads // together
        self.kernels.forward[(programs,)](
            self.rows(q), self.rows(self.k), self.rows(self.v), self.rows(out), lse, self.sinks, parts, self.sizes,
            self.terms, self.mask(), self.dropout, relative, self.learned, M=tile.rows, N=tile.keys, TOGETHER=together, **self.options(tile),
        )  # fmt: skip

    @property
    def parts(self) -> int:
        """The parts into which keys are cut, 1 unless there are few queries. The backward needs only the
        output and lse, so that it is the same after both.
        """
        seen = 2**30 if self.window is None else self.queries + (1 if self.causal else 2) * self.window + (self.sink_tokens or 0)
        reach = min(self.keys, seen)
        few = self.queries <= DECODED and self.dropout.seed is None
        return min(_tiles(reach, PART_KEYS), MOST_PARTS) if few else 1

    def _decode(self, out: Tensor, lse: Tensor) -> None:
        """Heads that share keys are rows of one tile, so that keys are read once (flash-decoding)."""
        parts, together, tile = self.parts, self.heads // self.kv_heads, self.tiles.decode
        shape = (self.kv_heads, together * self.queries)
        made = lse.new_empty(self.batch * parts, *shape, self.features)
        made_lse = lse.new_empty(self.batch * parts, *shape)
        of_heads = lambda x: x.reshape(self.batch, *shape, x.shape[3])  # noqa: E731
        relative = self.relative(None if self.profiles is None else of_heads(self.relative_rows))
        self._forward(tile, of_heads(self.q), relative, made, made_lse, parts, together)
        step = self.heads * self.queries * self.features  # from part to part of a row
        rows = self.kernels.Rows(made, parts * step, self.features, step)
        self.kernels.merge[(self.batch * self.heads * self.queries,)](
            rows, made_lse, self.rows(out), lse, parts, self.sizes, D=self.features, WIDTH=_width(self.features), S=MERGE,
            **_compiled(tile.warps),
        )  # fmt: skip

    def reach(self) -> int:
        """Distances 0 .. reach - 1, of one direction, that a pair may have."""
        return min(self.columns if self.causal else self.columns // 2 + 1, self.furthest)

    @property
    def furthest(self) -> int:
        """No pair is so far apart."""
        return 2**30 if self.window is None or self.sink_tokens is not None else self.window

    def backward_dq(
        self, saved, d_q: Tensor, delta: Tensor, d_row_clocks: Tensor | None, d_rows: Tensor | None, d_row_positions: Tensor | None,
        wanted: list[bool],
    ) -> list[Tensor | None]:
        """dq and delta, and the gradients of bias, weight, a relative bias and a kernel's parameters where they are wanted."""
        out, lse, d_out = saved
        tile = self.tiles.dq
        columns = self.reach() if self.causal else 2 * self.reach() - 1
        items = self.batch * _tiles(self.queries, tile.rows)
        sums = [columns] if any(wanted) else []
        if d_rows is not None:
            rank, reach = self.profiles.shape[0], self.profile_reach
            sums.append(rank * reach)
        if d_row_positions is not None:
            sums.append(self.sums)
        most = min(PROGRAMS, PARTIAL_BYTES // (max(sums) * lse.element_size())) // self.heads if sums else items
        splits = min(items, max(1, most))
        partial = [lse.new_zeros(splits * self.heads, columns) if want else None for want in wanted]
        of_profiles = None if d_rows is None else lse.new_zeros(splits * self.heads, rank, reach)
        of_parameters = None if d_row_positions is None else self.x.new_empty(splits * self.heads, self.sums)
        self.kernels.backward_dq[(splits * self.heads,)](
            self.rows(self.q), self.rows(self.k), self.rows(self.v), self.rows(out), self.rows(d_out), self.rows(d_q),
            lse, delta, d_row_clocks, *partial, None if d_rows is None else self.rows(d_rows), of_profiles, d_row_positions, of_parameters,
            columns, items, splits, self.sizes, self.terms, self.mask(), self.dropout, self.relative(), self.learned, S=self.sums,
            T=tile.rows, **self.options(tile),
        )  # fmt: skip
        folded = [None if sums is None else self._fold(sums, columns, splits, self.heads, self.columns) for sums in partial]
        if of_profiles is not None:  # heads share profiles
            of_profiles = self._fold(of_profiles, reach, splits * self.heads, *self.profiles.shape)
        if of_parameters is not None:
            of_parameters = self._of_parameters(self._fold(of_parameters, self.sums, splits, self.heads, self.sums))
        return [*folded, of_profiles, of_parameters]

    def _fold(self, partial: Tensor, columns: int, splits: int, rows: int, total_columns: int) -> Tensor:
        """The sum of ``[splits, rows, columns]`` over splits, with 0 in further columns."""
        total = partial.new_empty(rows, total_columns)
        self.kernels.fold[(_tiles(total_columns, FOLD), rows)](
            partial, total, columns, total_columns, splits, CAUSAL=self.causal, C=FOLD, **_compiled(4)
        )
        return total

    def backward_dkv(
        self, saved, d_k: Tensor, d_v: Tensor, delta: Tensor, d_clocks: Tensor | None, d_positions: Tensor | None
    ) -> None:
        _, lse, d_out = saved
        tile = self.tiles.dkv
        self.kernels.backward_dkv[(_tiles(self.keys, tile.keys) * self.batch * self.kv_heads,)](
            self.rows(self.q), self.rows(self.k), self.rows(self.v), self.rows(d_out), self.rows(d_k), self.rows(d_v),
            lse, delta, d_clocks, d_positions, self.sizes, self.terms, self.mask(tile.keys), self.dropout, self.relative(), self.learned,
            T=tile.keys, **self.options(tile),
        )  # fmt: skip

    @property
    def is_empty(self) -> bool:
        """Whether there is no pair of a query and a key at all."""
        return 0 in (self.batch, self.heads, self.queries, self.keys)


def _compiled(warps: int) -> dict:
    """Options of the compiler. Two stages would copy biases through shared memory, pair by pair. Fused
    multiply-add is said because its default, and so the bits, differ between versions of Triton.
    """
    return dict(num_warps=warps, num_stages=1, enable_fp_fusion=True)


def _tiles(length: int, rows: int) -> int:
    return -(-length // rows)


def _width(features: int) -> int:
    """Features as kernels hold them, a power of two that products take."""
    return 1 << max(4, (features - 1).bit_length())


def forward(inputs: tuple, out: Tensor, lse: Tensor) -> None:
    """Writes the output and lse; inputs are the arguments of ``kerple::attention``."""
    call = _Call(*inputs)
    if call.is_empty:
        out.zero_()
        lse.fill_(math.inf) if call.sinks is None else lse.copy_(call.sinks[:, None].expand_as(lse))
        return
    with _on(call.q):
        call.forward(out, lse)


def backward(inputs: tuple, saved: tuple[Tensor, Tensor, Tensor], made: list[Tensor | None]) -> None:
    """Writes the gradients of q, k, v, bias, weight, sinks, score modification, cumulative gates,
    relative bias and learned positions, where there is room for them; ``saved`` are the output, lse and the output's
    gradient.
    """
    call = _Call(*inputs)
    d_q, d_k, d_v, d_bias, d_weight, d_sinks, _, d_clocks, d_rows, d_profiles, d_positions, d_parameters = made
    if call.is_empty:
        for d in made:
            if d is not None:
                d.zero_()
        return
    out, lse, d_out = saved
    with _on(call.q):
        delta = torch.empty_like(lse)
        # rows of dz sum to delta P_sink under the causal mask, where every gate counts with one sign
        row_clocks = torch.empty_like(lse) if d_clocks is not None and not call.causal else None
        row_positions, key_positions = (
            None if d_positions is None else lse.new_empty(shape) for shape in (lse.shape, (call.batch, call.heads, call.keys))
        )
        tables = call.backward_dq(saved, d_q, delta, row_clocks, d_rows, row_positions, [d_bias is not None, d_weight is not None])
        key_clocks = lse.new_empty(call.clocks.shape) if d_clocks is not None else None
        call.backward_dkv(saved, d_k, d_v, delta, key_clocks, key_positions)
        if d_positions is not None:
            d_positions.copy_(key_positions)
            d_positions[:, :, call.keys - call.queries :] += row_positions
        for to, total in zip((d_bias, d_weight, d_profiles, d_parameters), tables, strict=True):
            if to is not None:
                to.copy_(total)
        if call.sinks is not None and (d_sinks is not None or d_clocks is not None):
            to_sink = torch.exp(call.sinks[:, None] - lse) * delta
            if d_sinks is not None:
                d_sinks.copy_(-to_sink.sum((0, 2)))
            row_clocks = to_sink if row_clocks is None else row_clocks
        if d_clocks is not None:
            d_clocks.copy_(key_clocks)
            if row_clocks is not None:
                d_clocks[:, :, call.keys - call.queries :] += row_clocks


def _on(x: Tensor):
    """The device of a tensor as the current one, on which Triton launches."""
    return torch.get_device_module(x.device).device(x.device) if x.device.type != "cpu" else nullcontext()


def refuse_encoding(key: str, device: torch.device) -> None:
    """Refuses an encoding that is computed on the processor alone."""
    keys = json.loads(json.loads(key)[0])
    kind, instead = keys["kind"], "use an encoding with a table or gates, such as KerpleLog or Fox"
    why = "its products depend on the tokens between query and key"
    if keys.get("emulate", "exact") != "exact":
        why, instead = f"emulate = {keys['emulate']!r} rounds as the processor does", "leave emulate out"
    raise NotImplementedError(
        f"{kind} is not computed on {device.type}: {why}; move q, k, v and the module to the processor with .cpu(), or {instead}"
    )


#: Numbers that one product of :func:`prefix_sums` adds up.
_PREFIX = 64


def prefix_sums(x: Tensor) -> Tensor:
    """Cumulative sums of the last dimension. Those of PyTorch on GPUs may differ from run to run; these
    add blocks by products with a triangle of ones.
    """
    length = x.shape[-1]
    if length <= 1:
        return x
    blocks = torch.nn.functional.pad(x, (0, -length % _PREFIX)).unflatten(-1, (-1, _PREFIX))
    within = blocks @ torch.ones(_PREFIX, _PREFIX, dtype=x.dtype, device=x.device).triu()
    if blocks.shape[-2] > 1:
        before = torch.nn.functional.pad(prefix_sums(within[..., -1]), (1, -1))
        within = within + before[..., None]
    return within.flatten(-2)[..., :length]
