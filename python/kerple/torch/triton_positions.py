"""A kernel of learned positions in Triton: where positions x are running sums ``[B, H, K]`` in f64, scores get

    z_ij += k(u),  u = |x_i - x_j|             dx_i += sign dz_ij k'(u)         dx_j -= sign dz_ij k'(u)

    log    k = -r1 ln(1 + r2 u)                 power  k = -r1 u^p
    log3   k = -r1 ln(1 + r2 u^p)               spline k = -a_0 u - sum over m of a_m min(u, 2^(m - 1))

with the parameters ``[H, P]`` in this order. Like cumulative gates, x enter a tile as differences from its first
key, in high and low parts. Where u is 0, k and an infinite k' are 0.

All gradients of parameters follow from three sums over pairs, of dz k, of dz u k' and of dz u k' ln u, since k is linear in
r1 and homogeneous in the others: dr1 is the first by r1, dr2 the second by r2 (and by p), dp the third by p. A spline
has a sum of dz min(u, knot) for each parameter. A program of the dq pass owns one head and adds up its own sums, which
``fold`` adds in order, see :mod:`.triton_kernels`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Learned(NamedTuple):
    """Positions x of all keys, and the parameters of their kernel, ``[H, count]`` in the type of scores."""
    x: Any
    parameters: Any
    count: int


@triton.jit
def _log_1p(y):
    """``ln(1 + y)`` without what ``1 + y`` rounds off, y >= 0: the quotient is 1 within rounding and corrects it."""
    w = 1.0 + y
    return tl.where(w == 1.0, y, tl.log(w) * (y / tl.where(w == 1.0, 1.0, w - 1.0)))


@triton.jit
def _parameter(learned, h, n):
    return tl.load(learned.parameters + h * learned.count + n)


@triton.jit
def _kernel(u, learned, h, KERNEL: tl.constexpr):
    """k, k' and, where there is an exponent, ln u, with the parameters of head h, or of one head per row."""
    first, ln_u = _parameter(learned, h, 0), u
    if KERNEL == "spline":
        k, rate, knot = -first * u, -first + tl.zeros_like(u), 1.0
        for m in range(1, learned.count):
            a = _parameter(learned, h, m)
            k -= a * tl.minimum(u, knot)
            rate -= tl.where(u < knot, a, 0.0)
            knot *= 2.0
    elif KERNEL == "log":
        r2 = _parameter(learned, h, 1)
        k, rate = -first * _log_1p(r2 * u), -first * r2 / (1.0 + r2 * u)
    else:
        p = _parameter(learned, h, learned.count - 1)
        apart = u > 0.0
        divisor = tl.where(apart, u, 1.0)
        ln_u = tl.log(divisor)
        power = tl.where(apart, tl.exp(p * ln_u), 0.0)
        if KERNEL == "power":
            k = -first * power
            rate = p * k / divisor
        else:
            inner = _parameter(learned, h, 1) * power
            k, rate = -first * _log_1p(inner), -first * p * inner / ((1.0 + inner) * divisor)
    return k, rate, ln_u


@triton.jit
def _add_parameters(sums, dz, u, k, rate, ln_u, learned, KERNEL: tl.constexpr):
    """Sums by row, ``[T, S]``, and those of a tile."""
    column = tl.arange(0, sums.shape[1])[None, :]
    if KERNEL == "spline":
        sums += tl.where(column == 0, tl.sum(dz * u, 1)[:, None], 0.0)
        knot = 1.0
        for m in range(1, learned.count):
            sums += tl.where(column == m, tl.sum(dz * tl.minimum(u, knot), 1)[:, None], 0.0)
            knot *= 2.0
    else:
        scaled = dz * u * rate
        sums += tl.where(column == 0, tl.sum(dz * k, 1)[:, None], 0.0)
        if KERNEL != "power":
            sums += tl.where(column == 1, tl.sum(scaled, 1)[:, None], 0.0)
        if KERNEL != "log":
            sums += tl.where(column == 2, tl.sum(scaled * ln_u, 1)[:, None], 0.0)
    return sums
