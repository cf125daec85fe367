#!/usr/bin/env python3
"""The attention kernels for GPUs, examined without one.

    TRITON_INTERPRET=1 python3 scripts/check_triton.py numbers [PART ...]
    python3 scripts/check_triton.py code [--all] [ARCH ...]

`numbers` runs the kernels on CPU tensors through Triton's interpreter: the conformance suite, reference values, many settings against
dense attention in f64 with autograd, the same bits when a call is repeated or its programs run in reverse order, and what PyTorch asks
of an operation. `code` compiles every tile that the package launches, with all that its kind of call may have, for GPUs that need not be there, and
reads the machine code: registers, no spills, no atomic instructions on memory, products by matrix units. With --all it also compiles the other
calls that get the same tiles: both directions, long rows, other kernels of learned positions, tf32x3, heads of a size that is no power of two.
"""

import builtins, concurrent.futures, contextlib, json, math, os, re, subprocess, sys, tempfile, time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import library as registry

ROOT = Path(__file__).resolve().parent.parent
#: Largest error by type, as part of the largest entry of what is compared.
ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


# numbers


def dense(q, k, v, bias, weight, gates, sinks, rows, profiles, positions, parameters, starts, ends, causal, window, softcap, sink_tokens=None, kernel="", factors=1.0):
    """Attention by its definition, in f64."""
    (_, heads, queries, features), (_, kv_heads, keys, _) = q.shape, k.shape
    k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    s = q @ k.mT * features**-0.5
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    i, j = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)
    d = i - j
    table = bias if bias is not None else weight
    column = d.clamp(min=0) if causal else d + (0 if table is None else table.shape[1] // 2)
    if weight is not None:
        s = s * weight[:, column]
    if bias is not None:
        s = s + bias[:, column]
    if rows is not None:
        reach = profiles.shape[1]
        s = s + torch.einsum("bhir,rij->bhij", rows, profiles[:, d.clamp(0, reach - 1)] * ((d >= 0) & (d < reach)))
    if gates is not None:  # those of padding are not read
        is_padding = torch.zeros(len(q), 1, keys, dtype=torch.bool)
        if starts is not None and starts.dim() == 1:
            is_padding = is_padding | (j < starts[:, None, None])
        if ends is not None and ends.dim() == 1:
            is_padding = is_padding | (j >= ends[:, None, None])
        c = gates.masked_fill(is_padding, 0.0).cumsum(-1)
        c = c[:, :, i[:, 0]][..., None] - c[:, :, None, :]
        s = s + (c if causal else -c.abs())
    if positions is not None:
        u = positions[:, :, i[:, 0]][..., None] - positions[:, :, None, :]
        s = s + price(kernel, parameters, torch.where(d >= 0, u, -u).clamp(min=0.0))
    seen = (d >= 0) if causal else torch.ones_like(d, dtype=torch.bool)
    seen = seen[None, None]
    if window is not None:
        near = (d.abs() < window)[None, None]
        if sink_tokens is not None:
            near = near | (j < (0 if starts is None else starts.view(-1, 1, 1, 1)) + sink_tokens)
        seen = seen & near
    if starts is not None:
        seen = seen & (j >= starts.view(len(q), 1, -1, 1))
    if ends is not None:
        seen = seen & (j < ends.view(len(q), 1, -1, 1))
    s = s.masked_fill(~seen, -math.inf)
    if sinks is not None:
        s = torch.cat([s, sinks[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    top = s.amax(-1, keepdim=True).clamp(min=-1e300)
    e = (s - top).exp()
    total = e.sum(-1, keepdim=True)
    return ((e / total.where(total > 0, 1.0))[..., :keys] * factors) @ v


def price(kernel, parameters, u):
    """A kernel at distances of learned positions, by its formula."""
    first, *more = (x[:, None, None] for x in parameters.unbind(1))
    if kernel == "spline":
        return -first * u - sum(a * u.clamp(max=2.0**m) for m, a in enumerate(more))
    power = torch.where(u > 0, torch.where(u > 0, u, 1.0) ** more[-1], 0.0)
    return -first * power if kernel == "power" else -first * torch.log1p(more[0] * (u if kernel == "log" else power))


#: Numbers per head of each kernel; of a spline those of 4 knots.
KERNELS = {"log": 2, "power": 2, "log3": 3, "spline": 5}


def setting(B=2, H=2, G=None, Q=45, K=None, D=16, dtype=torch.float32, bias=True, weight=False, gates=False, sinks=False, starts=None,
            lengths=None, intervals=None, causal=True, window=None, sink_tokens=None, softcap=None, longer=0, far=0.0, relative=None, kernel=None, dropout=None, seed=0):  # fmt: skip
    """Tensors and options of a call; ``relative`` is the rank and reach of a bias per row, ``kernel`` that of learned positions, ``dropout``
    a probability.
    """
    random = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)
    G, K = G or H, K or Q
    columns = max(Q, K) + longer
    columns = columns if causal else 2 * columns - 1
    tensors = dict(q=draw(B, H, Q, D), k=draw(B, G, K, D), v=draw(B, G, K, D))
    tensors["bias"] = draw(H, columns) if bias else None
    tensors["weight"] = (0.5 + draw(H, columns).float().sigmoid()).to(dtype) if weight else None
    tensors["gates"] = -0.3 * torch.rand(B, H, K, generator=random, dtype=torch.float64) if gates else None
    if far and gates:
        tensors["gates"][:, :, -1] -= far
    tensors["sinks"] = draw(H) if sinks else None
    rank, reach = relative or (1, 1)
    tensors["rows"], tensors["profiles"] = (draw(B, H, Q, rank), 0.5 * draw(rank, reach)) if relative else (None, None)
    steps, parameters = torch.rand(B, H, K, generator=random, dtype=torch.float64), torch.rand(H, KERNELS.get(kernel, 1), generator=random, dtype=torch.float64)
    tensors["positions"], tensors["parameters"] = (far + (0.2 + 1.6 * steps).cumsum(-1), 0.2 + parameters) if kernel else (None, None)
    number = lambda x: None if x is None else torch.tensor(x)
    options = dict(causal=causal, window=window, sink_tokens=sink_tokens, softcap=softcap, key_starts=number(starts), key_lengths=number(lengths))
    if kernel:
        options |= dict(kernel=kernel)
    if dropout:
        options |= dict(dropout_p=dropout, dropout_seed=2**40 + 7 * seed)
    if intervals:
        del options["key_lengths"]
        options["key_starts"], options["key_ends"] = INTERVALS[intervals](B, Q, K, random)
    return tensors, options, draw(B, H, Q, D)


def some_intervals(B, Q, K, random):
    bounds = torch.randint(K + 1, (2, B, Q), generator=random)
    return bounds[0], bounds[1]


def far_intervals(B, Q, K, random):
    """Short ones in any order, so that tiles between those that a query sees are seen by none."""
    starts = torch.randint(K, (B, Q), generator=random)
    return starts, (starts + 1 + torch.arange(Q) % 5).clamp(max=K)


def prefixes(B, Q, K, random):
    """A prefix of each row, its own, then causal."""
    lengths = torch.randint(1, K + 1, (B, 1), generator=random)
    return None, torch.arange(K - Q, K).add(1).maximum(lengths)


#: Starts and ends of the keys of each query.
INTERVALS = {
    "any": some_intervals, "far": far_intervals, "prefix": prefixes, "starts": lambda *given: (some_intervals(*given)[0], None),
    "chunks": lambda B, Q, K, _: (torch.arange(K - Q, K).div(20, rounding_mode="floor").mul(20).clamp(min=0).expand(B, -1), None),
}  # fmt: skip


def arguments_of(tensors, kernel=None):
    """Tensors as attention takes them: rows and profiles are a relative bias, parameters those of a kernel."""
    given = {name: x for name, x in tensors.items() if x is not None and name not in ("rows", "profiles", "parameters")}
    given |= dict(position_kernel=(kernel, tensors["parameters"])) if kernel else {}
    return given | (dict(relative=(tensors["rows"], tensors["profiles"])) if tensors.get("rows") is not None else {})


def passes(tensors, options, up):
    """The output, and the gradient of each tensor."""
    from kerple.torch import attention

    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items() if x is not None}
    out = attention(**arguments_of(leaves, options.get("kernel")), **{key: x for key, x in options.items() if key != "kernel"})
    return dict(zip(["out", *leaves], [out.detach(), *torch.autograd.grad(out, list(leaves.values()), up)], strict=True))


def errors(tensors, options, up, found):
    leaves = {name: None if x is None else x.double().requires_grad_() for name, x in tensors.items()}
    given = {key: options[key] for key in ("causal", "window", "sink_tokens", "softcap", "kernel") if key in options}
    if options.get("dropout_p"):
        from kerple.torch import dropout_mask

        p, seed = options["dropout_p"], options["dropout_seed"]
        kept = dropout_mask(seed, p, *tensors["q"].shape[:3], tensors["k"].shape[2])
        given["factors"] = kept.double() / (1.0 - p)
    wanted = dense(**leaves, starts=options["key_starts"], ends=options.get("key_ends", options.get("key_lengths")), **given)
    grads = torch.autograd.grad(wanted, [x for x in leaves.values() if x is not None], up.double(), allow_unused=True)
    wanted = dict(zip(["out", *(name for name, x in leaves.items() if x is not None)], [wanted.detach(), *grads], strict=True))
    told = {}
    for name, want in wanted.items():
        want = torch.zeros_like(found[name], dtype=torch.float64) if want is None else want
        # a single visible key makes gradients of 0, differences of equal numbers
        told[name] = ((found[name].double() - want).abs().max() / want.abs().max().clamp(min=1.0)).item()
    return told


#: Beside the conformance suite, which has each feature alone.
SETTINGS = {
    "f64": dict(dtype=torch.float64, Q=70), "grouped heads": dict(H=4, G=2), "1 feature": dict(D=1), "80 features": dict(D=80),
    "256 features": dict(D=256, Q=33, B=1), "both directions, window": dict(causal=False, window=13),
    "gates in both directions, f64": dict(gates=True, causal=False, dtype=torch.float64), "gates far from 0": dict(gates=True, far=6e4),
    "sinks, gates, f64": dict(sinks=True, gates=True, dtype=torch.float64), "softcap, f64": dict(softcap=3.0, dtype=torch.float64),
    "weight, both directions, f64": dict(weight=True, causal=False, dtype=torch.float64), "31 queries, 32 keys": dict(Q=31, K=32),
    "everything": dict(H=4, G=2, weight=True, gates=True, sinks=True, softcap=5.0, starts=[0, 9], lengths=[76, 83], window=37, Q=60, K=83),
    "any intervals": dict(B=1, H=4, G=2, causal=False, intervals="any", Q=70, dtype=torch.float64),
    "any intervals, causal": dict(intervals="any", Q=70, K=101, sinks=True), "far intervals": dict(intervals="far", causal=False, Q=300, K=290, B=1, H=1),
    "prefixes": dict(H=4, G=1, causal=False, intervals="prefix", Q=80, K=97, sinks=True), "starts alone": dict(intervals="starts", Q=90, dtype=torch.float64),
    "chunks, more queries": dict(intervals="chunks", Q=90, K=61, window=50), "intervals, everything": dict(
        H=4, G=2, weight=True, gates=True, sinks=True, softcap=5.0, intervals="any", causal=False, window=37, Q=60, K=83, dtype=torch.float64),
    "everything, bfloat16": dict(H=4, G=2, weight=True, gates=True, sinks=True, softcap=5.0, lengths=[76, 83], window=37, Q=60, K=83,
                                 dtype=torch.bfloat16),
    "rows": dict(relative=(16, 100), bias=False, Q=70), "rows, reach below a tile": dict(relative=(1, 5), Q=70, dtype=torch.float64),
    "rows, one distance": dict(relative=(16, 1), Q=40, bias=False, dtype=torch.float64), "rows, reach of two tiles": dict(relative=(4, 64), B=1, Q=130, H=4, G=2),
    "rows, reach of 33": dict(relative=(3, 33), bias=False, Q=100, dtype=torch.float64), "rows, reach past the keys": dict(relative=(5, 300), Q=65, K=99),
    "rows of rank 40": dict(relative=(40, 47), Q=50, bias=False), "rows, more queries": dict(relative=(4, 20), Q=60, K=41, bias=False),
    "rows, window": dict(relative=(4, 90), window=37, Q=100, dtype=torch.float64), "rows, window of 1": dict(relative=(4, 9), window=1, bias=False, Q=40, dtype=torch.float64),
    "rows, any intervals": dict(relative=(4, 50), intervals="any", Q=90, K=101, H=4, G=2, sinks=True), "rows, far intervals": dict(relative=(4, 70), intervals="far", Q=150, K=170, H=1),
    "rows, far gates": dict(relative=(4, 30), gates=True, far=6e4), "rows, everything": dict(
        relative=(16, 45), H=4, G=2, weight=True, gates=True, sinks=True, softcap=5.0, starts=[0, 9], lengths=[76, 83], window=57, Q=60, K=83, dtype=torch.float64),
    "positions, f64": dict(kernel="log", Q=70, B=1, bias=False, dtype=torch.float64), "positions of a power": dict(kernel="power", Q=40, H=4, G=2),
    "positions of log3, f64": dict(kernel="log3", B=1, Q=45, K=70, causal=False, dtype=torch.float64), "positions of a spline": dict(kernel="spline", B=1, Q=70, bias=False),
    "positions of a spline, f64": dict(kernel="spline", Q=40, sinks=True, intervals="any", causal=False, dtype=torch.float64),
    "positions far from 0": dict(kernel="log3", far=2e6, B=1, Q=40),
    "positions, everything": dict(kernel="log3", H=4, G=2, weight=True, gates=True, sinks=True, softcap=5.0, intervals="prefix", causal=False, window=37, Q=60, K=83,
                                  dropout=0.2, dtype=torch.float64),
    "positions, bfloat16": dict(kernel="log", H=4, G=2, Q=40, sinks=True, dtype=torch.bfloat16),
    "dropout, f64": dict(dropout=0.3, H=4, G=2, Q=70, dtype=torch.float64), "dropout, both directions": dict(dropout=0.5, causal=False, Q=50, K=77),
    "dropout, shifted tiles": dict(dropout=0.3, Q=61, K=130, window=41, dtype=torch.float64), "dropout, more queries": dict(dropout=0.1, Q=90, K=61),
    "dropout, few queries": dict(dropout=0.3, B=1, Q=3, K=600, H=4, G=2, dtype=torch.float64), "dropout, far intervals": dict(dropout=0.3, intervals="far", causal=False, Q=150, K=170, H=1, dtype=torch.float64),
    "dropout, everything": dict(H=4, G=2, weight=True, gates=True, sinks=True, softcap=5.0, starts=[0, 9], lengths=[76, 83], window=37, Q=60, K=83,
                                relative=(5, 30), dropout=0.2, dtype=torch.float64),
    "dropout, bfloat16": dict(dropout=0.1, H=4, G=2, Q=90, sinks=True, dtype=torch.bfloat16),
    "first tokens": dict(Q=200, window=37, sink_tokens=4, weight=True, dtype=torch.float64), "first tokens within the window": dict(Q=90, window=80, sink_tokens=40),
    "first tokens of a tile and more": dict(B=1, Q=230, window=5, sink_tokens=70, H=4, G=2, sinks=True, gates=True, dtype=torch.float64),
    "all tokens are first": dict(Q=70, window=3, sink_tokens=300), "first tokens, more queries": dict(Q=190, K=140, window=20, sink_tokens=9, dtype=torch.float64),
    "first tokens after padding": dict(Q=150, K=190, window=30, sink_tokens=5, starts=[0, 43], lengths=[171, 190], gates=True, sinks=True, dtype=torch.float64),
    "first tokens, rows": dict(B=1, relative=(4, 120), Q=190, window=20, sink_tokens=40, dtype=torch.float64), "first tokens, rows, all within reach": dict(
        relative=(3, 300), bias=False, Q=170, K=200, window=33, sink_tokens=3, starts=[9, 0]),
    "first tokens, positions": dict(B=1, kernel="spline", Q=150, window=20, sink_tokens=7, sinks=True, dtype=torch.float64),
    "first tokens, everything": dict(H=4, G=2, weight=True, gates=True, sinks=True, softcap=5.0, starts=[0, 9], lengths=[136, 143], window=17, sink_tokens=6, Q=130, K=143,
                                     relative=(5, 90), dropout=0.2, dtype=torch.float64),
    "first tokens, bfloat16": dict(Q=150, H=4, G=2, window=20, sink_tokens=4, sinks=True, dtype=torch.bfloat16),
    "rows, bfloat16": dict(relative=(16, 70), H=4, G=2, Q=90, dtype=torch.bfloat16), "rows, float16": dict(relative=(5, 70), H=4, G=2, Q=90, dtype=torch.float16),
}  # fmt: skip


#: Few queries, with the least part of keys set to 32.
DECODED = {
    "decoding": dict(K=200, Q=1), "decoding, 7 parts do not fill 16": dict(K=215, Q=1, D=80), "decoding, grouped heads": dict(B=1, H=6, G=2, K=131, Q=1),
    "decoding 3 queries": dict(B=1, H=12, G=2, K=150, Q=3, sinks=True, dtype=torch.float64),
    "decoding, everything": dict(H=4, G=2, weight=True, gates=True, sinks=True, softcap=5.0, starts=[0, 9], lengths=[146, 163], window=77,
                                 Q=11, K=163, dtype=torch.float64),
    "decoding, padding hides all": dict(H=4, G=2, Q=2, K=90, sinks=True, lengths=[0, 90], dtype=torch.float64),
    "decoding, short window": dict(H=4, G=1, Q=1, K=400, window=40, longer=9), "decoding, far gates": dict(gates=True, far=6e4, Q=1, K=100),
    "decoding, both directions": dict(Q=4, K=150, causal=False, window=50, D=5, dtype=torch.float64),
    "decoding, both directions, gates": dict(Q=2, K=90, causal=False, gates=True, weight=True, dtype=torch.float64),
    "decoding, bfloat16": dict(B=1, H=8, G=2, Q=1, K=180, sinks=True, dtype=torch.bfloat16),
    "decoding first tokens": dict(H=4, G=1, Q=1, K=400, window=70, sink_tokens=20, longer=9, sinks=True, dtype=torch.float64),
    "decoding first tokens, one part of them": dict(H=4, G=2, Q=3, K=300, window=40, sink_tokens=130, starts=[0, 50], lengths=[280, 300], gates=True, dtype=torch.float64),
    "decoding first tokens, rows": dict(H=4, G=2, Q=5, K=250, window=60, sink_tokens=40, relative=(3, 230), dtype=torch.float64),
    "decoding intervals": dict(H=6, G=2, Q=5, K=170, sinks=True, intervals="any", causal=False, dtype=torch.float64),
    "decoding far intervals": dict(H=4, G=2, Q=7, K=190, intervals="far", causal=False),
    "decoding positions": dict(B=1, H=6, G=2, Q=1, K=170, kernel="log"), "decoding 7 positions": dict(B=1, H=6, G=2, Q=7, K=190, kernel="spline", sinks=True, dtype=torch.float64),
    "decoding rows": dict(B=1, H=6, G=2, Q=1, K=170, relative=(16, 130)), "decoding 7 rows": dict(B=1, H=6, G=2, Q=7, K=190, relative=(3, 70), sinks=True, dtype=torch.float64),
    "decoding rows, reach of 3": dict(Q=2, K=150, relative=(5, 3), bias=False, dtype=torch.float64), "decoding rows, everything": dict(
        relative=(4, 60), H=4, G=2, weight=True, gates=True, sinks=True, softcap=5.0, starts=[0, 9], lengths=[146, 163], window=77, Q=16, K=163, dtype=torch.float64),
}  # fmt: skip


def drawn(seed):
    """Settings that nobody chose."""
    random = torch.Generator().manual_seed(seed)
    below = lambda n: int(torch.randint(n, (), generator=random))
    flag = lambda: below(2) == 1
    G, causal, gates = 1 + below(2), flag(), flag()
    K = 1 + below(90)
    Q = 1 + below(K if gates else 90)
    given = dict(
        B=2, G=G, H=G * (1 + below(2)), Q=Q, K=K, D=1 + below(40), causal=causal, gates=gates, bias=flag(), weight=flag(), sinks=flag(),
        window=1 + below(60) if flag() else None, softcap=2.0 + below(9) if flag() else None, lengths=[below(K + 1), K] if flag() else None,
        starts=[below(K), 0] if flag() else None, dtype=[torch.float64, torch.float32][below(2)], seed=seed,
        intervals=list(INTERVALS)[below(len(INTERVALS))] if below(3) == 0 else None,
        relative=(1 + below(20), 1 + below(100)) if causal and flag() else None,
    )  # fmt: skip
    if causal and given["window"] and not given["intervals"]:
        given["sink_tokens"] = below(40) or None
    if seed % 10 == 0:  # learned positions, which exclude a relative bias and more queries than keys
        given |= dict(kernel=list(KERNELS)[below(4)], relative=None, Q=min(Q, K))
    return given


#: Settings that also give the same bits when a call is repeated and when its programs run in reverse order: together they have it all.
SAME_BITS = {
    "any intervals", "gates in both directions, f64", "both directions, window", "dropout, everything", "positions, everything",
    "decoding, everything", "decoding 7 rows", "decoding 7 positions", "first tokens, everything", "decoding first tokens, rows",
}  # fmt: skip
assert SAME_BITS <= {*SETTINGS, *DECODED}


def other_bits(tensors, options, up, found):
    """What a repeated call, or one whose programs run in reverse order, computes otherwise."""
    import triton.runtime.interpreter as interpreter

    again = passes(tensors, options, up)
    # the interpreter's loop over a grid; of its other loops, those over shapes run over one or two dimensions, and the unrolled ones
    # of a kernel, which may add up, have a first number
    interpreter.range = lambda *ends: builtins.range(*ends)[:: -1 if len(ends) == 1 else 1]
    try:
        backwards = passes(tensors, options, up)
    finally:
        del interpreter.range
    for part, x in found.items():
        if not torch.equal(x, again[part]):
            yield f"{part} differs from call to call"
        if not torch.equal(x, backwards[part]):
            yield f"{part} depends on the order of programs"


def one_setting(name, given):
    tensors, options, up = setting(**given)
    dtype = given.get("dtype", torch.float32)
    found = passes(tensors, options, up)
    others = list(other_bits(tensors, options, up, found)) if name in SAME_BITS else None
    yield from (f"{name}: {other}" for other in others or ())
    told = errors(tensors, options, up, found)
    worst = max(told, key=told.get)
    if not told[worst] <= ALLOWED[dtype]:
        yield f"{name}: {worst} is off by {told[worst]:.1e}, allowed {ALLOWED[dtype]:.0e}: {given}"
    print(f"  {name:<28} {told[worst]:.0e} ({worst}){', same bits in any order' if others == [] else ''}", flush=True)


def settings():
    for name, given in [*SETTINGS.items(), *((f"draw {seed}", drawn(seed)) for seed in range(12))]:
        yield from one_setting(name, given)
    yield from unread_keys()


def unread_keys():
    """Keys between first tokens and the window of a tile of queries are not read, forward and backward."""
    tensors, options, up = setting(Q=200, window=20, sink_tokens=5)
    whole = passes(tensors, options, up)
    for name in ("k", "v"):
        tensors[name][:, :, 64:96] = math.nan
    broken = passes(tensors, options, up)
    for part in ("out", "q"):
        if not torch.equal(whole[part][:, :, 128:], broken[part][:, :, 128:]):
            yield f"first tokens: {part} of queries from 128 on reads keys from 64 to 96"


@contextlib.contextmanager
def parts_of(keys):
    """Few queries are decoded from so many keys on, and each launch of their parts is counted."""
    from kerple.torch import _gpu

    kept, decode, launches = _gpu.PART_KEYS, _gpu._Call._decode, []
    _gpu.PART_KEYS, _gpu._Call._decode = keys, lambda call, *made: (launches.append(call.parts), decode(call, *made))
    try:
        yield launches
    finally:
        _gpu.PART_KEYS, _gpu._Call._decode = kept, decode


def decoding():
    """Few queries: parts of the keys, merged."""
    from kerple.torch import attention

    with parts_of(32) as launches:
        for name, given in DECODED.items():
            yield from one_setting(name, given)
            if not launches or launches.pop() < 2:
                yield f"{name}: the keys were not cut into parts"
        tensors, options, _ = setting(B=3, H=4, G=2, Q=1, K=170, sinks=True, gates=True)
        q, k, v, bias, gates, sinks = (tensors[name] for name in ("q", "k", "v", "bias", "gates", "sinks"))
        together = attention(q, k, v, bias=bias, gates=gates, sinks=sinks)
        alone = [attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], bias=bias, gates=gates[b : b + 1], sinks=sinks) for b in range(3)]
        if not torch.equal(together, torch.cat(alone)):
            yield "decoding: the bits depend on the batch"
        launches.clear()
        attention(tensors["k"][:, :, :40], k[:, :, :40], v[:, :, :40])
        if launches:
            yield "40 queries were decoded"


