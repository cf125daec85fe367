"""Tests for anybody's attention with a bias over distances, against the definition in f64.

    python -m kerple.conformance --against eager|sdpa|flex|kerple|MODULE:FUNCTION

An implementation is a function ``f(call) -> Tensor``: :class:`Call` holds the tensors and what is asked for. Outputs and
every gradient, the bias's too, are held against the definition over masks, windows, more and fewer keys than queries, rows that
see no key, large and tiny scores, long sequences and half precision.
"""

from .cases import CASES, Case
from .definition import Call, definition
from .run import Result, check, run

__all__ = ["CASES", "Call", "Case", "Result", "check", "definition", "run"]
