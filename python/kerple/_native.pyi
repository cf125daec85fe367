"""The compiled part. It is private: only the other modules are the public interface."""

import os
from typing import Any, Protocol

__version__: str

class ArrayLike(Protocol):
    shape: Any
    dtype: Any
    def data_ptr(self) -> int: ...
    def stride(self) -> tuple[int, ...]: ...
    def element_size(self) -> int: ...
    def is_floating_point(self) -> bool: ...

#: The mask is causal, window and sink_tokens.
class Rule:
    def __new__(
        cls,
        scale: float,
        mask: tuple[bool, int | None, int | None],
        softcap: float | None,
        threads: int,
        encoding: Encoding | None = None,
        dropout_p: float = 0.0,
    ) -> Rule: ...

class Encoding:
    kind: str
    keys: str
    window: int | None
    sink_tokens: int | None
    projected: bool
    fades: bool
    causal_only: bool
    entry: str
    tables: tuple[bool, bool, bool]
    own: int
    path_slopes: list[float]
    gate_rates: list[float] | None
    def __new__(
        cls, keys: str, heads: int, head_dim: int, train_len: int, d_model: int | None = None
    ) -> Encoding: ...
    def describe(self) -> str: ...
    def parameters(self) -> list[tuple[str, list[int], float, float, bool]]: ...
    def initial(self, seed: int, layer: int) -> list[float]: ...
    def true_values(self, values: ArrayLike) -> list[float]: ...
    def table(self, values: ArrayLike, length: int, bias: ArrayLike | None, weight: ArrayLike | None) -> None: ...
    def table_backward(
        self,
        values: ArrayLike,
        length: int,
        d_bias: ArrayLike | None,
        d_weight: ArrayLike | None,
        d_values: ArrayLike,
    ) -> None: ...
    def rates(self) -> list[float] | None: ...
    def map_rates(self) -> list[float] | None: ...
    def turns(self, start: int, span: int, cos: ArrayLike, sin: ArrayLike) -> None: ...

#: q, k, v; bias, weight, sinks, numbers, cumulative gates; rows and profiles of a relative bias; learned
#: positions, the parameters of their kernel and its name; first key and number of keys of each sequence, and packed documents; the seed of dropout.
_Inputs = tuple[
    ArrayLike, ArrayLike, ArrayLike, ArrayLike | None, ArrayLike | None, ArrayLike | None, ArrayLike | None,
    ArrayLike | None, tuple[ArrayLike, ArrayLike] | None, tuple[ArrayLike, ArrayLike, str] | None,
    tuple[ArrayLike | None, ArrayLike | None, ArrayLike | None], ArrayLike | None,
]  # fmt: skip

def attention_forward(rule: Rule, inputs: _Inputs, out: ArrayLike, lse: ArrayLike) -> None: ...
def attention_backward(
    rule: Rule,
    inputs: _Inputs,
    saved: tuple[ArrayLike, ArrayLike, ArrayLike],
    made: list[ArrayLike | None],
) -> None: ...

#: q, k, v; the name of what is between, its arrays, and slopes of a bias of paths; cumulative gates, sinks, number of keys of
#: each sequence, packed documents.
_ContentInputs = tuple[
    ArrayLike, ArrayLike, ArrayLike, tuple[str, ArrayLike, ArrayLike | None, list[float]], ArrayLike | None, ArrayLike | None,
    ArrayLike | None, ArrayLike | None,
]  # fmt: skip

def content_forward(rule: Rule, inputs: _ContentInputs, out: ArrayLike, lse: ArrayLike) -> None: ...
def content_backward(
    rule: Rule, inputs: _ContentInputs, saved: tuple[ArrayLike, ArrayLike, ArrayLike], made: list[ArrayLike | None]
) -> None: ...

class LinearRule:
    def __new__(
        cls, encoding: Encoding, features: str, count: int, causal: bool, noise: list[int], threads: int
    ) -> LinearRule: ...

class LinearState:
    def __new__(cls) -> LinearState: ...
    def __len__(self) -> int: ...
    def bytes(self) -> int: ...

#: q, k, v; the encoding's parameters as stored; gates; number of keys of each sequence.
_LinearInputs = tuple[
    ArrayLike, ArrayLike, ArrayLike, ArrayLike, ArrayLike | None, ArrayLike | None, ArrayLike | None
]  # fmt: skip

def linear_forward(
    rule: LinearRule, inputs: _LinearInputs, out: ArrayLike, denominators: ArrayLike, state: LinearState | None
) -> None: ...
def linear_backward(
    rule: LinearRule,
    inputs: _LinearInputs,
    saved: tuple[ArrayLike, ArrayLike, ArrayLike],
    made: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike, ArrayLike | None],
) -> None: ...
def linear_omega(rule: LinearRule, out: ArrayLike) -> None: ...
def linear_form(rule: LinearRule) -> tuple[str, tuple[int, int, list[int], list[int], str | None, bool] | None]: ...
def linear_noise(rule: LinearRule, of_gate: bool, first: int, out: ArrayLike) -> None: ...
def linear_decay(rule: LinearRule, values: ArrayLike) -> tuple[int, list[float], list[float], list[float]]: ...
def linear_decay_backward(
    rule: LinearRule, values: ArrayLike, d_near: ArrayLike, d_weights: ArrayLike, d_values: ArrayLike
) -> None: ...
def methods() -> list[tuple[str, dict[str, str]]]: ...
def check_kernel(expression: str, points: str) -> tuple[bool, str, str]: ...
def refuse_old_names(folder: str | os.PathLike[str]) -> None: ...
def command(program: str, arguments: list[str]) -> int: ...
def instruction_set() -> str: ...
def limit_instruction_set(most: str) -> str: ...