def conformance():
    from kerple import conformance as suite
    from kerple.conformance.backends import kerple

    for case in suite.CASES:
        with tiles(128 if case.queries > 1000 else 64 if case.queries > 300 else 32), parts_of(16) as launches:
            result = suite.check(kerple, case)
        if not result.is_good:
            yield result.message()
        elif result.unsupported and result.unsupported != "document_ids":
            yield f"{case.name}: {result.unsupported} is not supported"
        else:
            told = result.unsupported or f"{max(result.errors.values()):.0e}"
            print(f"  {case.name:<36} {told}{' decoded' if launches else ''}", flush=True)


@contextlib.contextmanager
def tiles(rows):
    """Larger tiles for long sequences, which the interpreter computes faster."""
    from kerple.torch import _gpu

    kept, _gpu._INTERPRETED = _gpu._INTERPRETED, _gpu.Tiles(*[_gpu.Tile(rows, rows, 4)] * 3, _gpu._INTERPRETED.decode)
    try:
        yield
    finally:
        _gpu._INTERPRETED = kept


def reference_values():
    with tiles(64):
        yield from _reference_values()


def _reference_values():
    """Values from other programs, for attention with encodings and with gates."""
    from safetensors import safe_open
    from kerple.torch import Encoding, attention

    def read(folder, of):
        with safe_open(ROOT / "reference" / folder / of["file"], "pt") as file:
            return file.get_tensor(of["key"])

    def compare(case, folder, found):
        for name, got in found.items():
            of = case["expected"].get(name)
            if of is None:
                continue
            want, tolerance = read(folder, of), case["tolerance"][f"f{of['dtype'][-2:]}_arrays"]
            if not torch.allclose(got.double(), want.double(), rtol=tolerance["rtol"], atol=tolerance["atol"]):
                yield f"{case['id']}: {name} is off by {(got - want).abs().max():.1e}"

    kinds = {"power_wht": "kerple_weight", "bias_wht": "kerple_bias_weight", "log3": "kerple_log3", "none": "none", "alibi": "alibi",
             "gauss_2para_bias": "gaussian_bias", "gauss_3para_bias": "stretched_bias", "gauss_1para_wht": "gaussian_weight",
             "kerple_power_original": "kerple_power_original", "kerple_log": "kerple_log", "kerple_power": "kerple_power", "t5": "t5"}  # fmt: skip
    count = 0
    for folder in ("kerple", "clocks"):
        for case in json.loads((ROOT / "reference" / folder / "manifest.json").read_text())["cases"]:
            if not {"q", "k", "v", "dout"} <= set(case["inputs"]):
                continue
            q, k, v, up = (read(folder, case["inputs"][name]).double() for name in ("q", "k", "v", "dout"))
            leaves = {"grad_q": q, "grad_k": k, "grad_v": v}
            learned = {name: read(folder, of).double() for name, of in case.get("params", {}).items()}
            static = case["static"]
            kind = case["id"].split("/")[1].removesuffix("_windowed").removesuffix("_small").removesuffix("_paperscale")
            kind = kinds.get(kind) or kinds.get(kind.removeprefix("kerple_"))
            for x in (*leaves.values(), *learned.values()):
                x.requires_grad_()
            leaves |= {f"grad_{name}": x for name, x in learned.items()}
            if folder == "kerple" and kind:
                keys = {key: static[key] for key in ("window", "num_buckets", "max_distance") if static.get(key) is not None}
                scale = {"scale": "inside"} if case["id"].split("/")[1].endswith("_paperscale") else {}
                module = Encoding(kind, q.shape[1], q.shape[3], dtype=torch.float64, **keys, **scale)
                for name, x in learned.items():
                    setattr_parameter(module, case["paper_names"].get(name, name).split()[0], x)
                out = module(q, k, v)
            elif case["id"] in ("fox/full", "fox/L1", "sink/fox"):
                out = attention(q, k, v, gates=torch.nn.functional.logsigmoid(learned["a"]), sinks=learned.get("sigma"))
            elif case["id"].startswith("kclock/") and case["id"] != "kclock/table_uniform":  # kerple.torch has no tables of learned positions
                out = of_learned_positions(case, q, k, v, learned)
            else:
                continue
            count += 1
            grads = torch.autograd.grad(out, list(leaves.values()), up, allow_unused=True)
            found = {name: d for name, d in zip(leaves, grads, strict=True) if d is not None}
            yield from compare(case, folder, {"out": out.detach(), **found})
    print(f"  {count} cases")
    if count < 30:
        yield f"only {count} cases of reference values were found"


