"""Run folders of ``kerple`` as arrays and tables, and the command that writes them.

    run = kerple.runs.Run("runs/alibi/seed-1235")
    run.metrics["loss"]                 # numpy columns
    pandas.DataFrame.from_arrow(run.evaluations)    # or polars.from_arrow, pyarrow.table: an Arrow stream
    run.weights()                       # numpy arrays of the last checkpoint

:func:`train`, :func:`compare`, :meth:`Run.evaluate` and :meth:`Run.sample` run the command
``kerple``, which the package includes. Ctrl-C stops the command as in a terminal: it saves first,
and the same call resumes.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import _native
from ._arrow import stream
from ._renamed import ARGUMENTS, refuse_arguments
from .drawing import Curves


class Table(Mapping[str, np.ndarray]):
    """Named columns of equal length. Notebooks display a table; Arrow readers get a stream."""

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self._columns = dict(columns)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Table:
        """The table of these rows of numbers and texts.

        Missing values are NaN, or None in text columns; lists are left out.
        """
        rows = list(rows)
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {}
        for name in names:
            values = [row.get(name) for row in rows]
            known = [value for value in values if value is not None]
            if any(isinstance(value, (list, dict)) for value in known) or not known:
                continue
            if all(isinstance(value, int) and not isinstance(value, bool) for value in known) and len(known) == len(
                values
            ):
                columns[name] = np.array(values, dtype=np.int64)
            elif all(isinstance(value, (int, float)) for value in known):
                columns[name] = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
            else:
                columns[name] = np.array([None if value is None else str(value) for value in values], dtype=object)
        return cls(columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return max((len(values) for values in self._columns.values()), default=0)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return stream(self._columns)

    def __repr__(self) -> str:
        return f"Table of {self.rows} rows: {', '.join(self._columns)}"

    def _repr_html_(self) -> str:
        shown = 30
        cell = lambda value: html.escape(f"{value:.5g}" if isinstance(value, float) else str(value))  # noqa: E731
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self)
        rows = (
            "<tr>" + "".join(f"<td>{cell(values[at].item() if hasattr(values[at], 'item') else values[at])}</td>"
                             for values in self._columns.values()) + "</tr>"
            for at in range(min(shown, self.rows))
        )  # fmt: skip
        rest = f"<p>{self.rows - shown} more rows</p>" if self.rows > shown else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{rest}"


#: How run folders write numbers that JSON cannot represent.
_NUMBERS = {"NaN": np.nan, "inf": np.inf, "-inf": -np.inf}


def _numbers(value: Any) -> Any:
    if isinstance(value, str):
        return _NUMBERS.get(value, value)
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    if isinstance(value, dict):
        return {name: _numbers(one) for name, one in value.items()}
    return value


def _lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a journal; a last line without a line end is still being written and is ignored."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text().splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            rows.append(_numbers(json.loads(line)))
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path}: line {number}: {error}; `kerple verify {path.parent}` says what is damaged"
            ) from None
    return rows


def _document(path: Path) -> Any:
    try:
        return _numbers(json.loads(path.read_text()))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: {error}; `kerple verify {path.parent}` says what is damaged") from None


_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise ValueError(f"{path}: a header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
    data = np.memmap(path, mode="r", offset=8 + length) if size > 8 + length else np.empty(0, np.uint8)
    found = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, end = about["data_offsets"]
        if not 0 <= start <= end <= len(data) or about["dtype"] not in _DTYPES:
            raise ValueError(f"{path}: {name}: {about['dtype']} at {start} to {end} of {len(data)} bytes")
        found[name] = np.frombuffer(data[start:end].tobytes(), dtype=_DTYPES[about["dtype"]]).reshape(about["shape"])
    return found


class Run:
    """A run folder. Every access reads the files again, so a run may be inspected while it trains.

    Raises:
        FileNotFoundError: the path does not contain a run.
        ValueError: its files or keys have names from before 0.1.0.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / "plan.json").exists():
            raise FileNotFoundError(f"{self.path} is no run folder: it has no plan.json")
        _native.refuse_old_names(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def plan(self) -> dict[str, Any]:
        """The plan: the run file with every default and size resolved."""
        return _document(self.path / "plan.json")

    @property
    def metrics(self) -> Table:
        """One row per logged step: step, loss, learning rate, gradient norm, and so on."""
        return Table.of(_lines(self.path / "metrics.jsonl"))

    @property
    def learned(self) -> dict[str, np.ndarray]:
        """The encoding's parameters over training, ``[steps, values]`` by name, and ``step``."""
        rows = [row for row in _lines(self.path / "metrics.jsonl") if row.get("encoding_params")]
        names = rows[0]["encoding_params"] if rows else {}
        found = {name: np.array([row["encoding_params"][name] for row in rows]) for name in names}
        return {"step": np.array([row["step"] for row in rows], dtype=np.int64), **found} if rows else {}

    @property
    def evaluations(self) -> Table:
        """One row per text, protocol, window and length."""
        flat = []
        for row in _lines(self.path / "evaluation.jsonl"):
            task = row.pop("task", None) or {}
            flat.append({**row, **{f"task.{name}": value for name, value in task.items()}})
        return Table.of(flat)

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """Learned kernels over training: ``step``, ``distances``, and ``bias`` and ``weight``,
        ``[rows, distances]``.
        """
        path = self.path / "kernels.json"
        found = []
        for snapshot in _document(path) if path.exists() else ():
            arrays = {
                name: np.array(snapshot[name])
                for name in ("distances", "bias", "weight")
                if snapshot.get(name) is not None
            }
            found.append({**snapshot, **arrays})
        return found

    @property
    def checkpoints(self) -> list[int]:
        """Steps that have weights."""
        return sorted(self._checkpoints())

    def _checkpoints(self) -> dict[int, Path]:
        found = {re.fullmatch(r"step-(\d+)", path.name): path for path in (self.path / "checkpoints").glob("step-*")}
        return {int(name.group(1)): path for name, path in found.items() if name}

    def weights(self, step: int | None = None) -> dict[str, np.ndarray]:
        """The model's tensors at a checkpoint, by default the last one.

        Raises:
            ValueError: this checkpoint does not exist; the message lists those that do.
        """
        found = self._checkpoints()
        chosen = max(found, default=None) if step is None else step
        if chosen not in found:
            raise ValueError(f"step = {step}: {self.path} has checkpoints of steps {sorted(found)}")
        return _safetensors(found[chosen] / "model.safetensors")

    def draw_losses(self) -> Curves:
        """Losses over steps, as a plot that notebooks display."""
        return self._over_steps({"training": "loss", "validation": "val_loss"}, "loss, nats a token")

    def draw_scores(self) -> Curves:
        """Shares of right answers at validations of a task, over steps."""
        return self._over_steps({"validation": "val_score"}, "share of right answers")

    def _over_steps(self, columns: dict[str, str], unit: str) -> Curves:
        metrics, curves = self.metrics, {}
        for name, column in columns.items():
            if column in metrics:
                known = ~np.isnan(metrics[column].astype(float))
                curves[name] = (metrics["step"][known], metrics[column][known])
        return Curves(curves, "step", unit)

    def draw_kernels(self) -> Curves:
        """The last learned kernel, one curve per head."""
        kernels = self.kernels
        if not kernels:
            raise ValueError(f"{self.path} has no learned kernels")
        last = kernels[-1]
        what = "bias" if "bias" in last else "weight"
        rows = last.get(what, np.empty((0, 0)))
        curves = {f"head {at}": (last["distances"], row) for at, row in enumerate(rows)}
        return Curves(curves, "distance d, tokens", f"{what} at step {last['step']}")

    def draw_evaluations(self) -> Curves:
        """Perplexity by length, one curve per protocol and split, and per window, step and text where these differ."""
        rows, curves = _lines(self.path / "evaluation.jsonl"), {}
        table = Table.of(rows)
        if "eval_len" in table:
            told = {
                "window": [row.get("window") for row in rows], "step": [row.get("step") for row in rows],
                "text": [str((row.get("text") or {}).get("checksum"))[:8] for row in rows],
            }  # fmt: skip
            settings = [f"{a} {b}" for a, b in zip(table["protocol"], table["split"], strict=True)]
            for name, values in told.items():
                if len(set(values)) > 1:
                    settings = [f"{setting}, {name} {value}" for setting, value in zip(settings, values, strict=True)]
            for setting in dict.fromkeys(settings):
                own = np.array([one == setting for one in settings])
                order = np.argsort(table["eval_len"][own], kind="stable")
                curves[setting] = (table["eval_len"][own][order], table["perplexity"][own][order])
        return Curves(curves, "evaluated length, tokens", "perplexity")

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(str(self.path))}</b></p>{self.draw_losses()._repr_html_()}{self.evaluations._repr_html_()}"

    def evaluate(
        self, *, lengths: Iterable[int] = (), protocol: str | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        """Runs ``kerple eval`` on this run and returns the rows that it prints."""
        told = [str(length) for length in _several("lengths", lengths, "[512, 1024]")]
        told = ["--lengths", ",".join(told)] if told else []
        told += ["--protocol", protocol] if protocol else []
        out = _command(["eval", str(self.path), *told, "--json", *_options(options)])
        return [_numbers(json.loads(line)) for line in out.splitlines() if line.startswith("{")]

    def sample(self, prompt: str = "", *, max_new_tokens: int = 256, **options: Any) -> str:
        """Runs ``kerple sample`` and returns the prompt with its continuation."""
        refuse_arguments("Run.sample", [name for name in options if name in ARGUMENTS["Run.sample"]])
        told = [f"--prompt={prompt}", "--max-new-tokens", str(max_new_tokens)]
        return _command(["sample", str(self.path), *told, *_options(options)])


class CommandError(RuntimeError):
    """The command failed; the message is what it printed."""


def _options(options: Mapping[str, Any]) -> list[str]:
    told = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            told.append(flag)
        elif value is not None and value is not False:
            for one in value if isinstance(value, (list, tuple)) else [value]:
                told.append(f"{flag}={one}")
    return told


def _program() -> list[str]:
    """The command line: the program that ``KERPLE`` names, or the package's own."""
    named = os.environ.get("KERPLE")
    if not named:
        return [sys.executable, "-m", "kerple"]
    if shutil.which(named) is None:
        raise FileNotFoundError(f"KERPLE = {named!r}: there is no such program")
    return [named]


def _command(told: list[str], look: Callable[[], None] | None = None) -> str:
    """Runs the command and returns what it prints. ``look`` is called while it runs.

    Raises:
        CommandError: the command failed; the message is what it printed.
        KeyboardInterrupt: Ctrl-C, after the command has saved its work.
    """
    process = subprocess.Popen(
        [*_program(), *told], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"},
        start_new_session=True,
    )  # fmt: skip
    try:
        while True:
            try:
                out, error = process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                if look:
                    look()
    except BaseException:
        # one signal: the command saves and ends
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=600)
        except BaseException:
            process.kill()
            process.communicate()
        raise
    if look:
        look()
    # decoded here and not by Popen, whose text mode would change line ends
    out, error = (said.decode(errors="replace") for said in (out, error))
    if process.returncode == 130:
        raise KeyboardInterrupt
    if process.returncode != 0:
        raise CommandError(error.strip()[-2000:] or f"kerple {told[0]} ended with {process.returncode}")
    return out


