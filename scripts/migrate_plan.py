#!/usr/bin/env python3
"""Renames the keys of plans in archives of reproductions, once: migrate_plan.py [FOLDER ...], all of results/ without one.

Keys and values of `plan.json` get their new names, and with them the plan another hash. Its values, and so its rows, stay what they
are. The manifest, `reproduction.json`, keeps both hashes of every run, so that `kerple verify` knows the one plan that stands for the
one that the rows were computed under. `SHA256SUMS` follows. Numbers are written as they were read. A plan whose recorded hash is not
that of its content is refused, and what has the new names already is left as it is.
"""
import hashlib, io, json, subprocess, sys, tarfile
from pathlib import Path

TRAIN = {
    "batch": "batch_size", "micro_batch": "micro_batch_size", "piece": "chunk_len", "min_learning_rate": "min_lr",
    "warmup": "warmup_ratio", "decay": "lr_schedule", "cycle": "lr_cycle_steps", "betas": "adam_betas", "eps": "adam_eps",
    "clip": "grad_clip", "first_adam_step": "adam_first_step", "valid_every": "eval_interval",
    "valid_segments": "eval_sequences", "checkpoint_every": "save_interval", "keep": "keep_last_n",
}
BLOCK = {
    "kv_heads": "n_kv_heads", "gated": "glu", "score_scale": "attn_scale", "scale_by_layer": "scale_attn_by_layer",
    "soft_cap": "attn_softcap", "clamp_qkv": "clip_qkv", "tied_head": "tie_embeddings", "head_bias": "lm_head_bias",
    "scaled_embedding": "scale_embeddings",
}
BLOCK_VALUES = {
    "norm": {"layer_without_shift": "layer_no_bias"}, "residual": {"normed": "norm_residual", "post": "post_ln"},
    "sink": {"one": "off_by_one"},
}
LINEAR = {
    "features": "feature_map", "count": "n_features", "redraw": "redraw_every", "independent_lengths": "independent_norms",
}
SHARED = {"scope": "share", "compat": "emulate"}
KINDS = {
    "fire": {"width": "hidden", "threshold": "init_l"}, "cope": {"positions": "npos_max"},
    "sine_spe": {"waves": "num_sines", "realisations": "num_realizations"},
    "conv_spe": {"taps": "kernel_size", "realisations": "num_realizations"},
}
# what a hash leaves out: the defaults of these stand in it, by their old and new names
NOT_HASHED = [
    ("log_every", "log_every", "10"), ("valid_every", "eval_interval", "1000"), ("valid_segments", "eval_sequences", "10"),
    ("checkpoint_every", "save_interval", "1000"), ("keep", "keep_last_n", "2"),
]


class Number(str):
    """A number as it is written."""


def read(text):
    return json.loads(text, parse_int=Number, parse_float=Number)