def of_learned_positions(case, q, k, v, learned):
    from kerple.torch import attention

    kernel = case["id"].split("/")[1] if case["id"] in ("kclock/log3", "kclock/spline") else "log"
    names = {"log": ("r1", "r2"), "log3": ("r1", "r2", "p"), "spline": ("a0", "am")}[kernel]
    steps = case["static"]["step_max"] * torch.sigmoid(learned["a"]) if "step" in case["static"] else learned["steps"]
    gates = torch.nn.functional.logsigmoid(learned["a"]) if case["id"] == "kclock/log_plus_fox" else None
    parameters = torch.cat([learned[name].reshape(q.shape[1], -1) for name in names], 1)
    return attention(q, k, v, positions=steps.cumsum(-1), position_kernel=(kernel, parameters), gates=gates, scale=case["static"]["scale"])


def setattr_parameter(module, name, x):
    """A tensor in place of a parameter, which gradients reach."""
    if name not in dict(module.named_parameters()):
        raise ValueError(f"{module.kind} learns no {name}")
    del module._parameters[name]
    setattr(module, name, x)


def encodings():
    """Each encoding on the kernels, with its table made by PyTorch, and on the processor."""
    import kerple.torch as kt
    from kerple.torch import _gpu

    H, D, L = 2, 8, 28
    made = [getattr(kt, name)(H, D, seed=0, dtype=torch.float64) for name in kt.__all__
            if isinstance(getattr(kt, name), type) and issubclass(getattr(kt, name), kt.Encoding)
            and name not in ("Encoding", "Kernel", "LinearAttention")]  # fmt: skip
    options = dict(head_dim=D, seed=0, dtype=torch.float64)
    made += [
        kt.Kernel("log(b~0.3, a) + 0.5*power(a, p~0.3) - log(1 - power(1, 1))", H, weight="exp(1, a, p~U(0,1))", **options),
        kt.Kernel("-(-log)^0.5 + s*exp(log) - 2*sqdist + const(c)*gauss(1, a)", H, unproven=True, keep="smooth", **options),
        kt.Kernel("pow(log3, alpha) + neglog(power(1, 1))", H, unproven=True, keep="smooth", **options),
        kt.Bam(H, alpha=0.4, beta=0.7, theta_mu=-1.1, **options), kt.Encoding("alibi", H, behind=0.5, **options), kt.Encoding("t5", H, bidirectional=True, max_distance=20, **options),
        kt.Encoding("kerple_log", H, scale="inside", window=9, **options),
        kt.KerplePositions(H, kernel="spline", knots=5, step="exp", **options), kt.KerplePositions(H, kernel="log3", step="softplus", step_min=0.05, **options),
        kt.Inkling(H, rank=3, reach=11, window=13, log_scale={"floor": 6, "alpha": 0.5}, **options),
    ]  # fmt: skip
    makers = {"rotary_positions": "positions", "learned_positions": "positions", "selective_rope": "angles", "gates": "gates", "relative": "relative"}
    between = {"wall": "decays", "grape_ap": "path_bias", "path": "householder"}
    refused = []
    for module in made:
        made_of_rows = {makers[name] for name in (module.kind, module._entry) if name in makers}
        if module.kind in between:
            made_of_rows = {between[module.kind]}
        for causal in (True, False) if not module._causal_only and module.kind != "xpos" else (True,):
            random = torch.Generator().manual_seed(1)
            q, k, v, up = (torch.randn(1, H, L, D, generator=random, dtype=torch.float64) for _ in range(4))
            rows = torch.randn(1, L, H * D, generator=random, dtype=torch.float64)
            leaves = [x.requires_grad_() for x in (q, k, v)] + list(module.parameters())

            def run():
                more = {name: getattr(module, name)(rows) for name in made_of_rows}
                out = module(q, k, v, causal=causal, **more)
                return [out.detach(), *torch.autograd.grad(out, leaves, up, allow_unused=True)]

            try:
                found = run()
            except NotImplementedError as error:
                if module.kind not in str(error) or ".cpu()" not in str(error):
                    yield f"{module.kind} is refused without its name and a hint: {error}"
                refused.append(module.kind)
                break
            _gpu.DEVICES.discard("cpu")
            try:
                wanted = run()
            finally:
                _gpu.DEVICES.add("cpu")
            for got, want in zip(found, wanted, strict=True):
                if (got is None) != (want is None) or got is not None and not torch.allclose(got, want, rtol=1e-8, atol=1e-9):
                    yield f"{module.kind}, causal={causal}: differs from the processor by {(got - want).abs().max():.1e}"
    print(f"  {len(made) - len(refused)} agree with the processor; refused by name: {', '.join(refused)}")
    if sorted(refused) != ["grape_ap", "path", "wall"]:
        yield f"refused: {refused}"


