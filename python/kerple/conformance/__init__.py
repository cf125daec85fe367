"""Tests any attention with a bias over distances against a reference in f64.

    python -m kerple.conformance --against eager|sdpa|flex|kerple|MODULE:FUNCTION

An implementation is a function ``f(call) -> Tensor``: :class:`Call` contains the tensors and the
options. Outputs and every gradient, including the bias's, are compared with the reference over
attention masks, windows, more and fewer keys than queries, rows that may not attend to any key,
large and tiny scores, long sequences and half precision.
"""

from .cases import CASES, Case
from .definition import Call, definition
from .run import Result, check, run

__all__ = ["CASES", "Call", "Case", "Result", "check", "definition", "run"]
