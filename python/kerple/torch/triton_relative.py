"""A relative bias per row in Triton: for distances d = i - j within reach of the profiles P, ``[R, E]``, scores
get what query i computes from its own features,

    u_i[d] = r_i . P[:, d]        z_ij += u_i[i - j]  where 0 <= i - j < E
    dr_i = sum_j dz_ij P[:, i - j]        dP[:, d] = sum over all pairs at distance d, and all heads, of dz_ij r_i

A tile of T rows and T keys has fewer than 2 T distances, half of them on either side of its main diagonal. It
takes two *blocks*: u of its rows at T distances, ``[T, T]``. Since the tile next to it has one of them too, a
pass along a row of tiles computes a block once, and gathers scores from it. The backward does the same the other way
around: sums of dz by distance are complete after two tiles, and then multiplied once by P and once by r. Tiles
beyond the reach skip all of it.

Sums for P go to a row of ``partial`` that belongs to one program, see :mod:`.triton_kernels`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .triton_scores import _dot


class Relative(NamedTuple):
    """Rows ``[B, H, Q, R]`` as :class:`.triton_scores.Rows`, and profiles, a row of which has a stride of
    ``profile``. ``reach`` is E, or less where no pair is so far apart.
    """
    ptr: Any
    batch: int
    head: int
    row: int
    profiles: Any
    profile: int
    reach: int


@triton.jit
def _profiles(relative, distance, RANK: tl.constexpr, N: tl.constexpr, T: tl.constexpr):
    """Profiles at T distances from this one on, ``[N, T]``: 0 out of reach and beyond the RANK that exist."""
    f, d = tl.arange(0, N)[:, None], distance + tl.arange(0, T)[None, :]
    inside = (f < RANK) & (d >= 0) & (d < relative.reach)
    return tl.load(relative.profiles + (f * relative.profile + d), mask=inside, other=0.0)


@triton.jit
def _block(
    r_tile, relative, distance, RANK: tl.constexpr, T: tl.constexpr, OF_KEYS: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr
):
    """u of rows at T distances from this one on: ``[rows, T]``, or with OF_KEYS ``[T, rows]``."""
    x = _profiles(relative, distance, RANK, r_tile.shape[1], T)
    if OF_KEYS:
        return _dot(tl.trans(x), tl.trans(r_tile), PRECISION, ACC)
    return _dot(r_tile, x, PRECISION, ACC)


@triton.jit
def _first_block(r_tile, relative, distance, RANK: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr):
    """The block that the first tile of a row of tiles does not compute; 0 out of reach."""
    u = tl.zeros((r_tile.shape[0], T), ACC)
    if distance < relative.reach:
        u = _block(r_tile, relative, distance, RANK, T, False, PRECISION, ACC)
    return u


@triton.jit
def _of_distances(near, far, offset):
    """Scores of a tile's pairs: of row r and key c the entry of ``offset[r] - c`` in the near block, whose distances
    begin with that of offset 0 and key 0, or in the far one, which ends before it.
    """
    T: tl.constexpr = near.shape[1]
    s = tl.arange(0, T)[None, :]
    return tl.gather(tl.where(offset[:, None] >= s, near, far), (offset[:, None] - s) & (T - 1), 1)


@triton.jit
def _of_distances_transposed(near, far):
    """The same of a square tile of keys by rows."""
    T: tl.constexpr = near.shape[1]
    s, r = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    return tl.gather(tl.where(r >= s, near, far), (r - s) & (T - 1), 0)


@triton.jit
def _by_distance(dz):
    """The inverse for dz: its parts at the distances of the near block and of the far one, ``[T, T]`` each."""
    T: tl.constexpr = dz.shape[1]
    r, s = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    turned = tl.gather(dz, (r - s) & (T - 1), 1)  # column s: r - c = s where r >= s, else s - T
    return tl.where(r >= s, turned, 0.0), tl.where(r < s, turned, 0.0)


@triton.jit
def _add_block(d_rows, partial, du, r_tile, relative, distance, RANK: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr):
    """The gradient of rows with that of a block of sums by distance, which is also added to this program's profiles."""
    N: tl.constexpr = r_tile.shape[1]
    T: tl.constexpr = du.shape[1]
    d_rows += _dot(du, tl.trans(_profiles(relative, distance, RANK, N, T)), PRECISION, ACC)
    f, d = tl.arange(0, N)[:, None], distance + tl.arange(0, T)[None, :]
    to = partial + tl.cast(tl.program_id(0), tl.int64) * RANK * relative.reach + (f * relative.reach + d)
    keep = (f < RANK) & (d >= 0) & (d < relative.reach)
    tl.store(to, tl.load(to, mask=keep, other=0.0) + _dot(tl.trans(r_tile), du, PRECISION, ACC), mask=keep)
    tl.debug_barrier()  # later blocks add to the same distances, perhaps from other threads
    return d_rows