def tf32x3_on_amd():
    from kerple.torch import _gpu, attention

    kept, _gpu._arch = _gpu._arch, lambda _: "gfx942"
    _gpu.set_float32_precision("tf32x3")
    try:
        attention(*[torch.zeros(1, 1, 3, 4)] * 3)
    finally:
        _gpu._arch = kept
        _gpu.set_float32_precision("ieee")


def operation():
    """Schema, fake tensors, autograd, gradcheck, torch.compile, autocast, refusals."""
    from kerple.torch import KerpleLog, _gpu, attention

    tensors, options, up = setting(H=4, G=2, Q=20, K=24, D=8, bias=True, weight=True, sinks=True, lengths=[20, 24], dtype=torch.float64)
    t = {name: None if x is None else x.requires_grad_() for name, x in tensors.items()}
    given = (t["q"], t["k"], t["v"], t["bias"], t["weight"], t["sinks"], *[None] * 7)
    seeded = (torch.tensor([5]),)
    for keys in ((options["key_lengths"], None), (None, torch.tensor([[0] * 9 + [1] * 15, [0] * 22 + [-1] * 2]))):
        told = registry.opcheck(torch.ops.kerple.attention, (*given, *keys, *seeded, "", 0.3, True, 9, 2, 4.0, 0.25, ""), raise_exception=False)
        if set(told.values()) != {"SUCCESS"}:
            yield f"opcheck: {told}"
    intervals = (torch.randint(25, (2, 20)), torch.randint(25, (2, 20)), None)
    told = registry.opcheck(torch.ops.kerple.attention, (*given[:12], *intervals, None, "", 0.3, True, 9, None, 4.0, 0.0, ""), raise_exception=False)
    if set(told.values()) != {"SUCCESS"}:
        yield f"opcheck with intervals: {told}"
    of_rows = (torch.randn(2, 4, 20, 3, dtype=torch.float64, requires_grad=True), torch.randn(3, 17, dtype=torch.float64, requires_grad=True))
    told = registry.opcheck(torch.ops.kerple.attention, (*given[:8], *of_rows, *[None] * 6, "", 0.3, True, 9, 2, 4.0, 0.0, ""), raise_exception=False)
    if set(told.values()) != {"SUCCESS"}:
        yield f"opcheck with rows: {told}"
    of_kernel = (torch.rand(2, 4, 24, dtype=torch.float64).cumsum(-1).requires_grad_(), torch.rand(4, 3, dtype=torch.float64, requires_grad=True))
    told = registry.opcheck(torch.ops.kerple.attention, (*given[:10], *of_kernel, *[None] * 4, "", 0.3, True, 9, 2, 4.0, 0.0, "log3"), raise_exception=False)
    if set(told.values()) != {"SUCCESS"}:
        yield f"opcheck with positions: {told}"
    for given in (dict(relative=(2, 4)), dict(relative=(3, 9), weight=True, sinks=True, softcap=4.0, window=5),
                  dict(weight=True, sinks=True, softcap=4.0, window=5), dict(gates=True, sinks=True), dict(gates=True, causal=False),
                  dict(gates=True, sinks=True, causal=False, intervals="any"), dict(dropout=0.4, relative=(3, 9), sinks=True),
                  dict(relative=(2, 6), weight=True, gates=True, sinks=True, window=2, sink_tokens=2, lengths=[6]),
                  *(dict(kernel=kernel, sinks=True, causal=kernel != "log3") for kernel in ("log3", "spline"))):  # fmt: skip
        small, options, _ = setting(B=1, H=2, G=1, Q=6, K=7, D=3, dtype=torch.float64, **given)
        names = [name for name, x in small.items() if x is not None]
        kernel = options.pop("kernel", None)
        run = lambda *xs: attention(**arguments_of(dict(zip(names, xs, strict=True)), kernel), **options)
        if not torch.autograd.gradcheck(run, [small[name].requires_grad_() for name in names], fast_mode=True):
            yield f"gradcheck: {given}"
    layer = KerpleLog(2, 8, seed=0)
    q, k, v = (torch.randn(1, 2, 20, 8, requires_grad=True) for _ in range(3))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for a, b in zip(*[torch.autograd.grad(f(q, k, v).sum(), (q, v, *layer.parameters())) for f in (layer, compiled)], strict=True):
        if not torch.equal(a, b):
            yield "torch.compile: other gradients"
    with torch.autocast("cpu", torch.bfloat16):
        if attention(q, k, v).dtype != torch.bfloat16:
            yield "autocast: the output is not bfloat16"
    half = torch.ops.kerple.attention(*(x.detach().half() for x in (q, k, v)), *[None] * 13, "", 0.3, True, None, None, None, 0.0, "")
    if half[1].dtype != torch.float32:
        yield f"lse of float16 is {half[1].dtype}"
    _gpu.set_float32_precision("tf32x3")
    _gpu.set_float32_precision("ieee")
    for words, call in {
        "1 to 256": lambda: attention(*[torch.zeros(1, 1, 2, 257)] * 3),
        "must divide": lambda: attention(torch.zeros(1, 3, 2, 4), *[torch.zeros(1, 2, 2, 4)] * 2),
        "columns": lambda: attention(*[torch.zeros(1, 1, 3, 4)] * 3, bias=torch.zeros(1, 2)),
        "exceed the 2 keys of packed": lambda: attention(torch.zeros(1, 1, 3, 4), *[torch.zeros(1, 1, 2, 4)] * 2, cu_seqlens=[0, 2]),
        "rank 65; kernels take 1 to 64": lambda: attention(*[torch.zeros(1, 1, 3, 4)] * 3, relative=(torch.zeros(1, 1, 3, 65), torch.zeros(65, 2))),
        "rows [B, H, Q, R] and profiles": lambda: torch.ops.kerple.attention(
            *[torch.zeros(1, 1, 3, 4)] * 3, *[None] * 5, torch.zeros(1, 1, 3, 2), *[None] * 7, "", 0.3, True, None, None, None, 0.0, ""),
        "earlier keys; use causal=True": lambda: torch.ops.kerple.attention(
            *[torch.zeros(1, 1, 3, 4)] * 3, *[None] * 5, torch.zeros(1, 1, 3, 2), torch.zeros(2, 5), *[None] * 6, "", 0.3, False, None, None, None, 0.0, ""),
        "positions: expected them [B, H, K], and a kernel": lambda: torch.ops.kerple.attention(
            *[torch.zeros(1, 1, 3, 4)] * 3, *[None] * 7, torch.zeros(1, 1, 3).double(), *[None] * 5, "", 0.3, True, None, None, None, 0.0, "log"),
        "position_kernel[1]: expected [H, P] of 'log3'": lambda: torch.ops.kerple.attention(
            *[torch.zeros(1, 1, 3, 4)] * 3, *[None] * 7, torch.zeros(1, 1, 3).double(), torch.ones(1, 2).double(), *[None] * 4, "", 0.3, True, None, None, None, 0.0, "log3"),
        "which alone have positions": lambda: attention(
            *[torch.zeros(1, 1, n, 4) for n in (3, 2, 2)], positions=torch.zeros(1, 1, 2).double(), position_kernel=("log", torch.ones(1, 2))),
        "if and only if dropout_p": lambda: torch.ops.kerple.attention(*[torch.zeros(1, 1, 3, 4)] * 3, *[None] * 13, "", 0.3, True, None, None, None, 0.5, ""),
        "sink_tokens = 4: first tokens stay visible under a window only": lambda: attention(*[torch.zeros(1, 1, 3, 4)] * 3, sink_tokens=4),
        "sink_tokens: intervals of keys per query": lambda: attention(
            *[torch.zeros(1, 1, 3, 4)] * 3, window=2, sink_tokens=4, key_starts=torch.zeros(1, 3, dtype=torch.long)),
        "tf32": lambda: _gpu.set_float32_precision("tf32"),
        "no such products for gfx942": tf32x3_on_amd,
    }.items():
        try:
            call()
            yield f"{words!r} is not refused"
        except ValueError as error:
            if words not in str(error):
                yield f"{error} does not mention {words!r}"
    for empty in ((0, 2, 3, 3), (2, 2, 0, 3), (2, 2, 3, 0)):
        q, k = torch.zeros(*empty[:3], 4, requires_grad=True), torch.zeros(empty[0], 2, empty[3], 4, requires_grad=True)
        out = attention(q, k, k, causal=False, bias=torch.zeros(2, 5))
        out.sum().backward()
        if out.shape != q.shape or out.any() or q.grad.any() or k.grad.any():
            yield f"without pairs, {empty}: the output or a gradient is not 0"
        r, profiles = torch.ones(*empty[:3], 4, requires_grad=True), torch.ones(4, 5, requires_grad=True)
        attention(q, k, k, relative=(r, profiles)).sum().backward()
        if r.grad.any() or profiles.grad.any():
            yield f"without pairs, {empty}: a gradient of a relative bias is not 0"
        if empty[2] <= empty[3]:
            x, parameters = torch.ones(empty[0], 2, empty[3], dtype=torch.float64, requires_grad=True), torch.ones(2, 2, requires_grad=True)
            attention(q, k, k, positions=x, position_kernel=("log", parameters)).sum().backward()
            if x.grad.any() or parameters.grad.any():
                yield f"without pairs, {empty}: a gradient of learned positions or their kernel is not 0"
    print("  opcheck, gradcheck, torch.compile, autocast, refusals, empty tensors")


