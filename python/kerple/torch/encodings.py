"""Positional methods as modules, with the initial values and ranges of their papers.

A module is attention with one method: ``KerpleLog(heads=12)(q, k, v)``. Where the method is a
function of distance, ``table`` returns it as a tensor through which gradients reach the parameters.
"""

from __future__ import annotations

import json
from typing import Any

from .. import kernels
from ._encoding import Encoding


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

    ``bias=False`` starts almost without positions, ``gate=True`` gives each head a gate of its angles. ``decay=True`` lets products of
    pairs decay as well, on CPUs: ``forward`` then takes ``decays=rope.decays(rows)``, and with ``scalar_gate=True``
    ``gates=rope.gates(rows)``. Decoding goes on
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


class Wall(_Named):
    """Features that forget by gates of their own: products ``q_if k_jf e^(P_if - P_jf)``, P running sums of ``ln sigmoid(y W + b)``.
    flash-linear-attention 0.6.0.

    ::

        wall = Wall(heads=8, head_dim=64)
        out = wall(q, k, v, decays=wall.decays(rows))    # rows: [B, L, 512], what q and k are made of

    ``rank`` projects through fewer numbers, ``g_max`` bounds gates, and ``scalar_gate=True`` adds a gate of each head, which ``forward``
    takes as ``gates=wall.gates(rows)``. With ``gate="bounded"`` a gate is ``-rate_h sigmoid(y W + b)``, at most 1/8 a token, and
    ``spans=[16, 1024]`` are the tokens that the first and the last head remember at the start. ``order="rope_then_channel_decay"``
    turns queries and keys as rotary does, by positions among the keys of the call, before products decay; scores then
    depend on positions, not on distances alone.
    """

    kind = "wall"


class GrapeAp(_Named):
    """``b_ij``, the sum over tokens n from j + 1 to i of ``slope ln sigmoid(p_i . r_n / E)``. arXiv:2512.07805.

    ::

        grape = GrapeAp(heads=8, head_dim=64)
        out = grape(q, k, v, path_bias=grape.path_bias(rows))    # rows: [B, L, 512], what q and k are made of

    As published only r turns with its position; ``relative=True`` turns p too, so that only distances matter.
    """

    kind = "grape_ap"


class Path(_Named):
    """``s_ij = q_i' H_i .. H_(j+1) k_j``, ``H_t = I - beta_t w_t w_t'`` made of each token (PaTH). Yang et al. 2025, arXiv:2505.16381.

    ::

        path = Path(heads=8, head_dim=64)
        out = path(q, k, v, householder=path.householder(rows))    # rows: [B, L, 512], what q and k are made of

    ``gate=True`` adds gates (PaTH-FoX), which ``forward`` takes as ``gates=path.gates(rows)``. There are as many heads of keys as of
    queries; :func:`attention` takes fewer.
    """

    kind = "path"


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
        ValueError: an expression that is not a kernel, lists of another length than ``start`` needs, or values
            out of a parameter's range; the message contains the limit.
    """

    kind = "kernel"

    def __init__(self, bias: str | None = None, heads: int = 1, *, weight: str | None = None, **options: Any) -> None:
        told = {"bias": bias, "weight": weight}
        super().__init__(None, heads, **{key: text for key, text in told.items() if text is not None}, **options)
        own = json.loads(json.loads(self._key)[0])
        #: The bias as an expression, also where it is the default; None where there is only a weight.
        self.expression, self._reach, self._distance_cap = (own.get(name) for name in ("bias", "reach", "distance_cap"))

    def certificate(self, points: str = "0..31") -> kernels.Certificate:
        """The certificate of the bias; see :func:`kerple.certificate`. Nothing is proven of a bias that ends, or that stays as
        it is from a distance on.
        """
        if self.expression is None:
            raise ValueError("there is no bias to prove, only a weight")
        if self._reach is not None:
            text = f"not proven: the bias ends at distance {self._reach}"
            return kernels.Certificate(self.expression, False, text, {"kind": "ended", "reach": self._reach})
        if self._distance_cap is not None:
            text = f"not proven: keys at distance {self._distance_cap} and beyond share one bias"
            return kernels.Certificate(self.expression, False, text, {"kind": "capped", "distance_cap": self._distance_cap})
        return kernels.certificate(self.expression, points)