def write(value, indent=None, level=0):
    """As serde_json writes: on one line, or with an indentation of two."""
    if isinstance(value, Number) or value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}.get(value, value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    colon = ": " if indent else ":"
    if isinstance(value, dict):
        ends, inner = "{}", [write(key) + colon + write(of, indent, level + 1) for key, of in value.items()]
    else:
        ends, inner = "[]", [write(of, indent, level + 1) for of in value]
    if not inner or not indent:
        return ends[0] + ",".join(inner) + ends[1]
    line = "\n" + "  " * (level + 1)
    return ends[0] + line + ("," + line).join(inner) + "\n" + "  " * level + ends[1]


def renamed(table, names):
    return {names.get(key, key): value for key, value in table.items()}


def of_encoding(encoding):
    """Keys of an encoding are written in the order of their names."""
    if not isinstance(encoding, dict):
        return encoding
    encoding = renamed(encoding, {**SHARED, **KINDS.get(encoding["kind"], {})})
    if encoding.get("clamp") == "working_copy":
        encoding["clamp"] = "forward_only"
    if "base" in encoding:
        encoding["base"] = of_encoding(encoding["base"])
    return dict(sorted(encoding.items()))


def of_attention(attention):
    return {"linear": renamed(attention["linear"], LINEAR)} if isinstance(attention, dict) else attention


def of_model(model):
    model = renamed(model, {"readout": "pooling"})
    if "pooling" in model:
        model["pooling"] = {"first": "cls", "towers": "two_tower"}.get(model["pooling"], model["pooling"])
    if "block" in model:
        block = {key: BLOCK_VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value
                 for key, value in renamed(model["block"], BLOCK).items()}
        if "attention" in block:
            block["attention"] = of_attention(block["attention"])
        model["block"] = block
    for kind in model.get("layers", {}).values():
        kind.update({"encoding": of_encoding(kind["encoding"])} if "encoding" in kind else {})
        kind.update({"attention": of_attention(kind["attention"])} if "attention" in kind else {})
    return model


def of_plan(plan):
    plan = renamed(plan, {"facts": "data_info", "origin": "init_from"})
    plan["data"] = renamed(plan["data"], {"packing": "sampling"})
    plan["encoding"] = of_encoding(plan["encoding"])
    plan["model"] = of_model(plan["model"])
    plan["train"] = renamed(plan["train"], TRAIN)
    return plan


def digest(plan, now):
    """The hash of a plan, by its names before or now."""
    plan = {key: value for key, value in plan.items() if key != "commit"}
    plan["data"], plan["train"], plan["hash"] = {**plan["data"], "path": ""}, dict(plan["train"]), ""
    plan["train"].update({(new if now else old): Number(value) for old, new, value in NOT_HASHED})
    batch, micro_batch = ("batch_size", "micro_batch_size") if now else ("batch", "micro_batch")
    plan["train"][micro_batch] = plan["train"][batch]
    return hashlib.sha256(write(plan).encode()).hexdigest()


def migrated(text, name):
    """The text of a plan by its names now, and its hashes; None where it has them already."""
    plan = read(text)
    if "data_info" in plan:
        return None
    before = plan["hash"]
    if digest(plan, False) != before:
        sys.exit(f"{name}: its hash is not that of its content")
    plan = of_plan(plan)
    plan["hash"] = digest(plan, True)
    return write(plan, indent=2) + "\n", {"now": plan["hash"], "computed_under": before}


def migrate(folder):
    packed = folder / "runs.tar.zst"
    files = subprocess.run(["zstd", "-dc", packed], check=True, capture_output=True).stdout
    sums, hashes, out = {}, {}, io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(files)) as source, tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as target:
        for member in source:
            content = source.extractfile(member).read()
            name = Path(member.name)
            found = migrated(content.decode(), f"{folder}: {name}") if name.name == "plan.json" else None
            if found:
                content, hashes[name.parent.as_posix()] = found[0].encode(), found[1]
                member.size, sums[member.name] = len(content), hashlib.sha256(content).hexdigest()
            target.addfile(member, io.BytesIO(content))
    if not hashes:
        return print(f"{folder}: nothing to rename")
    manifest_file = folder / "reproduction.json"
    manifest = read(manifest_file.read_text())
    for run in manifest["runs"]:
        if run["folder"] in hashes:
            run["plan_hash"] = hashes.pop(run["folder"])
    if hashes:
        sys.exit(f"{folder}: no run of the manifest is {', '.join(hashes)}")
    text = (write(manifest, indent=2) + "\n").encode()
    sums[manifest_file.name] = hashlib.sha256(text).hexdigest()
    sums_file = folder / "SHA256SUMS"
    lines = [line.split("  ", 1) for line in sums_file.read_text().splitlines()]
    if missing := set(sums) - {name for _, name in lines}:
        sys.exit(f"{sums_file}: no line for {', '.join(sorted(missing))}")
    # all is known to be right: only now is anything written
    compressed = subprocess.run(["zstd", "-19", "--check", "-c"], input=out.getvalue(), check=True, capture_output=True)
    packed.write_bytes(compressed.stdout)
    manifest_file.write_bytes(text)
    sums_file.write_text("".join(f"{sums.get(name, sum)}  {name}\n" for sum, name in lines))
    print(f"{folder}: {len(sums) - 1} plans")


if __name__ == "__main__":
    results = Path(__file__).resolve().parent.parent / "results"
    for path in [Path(path) for path in sys.argv[1:]] or sorted(path.parent for path in results.glob("*/runs.tar.zst")):
        migrate(path)
