"""Relative positional encodings as functions of distance, and exact attention that learns them.

* ``kerple.torch``: attention and encodings for PyTorch;
* ``kerple.transformers``: registers the attention with transformers;
* ``kerple.conformance``: tests any attention with a bias against a reference;
* ``kerple.runs``: reads and writes run folders.

This module needs only numpy.
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
