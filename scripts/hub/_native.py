"""What attention on GPUs asks of the package's compiled module: to refuse options that it does not compute."""

import math


_MOST_SINK_TOKENS = 1 << 16


class Rule:
    """Options of a call."""

    def __init__(self, scale, mask, softcap, threads, encoding, dropout_p):
        causal, window, sink_tokens = mask
        if not math.isfinite(scale):
            raise ValueError(f"scale = {scale} must be finite")
        if softcap is not None and not (softcap > 0 and math.isfinite(softcap)):
            raise ValueError(f"softcap = {softcap} must be a finite number above 0, or None")
        if window is not None and window < 1:
            raise ValueError(f"window = {window}: it must be at least 1 key, the query's own; None attends to all")
        if sink_tokens is None:
            return
        if not 1 <= sink_tokens <= _MOST_SINK_TOKENS:
            limit = f"it must be 1 to {_MOST_SINK_TOKENS}, and None keeps no first tokens visible"
            raise ValueError(f"sink_tokens = {sink_tokens} is out of range; {limit}")
        if window is None:
            under = "first tokens stay visible under a window only; also give window, or leave sink_tokens out"
            raise ValueError(f"sink_tokens = {sink_tokens}: {under}")
        if not causal:
            raise ValueError(f"sink_tokens = {sink_tokens}: first tokens need causal=True; set it, or leave sink_tokens out")


def _refuse(*_):
    raise NotImplementedError("these kernels compute on GPUs; for tensors on the processor use the package: pip install kerple")


attention_forward = attention_backward = Encoding = _refuse