PARTS = [operation, settings, decoding, encodings, reference_values, conformance]


def numbers(names):
    from kerple.torch import _gpu

    _gpu.interpret()
    failures = []
    for part in PARTS:
        if names and part.__name__ not in names:
            continue
        start = time.monotonic()
        print(part.__name__.replace("_", " "), flush=True)
        for failure in part():
            print(f"  WRONG {failure}", flush=True)
            failures.append(failure)
        print(f"  {time.monotonic() - start:.0f} s", flush=True)
    return failures


# code


def targets():
    from triton.backends.compiler import GPUTarget

    cuda = {f"sm_{arch}": GPUTarget("cuda", arch, 32) for arch in (80, 90, 100)}
    return cuda | {"gfx942": GPUTarget("hip", "gfx942", 64)}


class Call(NamedTuple):
    """What a kernel is compiled for beside its shape: the direction, the rank of a relative bias, a kernel of learned positions and its
    parameters, how float32 is multiplied, and heads of fewer features than the tile has room for.
    """

    causal: bool = True
    rank: int = 16
    kernel: tuple[str, int] = ("spline", 17)
    precision: str = "ieee"
    unused_features: int = 0

    def __str__(self):
        words = ["" if self.causal else "both directions", f"rank {self.rank}", self.kernel[0], self.precision, f"{self.unused_features} features less"]
        return ", ".join(word for word, one, usual in zip(words, self, Call(), strict=True) if one != usual)


