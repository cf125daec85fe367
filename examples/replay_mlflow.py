"""Replays run folders into MLflow: parameters of the plan, logged steps, evaluations with the length as the step.

    pip install mlflow
    python examples/replay_mlflow.py runs/four/runs/alibi/seed-1235 ...

Where it goes is MLflow's own choice, MLFLOW_TRACKING_URI. Weights & Biases needs no code: `wandb sync RUN/events` reads the
TensorBoard files that every run writes.
"""

import json
import pathlib
import sys

import mlflow
from mlflow.entities import Metric, Param

AT_ONCE = 1000  # MLflow takes no more metrics, and no more than 100 parameters, in one call


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def flat(value, name=""):
    """Leaves of nested tables by dotted names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else key)
    elif value is not None:
        yield name, value


def metrics(run):
    for row in rows(run / "metrics.jsonl"):
        time = int(1000 * row["seconds"])
        for name in ["loss", "val_loss", "val_score", "learning_rate", "grad_norm"]:
            if isinstance(row.get(name), float | int):  # "NaN" and "inf" are texts
                yield Metric(name, row[name], time, row["step"])
        for name, values in row.get("encoding_params", {}).items():
            for number, value in enumerate(values[:64]):
                if isinstance(value, float | int):
                    yield Metric(f"kernel/{name}/{number}", value, time, row["step"])
    for row in rows(run / "evaluation.jsonl"):
        group = f"eval/{row['split']} {row['protocol'].replace(':', ' ')}"
        for name in ["perplexity", "bits_per_byte"]:
            if isinstance(row.get(name), float | int):
                yield Metric(f"{group}/{name}", row[name], 0, row["eval_len"])


def replay(run):
    plan = json.loads((run / "plan.json").read_text())
    client = mlflow.MlflowClient()
    experiment = mlflow.set_experiment("kerple").experiment_id
    made = client.create_run(experiment, run_name=f"{plan['label']} {plan['seed']}", tags={"folder": str(run)})
    params = [Param(name, str(value)[:500]) for name, value in flat(plan)]
    found = list(metrics(run))
    for start in range(0, len(params), 100):
        client.log_batch(made.info.run_id, params=params[start : start + 100])
    for start in range(0, len(found), AT_ONCE):
        client.log_batch(made.info.run_id, metrics=found[start : start + AT_ONCE])
    client.set_terminated(made.info.run_id)
    print(f"{run}: {len(params)} parameters, {len(found)} metrics, run {made.info.run_id}")


for folder in sys.argv[1:]:
    replay(pathlib.Path(folder))
