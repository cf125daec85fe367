"""What attention on GPUs asks of the package's compiled module: to refuse options that it does not compute."""

import math


class Rule:
    """Options of a call."""

    def __init__(self, scale, causal, window, softcap, threads, encoding, dropout_p):
        if not math.isfinite(scale):
            raise ValueError(f"scale = {scale} must be finite")
        if softcap is not None and not (softcap > 0 and math.isfinite(softcap)):
            raise ValueError(f"softcap = {softcap} must be a finite number above 0, or None")
        if window is not None and window < 1:
            raise ValueError(f"window = {window}: it must be at least 1 key, the query's own; None attends to all")


def _refuse(*_):
    raise NotImplementedError("these kernels compute on GPUs; for tensors on the processor use the package: pip install kerple")


attention_forward = attention_backward = Encoding = _refuse
