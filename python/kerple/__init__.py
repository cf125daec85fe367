"""Relative positional encodings as functions of distance, and exact attention that learns them.

``kerple.torch`` is attention and encodings for PyTorch, ``kerple.transformers`` registers them with transformers,
``kerple.conformance`` tests anybody's attention with a bias, ``kerple.runs`` reads and makes run folders. This module
needs numpy only.
"""

from ._native import __version__, instruction_set, limit_instruction_set
from .kernels import Certificate, certificate, methods, table

__all__ = [
    "Certificate",
    "__version__",
    "certificate",
    "instruction_set",
    "limit_instruction_set",
    "methods",
    "table",
]
