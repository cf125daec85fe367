#!/usr/bin/env python3
"""Makes reference checkpoints of GPT-NeoX with the logits they should give, from the formulas alone.

    python3 scripts/make_neox_cases.py reference/interchange

Needs torch and safetensors. Every case is a small model of random weights, computed in float64 as GPT-NeoX's modules do it, and
saved as its engine saves it: rounded to a type of 16 bits, cut into tensor-parallel ranks, tensors as views of one buffer a file. Cases of
the same names in the manifest are replaced. A case says by how many tolerances the mistake moves its logits that moves them least.
"""
import json, math, shutil, sys
from dataclasses import dataclass, field
from pathlib import Path
import torch
from safetensors.torch import save_file

LENGTH, PROMPT, NEW = 20, 6, 6
TOLERANCE = {"logits_abs": 1e-4, "mean_nll_abs": 5e-5}
# where each tensor is cut: rows, columns, or not at all
ROWS, COLUMNS, BOTH_HAVE_IT, EACH_ADDS = "rows", "columns", "both have it", "each adds"


@dataclass
class Case:
    pos_emb: str
    exercises: list
    width: int
    heads: int
    ranks: int = 1
    hidden: int = 16
    vocab: int = 16
    layers: int = 2
    files: bool = False
    """A file a layer, as pipeline stages write them."""
    parallel: bool = False
    tied: bool = False
    head_rows: bool = False
    """Whether ranks have rows of the head, and not columns."""
    dtype: torch.dtype = torch.bfloat16
    mlp: tuple = ("dense_h_to_4h", "dense_4h_to_h")
    settings: dict = field(default_factory=dict)


CASES = {
    "neox_t5_mp2": Case("rpe", ["T5 bias", "two ranks", "head cut into columns", "bf16"], 12, 4, ranks=2,
                        settings={"rpe-num-buckets": 8, "rpe-max-distance": 14}),
    "neox_alibi_parallel_mp2": Case("alibi", ["ALiBi of 6 heads", "gpt-j-residual", "two ranks whose biases are added",
                                              "head cut into rows", "fused GELU", "f16"],
                                    12, 6, ranks=2, parallel=True, head_rows=True, dtype=torch.float16,
                                    settings={"bias-gelu-fusion": True, "output-layer-parallelism": "column"}),
    "neox_learned_tied": Case("learned", ["learned positions", "tied head", "a file a layer", "an epsilon of its own"], 10, 2, files=True,
                              tied=True, settings={"layernorm-epsilon": 1e-3}),
    "neox_rotary_parallel": Case("rotary", ["rotation of half of the features", "gpt-j-residual", "names of newer versions"], 16, 2,
                                 parallel=True, mlp=("linear1", "linear2"), settings={"rotary-pct": 0.5, "rotary-emb-base": 500}),
    "neox_sinusoidal": Case("sinusoidal", ["sines and then cosines", "f16"], 8, 2, dtype=torch.float16),
}