def other_calls(shape):
    """Calls that get the tiles of a shape, each as the one that :func:`code` compiles in any case but for one thing."""
    from kerple.torch import _gpu

    if not shape.terms.startswith("rows"):
        yield Call(causal=False)
    else:
        yield Call(rank=_gpu.MOST_RANK)
    if shape.terms.startswith("positions"):
        yield from (Call(kernel=(name, count)) for name, count in KERNELS.items() if name != "spline")
    if shape.bits == 32 and not shape.arch.startswith("gfx"):
        yield Call(precision="tf32x3")
    yield Call(unused_features=8)


def arguments(kernels, number, terms, is_decoded, causal):
    """Types of the kernels' arguments by name; a number or None is a constant of the compiled kernel."""
    of_f64 = number == "fp64"
    acc = "*fp64" if of_f64 else "*fp32"
    full = lambda type: type if "all" in terms else None
    masked = lambda type: None if terms == "bias" else type
    biased = lambda type: None if terms in ("rows", "positions") else type
    placed = lambda type: type if terms.startswith("positions") else None
    of_rows = lambda type: type if terms.startswith("rows") else None
    rows = kernels.Rows("*" + number, "i32", "i32", "i32")
    numbers = kernels.Terms(0.125 if of_f64 else "fp32", full(5.0 if of_f64 else "fp32"), full(acc), biased(acc), "i32", full("*fp64"))
    relative = kernels.Relative(of_rows(acc), "i32", "i32", "i32", of_rows(acc), "i32", "i32")
    learned = kernels.Learned(placed("*fp64"), placed(acc), placed("i32"))
    given = dict(sizes=kernels.Sizes(*["i32"] * 4), terms=numbers, relative=relative, learned=learned, mask=kernels.Mask(masked("i32"), "i32" if "seldom" in terms and causal else None, *[masked("*i32")] * 4))
    given |= dict.fromkeys(("q", "k", "v", "out", "d_out", "d_q", "d_k", "d_v"), rows)
    given |= dict.fromkeys(("lse", "delta", "sinks", "partial", "total", "parts_lse"), acc)
    dropped = kernels.Dropout("*i64", "i32", 1.25 if of_f64 else "fp32")
    given |= dict(dropout=dropped if "seldom" in terms and not is_decoded else kernels.Dropout(None, 0, 0.0))
    given |= dict(parts=kernels.Rows(acc, "i32", "i32", "i32"))
    given |= dict(d_clocks=full(acc), d_row_clocks=None if causal else full(acc), partial_bias=biased(acc), partial_weight=full(acc), partial_profiles=of_rows(acc))
    given |= dict(d_rows=of_rows(kernels.Rows(acc, "i32", "i32", "i32")))
    given |= dict(d_positions=placed(acc), d_row_positions=placed(acc), partial_parameters=placed("*fp64"))
    return given | dict.fromkeys(("columns", "items", "splits", "total_columns"), "i32")


