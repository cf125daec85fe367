"""Learned positions: running sums of steps that the content sets, and the kernel of their differences.

The score of a pair gains ``k(|x_i - x_j|)`` with one of::

    log      -r1 ln(1 + r2 u)              power    -r1 u^p
    log3     -r1 ln(1 + r2 u^p)            spline   -a_0 u - sum over m of a_m min(u, 2^(m - 1))
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import check_device, check_tensor
from ._gpu import DEVICES, KERNEL_PARAMETERS, prefix_sums

#: The largest logit of an exponential step, and the negative of the smallest.
_MOST = 10.0


def learned_of(
    positions: object, kernel: object, heads: int, k: Tensor, starts: Tensor | None, ends: Tensor | None, documents: Tensor | None
) -> tuple[Tensor | None, Tensor | None, str]:
    """Positions and parameters in f64, and the kernel's name, after all checks of shapes and types.

    Values are checked by the engine of the processor: positions that fall, parameters of 0.
    """
    if positions is None and kernel is None:
        return None, None, ""
    if positions is None or kernel is None:
        given, missing = ("position_kernel", "positions") if positions is None else ("positions", "position_kernel")
        raise ValueError(f"{given}: {missing} is not given; learned positions need both")
    if not isinstance(kernel, (tuple, list)) or len(kernel) != 2:
        raise TypeError('position_kernel: expected a name and parameters, such as ("log", parameters) with parameters [H, P]')
    name, parameters = kernel
    if not isinstance(name, str) or name not in KERNEL_PARAMETERS:
        raise ValueError(f"position_kernel[0] = {name!r} is unknown; use one of {', '.join(map(repr, KERNEL_PARAMETERS))}")
    check_tensor("positions", positions)
    check_tensor("position_kernel[1]", parameters)
    check_device("positions", positions, k)
    check_device("position_kernel[1]", parameters, k)
    batch, keys, counts = k.shape[0], k.shape[2], KERNEL_PARAMETERS[name]
    if positions.dtype != torch.float64:
        raise TypeError(f"positions: is of {positions.dtype}; running sums need float64: use .double() before they are summed")
    if positions.shape != (batch, heads, keys):
        raise ValueError(f"positions: expected [B, H, K] = {[batch, heads, keys]}, got shape {tuple(positions.shape)}")
    if parameters.dim() != 2 or parameters.shape[0] != heads or parameters.shape[1] not in counts:
        of_kernel = f"P = {counts[0]}" if len(counts) == 1 else f"P from {counts[0]} to {counts[-1]}"
        shape = f"got shape {tuple(parameters.shape)}"
        raise ValueError(f"position_kernel[1]: expected [H, P] with H = {heads} and, of {name!r}, {of_kernel}, {shape}")
    return _without_padding(positions, starts, ends, documents), parameters.to(torch.float64), name


def _without_padding(x: Tensor, starts: Tensor | None, ends: Tensor | None, documents: Tensor | None) -> Tensor:
    """Positions of padding become those of the nearest token, whatever their value."""
    if documents is not None:  # each document has its own
        return x if documents.dim() != 2 else x.masked_fill((documents < 0)[:, None], 0.0)
    keys = x.shape[2]
    at = torch.arange(keys, device=x.device)
    for limit, is_end in ((ends, True), (starts, False)):
        if limit is None or limit.dim() != 1 or keys == 0 or limit.shape[0] != x.shape[0]:
            continue
        limit = limit[:, None, None]
        nearest = (limit - 1 if is_end else limit).clamp(0, keys - 1).expand(-1, x.shape[1], 1)
        own = at >= limit if is_end else at < limit
        x = torch.where(own, x.gather(2, nearest).nan_to_num(), x)
    return x


def positions_of_logits(logits: Tensor, step: str, step_min: float, step_max: float, after: Tensor | None) -> Tensor:
    """Running sums ``[B, H, L]`` in f64 of the steps of logits ``[B, L, H]``, from ``after`` on, ``[B, H]``."""
    a = logits.to(torch.float64).transpose(1, 2)
    if step == "sigmoid":
        steps = step_min + (step_max - step_min) * torch.sigmoid(a)
    elif step == "softplus":
        steps = step_min - torch.nn.functional.logsigmoid(-a)
    else:  # without a gradient beyond the limits
        steps = torch.where(a.abs() <= _MOST, a, a.detach().clamp(-_MOST, _MOST)).exp()
    sums = prefix_sums(steps) if a.device.type in DEVICES else steps.cumsum(-1)
    return sums if after is None else sums + after[..., None]


def spline_parameters(slope: Tensor, rises: Tensor) -> Tensor:
    """Parameters ``[H, P]`` of a slope ``[H]`` and of what each knot's price rises to, ``[knots, H]``."""
    knots = 2.0 ** torch.arange(rises.shape[0], dtype=torch.float64, device=rises.device)
    return torch.cat([slope[None], rises / knots[:, None]]).T
