#!/usr/bin/env python3
"""Times kerple against PyTorch on this machine, alternately, and prints the ratios.

    pip install torch numpy
    cargo build --release -p kerple -p kerple-conformance
    python3 scripts/compare_torch.py [attention|dape|step|neox|eval] [--rounds 3] [--simd avx2]

    pip install './python[transformers]'
    python3 scripts/compare_torch.py --all                 # everything that docs/speed.md has in its tables, and writes them there
    python3 scripts/compare_torch.py --all --only linear   # prints the rows whose text contains this word, and writes nothing

Attention is one KERPLE-log layer, B1 H12 D64, float32; `dape` the same with a network of 32 hidden units over heads. A step trains a GPT-NeoX decoder with AdamW and clipping: 4 layers,
width 256, 4 heads, batch 8, 256 tokens, or for `neox` 12 layers, width 768, 12 heads, batch 2, 50304 tokens. A ratio above 1
means that kerple is faster. With --simd avx2 neither side uses wider ones; --all measures both sets in turns, where the machine has both.
"""
import argparse, json, math, sys, time
from measuring import bench, child, median_ms, peak_mib, spread



def attention(mode, length, backward):
    import torch, torch.nn.functional as F
    heads, dim = 12, 64
    q, k, v, up = (torch.randn(1, heads, length, dim) for _ in range(4))
    r1, r2 = torch.rand(heads) * 2, torch.rand(heads)
    mix = torch.nn.Sequential(torch.nn.Linear(2 * heads, 32), torch.nn.LeakyReLU(), torch.nn.Linear(32, heads))
    leaves = (q, k, v, r1, r2, *(mix.parameters() if mode == "dape" else ()))
    for leaf in leaves:
        leaf.requires_grad_(backward)

    def bias():
        i = torch.arange(length)
        d = i[:, None] - i[None]
        table = -r1[:, None] * torch.log1p(r2[:, None] * torch.arange(length, dtype=torch.float32))
        return table[:, d.clamp(min=0)].masked_fill(d < 0, -math.inf)[None]

    def dape():  # as the authors' code: scores and biases of all heads stacked, mixed, masked
        d = torch.arange(length)[:, None] - torch.arange(length)[None]
        b = (-r1[:, None, None] * torch.log1p(r2[:, None, None] * d.clamp(min=0).float()))[None]
        x = (q @ k.transpose(-1, -2)) / math.sqrt(dim)
        f = mix(torch.cat([x, b.expand_as(x)], 1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return (x + b + f).masked_fill(d < 0, torch.finfo(x.dtype).min).softmax(-1) @ v

    if mode == "flex":
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        compiled = torch.compile(flex_attention)
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cpu")
        mod = lambda s, b, h, i, j: s - r1[h] * torch.log1p(r2[h] * (i - j).float().clamp(min=0))
    forward = {
        "eager": lambda: ((q @ k.transpose(-1, -2)) / math.sqrt(dim) + bias()).softmax(-1) @ v,
        "sdpa": lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=bias()),
        "causal": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "dape": dape,
        "flex": lambda: compiled(q, k, v, score_mod=mod, block_mask=mask),
    }[mode]

    def run():
        if not backward:
            with torch.no_grad():
                forward()
            return
        forward().backward(up)
        for leaf in leaves:
            leaf.grad = None

    return median_ms(run)


def decoder(torch, layers, width, heads, vocab):
    nn, F = torch.nn, torch.nn.functional

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
            block = lambda: nn.ModuleList([nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width),
                                           nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)])
            self.blocks, self.norm = nn.ModuleList(block() for _ in range(layers)), nn.LayerNorm(width)
            self.r1, self.r2 = nn.Parameter(torch.ones(heads, 1, 1)), nn.Parameter(torch.full((heads, 1, 1), 0.5))

        def forward(self, tokens):
            batch, length = tokens.shape
            i = torch.arange(length)
            d = i[:, None] - i[None]
            bias = (-self.r1 * torch.log1p(self.r2 * d.clamp(min=0).float())).masked_fill(d < 0, -math.inf)
            x = self.embedding(tokens)
            for norm1, qkv, out, norm2, up, down in self.blocks:
                q, k, v = (t.view(batch, length, heads, -1).transpose(1, 2) for t in qkv(norm1(x)).chunk(3, -1))
                a = (q @ k.transpose(-1, -2) / math.sqrt(width // heads) + bias).softmax(-1) @ v
                x = x + out(a.transpose(1, 2).reshape(batch, length, width))
                x = x + down(F.gelu(up(norm2(x))))
            return self.head(self.norm(x))

    return Decoder()


def step(mode, length, layers, heads, batch, vocab):
    import torch, torch.nn.functional as F
    model = decoder(torch, layers, 64 * heads, heads, vocab)
    run_model = torch.compile(model) if mode == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.0, fused=True)
    tokens = torch.randint(0, vocab, (batch, length + 1))

    def run():
        loss = F.cross_entropy(run_model(tokens[:, :-1]).reshape(-1, vocab), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return median_ms(run)


def evaluation(length):
    import torch, torch.nn.functional as F
    model = decoder(torch, 4, 256, 4, 256)
    tokens = torch.randint(0, 256, (1, length + 1))
    start = time.perf_counter()
    with torch.no_grad():
        F.cross_entropy(model(tokens[:, :-1]).reshape(-1, 256), tokens[:, 1:].reshape(-1))
    return 1e3 * (time.perf_counter() - start)


def measured(kind, mode, length, sizes):
    work = {"forward": lambda: attention(mode, length, False), "both": lambda: attention(mode, length, True),
            "step": lambda: step(mode, length, **sizes), "eval": lambda: evaluation(length)}[kind]
    return dict(ms=work(), peak_mib=peak_mib())


CASES = {
    "attention": [("both", ["eager", "sdpa"], 512), ("both", ["eager", "sdpa"], 2048), ("both", ["causal"], 8192),
                  ("forward", ["flex"], 2048), ("forward", ["flex"], 8192)],
    "dape": [("both", ["dape"], 512), ("both", ["dape"], 1024)],
    "step": [("step", ["eager", "compile"], 512)],
    "neox": [("step", ["eager"], 512)],
    "eval": [("eval", ["eager"], 16384)],
}


SIZES = {
    "dape": dict(encoding="dape"),
    "step": dict(layers=4, heads=4, batch=8, vocab=256),
    "neox": dict(layers=12, heads=12, batch=2, vocab=50304),
}


def work_of(name):
    """What `kerple bench` calls this work, and its options."""
    options = [text for key, value in SIZES.get(name, {}).items() for text in (f"--{key}", str(value))]
    return {"neox": "step", "dape": "attention"}.get(name, name), options


def kerple_row(name, kind, length, narrow):
    work, options = work_of(name)
    pick = dict(engine="fused" if name != "attention" else "tiled")
    if work == "attention":
        pick.update(backward=kind == "both", bias="learned" if name == "attention" else name)
    return bench(work, "--lengths", str(length), *options, *simd(narrow), pick=pick)


def simd(narrow):
    """What keeps kerple to the narrower instructions."""
    return ["--simd", "avx2"] if narrow else []


def times_faster(name, kind, modes, length, narrow):
    """How many times faster kerple is than each mode of PyTorch, in turns."""
    ours = kerple_row(name, kind, length, narrow)["median_ms"]

    def ratio(mode):
        theirs = child(__file__, kind, mode, length, SIZES.get(name, {}), narrow=narrow)
        print(f"  {kind} L={length}: kerple {ours:.1f} ms, torch {mode} {theirs['ms']:.1f} ms, peak {theirs['peak_mib']:.0f} MiB", file=sys.stderr)
        return theirs["ms"] / ours

    return [ratio(mode) for mode in modes]


def compare(name, rounds, narrow):
    for kind, modes, length in CASES[name]:
        all_rounds = [times_faster(name, kind, modes, length, narrow) for _ in range(rounds)]
        for mode, ratios in zip(modes, zip(*all_rounds)):
            print(f"{kind if kind != work_of(name)[0] else name:<8} L={length:<6} against {mode:<8} {spread(ratios)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measured(*json.loads(sys.argv[2]))))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=[*CASES])
    parser.add_argument("--all", action="store_true", help="measure every row of docs/speed.md and write the page's tables")
    parser.add_argument("--only", default="", help="with --all: the rows whose text contains this, printed alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--simd", choices=["avx2"])
    args = parser.parse_args()
    if args.all:
        import speed_page

        speed_page.measure(args.rounds, args.only)
    else:
        for name in [args.what] if args.what else CASES:
            compare(name, args.rounds, args.simd == "avx2")
