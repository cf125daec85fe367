"""Run folders as objects: of a run that the command makes, and of files that are wrong."""

import json
import os
import shutil
import signal
import subprocess
import sysconfig
import xml.etree.ElementTree as xml
from pathlib import Path

import numpy as np
import pytest

from kerple import runs
from kerple.runs import Run, Table

CONFIG = Path(__file__).parent / "tiny.toml"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text").mkdir()
    for at in range(20):
        words = " ".join(f"{n * n % 97} and {n}" for n in range(at, at + 400))
        (folder / "text" / f"{at}.txt").write_text(words)
    runs._command(["prepare", "--input", str(folder / "text"), "--out", str(folder / "data")])
    text = CONFIG.read_text().replace("DATA", json.dumps(str(folder / "data")))
    (folder / "run.toml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def trained(prepared):
    rows = []
    run = runs.train(prepared / "run.toml", prepared / "run", callback=rows.append)
    return run, rows


def test_a_run_is_trained_and_read(trained):
    run, rows = trained
    metrics = run.metrics
    assert metrics["step"].dtype == np.int64 and metrics["loss"].dtype == np.float64
    assert metrics["step"][-1] == 20 and metrics["loss"][-1] < metrics["loss"][0]
    assert [row["step"] for row in rows] == metrics["step"].tolist(), "the callback saw every row once"
    assert all(row["run"] == str(run.path) for row in rows)
    assert run.plan["train_len"] == 32 or run.plan["config"] is not None
    weights = run.weights()
    assert weights and all(np.isfinite(values).all() for values in weights.values())
    assert run.checkpoints[-1] == 20 and any(values.ndim == 2 for values in weights.values())
    with pytest.raises(ValueError, match="checkpoints of steps"):
        run.weights(step=7)


def test_evaluating_and_sampling(trained):
    run, _ = trained
    rows = run.evaluate(lengths=[32, 64])
    assert [row["eval_len"] for row in rows] == [32, 64] and all(row["perplexity"] > 1 for row in rows)
    table = run.evaluations
    assert {32, 64} <= set(table["eval_len"].tolist())
    assert run.sample("7 and", max_new_tokens=8, seed=1, temperature=0).startswith("7 and")
    with pytest.raises(runs.CommandError, match="--no-such"):
        run.evaluate(no_such=1)


def test_lengths_may_be_an_array(trained):
    rows = trained[0].evaluate(lengths=np.array([32]), protocol="nonoverlapping")
    assert [row["eval_len"] for row in rows] == [32]


@pytest.mark.parametrize("prompt", ["- item", "--max-new-tokens", "one\r\ntwo\rthree\n"])
def test_a_prompt_is_sampled_as_it_is(trained, prompt):
    assert trained[0].sample(prompt, max_new_tokens=4).startswith(prompt)


def test_a_callback_sees_rows_that_are_made_anew(tmp_path):
    journal, rows = tmp_path / "metrics.jsonl", []
    write = lambda *losses: journal.write_text("".join(f'{{"step": {at}, "loss": {x}}}\n' for at, x in enumerate(losses)))  # noqa: E731
    write(3, 2, 1)
    look = runs._follow(tmp_path, lambda row: rows.append(row["loss"]))
    look()
    write(3)  # the rows behind the checkpoint are dropped
    look()
    write(3, 2.5, 1.5, 0.5)
    look()
    assert rows == [2.5, 1.5, 0.5]
    write(3, 2.25, 1.25, 0.25, 0.125)  # dropped and made anew between two looks
    look()
    assert rows == [2.5, 1.5, 0.5, 2.25, 1.25, 0.25, 0.125]


def test_kernels_and_pictures(trained):
    run, _ = trained
    last = run.kernels[-1]
    assert last["bias"].shape == (2, len(last["distances"]))
    assert run.learned["r1"].shape == (len(run.learned["step"]), 2)
    for curves in (run.draw_losses(), run.draw_kernels(), run.draw_evaluations()):
        picture = xml.fromstring(curves.svg())
        assert len(picture.findall("{*}polyline")) == len(curves.curves) > 0
    xml.fromstring(f"<div>{run._repr_html_()}</div>")


def test_a_comparison(prepared):
    rows = []
    found = runs.compare(prepared / "run.toml", ["kerple_log", "alibi"], prepared / "both", callback=rows.append)
    assert {label for label, _ in found} == {"kerple_log", "alibi"}
    assert {row["run"] for row in rows} == {str(run.path) for run in found.values()}


def interrupted(call):
    """Runs it until its callback has seen three rows, and then as if Ctrl-C were pressed."""
    seen = []

    def stop(row):
        seen.append(row)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    # what is started in the background, as checks may be, is started without it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            call(stop)
    finally:
        signal.signal(signal.SIGINT, before)


def same_weights(one, two):
    one, two = one.weights(), two.weights()
    assert one.keys() == two.keys()
    return all(np.array_equal(one[name], two[name]) for name in one)


def test_ctrl_c_stops_and_the_same_call_goes_on(prepared):
    """What was learned is kept, and the end is the same as without it."""
    steps = {"train.steps": 500, "train.log_every": 1}

    def train(name, callback=None):
        return runs.train(prepared / "run.toml", prepared / name, callback=callback, set=steps)

    interrupted(lambda stop: train("stopped", stop))
    assert 0 < Run(prepared / "stopped").checkpoints[-1] < 500
    on, whole = train("stopped"), train("whole")
    assert on.metrics["step"].tolist() == list(range(1, 501))
    assert same_weights(on, whole)


def test_ctrl_c_stops_a_comparison(prepared):
    def compare(callback=None):
        return runs.compare(
            prepared / "run.toml", ["kerple_log", "alibi"], prepared / "pair", callback=callback, set={"train.steps": 400}
        )

    interrupted(compare)
    assert any(run.checkpoints[-1:] < [400] for run in runs.runs(prepared / "pair").values())
    found = compare()
    assert len(found) == 2 and all(run.checkpoints[-1] == 400 for run in found.values())


def test_a_callback_that_fails_ends_the_training(prepared):
    with pytest.raises(ZeroDivisionError):
        runs.train(prepared / "run.toml", prepared / "failed", callback=lambda row: 1 / 0, set={"train.steps": 100_000})
    assert Run(prepared / "failed").checkpoints[-1] < 100_000


def test_settings_are_written_as_a_run_file_has_them(prepared):
    written = [
        (True, "true"), (np.bool_(False), "false"), (2, "2"), (np.int64(3), "3"), (1e-5, "1e-05"), (np.float32(0.1), "0.1"),
        (float("nan"), "nan"), (-float("inf"), "-inf"), ('a "b"\n\x7f', '"a \\"b\\"\\n\\u007f"'), (prepared, f'"{prepared}"'),
        ((1, "x", False), '[1, "x", false]'), ([], "[]"), ({}, "{}"),
    ]  # fmt: skip
    for value, text in written:
        assert runs._settings({"set": {"key": value}}) == ["--set", f"key={text}"]
    nested = {"kind": "dape", "base": {"kind": "alibi", "behind": 0.5}, "odd key": [{}]}
    text = '{kind = "dape", base = {kind = "alibi", behind = 0.5}, "odd key" = [{}]}'
    assert runs._settings({"set": {"encoding": nested}}) == ["--set", f"encoding={text}"]
    for value, words in (
        (None, "set: key = None has no form in a run file; leave the key out"), ({"a": [None]}, r"set: key.a\[0\] = None"),
        ({1: 2}, "set: key has the key 1; keys are strings"), (1j, "set: key = 1j has no form in a run file; use numbers"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=words):
            runs._settings({"set": {"key": value}})
    told = {"encoding": {"kind": "kernel", "bias": "log(b, a)", "window": 8}, "train.steps": 2, "train.eval_interval": 2}
    run = runs.train(prepared / "run.toml", prepared / "nested", set=told)
    assert run.plan["encoding"]["bias"] == "log(b, a)" and run.plan["encoding"]["window"] == 8


def test_what_the_command_says_is_the_error(prepared):
    with pytest.raises(runs.CommandError, match="error: "):
        runs.train(prepared / "missing.toml", prepared / "nothing")


def test_a_command_that_is_not_there(monkeypatch):
    monkeypatch.setenv("KERPLE", "/nowhere/kerple")
    with pytest.raises(FileNotFoundError, match="KERPLE = '/nowhere/kerple'"):
        runs._command(["--version"])


def test_the_package_brings_the_command_along(prepared, tmp_path):
    script = shutil.which("kerple", path=sysconfig.get_path("scripts"))

    def called(*words):
        return subprocess.run([script, *words], capture_output=True, text=True, cwd=tmp_path)

    assert called("--version").stdout.startswith("kerple ")
    assert called("describe", "t5", "--svg", "t5.svg").returncode == 0 and xml.parse(tmp_path / "t5.svg")
    wrong = called("describe", "t6")
    assert wrong.returncode == 2 and "unknown encoding `t6`" in wrong.stderr
    # jobs call it again
    config = str(prepared / "run.toml")
    assert called("compare", "--config", config, "--encodings", "alibi", "--out", "jobs", "--slurm", "1").returncode == 0
    assert f"{script} compare --config {config}" in (tmp_path / "jobs/slurm/array.sh").read_text()


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").write_text("{}")
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return Run(folder)


def test_journals_are_read_as_they_are_written(tmp_path):
    run = write(
        tmp_path / "run", metrics_jsonl='{"step":1,"loss":"NaN"}\n{"step":2,"loss":0.5,"val_loss":2.0}\n{"step":3,'
    )
    assert run.metrics["step"].tolist() == [1, 2], "a last line without an end is being written"
    assert np.isnan(run.metrics["loss"][0]) and np.isnan(run.metrics["val_loss"][0])
    assert run.evaluations.rows == 0 and run.kernels == [] and run.learned == {}
    assert list(run.draw_losses().curves) == ["training", "validation"] and not run.draw_scores().curves
    task = write(tmp_path / "task", metrics_jsonl='{"step":1}\n{"step":2,"val_score":0.25}\n{"step":4,"val_score":0.75}\n')
    (steps, scores) = task.draw_scores().curves["validation"]
    assert (steps.tolist(), scores.tolist()) == ([2, 4], [0.25, 0.75])
    damaged = write(tmp_path / "damaged", metrics_jsonl='{"step":1}\n{"step"\n')
    with pytest.raises(ValueError, match="metrics.jsonl: line 2"):
        _ = damaged.metrics
    with pytest.raises(FileNotFoundError, match="plan.json"):
        Run(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("sittings.jsonl", "", "`sittings.jsonl` is now `sessions.jsonl`"),
        ("metrics.jsonl", '{"step":1,"valid_loss":2.0}\n', "`valid_loss` is now `val_loss`"),
        ("evaluation.jsonl", '{"encoding":"alibi","length":8}\n', "`length` is now `eval_len`"),
    ],
)
def test_folders_with_old_names_are_refused(tmp_path, file, text, named):
    run = write(tmp_path / "run")
    (run.path / file).write_text(text)
    with pytest.raises(ValueError, match="written before 0.1.0") as error:
        Run(run.path)
    assert named in str(error.value) and "train the run again" in str(error.value)


def test_two_runs_of_one_label_and_seed_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder / "alibi").mkdir(parents=True)
        write(tmp_path / folder / "alibi" / "seed-1")
    assert list(runs.runs(tmp_path / "a")) == [("alibi", 1)]
    with pytest.raises(ValueError, match="a/alibi/seed-1 and .*b/alibi/seed-1 are both 'alibi' with seed 1"):
        runs.runs(tmp_path)


