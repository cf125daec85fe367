"""The cases, each with a description."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Case:
    """Sizes and values of one call."""

    name: str
    about: str
    batch: int = 2
    heads: int = 2
    kv_heads: int = 2
    queries: int = 33
    keys: int = 33
    features: int = 16
    causal: bool = True
    window: int | None = None
    key_lengths: tuple[int, ...] | None = None
    #: A factor of the queries, and so of the scores.
    scores: float = 1.0
    #: The bias decreases with distance at this rate.
    slope: float = 0.05
    constant: float = 0.0
    dtype: torch.dtype = field(default=torch.float32)


CASES = (
    Case("causal", "a decoder's"),
    Case("both directions", "an encoder's, with a bias of its own for keys ahead", causal=False),
    Case("one key", "a single pair", queries=1, keys=1),
    Case("odd sizes", "no size is a whole number of vectors", heads=3, kv_heads=3, queries=47, keys=47, features=7),
    Case("window", "keys at least 5 behind are not seen", window=5),
    Case("window of one", "every query sees itself only", window=1),
    Case("window in both directions", "5 keys on each side, the query's counted on both", causal=False, window=5),
    Case("grouped heads", "4 query heads over 2 key heads", heads=4),
    Case("one key head", "4 query heads over 1 key head", heads=4, kv_heads=1),
    Case("decoding", "one query behind 64 keys", queries=1, keys=64),
    Case("more keys", "9 queries behind 64 keys", queries=9, keys=64),
    Case("more queries", "the first queries stand before every key and see none", queries=40, keys=24),
    Case("padding", "sequences of 33 and 7 keys", key_lengths=(33, 7)),
    Case("padding in both directions", "sequences of 33 and 7 keys", causal=False, key_lengths=(33, 7)),
    Case("no key at all", "one sequence has none: its outputs and gradients are 0", key_lengths=(33, 0)),
    Case("window past the padding", "queries behind the padding see nothing", window=4, key_lengths=(33, 7)),
    Case("large scores", "scores of some hundreds: weights are 0 or 1, and their exponentials overflow", scores=100.0),
    Case("tiny scores", "scores of 1e-6: weights are nearly alike", scores=1e-6, slope=1e-6),
    Case("strong bias", "far keys at -1e5, past where masks of -1e4 hide them", slope=3e3),
    Case(
        "all far below zero", "every score is about -1e4, which masks of -1e4 confuse with hidden ones", constant=-1e4
    ),
    Case("rising bias", "favours far keys", slope=-0.5),
    Case("long", "4096 positions", batch=1, heads=1, kv_heads=1, queries=4096, keys=4096),
    Case("double", "f64", dtype=torch.float64),
    Case("bfloat16", "half precision", dtype=torch.bfloat16),
    Case("float16", "half precision", dtype=torch.float16),
)