def compiled(name, shape, tile, call=Call()):
    """A kernel as machine code; decode is forward with parts of the keys and 4 heads that share them."""
    import triton
    from triton.compiler import ASTSource
    from kerple.torch import _gpu, triton_kernels as kernels

    number = {16: "bf16", 32: "fp32", 64: "fp64"}[shape.bits]
    given, kernel = arguments(kernels, number, shape.terms, name == "decode", call.causal), getattr(kernels, "forward" if name == "decode" else name)
    given |= {"splits": 1} if name == "forward" else {"out": given["parts"]} if name == "decode" else {}
    rank = call.rank if shape.terms.startswith("rows") else 0
    of_positions, numbers = call.kernel if shape.terms.startswith("positions") else ("", 0)
    options = dict(KERNEL=of_positions, D=shape.features - call.unused_features, WIDTH=shape.features, RANK=rank, RANKS=_gpu._width(rank),
                   OF_ROWS=_gpu.OF_ROWS_OF_HALF if shape.bits == 16 else call.precision, M=tile.rows, N=tile.keys, T=tile.rows, TOGETHER=4 if name == "decode" else 1,
                   CAUSAL=call.causal, PRECISION=call.precision, C=_gpu.FOLD, S=_gpu.MERGE if name == "merge" else max(4, 1 << (numbers - 1).bit_length()))  # fmt: skip
    signature, constants, hints = {}, {}, {}

    def leaf(path, type):
        if not isinstance(type, str):
            constants[path] = type
            return "constexpr"
        if type.startswith("*"):
            hints[path] = [["tt.divisibility", 16]]
        return type

    for at, parameter in enumerate(kernel.params):
        if parameter.is_constexpr:
            signature[parameter.name], constants[(at,)] = "constexpr", options[parameter.name]
            continue
        type = given[parameter.name]
        if isinstance(type, kernels.Rows):
            hints |= {(at, entry): [["tt.divisibility", 16]] for entry in (1, 2, 3)}
        if isinstance(type, tuple):
            signature[parameter.name] = type._make(leaf((at, entry), one) for entry, one in enumerate(type))
        else:
            signature[parameter.name] = leaf((at,), type)
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    return triton.compile(source, target=targets()[shape.arch], options=_gpu._compiled(tile.warps))


