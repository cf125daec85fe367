"""Shows that the suite notices mistakes: :mod:`~kerple.conformance.plain` with one wrong line each.

    python -m kerple.conformance --mutants

A mutant replaces one piece of the source of ``plain.py``. ``caught_by`` is the first check that
must fail, so that its name tells what is wrong, and ``part`` is what must be wrong there: the
output, a gradient, or the words of another failure.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from . import plain
from .cases import CASES, Case
from .definition import Call
from .run import Result, check


@dataclass(frozen=True)
class Mutant:
    """A small mistake in the plain attention."""

    name: str
    old: str
    new: str
    caught_by: str
    part: str = "out"

    def attention(self) -> Callable[[Call], Tensor]:
        """The plain attention with this mistake, as an implementation for the suite.

        Raises:
            ValueError: the source does not contain the replaced piece once.
        """
        from .backends import plain_with

        module = types.ModuleType(plain.__name__)
        module._dense, module._order = _dense, itertools.cycle((1, -1))
        self.lines()  # refuses a piece that is not there once
        code = compile(_source().replace(self.old, self.new), f"plain.py, {self.name}", "exec")
        exec(code, module.__dict__)
        return plain_with(module)

    def lines(self) -> range | None:
        """The lines of the statement with the mistake; ``None`` if it is in no function.

        Raises:
            ValueError: the source does not contain the replaced piece once.
        """
        source = _source()
        if source.count(self.old) != 1:
            raise ValueError(f"mutant {self.name!r}: plain.py contains {source.count(self.old)} times {self.old!r}")
        at = source.index(self.old)
        first, last = (source.count("\n", 0, end) + 1 for end in (at, at + len(self.old)))
        around = [lines for lines in _statements() if first in lines and last in lines]
        return min(around, key=len, default=None)

    def first_failure(self, device: torch.device | str = "cpu") -> Result | None:
        """The first check that fails, in the order of the suite. On the CPU those that never come to
        the mistake are passed over: they pass as they do without it.
        """
        attention, lines = self.attention(), self.lines()
        can_tell = lines is not None and torch.device(device).type == "cpu"
        results = (check(attention, case, device) for case in CASES if not can_tell or executed_lines(case) & set(lines))
        return next((result for result in results if not result.is_good), None)

    def is_caught(self, result: Result | None) -> bool:
        """Whether this is the check that must fail, and fails for what is wrong."""
        if result is None or result.case.name != self.caught_by:
            return False
        return self.part in result.wrong or self.part in (result.failure or "")


@lru_cache
def _source() -> str:
    return inspect.getsource(plain)


@lru_cache
def _statements() -> list[range]:
    """The lines of each statement inside a function."""
    functions = [node for node in ast.walk(ast.parse(_source())) if isinstance(node, ast.FunctionDef)]
    inside = (node for function in functions for part in function.body for node in ast.walk(part))
    return [range(node.lineno, node.end_lineno + 1) for node in inside if isinstance(node, ast.stmt)]


@lru_cache(maxsize=len(CASES))
def executed_lines(case: Case) -> frozenset[int]:
    """The lines of ``plain.py`` that a check executes."""
    from .backends import plain_with

    found = set()

    def trace(frame: types.FrameType, event: str, _: object) -> Callable | None:
        if frame.f_code.co_filename != plain.__file__:
            return None
        found.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        check(plain_with(plain), case)
    finally:
        sys.settrace(before)
    return frozenset(found)


def _dense(x: Tensor, strides: tuple[int, ...] | None = None, more: int = 0) -> Tensor:
    """What a kernel reads that takes a tensor for contiguous, or for one with ``more`` features:
    the elements that memory contains at those places, and zeros past its end.
    """
    shape = (*x.shape[:-1], x.shape[-1] + more)
    strides = strides or torch.empty(shape, device="meta").stride()
    memory = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
    memory = torch.cat([memory, memory.new_zeros(x.numel() + more)])
    return memory.as_strided(shape, strides, x.storage_offset())


_MASK_D = "seen = seen & (d >= 0)"
_WINDOW = "near = d.abs() < self.rule.window"
_BIAS = "z = z + self.columns(self.bias, d)"
_WEIGHT = "z = z * self.columns(self.weight, d)"
_RELATIVE = 'z = z + torch.einsum("bhin,nij->bhij", self.queries_of(self.r, rows), self.profile_columns(d))'
_WITHIN = "return self.profiles[:, d.clamp(0, reach - 1)] * ((d >= 0) & (d < reach))"
_CAP = "u = self.rule.softcap * torch.tanh(u / self.rule.softcap)"
_D_CAP = "dz = dz * (1 - (u / given.rule.softcap) ** 2)"
_DELTA = "delta = (d_out.to(given.dtype) * out).sum(-1)"
_D_SINKS = "d_sinks = -((given.sinks[:, None] - lse).exp() * delta).sum((0, 2))"
_SEEN = "seen = (j >= first) & (j < end)"
_HEADS = "return x[:, :, keys].to(self.dtype).repeat_interleave(self.group, 1)"
_GROUP = "return d.unflatten(1, (self.kv_heads, self.group)).sum(2)"
_POSITION = "return self.keys - self.queries + query"
_COLUMN = "return table[:, (d + self.origin(table)).clamp(0, table.shape[1] - 1)]"
_TILES = "tiles += _cut(start, end, self.rule.tile)"
_FIRST_TILES = "tiles += _cut(int(first_key.min()), min(int(first_key.max()) + self.rule.sink_tokens, start), self.rule.tile)"
_FIRST_TOKENS = "near = near | (j < first + self.rule.sink_tokens)"
_S = "u = self.rule.scale * (self.queries_of(self.q, rows) @ self.keys_of(self.k, keys).mT)"
_Q = "return x[:, :, rows].to(self.dtype)"
_IN_ROWS = "        for keys in given.key_tiles(rows):\n            tile = given.scores(rows, keys)"
_OWN_GATES = "own = self.clocks[:, :, self.position(rows.start) : self.position(rows.stop)]"
_BETWEEN = "between = own[..., :, None] - self.clocks[:, :, None, keys]"
_SUMS = "return self.sums[:, self.margin : -self.margin]"
_FOUND = "found = diagonal_sums(dz.sum(0))"
_AT = "first = self.margin + self.origin + nearest"
_UP = "up, q = given.queries_of(d_out, rows)"
_Q_TILE = "self.queries_of(self.q, rows)"
_K_TILE = "d_q[:, :, rows] += ds @ given.keys_of(given.k, keys)"
_KEPT = "kept = word >> 1 >= round(2**31 * self.rule.dropout_p)"
_DROPPED = "return kept.to(self.dtype) / (1 - self.rule.dropout_p)"
_FACTORS = "factors = given.dropout_factors(rows, keys)"
_UNIT = "unit = torch.arange(self.batch * self.heads, device=self.q.device).view(self.batch, self.heads, 1, 1)"
_DROPPED_I = "i = torch.arange(rows.start, rows.stop, device=self.q.device)\n        j"
_DROPPED_J = "j = torch.arange(keys.start, keys.stop, device=self.q.device)\n        unit"
_PRICE = "z = z + kernel_of(self.rule.kernel, self.parameters, self.apart(rows, keys, d))[0]"
_APART = "return between.abs().to(self.dtype)"
_OWN_X = "own = self.x[:, :, self.position(rows.start) : self.position(rows.stop)]\n        between = own[..., :, None] - self.x[:, :, None, keys]"
_D_U = "d_u = torch.where(d >= 0, dz * slope, -dz * slope).double()"
_OF_LOG = "return -first * torch.log1p(more[0] * u), -first"
_OF_HEADS = "first, *more = (x[:, None, None] for x in parameters.unbind(1))"
#: More features, up to a power of two: what memory contains after each row.
_WIDE = """more = (1 << (self.features - 1).bit_length()) - self.features
        wide = lambda x: _dense(x, x.stride(), more)
        """

MUTANTS = (
    # scores
    Mutant("scale missing", _S, _S.replace("self.rule.scale * ", ""), "scale"),
    Mutant("1/sqrt(D) whatever the scale", _S, _S.replace("self.rule.scale", "self.features**-0.5"), "scale"),
    Mutant("1/sqrt(D) twice", _S, _S.replace("self.rule.scale", "self.features**-0.5 * self.rule.scale"), "scale"),
    Mutant("scale missing in the gradient", "ds = given.rule.scale * _before", "ds = _before", "scale", "d_q"),
    Mutant("delta missing in the gradient", _DELTA, _DELTA + " * 0", "one key", "d_q"),
    Mutant("products rounded to bfloat16", _S, _S + "\n        u = u.bfloat16().to(self.dtype)", "scale"),
    Mutant("a feature left out", "u = self.rule.scale * (self.queries_of(self.q, rows) @",
           "u = self.rule.scale * (pad(self.queries_of(self.q, rows)[..., :-1], (0, 1)) @", "scale"),
    # mask
    Mutant("causal mask one key late", _MASK_D, "seen = seen & (d >= 1)", "one key"),
    Mutant("causal mask one key early", _MASK_D, "seen = seen & (d >= -1)", "causal"),
    Mutant("no causal mask inside tiles", _MASK_D, "pass", "causal"),
    Mutant("causal whatever was asked", "if self.rule.causal:\n            seen", "if True:\n            seen", "both directions"),
    Mutant("the gradient forgets the mask", "p = (tile.z - lse[:, :, rows, None]).exp()",
           "p = (tile.z.where(tile.z > -math.inf, tile.u) - lse[:, :, rows, None]).exp()", "causal", "d_v"),
    # tiles
    Mutant("the last whole tile of keys is left out", _TILES,
           _TILES + "[: -1 if end % self.rule.tile == 0 and end > start else None]", "32 positions"),
    Mutant("a tile of one key is left out", _TILES,
           "tiles += [at for at in _cut(start, end, self.rule.tile) if at.stop - at.start > 1 or end == 1]", "33 positions"),
    Mutant("sums are not rescaled to a new maximum", "total = total * rescale[..., None] +", "total = total +", "64 positions"),
    Mutant("denominators are not rescaled", "row_sum = row_sum * rescale +", "row_sum = row_sum +", "64 positions"),
    Mutant("the first tile of keys is skipped in the gradient", _IN_ROWS,
           _IN_ROWS.replace("key_tiles(rows)", "key_tiles(rows)[len(given.key_tiles(rows)) > 1 :]"), "33 positions", "d_q"),
    # bias
    Mutant("bias missing", _BIAS, "pass", "bias"),
    Mutant("bias in the first tile of keys only", _BIAS,
           "z = z + self.columns(self.bias, d) * (keys.start == 0)", "bias"),
    Mutant("bias missing in one tile of ten", _BIAS,
           "z = z + self.columns(self.bias, d) * (keys.start != 6 * self.rule.tile)", "bias of 320 positions"),
    Mutant("bias in one tile of ten only", _BIAS,
           "z = z + self.columns(self.bias, d) * (keys.start // self.rule.tile % 10 == 0)", "bias"),
    Mutant("bias shifted by one", _COLUMN, _COLUMN.replace("(d + ", "(d + 1 + "), "bias"),
    Mutant("bias shifted back by one", _COLUMN, _COLUMN.replace("(d + ", "(d - 1 + "), "bias"),
    Mutant("bias mirrored", _COLUMN, _COLUMN.replace("(d + ", "(self.rule.causal * 2 * d - d + "), "bias in both directions"),
    Mutant("bias of |d| in both directions", _COLUMN, _COLUMN.replace("(d + ", "(d.abs() + "), "bias in both directions"),
    Mutant("bias rounded to bfloat16", _BIAS, _BIAS.replace("self.bias, d)", "self.bias, d).bfloat16()"), "bias"),
    Mutant("bias multiplied by the scale", _BIAS, "z = z + self.rule.scale * self.columns(self.bias, d)", "bias"),
    Mutant("bias of the first head for all", _BIAS, _BIAS.replace("self.bias, d", "self.bias[:1], d"), "bias"),
    Mutant("bias of the wrong head", _BIAS, _BIAS.replace("self.bias, d", "self.bias.flip(0), d"), "bias"),
    Mutant("distance 0 at a fixed column", "return 0 if self.rule.causal else table.shape[1] // 2",
           "return 0 if self.rule.causal else max(self.queries, self.keys) - 1", "longer tables in both directions"),
    # gradients of tables
    Mutant("table gradient of the first head only", _FOUND, _FOUND + "\n        found[1:] = 0", "bias", "d_bias"),
    Mutant("table gradient of the first sequence only", _FOUND, "found = diagonal_sums(dz[0])", "bias", "d_bias"),
    Mutant("table gradient without distance 0", _SUMS,
           "self.sums[:, self.margin + self.origin] = 0\n        " + _SUMS, "bias", "d_bias"),
    Mutant("table gradient without the last distance", _SUMS,
           "self.sums[:, -self.margin - 1] = 0\n        " + _SUMS, "bias", "d_bias"),
    Mutant("table gradient shifted by one", _AT, _AT + " + 1", "bias", "d_bias"),
    Mutant("table gradient mirrored", "moved = pad(x.flip(-1)", "moved = pad(x", "bias", "d_bias"),
    Mutant("table gradient summed in float16", _FOUND, "found = diagonal_sums(dz.sum(0).half()).to(dz.dtype)", "bias", "d_bias"),
    Mutant("table gradient summed in bfloat16", _FOUND, _FOUND + ".bfloat16().to(dz.dtype)", "bias", "d_bias"),
    Mutant("table gradient of the last tile only", "self.sums[:, first : first + found.shape[-1]] += found",
           "self.sums[:, first : first + found.shape[-1]] = found", "bias", "d_bias"),
    Mutant("table gradient of the scores before the softmax's", "d_bias.add(dz, tile.nearest)",
           "d_bias.add(p, tile.nearest)", "one key", "d_bias"),
    Mutant("sums in another order each time, as by atomics", "    for rows in given.query_tiles():\n        up,",
           "    for rows in given.query_tiles()[:: next(_order)]:\n        up,", "same bits", "a second run has other bits in"),
    # windows
    Mutant("window one key too wide", _WINDOW, _WINDOW.replace("<", "<="), "window"),
    Mutant("window one key too narrow", _WINDOW, _WINDOW.replace("self.rule.window", "self.rule.window - 1"), "window"),
    Mutant("no window ahead", _WINDOW, _WINDOW.replace("d.abs()", "d"), "window in both directions"),
    Mutant("window skips a tile too many", "start = max(start, first - self.rule.window + 1)",
           "start = max(start, first - self.rule.window + 1 + self.rule.tile)", "window"),
    # first tokens
    Mutant("no first tokens beyond the window", _FIRST_TOKENS, "pass", "first tokens"),
    Mutant("one first token too many", _FIRST_TOKENS, _FIRST_TOKENS.replace("<", "<="), "first tokens"),
    Mutant("all keys of a tile of first tokens", _FIRST_TOKENS,
           "near = near | (keys.start < first + self.rule.sink_tokens)", "first tokens"),
    Mutant("first tokens forgotten in one tile", _FIRST_TILES, _FIRST_TILES + "[-1:]", "first tokens across tiles"),
    Mutant("first tokens of one tile only", _FIRST_TILES, _FIRST_TILES + "[:1]", "first tokens across tiles"),
    Mutant("first tokens of the window's tile twice", _FIRST_TILES, _FIRST_TILES.replace(", start)", ", start + 1)"), "first tokens"),
    Mutant("first tokens counted from the first key", _FIRST_TOKENS, _FIRST_TOKENS.replace("first + ", ""), "first tokens and padding"),
    Mutant("first tokens of the first document only", _FIRST_TOKENS, _FIRST_TOKENS.replace("first + ", "first.amin(1, keepdim=True) + "),
           "first tokens and documents"),
    # heads
    Mutant("query heads interleaved over key heads", _HEADS, _HEADS.replace("repeat_interleave(self.group, 1)", "repeat(1, self.group, 1, 1)"),
           "grouped heads"),
    Mutant("the first key head for all", _HEADS, "return x[:, :1, keys].to(self.dtype).expand(-1, self.heads, -1, -1)", "one key"),
    Mutant("key gradients of one query head only", _GROUP, _GROUP.replace(".sum(2)", "[:, :, -1]"), "grouped heads", "d_k"),
    Mutant("key gradients averaged over query heads", _GROUP, _GROUP.replace("sum", "mean"), "grouped heads", "d_k"),
    # positions
    Mutant("queries at the front", _POSITION, "return query", "decoding"),
    Mutant("queries one position late", _POSITION, "return self.keys - self.queries + query + (self.keys > self.queries)", "decoding"),
    # rows without keys
    Mutant("NaN in rows without keys", "shift = new_max.masked_fill(new_max == -math.inf, 0.0)", "shift = new_max", "more queries"),
    Mutant("averages in rows without keys", "z = z.masked_fill(~self.mask(rows, keys, d), -math.inf)",
           "z = z.masked_fill(~self.mask(rows, keys, d), torch.finfo(z.dtype).min)", "more queries"),
    Mutant("hidden keys at -1e4", "z = z.masked_fill(~self.mask(rows, keys, d), -math.inf)",
           "z = z.masked_fill(~self.mask(rows, keys, d), -1e4)", "more queries"),
    Mutant("hidden keys at -1e4, but empty rows are 0", "z = z.masked_fill(~self.mask(rows, keys, d), -math.inf)",
           "seen = self.mask(rows, keys, d)\n"
           "        z = z.masked_fill(~seen, -1e4).masked_fill(~seen.any(-1, keepdim=True), -math.inf)", "all far below zero"),
    # padding
    Mutant("padding at the end is not hidden", "end = end.minimum(lengths[:, None])", "pass", "padding"),
    Mutant("padding at the end, one key too many", "end = end.minimum(lengths[:, None])",
           "end = end.minimum(lengths[:, None] + 1)", "padding"),
    Mutant("the first sequence's length for all", "end = end.minimum(lengths[:, None])", "end = end.minimum(lengths[:1, None])", "padding"),
    Mutant("padding at the front is not hidden", "first = first.maximum(starts[:, None])", "pass", "padding at the front"),
    Mutant("padding at the front, one key too many", "first = first.maximum(starts[:, None])",
           "first = first.maximum(starts[:, None] - 1)", "padding at the front"),
    Mutant("lengths count from the first key", "end = end.minimum(lengths[:, None])",
           "end = end.minimum(lengths[:, None] + (0 if starts is None else starts[:, None]))", "padding at both ends"),
    # documents
    Mutant("document borders forgotten", "end = end.minimum(own_end).masked_fill(ids < 0, 0)", "end = end", "documents in both directions"),
    Mutant("documents see the earlier ones", "first = first.maximum(own_first)", "pass", "documents"),
    Mutant("documents begin one token early", "first = first.maximum(own_first)", "first = first.maximum(own_first - 1)", "documents"),
    Mutant("documents begin one token late", "first = first.maximum(own_first)",
           "first = first.maximum((own_first + 1).minimum(own_end - 1))", "documents"),
    Mutant("documents end one token late", "end = end.minimum(own_end)", "end = end.minimum(own_end + 1)", "documents in both directions"),
    Mutant("documents end one token early", "end = end.minimum(own_end)",
           "end = end.minimum((own_end - 1).maximum(own_first + 1))", "documents"),
    Mutant("last queries have the documents of the first keys", "order[:, keys - queries :]", "order[:, :queries]", "last queries of documents"),
    Mutant("padding after documents is a document", ".masked_fill(ids < 0, 0)", "", "documents in both directions"),
    # intervals
    Mutant("the interval's start is forgotten", "first = starts\n", "pass\n", "first keys per query"),
    Mutant("the interval's start one key early", "first = starts\n", "first = (starts - 1).clamp(min=0)\n", "first keys per query"),
    Mutant("the interval's end is forgotten", "end = ends\n", "pass\n", "prefixes"),
    Mutant("the interval's end one key late", "end = ends\n", "end = (ends + 1).clamp(max=keys)\n", "prefixes"),
    Mutant("the interval's end one key early", "end = ends\n", "end = ends - 1\n", "prefixes"),
    Mutant("intervals of another sequence", "end = ends\n", "end = ends.roll(1, 0)\n", "prefixes"),
    Mutant("intervals of the first sequence for all", "first = starts\n", "first = starts[:1]\n", "first keys per query"),
    Mutant("intervals of the first query for its tile", "first = starts\n", "first = starts[:, torch.arange(queries) // 8 * 8]\n",
           "first keys per query"),
    Mutant("intervals in one block of ten only", "first = starts\n",
           "first = starts * (torch.arange(queries, device=q.device) // 32 % 10 == 0)\n", "first keys per query"),
    Mutant("no intervals in one block of ten", "first = starts\n",
           "first = starts * (torch.arange(queries, device=q.device) // 32 != 6)\n", "intervals across tiles"),
    Mutant("the hull of a tile's intervals", _SEEN, "seen = (j >= first.amin(1, keepdim=True)) & (j < end.amax(1, keepdim=True))", "documents"),
    Mutant("an interval counts from the query's position", "end = ends\n",
           "end = (ends + torch.arange(queries, device=q.device) - keys + queries).clamp(0, keys)\n", "prefixes"),
    Mutant("intervals of the first queries", "end = ends\n", "end = ends if queries == keys else ends - (keys - queries)\n",
           "intervals of last queries"),
    # weight
    Mutant("weight missing", _WEIGHT, "pass", "weight"),
    Mutant("weight of bias and scores", _BIAS, _BIAS + "\n            z = z if self.weight is None else z + (self.columns(self.weight, d) - 1) * self.columns(self.bias, d)",
           "weight and bias"),
    Mutant("weight missing in the gradient", "dz = dz * given.columns(given.weight, given.distances(rows, keys))", "pass", "weight", "d_q"),
    Mutant("weight's gradient without the scale", "d_weight.add(dz * tile.u,", "d_weight.add(dz * tile.u / given.rule.scale,", "weight", "d_weight"),
    # softcap
    Mutant("softcap missing", _CAP, "pass", "softcap"),
    Mutant("softcap without the factor", _CAP, "u = torch.tanh(u / self.rule.softcap)", "softcap"),
    Mutant("softcap as a clamp", _CAP, "u = u.clamp(-self.rule.softcap, self.rule.softcap)", "softcap"),
    Mutant("softcap missing in the gradient", _D_CAP, "pass", "softcap", "d_q"),
    Mutant("softcap's gradient of unscaled tanh", _D_CAP, "dz = dz * (1 - u**2)", "softcap", "d_q"),
    Mutant("softcap after the bias", _BIAS,
           _BIAS + "\n            if self.rule.softcap is not None:\n"
           "                z = self.rule.softcap * torch.tanh(z / self.rule.softcap)", "softcap and bias"),
    Mutant("softcap after the weight", _WEIGHT,
           _WEIGHT + "\n            if self.rule.softcap is not None:\n"
           "                z = self.rule.softcap * torch.tanh(z / self.rule.softcap)", "softcap and weight"),
    # sinks
    Mutant("sinks missing", "row_max, row_sum = given.sinks_of(rows), torch.ones_like(row_sum)", "pass", "sinks"),
    Mutant("sinks added to the output", "out[:, :, rows] = total / row_sum.where(has_keys, 1.0)[..., None]",
           "out[:, :, rows] = total / row_sum.where(has_keys, 1.0)[..., None]"
           " + (0 if given.sinks is None else given.sinks_of(rows)[..., None])", "sinks"),
    Mutant("sinks added to the maximum only", "row_max, row_sum = given.sinks_of(rows), torch.ones_like(row_sum)",
           "row_max = given.sinks_of(rows)", "sinks"),
    Mutant("sinks twice, once a tile", "row_sum = row_sum * rescale + p.sum(-1)",
           "row_sum = row_sum * rescale + p.sum(-1)\n"
           "            if given.sinks is not None and keys.start > 0:\n"
           "                row_sum = row_sum + (given.sinks_of(rows) - shift).exp()", "sinks"),
    Mutant("sinks without gradient", _D_SINKS, _D_SINKS + " * 0", "sinks", "d_sinks"),
    Mutant("the sinks' gradient with the other sign", _D_SINKS, _D_SINKS.replace("= -(", "= ("), "sinks", "d_sinks"),
    Mutant("lse without the sink", "lse[:, :, rows] = (row_max + row_sum.log())",
           "sink = 0 if given.sinks is None else (given.sinks_of(rows) - row_max).exp()\n"
           "        lse[:, :, rows] = (row_max + (row_sum - sink).log())", "sinks", "d_v"),
    Mutant("sinks after the loop, where a high one overflows", "        has_keys = row_sum > 0",
           "        if given.sinks is not None:\n"
           "            row_sum = row_sum - (given.sinks_of(rows) - row_max).exp() + given.sinks_of(rows).exp() * (-row_max).exp()\n"
           "        has_keys = row_sum > 0", "high sinks"),
    # gates
    Mutant("gates missing", "z = z + self.gate_sums(rows, keys, d)", "pass", "gates"),
    Mutant("gates shifted by one", _BETWEEN, _BETWEEN.replace("self.clocks[:, :, None, keys]", "self.clocks.roll(1, 2)[:, :, None, keys]"), "gates"),
    Mutant("the key's own gate counts too", _BETWEEN, _BETWEEN + "\n"
           "        between = between + self.clocks.diff(dim=-1, prepend=torch.zeros_like(self.clocks[..., :1]))[:, :, None, keys]", "gates"),
    Mutant("gates of later keys with the other sign", "return torch.where(d >= 0, between, -between).to(self.dtype)",
           "return between.to(self.dtype)", "gates and bias in both directions"),
    Mutant("gate differences of float32 sums", _BETWEEN,
           "between = own[..., :, None].float() - self.clocks[:, :, None, keys].float()", "gates after a low one"),
    Mutant("gates summed in float32", "return gates.double().clamp(min=_RESET).cumsum(-1)",
           "return gates.float().clamp(min=_RESET).cumsum(-1).double()", "gates after a low one"),
    Mutant("gates of padding are read", "gates = gates.masked_fill(at >= lengths[:, None, None], 0.0)", "pass", "gates and padding"),
    Mutant("gates of -inf are subtracted", ".clamp(min=_RESET)", "", "gates of -inf"),
    Mutant("gates' gradient of keys only", "d_clocks[:, :, given.position(rows.start) : given.position(rows.stop)] += dz.sum(-1)",
           "pass", "gates and sinks", "d_gates"),
    # relative bias
    Mutant("relative bias missing", _RELATIVE, "pass", "relative bias"),
    Mutant("relative bias shifted by one", _WITHIN, _WITHIN.replace("d.clamp(", "(d + 1).clamp("), "relative bias"),
    Mutant("relative bias multiplied by the scale", _RELATIVE, _RELATIVE.replace("z + ", "z + self.rule.scale * "), "relative bias"),
    Mutant("the reach is one less", _WITHIN, _WITHIN.replace("d < reach", "d < reach - 1"), "relative bias out of reach"),
    Mutant("the last column is shared beyond the reach", _WITHIN, "return self.profiles[:, d.clamp(0, reach - 1)]", "relative bias out of reach"),
    Mutant("relative bias of rows of the first query head", _RELATIVE, _RELATIVE.replace(
           "self.queries_of(self.r, rows)", "self.queries_of(self.r, rows)[:, :1].expand(-1, self.heads, -1, -1)"), "relative bias"),
    Mutant("rows read by key head", _RELATIVE, _RELATIVE.replace(
           "self.queries_of(self.r, rows)", "self.queries_of(self.r[:, :: self.group], rows).repeat_interleave(self.group, 1)"),
           "relative bias of grouped heads"),
    Mutant("relative bias in the query's own tile only", _RELATIVE, _RELATIVE.replace(
           "self.profile_columns(d)", "self.profile_columns(d) * (keys.stop > self.position(rows.start))"), "relative bias"),
    Mutant("relative bias missing in one tile of ten", _RELATIVE, _RELATIVE.replace(
           "self.profile_columns(d)", "self.profile_columns(d) * (keys.start != 6 * self.rule.tile)"), "relative bias across tiles"),
    Mutant("relative bias before the softcap", _CAP, "own = 0 if self.r is None else torch.einsum(\n"
           "                'bhin,nij->bhij', self.queries_of(self.r, rows), self.profile_columns(d))\n            "
           + _CAP.replace("tanh(u /", "tanh((u + own) /") + " - own", "relative bias and all else"),
    Mutant("rows' gradient without the last column", "columns = self.given.profile_columns(self.given.distances(rows, keys))",
           "columns = self.given.profile_columns(self.given.distances(rows, keys))\n"
           "        columns = columns * (self.given.distances(rows, keys) < self.given.profiles.shape[1] - 1)",
           "relative bias out of reach", "d_rows"),
    Mutant("profiles' gradient of one head only", "self.d_profiles.add(products, nearest)",
           "products = torch.einsum('bhij,bhin->bnij', dz[:, :1], self.given.queries_of(self.given.r, rows)[:, :1])\n"
           "        self.d_profiles.add(products, nearest)", "relative bias", "d_profiles"),
    Mutant("profiles' gradient of the first sequence only", "self.d_profiles.add(products, nearest)",
           "self.d_profiles.add(products[:1], nearest)", "relative bias", "d_profiles"),
    Mutant("profiles' gradient shifted by one", "self.d_profiles.add(products, nearest)",
           "self.d_profiles.add(products, nearest + 1)", "relative bias", "d_profiles"),
    Mutant("rows' gradient multiplied by the scale", "self.d_r[:, :, rows] += torch", "self.d_r[:, :, rows] += self.given.rule.scale * torch",
           "relative bias", "d_rows"),
    Mutant("rows' gradient of the last tile only", "self.d_r[:, :, rows] += torch", "self.d_r[:, :, rows] = torch", "relative bias", "d_rows"),
    Mutant("strides of rows are ignored", _RELATIVE, _RELATIVE.replace("self.r, rows", "_dense(self.r), rows"), "relative bias in slices"),
    # learned positions
    Mutant("kernel of positions missing", _PRICE, "pass", "learned positions"),
    Mutant("kernel of positions with the wrong sign", _PRICE, _PRICE.replace("z + ", "z - "), "learned positions"),
    Mutant("kernel of positions multiplied by the scale", _PRICE, _PRICE.replace("z + ", "z + self.rule.scale * "), "learned positions"),
    Mutant("learned positions rounded to float32", _OWN_X, _OWN_X.replace("self.x[", "self.x.float()["), "learned positions far from 0"),
    Mutant("log in place of log1p", _OF_LOG, _OF_LOG.replace("log1p(", "log(1 + "), "learned positions close together", "d_parameters"),
    Mutant("positions' gradient with the wrong sign", _D_U, _D_U.replace(">=", "<"), "learned positions", "d_positions"),
    Mutant("positions' gradient of keys ahead with the wrong sign", _D_U, "d_u = (dz * slope).double()", "learned positions in both directions", "d_positions"),
    Mutant("positions' gradient without that of queries", "+= d_u.sum(-1)", "+= 0 * d_u.sum(-1)", "learned positions", "d_positions"),
    Mutant("positions' gradient of the last tile only", "self.d_x[:, :, keys] -= d_u", "self.d_x[:, :, keys] = -d_u", "learned positions", "d_positions"),
    Mutant("r1's gradient is not divided by r1", "torch.stack([of_k / r1, of_slope / more[0]], 1)", "torch.stack([of_k, of_slope / more[0]], 1)",
           "learned positions", "d_parameters"),
    Mutant("r2's gradient is divided by r1", "torch.stack([of_k / r1, of_slope / more[0]], 1)", "torch.stack([of_k / r1, of_slope / r1], 1)",
           "learned positions", "d_parameters"),
    Mutant("exponent's gradient without the logarithm", "u * slope * ln_u]", "u * slope]", "learned positions of a power", "d_parameters"),
    Mutant("exponent's gradient is not divided by the exponent", "of_log / p]", "of_log]", "learned positions of a power", "d_parameters"),
    Mutant("r2's gradient is not divided by the exponent", "of_slope / (p * r2)", "of_slope / r2", "learned positions of three parameters", "d_parameters"),
    Mutant("the logarithm of a power forgets the exponent", "inner = more[0] * power", "inner = more[0] * u", "learned positions of three parameters"),
    Mutant("knots shifted", "knots = [2.0**m for", "knots = [2.0 ** (m + 1) for", "learned positions of a spline"),
    Mutant("knots shifted in the gradient of parameters", "u.clamp(max=2.0**m)", "u.clamp(max=2.0 ** (m + 1))", "learned positions of a spline", "d_parameters"),
    Mutant("a spline's slope goes on after its knots", "-first - sum(a * (u < knot)", "-first - sum(a * (u >= 0)", "learned positions of a spline", "d_positions"),
    Mutant("a spline flat after its last knot", "k = -first * u - sum", "k = -sum", "learned positions of a spline"),
    Mutant("parameters of the first head for all", _OF_HEADS, _OF_HEADS.replace("x[:, N", "x[:1, N"), "learned positions"),
    Mutant("parameters of key heads", _PRICE, _PRICE.replace("self.parameters,", "self.parameters[:: self.group].repeat_interleave(self.group, 0),"),
           "learned positions of grouped heads"),
    Mutant("positions of the first head for all", _OWN_X, _OWN_X.replace("self.x[:, :,", "self.x[:, :1,"), "learned positions"),
    Mutant("positions of the first sequence for all", _OWN_X, _OWN_X.replace("self.x[:, :,", "self.x[:1, :,"), "learned positions"),
    Mutant("queries at the positions of the first keys", _OWN_X, _OWN_X.replace("self.position(rows.start) : self.position(rows.stop)", "rows"),
           "learned positions of more keys"),
    Mutant("distances of positions with a sign", _APART, _APART.replace("between.abs()", "(between.abs() if self.rule.causal else between)"), "learned positions in both directions"),
    Mutant("coincident positions a little apart", _APART, "return torch.where(d == 0, 0.0, between.abs().clamp(min=1e-6)).to(self.dtype)", "coincident positions"),
    Mutant("positions of padding are read", "_in_place(positions.double(), key_starts, key_lengths, document_ids)", "positions.double()",
           "learned positions and padding"),
    Mutant("kernel of positions in the query's own tile only", _PRICE, _PRICE.replace("[0]", "[0] * (keys.stop > self.position(rows.start))"), "learned positions"),
    Mutant("kernel of positions missing in one tile of ten", _PRICE, _PRICE.replace("[0]", "[0] * (keys.start != 6 * self.rule.tile)"),
           "learned positions across tiles"),
    Mutant("kernel of positions before the softcap", _CAP, "own = 0 if self.x is None else kernel_of(self.rule.kernel, self.parameters, self.apart(rows, keys, d))[0]\n"
           "            " + _CAP.replace("tanh(u /", "tanh((u + own) /") + " - own", "learned positions and all else"),
    Mutant("parameters' gradient of the first sequence only", "(dz * term).double().sum((0, 2, 3))", "(dz * term)[:1].double().sum((0, 2, 3))",
           "learned positions", "d_parameters"),
    Mutant("parameters' gradient of the last tile only", "self.sums += torch.stack", "self.sums = torch.stack", "learned positions", "d_parameters"),
    # dropout
    Mutant("dropout missing", _DROPPED, _DROPPED.replace("kept.to(self.dtype) / (1 - self.rule.dropout_p)", "1.0"), "dropout"),
    Mutant("kept weights are not divided by 1 - p", _DROPPED, _DROPPED.replace(" / (1 - self.rule.dropout_p)", ""), "dropout"),
    Mutant("kept weights are divided by p", _DROPPED, _DROPPED.replace("(1 - self.rule.dropout_p)", "self.rule.dropout_p"), "dropout"),
    Mutant("dropped are those that should be kept", _KEPT, _KEPT.replace(">= round", "< round"), "dropout"),
    Mutant("the softmax divides by what is kept", "row_sum = row_sum * rescale + p.sum(-1)",
           "row_sum = row_sum * rescale + (p * given.dropout_factors(rows, keys)).sum(-1)", "dropout"),
    Mutant("another mask in the backward", _FACTORS, _FACTORS.replace("rows,", "slice(rows.start + 4, rows.stop + 4),"), "dropout", "d_q"),
    Mutant("no dropout in the gradient of values", "(p * factors).mT @ up", "p.mT @ up", "dropout", "d_v"),
    Mutant("no dropout in the gradient of scores", "dz = p * (factors * (up @", "dz = p * (1.0 * (up @", "dropout", "d_q"),
    Mutant("each tile of keys repeats the first mask", _DROPPED_J, _DROPPED_J.replace("keys.start, keys.stop", "0, keys.stop - keys.start"), "dropout"),
    Mutant("each tile of queries repeats the first mask", _DROPPED_I, _DROPPED_I.replace("rows.start, rows.stop", "0, rows.stop - rows.start"), "dropout"),
    Mutant("one mask for all heads", _UNIT, "unit = torch.arange(self.batch, device=self.q.device).view(self.batch, 1, 1, 1) * self.heads", "dropout"),
    Mutant("one mask for all sequences", _UNIT, "unit = torch.arange(self.heads, device=self.q.device).view(1, self.heads, 1, 1)", "dropout"),
    Mutant("masks of key heads", _UNIT, _UNIT + "\n        unit = unit // self.group * self.group", "dropout of grouped heads"),
    Mutant("four queries have one mask", "words[n] * (i[:, None] % 4 == n) for n in range(4)", "words[n] for n in range(1)", "dropout"),
    Mutant("queries draw at their positions", _DROPPED_I, _DROPPED_I.replace("device)", "device) + self.keys - self.queries"), "dropout of more keys"),
    Mutant("half of the seed is read", "low, high, bits = seed & 0xFFFFFFFF, seed >> 32, 0xFFFFFFFF",
           "low, high, bits = seed & 0xFFFFFFFF, 0, 0xFFFFFFFF", "dropout"),
    Mutant("nine rounds of the generator", "for _ in range(10):", "for _ in range(9):", "dropout"),
    # numbers
    Mutant("the maximum is not subtracted", "new_max = row_max.maximum(z.amax(-1))",
           "new_max = torch.zeros_like(row_max)", "high sinks"),
    Mutant("half precision is computed in half", "torch.float32 if self.q.dtype in (torch.float16, torch.bfloat16) else self.q.dtype",
           "self.q.dtype", "bfloat16, bias in float32"),
    Mutant("tables rounded to the type of q", "None if x is None else x.to(self.dtype)",
           "None if x is None else x.to(self.q.dtype).to(self.dtype)", "bfloat16, bias in float32"),
    Mutant("float64 is computed in float32", "else self.q.dtype\n", "else torch.float32\n", "double"),
    # memory
    Mutant("inputs are scaled in place", "    for rows in given.query_tiles():\n        total",
           "    given.q.mul_(given.rule.scale), given.q.div_(given.rule.scale)\n"
           "    given.q += 1e-5\n    for rows in given.query_tiles():\n        total", "one key", "writes to its input q"),
    Mutant("strides of queries are ignored", _Q_TILE, _Q_TILE.replace("self.q,", "_dense(self.q),"), "heads inside rows"),
    Mutant("strides of keys are ignored", _K_TILE, _K_TILE.replace("(given.k,", "(_dense(given.k),"), "heads inside rows", "d_q"),
    Mutant("features are taken for neighbours", _Q,
           "if x.stride(-1) != 1 and x.stride(-2) == 1:\n"
           "            x = x.as_strided(x.shape, (*x.stride()[:2], self.features, 1), x.storage_offset())\n        " + _Q,
           "features apart"),
    Mutant("rows are read past their last feature", _S, _WIDE + _S.replace("self.q,", "wide(self.q),").replace(
           "self.keys_of(self.k, keys)", "self.keys_of(wide(self.k), keys)"), "odd sizes"),
    Mutant("queries are read past their last feature", _S, _WIDE + _S.replace("self.q,", "wide(self.q),").replace(
           "self.keys_of(self.k, keys)", "pad(self.keys_of(self.k, keys), (0, more))"), "within larger tensors"),
    Mutant("the output's gradient is taken for dense", _UP, _UP.replace("d_out", "_dense(d_out)"), "heads inside rows", "d_q"),
    Mutant("an expanded gradient is taken for dense", _UP,
           _UP.replace("d_out", "_dense(d_out) if 0 in d_out.stride() else d_out"), "expanded", "d_q"),
)  # fmt: skip