def _follow(path: Path, callback: Callable[[dict[str, Any]], None] | None) -> Callable[[], None] | None:
    """Passes every new row of the journals below a folder to ``callback``, also rows that are
    computed again after a crash.
    """
    if callback is None:
        return None
    told = {file: [repr(row) for row in _lines(file)] for file in path.rglob("metrics.jsonl")}

    def look() -> None:
        for file in sorted(path.rglob("metrics.jsonl")):
            rows, before = _lines(file), told.get(file, [])
            now = [repr(row) for row in rows]
            # a run that resumes after a crash drops the rows after its checkpoint and computes them
            # again
            same = next((at for at, (a, b) in enumerate(zip(before, now)) if a != b), min(len(before), len(now)))  # noqa: B905
            told[file] = now
            for row in rows[same:]:
                callback({"run": str(file.parent), **row})

    return look


def train(
    config: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    callback: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> Run:
    """Runs ``kerple train`` on a run file, or resumes the run. ``callback`` is called with each new
    row of metrics.

    ``set={"train.steps": 100}`` changes keys, to numbers, strings, switches, lists and dictionaries; other
    options are the command's.
    """
    told = ["train", "--config", str(config), "--out", str(out), *_settings(options), *_options(options)]
    _command(told, _follow(Path(out), callback))
    return Run(out)


def compare(
    config: str | os.PathLike[str], encodings: Iterable[str], out: str | os.PathLike[str], *, seeds: int = 1,
    callback: Callable[[dict[str, Any]], None] | None = None, **options: Any,
) -> dict[tuple[str, int], Run]:  # fmt: skip
    """Runs ``kerple compare``: one run file with several encodings. ``callback`` and ``options`` are those of :func:`train`.

    Returns the runs by label and seed.
    """
    told = [
        "compare",
        "--config",
        str(config),
        "--encodings",
        ",".join(_several("encodings", encodings, '["alibi", "kerple_log"]')),
        "--out",
        str(out),
        "--seeds",
        str(seeds),
    ]
    _command([*told, *_settings(options), *_options(options)], _follow(Path(out), callback))
    return runs(out)


def runs(path: str | os.PathLike[str]) -> dict[tuple[str, int], Run]:
    """The runs below a folder, by folder name and seed.

    Raises:
        ValueError: two runs have the same of both; the message names their folders.
    """
    found: dict[tuple[str, int], Run] = {}
    for plan in sorted(Path(path).rglob("plan.json")):
        run = Run(plan.parent)
        seed = re.fullmatch(r"seed-(\d+)", run.path.name)
        label = (run.path.parent.name if seed else run.path.name, int(seed.group(1)) if seed else 0)
        if label in found:
            raise ValueError(
                f"{found[label].path} and {run.path} are both {label[0]!r} with seed {label[1]}; give a folder that contains one of them"
            )
        found[label] = run
    return found


def _several(name: str, values: object, such: str) -> Iterable[Any]:
    """A list or other iterable; a text would be taken letter by letter."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} = {values!r} must be a list, such as {such}")
    return values


def _settings(options: dict[str, Any]) -> list[str]:
    told = []
    for key, value in (options.pop("set", None) or {}).items():
        told += ["--set", f"{key}={_toml(key, value)}"]
    return told


def _toml(name: str, value: object) -> str:
    """The value as it is written in a run file, in one line."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, float, np.integer, np.floating)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(f'{name}[{at}]', one) for at, one in enumerate(value))}]"
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"set: {name} has the key {key!r}; keys are strings")
        quoted = {key: key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(name, key) for key in value}
        return "{" + ", ".join(f"{quoted[key]} = {_toml(f'{name}.{key}', one)}" for key, one in value.items()) + "}"
    hint = "leave the key out" if value is None else "use numbers, strings, switches, lists and dictionaries"
    raise TypeError(f"set: {name} = {value!r} has no form in a run file; {hint}")