def test_a_text_is_not_taken_letter_by_letter(tmp_path):
    run = write(tmp_path / "run")
    for lengths in ("512", 512):
        with pytest.raises(TypeError, match=f"lengths = {lengths!r} must be a list"):
            run.evaluate(lengths=lengths)
    with pytest.raises(TypeError, match="encodings = 'alibi,rotary' must be a list"):
        runs.compare("run.toml", "alibi,rotary", tmp_path / "out")


def test_evaluations_of_other_steps_windows_and_texts_are_curves_of_their_own(tmp_path):
    row = dict(protocol="last:64", split="test", eval_len=64, perplexity=2.0, window=None, step=10, text=dict(checksum="0123456789"))
    lines = lambda *rows: "".join(json.dumps({**row, **one}) + "\n" for one in rows)  # noqa: E731
    one = write(tmp_path / "one", evaluation_jsonl=lines({}, dict(eval_len=128)))
    assert list(one.draw_evaluations().curves) == ["last:64 test"]
    several = write(tmp_path / "several", evaluation_jsonl=lines({}, dict(window=32), dict(step=20), dict(text=dict(checksum="a" * 32))))
    assert list(several.draw_evaluations().curves) == [
        "last:64 test, window None, step 10, text 01234567", "last:64 test, window 32, step 10, text 01234567",
        "last:64 test, window None, step 20, text 01234567", "last:64 test, window None, step 10, text aaaaaaaa",
    ]  # fmt: skip