def read_code(binary):
    """Registers, spilled bytes or registers, shared memory, instructions: atomics on memory, products by matrix units."""
    count = lambda pattern, text: len(re.findall(pattern, text))
    shared = binary.metadata.shared
    if "amdgcn" in binary.asm:
        text = binary.asm["amdgcn"]
        field = lambda name: int(re.search(rf"\.{name}:\s+(\d+)", text)[1])
        spills = field("vgpr_spill_count") + field("private_segment_fixed_size")
        return dict(registers=field("vgpr_count"), spills=spills, shared=shared, atomics=count(r"(?:global|flat|buffer|ds)_\w*atomic", text), products=count(r"v_mfma", text))
    import triton

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        run = lambda tool, *flags: subprocess.run([tools / tool, *flags, file.name], capture_output=True, text=True, check=True).stdout
        usage = run("cuobjdump", "-res-usage")
        registers, stack, local = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK", "LOCAL"))
        # without a stack nothing can be spilled; disassembling takes a quarter of the time of compiling
        spills = local + (count(r"\b(?:STL|LDL)\b", run("nvdisasm")) if stack else 0)
    # the machine code has an instruction for each of these, and none without
    text = binary.asm["ptx"]
    return dict(registers=registers, spills=spills, shared=shared,
                atomics=count(r"\b(?:atom|red|cp\.reduce)\.", text), products=count(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\.", text))  # fmt: skip


#: Shared memory of a program, of the smallest relative: Ada and consumer Blackwell, MI300.
SHARED = {"sm": 99 << 10, "gf": 64 << 10}


#: The most instructions that move spilled registers, as Triton 3.9 compiles, where no tile without them was found: bits, features and
#: a part of the terms. The learned positions are a spline, whose number of knots is an argument, with sums for up to 31.
KNOWN_SPILLS = [(32, 256, "", 576), (64, 64, "", 16), (64, 64, "positions", 39), (32, 128, "seldom", 256), (32, 128, "rows", 64),
                (16, 256, "rows, all, seldom", 2), (16, 256, "positions, all, seldom", 12), (64, 64, "rows, all, seldom", 36)]  # fmt: skip


def known_spills(shape):
    return max((most for bits, features, terms, most in KNOWN_SPILLS if shape[1:3] == (bits, features) and terms in shape.terms), default=0)


def one_code(job):
    name, shape, tile, call = job
    found = read_code(compiled(name, shape, tile, call))
    # of other calls half precision alone is held to it, and not with long rows
    known = known_spills(shape) if call == Call() or shape.bits == 16 and call.rank == Call().rank else math.inf
    failures = [f"{found['spills']} spills, {known} are known"] if found["spills"] > known else []
    failures += [f"{found['atomics']} atomic instructions"] if found["atomics"] else []
    failures += [f"{found['shared']} bytes of shared memory"] if found["shared"] > SHARED[shape.arch[:2]] else []
    # a row's distances from a tile's keys are in two blocks of as many
    of_rows = name in ("forward", "decode") and shape.terms.startswith("rows")
    failures += ["more rows than keys"] if of_rows and tile.rows > tile.keys else []
    # NVIDIA's matrix units multiply no float32 but in parts
    multiplied = shape.bits == 16 or shape.arch.startswith("gfx") or shape.bits == 32 and call.precision != "ieee"
    failures += ["no product by matrix units"] if name not in ("fold", "merge") and multiplied and not found["products"] else []
    return job, found, failures


def launches():
    """What attention launches reaches the compiler as it would on an H100: Triton's own binder, no device."""
    import triton.runtime
    from kerple.torch import _gpu, attention

    class Driver:
        get_current_device = get_current_stream = lambda *_: 0
        get_current_target = lambda _: targets()["sm_90"]

    def compile_only(kernel, grid):
        launched.append(kernel.fn.__name__)
        return lambda *given, **options: kernel.run(*given, grid=grid, warmup=True, **options)

    triton.runtime.driver.set_active(Driver())
    triton.runtime.jit.JITFunction.__getitem__ = compile_only
    _gpu._arch = lambda _: "sm_90"
    _gpu.DEVICES.add("cpu")
    for given in (dict(dtype=torch.bfloat16), dict(gates=True, sinks=True, lengths=[3, 45], window=1), dict(softcap=3.0, dtype=torch.float64),
                  dict(intervals="any"), dict(bias=False, relative=(16, 40), dtype=torch.bfloat16),
                  dict(dropout=0.1, dtype=torch.bfloat16), dict(dropout=0.1, bias=False, relative=(4, 9)),
                  dict(bias=False, kernel="log", dtype=torch.bfloat16), dict(window=7, sink_tokens=3, lengths=[3, 45]),
                  dict(bias=False, relative=(16, 40), window=7, sink_tokens=3)):  # fmt: skip
        launched = []
        tensors, options, up = setting(H=4, G=1, **given)
        passes(tensors, options, up)
        if launched != ["forward", "backward_dq", "fold", "backward_dkv"]:
            yield f"{given}: launched {launched}"


def code(names):
    """Prints a line for each compiled kernel."""
    from kerple.torch import _gpu

    jobs = [("fold", _gpu.Shape(arch, 32, 64, "bias"), _gpu.Tile(0, 0, 4), Call()) for arch in targets()]
    jobs += [("merge", shape, tiles.decode, Call()) for shape, tiles in _gpu.TILES.items() if shape.terms == "bias"]
    of_tiles = [(name, shape, tile) for shape, tiles in _gpu.TILES.items() for name, tile in zip(("forward", "backward_dq", "backward_dkv", "decode"), tiles, strict=True)]
    # a relative bias beside all else has the same tiles with what is seldom and without
    most = [(name, shape._replace(terms="rows, all, seldom") if shape.terms == "rows, all" else shape, tile) for name, shape, tile in of_tiles]
    jobs += [(*job, Call()) for job in most]
    if "--all" in names:
        names = [name for name in names if name != "--all"]
        jobs += [(*job, Call()) for job in of_tiles if job not in most] + [(*job, call) for job in most for call in other_calls(job[1])]
    unknown = [name for name in names if name not in targets()]
    if unknown:
        return [f"{unknown[0]!r} is not an architecture; these are: {', '.join(targets())}"]
    jobs = [job for job in jobs if not names or job[1].arch in names]
    print(f"{'kernel':<14}{'device':<8}{'bits':>4}{'features':>9}{'with':>25}{'tile':>8}{'warps':>6}{'registers':>10}{'spills':>8}{'shared':>8}{'products':>9}")
    failures, spills = [], {}
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        for (name, shape, tile, call), found, wrong in pool.map(one_code, jobs):
            print(f"{name:<14}{shape.arch:<8}{shape.bits:>4}{shape.features:>9}{shape.terms:>25}{f'{tile.rows}x{tile.keys}':>8}{tile.warps:>6}"
                  f"{found['registers']:>10}{found['spills']:>8}{found['shared']:>8}{found['products']:>9}  {', '.join(filter(None, [str(call), *wrong]))}", flush=True)  # fmt: skip
            failures += [f"{name}, {shape}, {tile}, {call}: {one}" for one in wrong]
            spills.setdefault((shape.bits, str(call)), []).append(found["spills"])
    for (bits, call), of in spills.items():
        print(f"{bits} bits, {call or 'as called most'}: {len(of)} kernels, {sum(one > 0 for one in of)} spill, at most {max(of)} instructions")
    print(f"{len(jobs)} kernels compiled")
    return failures + list(launches())


if __name__ == "__main__":
    what, *names = sys.argv[1:] or ["help"]
    if what not in ("numbers", "code"):
        sys.exit(__doc__)
    failures = {"numbers": numbers, "code": code}[what](names)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)
