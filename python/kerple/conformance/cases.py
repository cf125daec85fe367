"""The cases, each with a description: first single features, then what goes wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Case:
    """Sizes and values of one call. Its name is the name of the check."""

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
    sink_tokens: int | None = None
    key_lengths: tuple[int, ...] | None = None
    key_starts: tuple[int, ...] | None = None
    #: Lengths of the documents of each sequence; what is left of a sequence is padding.
    documents: tuple[tuple[int, ...], ...] | None = None
    #: The interval of keys of each query, see :meth:`intervals`.
    interval: str | None = None
    bias: bool = True
    weight: bool = False
    softcap: float | None = None
    #: The mean of the attention sinks; None is none.
    sinks: float | None = None
    gates: bool = False
    #: The value of the gates at a third of the keys.
    reset: float | None = None
    #: Rank and reach of a relative bias per row.
    relative: tuple[int, int] | None = None
    #: The kernel of learned positions.
    kernel: str | None = None
    #: The mean step from position to position, and the position before the first.
    step: float = 1.0
    origin: float = 0.0
    #: Whether every third step is 0.
    coincide: bool = False
    #: The probability of dropping an attention weight.
    dropout: float | None = None
    #: None is ``1 / sqrt(features)``.
    scale: float | None = None
    #: A factor of the queries, and so of the scores.
    scores: float = 1.0
    #: The bias decreases with distance at this rate.
    slope: float = 0.05
    constant: float = 0.0
    #: Columns of the tables for distances that do not occur.
    columns: int = 0
    dtype: torch.dtype = field(default=torch.float32)
    #: The type of tables, sinks and gates; None is that of q, k and v.
    table_dtype: torch.dtype | None = None
    #: How q, k, v and the gradient of the output are stored, see :data:`LAYOUTS`.
    layout: str = "contiguous"
    #: Whether a second run must have the same bits.
    is_repeated: bool = False

    def intervals(self) -> tuple[list[list[int]] | None, list[list[int]] | None]:
        """The first key of each query and one past its last, ``[B, Q]``: of a prefix, which all see, and
        then the earlier keys; of the chunk of 11 keys that the query is in; or, ``"any"``, of keys that
        have nothing to do with the query. Each sequence has its own.
        """
        at = range(self.keys - self.queries, self.keys)
        rows = range(self.batch)
        if self.interval == "prefix":
            return None, [[max(20 - 7 * b, i + 1) for i in at] for b in rows]
        if self.interval == "chunks":
            return [[max(0, (i + 3 * b) // 11 * 11 - 3 * b) for i in at] for b in rows], None
        if self.interval == "any":
            starts = [[(7 * i + 5 * b) % self.keys for i in at] for b in rows]
            return starts, [[min(self.keys, start + (3 * i + b) % 40) for i, start in zip(at, row, strict=True)] for b, row in enumerate(starts)]
        return None, None


#: Memory layouts, with what an implementation may wrongly assume.
LAYOUTS = {
    "contiguous": "rows of all heads, one after another",
    "heads inside rows": "[B, L, H, D] transposed, as linear layers return it",
    "features apart": "[B, H, D, L] transposed: features of a row are not neighbours",
    "within larger tensors": "slices of tensors that contain NaN everywhere else",
    "expanded": "keys, values and the gradient of the output have strides of 0",
}

_LONG = dict(batch=1, heads=1, kv_heads=1, queries=4096, keys=4096)
_EVERYTHING = dict(
    heads=4, queries=70, keys=97, window=50, sink_tokens=7, scale=0.3, weight=True, softcap=3.0, sinks=0.5, gates=True,
    key_lengths=(97, 80), key_starts=(0, 9),
)  # fmt: skip


def _lengths(*lengths: int) -> tuple[Case, ...]:
    about = "whole numbers of tiles and one more, without a bias"
    return tuple(Case(f"{n} positions", about, bias=False, queries=n, keys=n) for n in lengths)


def _layouts() -> tuple[Case, ...]:
    return tuple(
        Case(name, about, queries=40, keys=40, features=24, layout=name)
        for name, about in LAYOUTS.items()
        if name != "contiguous"
    )


CASES = (
    Case("one key", "a single pair", queries=1, keys=1),
    Case("scale", "scores are multiplied by 0.3, not by 1/sqrt(D)", bias=False, queries=1, keys=9, causal=False, scale=0.3),
    Case("both directions", "an encoder's, without a bias", bias=False, queries=24, keys=24, causal=False),
    Case("causal", "a decoder's, without a bias", bias=False, queries=24, keys=24),
    *_lengths(16, 17, 32, 33, 64, 65, 96, 97, 128, 129),
    Case("bias", "a decoder's, added to scaled scores"),
    Case("bias of 320 positions", "ten tiles of 32: the bias reaches all of them", batch=1, queries=320, keys=320),
    Case("bias in both directions", "an encoder's, with a bias of its own for keys ahead", causal=False),
    Case("longer tables", "tables have columns for distances that do not occur", columns=7),
    Case("longer tables in both directions", "distance 0 is the middle column", causal=False, columns=7),
    Case("odd sizes", "no size is a whole number of vectors", heads=3, kv_heads=3, queries=47, keys=47, features=7),
    Case("one feature", "rows of q, k and v are single numbers", features=1),
    Case("24 features", "not a power of two", features=24),
    Case("80 features", "not a power of two", features=80),
    Case("window", "keys at least 5 away are not seen", window=5),
    Case("window of one", "every query sees itself only", window=1),
    Case("window in both directions", "5 keys on each side, the query's counted on both", causal=False, window=5),
    Case("window across tiles", "of 40 among 150 positions", queries=150, keys=150, window=40),
    Case("first tokens", "the first 4 keys are seen beyond a window of 5", window=5, sink_tokens=4),
    Case("first tokens across tiles", "45 of them, and a window of 40 that reaches them at first", batch=1, queries=200, keys=200, window=40,
         sink_tokens=45),
    Case("grouped heads", "4 query heads over 2 key heads", heads=4),
    Case("one key head", "4 query heads over 1 key head", heads=4, kv_heads=1),
    Case("decoding", "one query after 63 keys", queries=1, keys=64),
    Case("more keys", "9 queries at the end of 64 keys", queries=9, keys=64),
    Case("more queries", "the first queries stand before every key and see none", queries=40, keys=24),
    Case("padding", "sequences of 33 and 7 keys", key_lengths=(33, 7)),
    Case("padding in both directions", "sequences of 33 and 7 keys", causal=False, key_lengths=(33, 7)),
    Case("padding at the front", "sequences whose first 0 and 11 keys are padding", key_starts=(0, 11)),
    Case("padding at both ends", "keys 3 to 29 and 12 to 19", causal=False, key_starts=(3, 12), key_lengths=(30, 20)),
    Case("no key at all", "one sequence has none: its outputs and gradients are 0", key_lengths=(33, 0)),
    Case("window past the padding", "queries past the end see nothing", window=4, key_lengths=(33, 7)),
    Case("documents", "tokens attend within their document", documents=((9, 1, 23), (20, 13))),
    Case("documents in both directions", "and padding at the end", causal=False, documents=((9, 1, 18), (33,))),
    Case("documents across tiles", "borders inside and between tiles", batch=1, queries=130, keys=130, documents=((31, 1, 32, 50, 16),)),
    Case("last queries of documents", "9 queries at the end of rows of 33 keys", queries=9, keys=33, documents=((9, 19, 5), (20, 13))),
    Case("first tokens and padding", "they are counted after padding at the front", queries=70, keys=70, window=6, sink_tokens=3,
         key_starts=(0, 11), key_lengths=(70, 61)),
    Case("first tokens and documents", "each document has its own", window=4, sink_tokens=2, documents=((9, 1, 23), (20, 13))),
    Case("prefixes", "all see a prefix of 20 or 13 keys, and each query the keys before it", causal=False, interval="prefix"),
    Case("first keys per query", "chunks of 11 keys, in which a query sees the earlier ones", interval="chunks"),
    Case("intervals", "each query sees keys of its own in any place, some none", causal=False, interval="any"),
    Case("intervals of last queries", "9 queries at the end of 64 keys", causal=False, queries=9, keys=64, interval="prefix"),
    Case("intervals and what is earlier", "each query sees the earlier keys of its interval", queries=40, keys=70, interval="any"),
    Case("intervals across tiles", "of up to 39 keys in a row of 320, in no order", batch=1, queries=320, keys=320, causal=False, interval="any"),
    Case("weight", "scores are multiplied by a function of the distance", bias=False, weight=True),
    Case("weight and bias", "scores are multiplied first, then the bias is added", weight=True),
    Case("weight and bias in both directions", "with entries of their own for keys ahead", causal=False, weight=True),
    Case("softcap", "scores up to 5 below a cap of 2", bias=False, softcap=2.0),
    Case("softcap and bias", "scores are capped before the bias is added", softcap=2.0, slope=0.2),
    Case("softcap and weight", "scores are capped before they are multiplied", softcap=2.0, weight=True),
    Case("sinks", "an extra logit in the denominator of every row", sinks=0.5),
    Case("high sinks", "the sink is at 120, above every score; its exponential overflows", sinks=120.0, constant=118.0),
    Case("low sinks", "the sink is at -1e4, and weights are as without it", sinks=-1e4),
    Case("sinks without keys", "a row with nothing but its sink has the output 0", sinks=0.5, key_lengths=(33, 0)),
    Case("gates", "scores get the gates after the key, up to the query's", bias=False, gates=True),
    Case("gates and sinks", "gradients of a row do not add up to 0", bias=False, gates=True, sinks=0.5),
    Case("gates and bias in both directions", "sums between the two positions", causal=False, gates=True),
    Case("gates of more keys", "9 queries at the end of 64 keys", queries=9, keys=64, gates=True),
    Case("gates and padding", "gates of padding are NaN", gates=True, key_lengths=(33, 7), key_starts=(5, 0)),
    Case("gates after a low one", "sums of -6e4 leave f32 no digits for their differences", gates=True, reset=-6e4),
    Case("gates of -inf", "nothing before such a token is seen", gates=True, reset=-float("inf")),
    Case("relative bias", "each query computes a bias of its own, within 40 positions of 33", bias=False, relative=(4, 40)),
    Case("relative bias out of reach", "keys at least 9 away have a bias of 0", bias=False, relative=(4, 9)),
    Case("relative bias of rank 1", "one profile, and one for each distance of two tiles", queries=70, keys=70, relative=(1, 50)),
    Case("relative bias of grouped heads", "rows belong to query heads", bias=False, heads=4, relative=(3, 20)),
    Case("relative bias of more keys", "9 queries at the end of 64 keys", bias=False, queries=9, keys=64, relative=(4, 12)),
    Case("relative bias and a narrow window", "profiles past the window have gradients of 0", bias=False, window=5, relative=(4, 12)),
    Case("relative bias and padding", "at both ends", bias=False, key_lengths=(33, 20), key_starts=(5, 0), relative=(3, 12)),
    Case("relative bias and documents", "distances are those within a document", documents=((9, 1, 23), (20, 13)), relative=(4, 12)),
    Case("relative bias and all else", "after softcap and weight", heads=4, queries=70, keys=97, window=50, weight=True, softcap=3.0,
         sinks=0.5, gates=True, relative=(5, 40)),
    Case("relative bias across tiles", "ten tiles of 32, and a reach that ends within one", batch=1, queries=320, keys=320, bias=False,
         relative=(16, 230)),
    Case("relative bias and first tokens", "profiles reach from the window to some of them", bias=False, queries=130, keys=130, window=20,
         sink_tokens=9, relative=(3, 110)),
    Case("learned positions", "scores get a logarithm of the distance between running sums of steps", bias=False, kernel="log"),
    Case("learned positions of a power", "with an exponent of each head", bias=False, kernel="power"),
    Case("learned positions of three parameters", "a logarithm of a power", bias=False, kernel="log3"),
    Case("learned positions of a spline", "a concave price, linear between the knots 1, 2, 4 and 8", bias=False, kernel="spline"),
    Case("learned positions far from 0", "at two million, where f32 leaves no digits to steps", bias=False, kernel="log", origin=2e6),
    Case("learned positions close together", "at distances of 1e-5, whose logarithm 1 + u rounds off", bias=False, kernel="log", step=1e-5),
    Case("coincident positions", "every third step is 0, where a power below 1 has an infinite derivative", bias=False, kernel="power", coincide=True),
    Case("learned positions in both directions", "distances have no sign", causal=False, kernel="log3"),
    Case("learned positions of grouped heads", "positions and parameters belong to query heads", bias=False, heads=4, kernel="log"),
    Case("learned positions of more keys", "9 queries at the end of 64 keys", bias=False, queries=9, keys=64, kernel="log"),
    Case("learned positions and padding", "positions of padding are NaN", kernel="log", key_lengths=(33, 20), key_starts=(5, 0)),
    Case("learned positions and documents", "they restart in each document", kernel="spline", documents=((9, 1, 23), (20, 13))),
    Case("learned positions and intervals", "of keys in any place", causal=False, kernel="log", interval="any"),
    Case("learned positions across tiles", "ten tiles of 32", batch=1, queries=320, keys=320, bias=False, kernel="power"),
    Case("dropout", "of each ten weights three become 0, and the others are divided by 0.7", dropout=0.3),
    Case("dropout in both directions", "half of the weights", causal=False, bias=False, dropout=0.5),
    Case("dropout across tiles", "the mask does not begin again in a tile", batch=1, queries=130, keys=130, dropout=0.3),
    Case("dropout of grouped heads", "query heads that share keys have masks of their own", heads=4, dropout=0.3),
    Case("dropout of more keys", "9 queries at the end of 64 keys, counted from the first of the 9", queries=9, keys=64, dropout=0.3),
    Case("dropout of one query", "after 63 keys", queries=1, keys=64, dropout=0.3),
    Case("dropout and a narrow window", "rows begin their keys anywhere", queries=70, keys=83, window=7, dropout=0.3),
    Case("dropout and padding", "sequences of 33 and 20 keys", key_lengths=(33, 20), dropout=0.3),
    Case("dropout and documents", "queries and keys are counted along the row", documents=((9, 1, 23), (20, 13)), dropout=0.3),
    Case("dropout and intervals", "of up to 39 keys in any place", causal=False, interval="prefix", dropout=0.3),
    Case("dropout and sinks", "a sink is never dropped", sinks=0.5, dropout=0.3),
    Case("dropout and all else", "grouped heads, more keys, a window, softcap, weight, sinks, gates and a relative bias", heads=4, queries=70,
         keys=97, window=50, weight=True, softcap=3.0, sinks=0.5, gates=True, relative=(5, 40), dropout=0.2),
    Case("learned positions and all else", "gates too, and after softcap and weight", heads=4, queries=70, keys=97, window=50, weight=True,
         softcap=3.0, sinks=0.5, gates=True, kernel="log3", dropout=0.2),
    Case("intervals and all else", "grouped heads, a window, softcap, weight, sinks and gates", heads=4, queries=40, keys=64, causal=False,
         interval="any", window=50, softcap=3.0, weight=True, sinks=0.5, gates=True),
    Case("everything", "all features in one call", **_EVERYTHING),
    Case("everything in both directions", "padding is at the end", **_EVERYTHING | dict(causal=False, sink_tokens=None, key_starts=None)),
    Case("large scores", "scores of some hundreds: weights are 0 or 1, and their exponentials overflow", scores=100.0),
    Case("tiny scores", "scores of 1e-6: weights are nearly alike", scores=1e-6, slope=1e-6),
    Case("strong bias", "far keys at -1e5, past where masks of -1e4 hide them", slope=3e3),
    Case(
        "all far below zero", "every score is about -1e4, which masks of -1e4 confuse with hidden ones", constant=-1e4
    ),
    Case("rising bias", "favours far keys", slope=-0.5),
    *_layouts(),
    Case("relative bias in slices", "rows have strides of their own", bias=False, layout="within larger tensors", relative=(4, 20)),
    Case("decoding 700 keys", "one query after 699 keys, which kernels share out", heads=4, queries=1, keys=700, sinks=0.5),
    Case("decoding with learned positions", "one query after 699 keys", heads=4, queries=1, keys=700, bias=False, kernel="log3"),
    Case("decoding padded sequences", "3 queries of 4 heads over 2 key heads after keys that are padding", heads=4, queries=3, keys=600,
         window=400, key_starts=(0, 290), key_lengths=(600, 580)),
    Case("decoding with first tokens", "one query after 699 keys, of which it sees 20 and 300", heads=4, queries=1, keys=700, window=300,
         sink_tokens=20),
    Case("same bits", "a second run gives the same bits", heads=4, queries=129, keys=129, weight=True, sinks=0.5, gates=True, is_repeated=True),
    Case("same bits of learned positions", "a second run gives the same bits", heads=4, queries=129, keys=129, kernel="spline", is_repeated=True),
    Case("double", "f64", dtype=torch.float64),
    Case("bfloat16", "half precision", dtype=torch.bfloat16),
    Case("bfloat16, dropout", "weights are divided by 0.9", dtype=torch.bfloat16, dropout=0.1),
    Case("float16", "half precision", dtype=torch.float16),
    Case("bfloat16, bias in float32", "a bias of about 1000, which bfloat16 rounds to steps of 4", constant=1000.0,
         dtype=torch.bfloat16, table_dtype=torch.float32),
    Case("bfloat16, learned positions", "positions and their kernel are not rounded", kernel="log", dtype=torch.bfloat16, table_dtype=torch.float32),
    Case("bfloat16, everything", "all features in one call, tables in float32", **_EVERYTHING,
         dtype=torch.bfloat16, table_dtype=torch.float32),
    Case("long", "4096 positions", **_LONG),
)  # fmt: skip
