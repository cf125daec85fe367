"""Tests any attention with a bias over distances against a reference in f64.

    python -m kerple.conformance --against eager|sdpa|flex|kerple|plain|MODULE:FUNCTION --device cuda

An implementation is a function ``f(call) -> Tensor``: :class:`Call` contains the tensors and the
options. Outputs and every gradient, including the bias's, are compared with the reference: for each
feature (masks, windows, tables, key heads, softcaps, sinks, gates, padding, documents), and for what
goes wrong with numbers, tiles and strides. A check that fails is named after what is wrong.
:mod:`~kerple.conformance.mutants` tests the suite itself, with mistakes that it must catch.
"""

from .cases import CASES, Case
from .definition import Call, Unsupported, definition
from .run import Result, check, run

__all__ = ["CASES", "Call", "Case", "Result", "Unsupported", "check", "definition", "run"]
