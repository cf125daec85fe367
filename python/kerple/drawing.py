"""Line plots as SVG, which notebooks display."""

from __future__ import annotations

import html
from collections.abc import Mapping

import numpy as np

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 560, 300, 60, 40


class Curves:
    """Named curves of ``(x, y)``; ``curves`` contains the values."""

    def __init__(self, curves: Mapping[str, tuple[np.ndarray, np.ndarray]], x: str, y: str) -> None:
        self.curves = dict(curves)
        self.x, self.y = x, y

    def svg(self) -> str:
        """The plot as SVG text."""
        points = {name: np.stack([np.asarray(one, float) for one in curve]) for name, curve in self.curves.items()}
        points = {name: curve[:, np.isfinite(curve).all(0)] for name, curve in points.items()}
        points = {name: curve for name, curve in points.items() if curve.shape[1]}
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" font-family="sans-serif" font-size="11">'
        ]
        if points:
            everything = np.concatenate(list(points.values()), 1)
            low, high = everything.min(1), everything.max(1)
            span = np.where(high > low, high - low, 1.0)
            size = np.array([_WIDTH - _LEFT - 110, _HEIGHT - _BOTTOM - 15])
            for at, (name, curve) in enumerate(points.items()):
                place = (curve - low[:, None]) / span[:, None] * size[:, None]
                path = " ".join(f"{_LEFT + x:.1f},{15 + size[1] - y:.1f}" for x, y in place.T)
                colour = _COLOURS[at % len(_COLOURS)]
                parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
                if at < 16:
                    label = html.escape(name)
                    parts.append(f'<text x="{_WIDTH - 102}" y="{24 + 15 * at}" fill="{colour}">{label}</text>')
            for share in (0.0, 0.5, 1.0):
                x, y = low + share * span
                parts.append(
                    f'<text x="{_LEFT + share * size[0]:.0f}" y="{_HEIGHT - 22}" text-anchor="middle">{x:.4g}</text>'
                )
                parts.append(
                    f'<text x="{_LEFT - 6}" y="{19 + (1 - share) * size[1]:.0f}" text-anchor="end">{y:.4g}</text>'
                )
        parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 5}">{html.escape(self.x)}</text>')
        parts.append(f'<text x="12" y="11">{html.escape(self.y)}</text></svg>')
        return "".join(parts)

    def _repr_html_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return f"Curves of {self.y} over {self.x}: {', '.join(self.curves)}"
