"""Exact attention with a learned bias over distances, on GPUs, in memory linear in the length.

    from kernels import get_kernel
    attention = get_kernel(REPOSITORY, version=1).attention
    out = attention(q, k, v, bias=bias)    # softmax(q k^T / sqrt(D) + bias[i - j]) v, causal

It is the part of the Python package kerple that runs on GPU tensors without its compiled module. Methods such as
`KerpleLog`, and tensors on the processor, are in the package.
"""

from .torch._attention import attention, attention_varlen, symmetric
from .torch._gpu import set_float32_precision
from .torch.cache import KVCache

__all__ = ["KVCache", "attention", "attention_varlen", "set_float32_precision", "symmetric"]