def weights(case, draw):
    """Every tensor of the whole model: its values, or of those that are added one part a rank, and where it is cut."""
    made = {}

    def add(name, shape, cut, scale, middle=0.0):
        def values():
            return (middle + scale * torch.randn(shape, generator=draw, dtype=torch.float64)).to(case.dtype).double()
        made[name] = ([values() for _ in range(case.ranks)] if cut is EACH_ADDS else values(), cut)

    def norm(name):
        add(f"{name}.weight", [case.width], BOTH_HAVE_IT, 0.3, 1.0)
        add(f"{name}.bias", [case.width], BOTH_HAVE_IT, 0.3)

    m, f, h, last = case.width, case.hidden, case.heads, EACH_ADDS if case.parallel else BOTH_HAVE_IT
    add("0.word_embeddings.weight", [case.vocab, m], ROWS, 0.5)
    if case.pos_emb == "learned":
        add("0.position_embeddings.weight", [LENGTH + 4, m], BOTH_HAVE_IT, 0.5)
    # one module, of which every layer has a copy
    bias = 0.7 * torch.randn([case.settings.get("rpe-num-buckets", 1), h], generator=draw, dtype=torch.float64)
    for layer in range(2, 2 + case.layers):
        norm(f"{layer}.input_layernorm")
        add(f"{layer}.attention.query_key_value.weight", [3 * m, m], ROWS, 2.5 / math.sqrt(m))
        add(f"{layer}.attention.query_key_value.bias", [3 * m], ROWS, 0.3)
        add(f"{layer}.attention.dense.weight", [m, m], COLUMNS, 1 / math.sqrt(m))
        add(f"{layer}.attention.dense.bias", [m], last, 0.2)
        norm(f"{layer}.post_attention_layernorm")
        add(f"{layer}.mlp.{case.mlp[0]}.weight", [f, m], ROWS, 2 / math.sqrt(m))
        add(f"{layer}.mlp.{case.mlp[0]}.bias", [f], ROWS, 0.3)
        add(f"{layer}.mlp.{case.mlp[1]}.weight", [m, f], COLUMNS, 1 / math.sqrt(f))
        add(f"{layer}.mlp.{case.mlp[1]}.bias", [m], last, 0.2)
        if case.pos_emb == "rpe":
            made[f"{layer}.attention.rpe.weight"] = (bias.to(case.dtype).double(), COLUMNS)
        elif case.pos_emb == "alibi":
            made[f"{layer}.attention.alibi_embed.slopes"] = (slopes(h), ROWS)
        elif case.pos_emb == "rotary":
            made[f"{layer}.attention.rotary_emb.inv_freq"] = (rates(case, rotated(case)), BOTH_HAVE_IT)
    if case.pos_emb == "sinusoidal":
        made["0.position_embeddings.inv_freq"] = (rates(case, m), BOTH_HAVE_IT)
    norm(f"{case.layers + 3}.norm")
    if not case.tied:
        add(f"{case.layers + 4}.final_linear.weight", [case.vocab, m], ROWS if case.head_rows else COLUMNS, 2 / math.sqrt(m))
    return made


def slopes(heads):
    """Of a power of two of heads, 2^(-8k/n); of others first those of the power below, then every other of the one above."""
    def of_power(n):
        return [2 ** (-8 * k / n) for k in range(1, n + 1)]
    below = 2 ** int(math.log2(heads))
    return torch.tensor((of_power(below) + of_power(2 * below)[0::2])[:heads], dtype=torch.float64)