def test_weights_that_lie_outside_of_their_file_are_refused(tmp_path):
    run = write(tmp_path / "run")
    folder = run.path / "checkpoints" / "step-00000004"
    folder.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + np.arange(4, dtype="<f4").tobytes())
    assert run.weights()["w"].tolist() == [0, 1, 2, 3]
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(ValueError, match="model.safetensors: w"):
        run.weights()
    file.write_bytes((1 << 40).to_bytes(8, "little"))
    with pytest.raises(ValueError, match="a header of 1099511627776 bytes in a file of 8"):
        run.weights()


def table():
    return Table.of(
        [
            {"step": 1, "loss": 2.5, "name": "a"},
            {"step": 2, "name": "ü"},
            {"step": 3, "loss": 0.5, "name": None, "list": [1]},
        ]
    )


def test_tables():
    got = table()
    assert list(got) == ["step", "loss", "name"] and got.rows == 3
    assert got["step"].tolist() == [1, 2, 3] and np.isnan(got["loss"][1]) and got["name"].tolist() == ["a", "ü", None]
    assert "<td>2.5</td>" in got._repr_html_() and "3 rows" in repr(got)


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars"])
def test_data_frames_are_made_of_the_stream(library):
    read = pytest.importorskip(library)
    want = {"step": [1, 2, 3], "loss": [2.5, None, 0.5], "name": ["a", "ü", None]}
    if library == "pyarrow":
        got = read.RecordBatchReader.from_stream(table()).read_all()
        assert [str(one) for one in got.schema.types] == ["int64", "double", "large_string"]
        got = got.to_pydict()
    elif library == "pandas":
        frame = (
            read.DataFrame.from_arrow(table())
            if hasattr(read.DataFrame, "from_arrow")
            else read.DataFrame(dict(table()))
        )
        got = {name: [None if read.isna(value) else value for value in frame[name]] for name in frame}
    else:
        # its DataFrame() takes the columns of a mapping, with NaN for what is missing
        got = read.from_arrow(table()).struct.unnest().to_dict(as_series=False)
    assert got == want


def test_streams_are_released():
    from kerple import _arrow

    pytest.importorskip("pyarrow")
    import gc

    import pyarrow

    gc.collect()
    before = len(_arrow._held)
    for _ in range(20):
        table().__arrow_c_stream__()  # nobody reads it
        read = pyarrow.RecordBatchReader.from_stream(table()).read_all()
        assert read.num_rows == 3
        del read
    gc.collect()
    assert len(_arrow._held) == before