def rotated(case):
    return int(case.width // case.heads * case.settings["rotary-pct"])


def rates(case, count):
    base = case.settings.get("rotary-emb-base", 10000)
    return base ** (-torch.arange(0, count, 2, dtype=torch.float64) / count)


def buckets(case, distance):
    """Half of the buckets hold a distance each, the others grow with the logarithm up to the largest distance."""
    count, longest = case.settings["rpe-num-buckets"], case.settings["rpe-max-distance"]
    exact = count // 2
    far = exact + (torch.log(distance.clamp(min=1) / exact) / math.log(longest / exact) * (count - exact)).long().clamp(min=0)
    return torch.where(distance < exact, distance, far.clamp(max=count - 1))


def layer_norm(x, w, name, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)


def rotate(x, case, mistake):
    """`[B, H, L, D]`; the first features of each head, halves against each other."""
    n = x.shape[-1] if mistake == "all features rotated" else rotated(case)
    angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * rates(case, n)
    cos, sin = angles.cos(), angles.sin()
    a, b, rest = x[..., :n // 2], x[..., n // 2:n], x[..., n:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def scores(case, w, layer, q, k, mistake):
    d = q.shape[-1]
    s = q @ k.transpose(-1, -2) / math.sqrt(d)
    at = torch.arange(s.shape[-1])
    distance = (at[:, None] - at[None, :]).clamp(min=0)
    if case.pos_emb == "rpe":
        bias = w[f"{layer}.attention.rpe.weight"][buckets(case, distance)].movedim(-1, 0)
        s = s + bias * (1 if mistake == "T5 bias not scaled" else math.sqrt(d))
    elif case.pos_emb == "alibi":
        order = slopes(case.heads).sort(descending=True).values if mistake == "slopes in order" else slopes(case.heads)
        s = s - order[:, None, None] * distance
    return s.masked_fill(at[None, :] > at[:, None], -math.inf)


def forward(case, w, ids, mistake=None):
    eps = 1e-5 if mistake == "another epsilon" else case.settings.get("layernorm-epsilon", 1e-5)
    tanh = bool(case.settings.get("bias-gelu-fusion")) != (mistake == "the other GELU")
    parallel = case.parallel != (mistake == "the other residual")
    x = w["0.word_embeddings.weight"][ids]
    length, d = ids.shape[1], case.width // case.heads
    if case.pos_emb == "learned":
        x = x + w["0.position_embeddings.weight"][:length]
    elif case.pos_emb == "sinusoidal":
        angles = torch.arange(length, dtype=torch.float64)[:, None] * rates(case, case.width)
        rows = [angles.sin(), angles.cos()]
        x = x + (torch.stack(rows, -1).flatten(-2) if mistake == "sines and cosines in turn" else torch.cat(rows, -1))
    for layer in range(2, 2 + case.layers):
        def linear(x, name):
            return x @ w[f"{layer}.{name}.weight"].T + w[f"{layer}.{name}.bias"]
        # rows of the projection: head by head its queries, keys and values
        qkv = linear(layer_norm(x, w, f"{layer}.input_layernorm", eps), "attention.query_key_value")
        q, k, v = (part.transpose(1, 2) for part in qkv.unflatten(-1, (case.heads, 3, d)).unbind(-2))
        if case.pos_emb == "rotary":
            q, k = rotate(q, case, mistake), rotate(k, case, mistake)
        a = scores(case, w, layer, q, k, mistake).softmax(-1) @ v
        a = linear(a.transpose(1, 2).flatten(-2), "attention.dense")
        read = x if parallel else x + a
        hidden = linear(layer_norm(read, w, f"{layer}.post_attention_layernorm", eps), f"mlp.{case.mlp[0]}")
        hidden = torch.nn.functional.gelu(hidden, approximate="tanh" if tanh else "none")
        x = x + a + linear(hidden, f"mlp.{case.mlp[1]}")
    x = layer_norm(x, w, f"{case.layers + 3}.norm", eps)
    head = w["0.word_embeddings.weight"] if case.tied else w[f"{case.layers + 4}.final_linear.weight"]
    return x @ head.T


def whole(made, mistake=None):
    """The model of all ranks."""
    def of(values):
        return values if torch.is_tensor(values) else values[0] if mistake == "biases of one rank" else sum(values)
    return {name: of(values) for name, (values, _) in made.items()}


def mistakes(case):
    found = ["the other GELU", "the other residual"]
    found += ["biases of one rank"] if case.parallel and case.ranks > 1 else []
    found += ["another epsilon"] if "layernorm-epsilon" in case.settings else []
    return found + {"rpe": ["T5 bias not scaled"], "alibi": ["slopes in order"], "rotary": ["all features rotated"],
                    "sinusoidal": ["sines and cosines in turn"]}.get(case.pos_emb, [])


def part(case, values, cut, rank):
    if cut is EACH_ADDS:
        return values[rank]
    if cut is BOTH_HAVE_IT:
        # copies of later ranks have drifted by a rounding
        return values if rank == 0 else values * (1 + 2 ** -8)
    return values.chunk(case.ranks, 0 if cut is ROWS else 1)[rank]


def save(case, made, folder):
    step = folder / "global_step8"
    (step / "configs").mkdir(parents=True)
    (folder / "latest").write_text("global_step8")
    settings = {"pipe-parallel-size": int(case.files), "model-parallel-size": case.ranks, "num-layers": case.layers,
                "hidden-size": case.width, "num-attention-heads": case.heads, "seq-length": LENGTH, "max-position-embeddings": LENGTH + 4,
                "pos-emb": case.pos_emb, "norm": "layernorm", "no-weight-tying": not case.tied, "gpt-j-residual": case.parallel, **case.settings}
    (step / "configs" / "train.yml").write_text("# sizes and positions\n" + json.dumps(settings, indent=1)[:-2] + ",\n}\n")
    for rank in range(case.ranks):
        parts = {name: part(case, values, cut, rank) for name, (values, cut) in made.items()}
        groups = {None: {f"sequential.{name}": values for name, values in parts.items()}}
        if case.files:
            groups = {}
            for name, values in parts.items():
                layer, name = name.split(".", 1)
                groups.setdefault(int(layer), {})[name] = values
        for layer, tensors in groups.items():
            # views of one buffer, as the engine keeps them
            flat = torch.cat([values.flatten() for values in tensors.values()]).to(case.dtype)
            pieces = flat.split([values.numel() for values in tensors.values()])
            tensors = {name: piece.view(values.shape) for (name, values), piece in zip(tensors.items(), pieces)}
            if layer is None:
                torch.save({"module": tensors, "iteration": 8}, step / f"mp_rank_{rank:02}_model_states.pt")
            else:
                torch.save(tensors, step / f"layer_{layer:02}-model_{rank:02}-model_states.pt")
        if case.files:
            torch.save({"module": None, "iteration": 8}, step / f"mp_rank_{rank:02}_model_states.pt")


def make(name, case, out):
    draw = torch.Generator().manual_seed(sum(name.encode()))
    made = weights(case, draw)
    w = whole(made)
    ids = torch.randint(case.vocab, [1, LENGTH], generator=draw)
    logits = forward(case, w, ids)
    nll = -logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    grown, gaps = ids[:, :PROMPT], []
    for _ in range(NEW):
        best = forward(case, w, grown)[:, -1].topk(2)
        gaps.append(float(best.values[0, 0] - best.values[0, 1]))
        grown = torch.cat([grown, best.indices[:, :1]], 1)
    moved = {what: float((forward(case, whole(made, what), ids, what) - logits).abs().max()) for what in mistakes(case)}
    weakest = min(moved, key=moved.get)
    shutil.rmtree(out / name, ignore_errors=True)
    save(case, made, out / name)
    save_file({"input_ids": ids, "logits": logits.float(), "token_nll": nll, "mean_nll": nll.mean()[None],
               "greedy_ids": grown[:, PROMPT:].contiguous()}, out / name / "expected.safetensors")
    return {"id": name, "kind": "neox", "family": "kerple", "folder": name, "expected": f"{name}/expected.safetensors",
            "exercises": case.exercises, "batch": 1, "length": LENGTH, "vocab": case.vocab, "mean_nll": float(nll.mean()),
            "tolerance": TOLERANCE, "greedy": {"prompt_tokens": PROMPT, "new_tokens": NEW, "smallest_gap": min(gaps)},
            "logits_std": float(logits.std()), "weakest_mistake": {"what": weakest, "tolerances": round(moved[weakest] / 1e-4, 1)}}


def main():
    out = Path(sys.argv[1])
    path = out / "manifest.json"
    manifest = json.loads(path.read_text())
    kept = [case for case in manifest["cases"] if case["id"] not in CASES]
    manifest["cases"] = kept + [make(name, case, out) for name, case in CASES.items()]
    manifest["n_cases"] = len(manifest["cases"])
    path.write_text(json.dumps(manifest, indent=1) + "\n")
    for case in manifest["cases"][len(kept):]:
        gap, weakest = case["greedy"]["smallest_gap"], case["weakest_mistake"]
        print(f"{case['id']}: smallest gap {gap:.3f}, weakest mistake {weakest['what']}, {weakest['tolerances']} tolerances")
        if gap < 20 * TOLERANCE["logits_abs"] or weakest["tolerances"] < 5:
            sys.exit("a case says too little: choose other weights")


if __name__ == "__main__":
    main()
