#!/usr/bin/env python3
"""Times kerple against PyTorch on a GPU, alternately, and prints the ratios: the table that docs/gpu.md has no numbers for yet.

    pip install torch numpy
    cargo build --release --features cuda && python3 scripts/compare_gpu.py [attention|step|all] [--rounds 3]
    pip install kerple[torch] && python3 scripts/compare_gpu.py triton       # the Python package's kernels alone, without the command
    pip install kerple[torch] && python3 scripts/compare_gpu.py decode       # the same, one query after many keys

Attention is one layer of 8 sequences and 12 heads of 64 features with a learned bias over distances, forward and backward. `flex` is
compiled FlexAttention, which looks the bias up in a captured table; `flash` the same by its FlashAttention-4 path; `cudnn`, `efficient`
and `math` are SDPA's backends, given the bias as a dense matrix; `causal` is SDPA without a bias; `triton` is kerple.torch.attention.
The time of the forward pass alone stands behind, and whether a second run has the same bits. What PyTorch refuses is said in its words. A step trains a GPT-NeoX decoder of 162 million parameters at 512 tokens, compiled with FlexAttention. A ratio above 1 means that
kerple is faster; beside it stands what a bias costs kerple itself. Memory is the most that is held beyond what stays between two calls, of
kerple as its pools reserve it.

`--device wgpu:software --torch-device cpu --small` goes through all of it without a GPU.
"""
import argparse, json, math, statistics, subprocess, sys, time
from measuring import KERPLE, child, spread

BACKENDS = {"cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
PYTORCH = ["flex", "flash", *BACKENDS, "causal"]
MODES = {"attention": [*PYTORCH, "triton"], "triton": PYTORCH, "decode": ["flex", "efficient", "math", "causal"], "step": ["compile"]}
#: kerple.torch's own, by the bias of a row.
TRITON = {"none": "triton-plain", "learned": "triton"}


def precise(torch, precision):
    """What PyTorch multiplies, as kerple's `--precision` says it; the numbers that tensors have."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    return torch.bfloat16 if precision == "bf16" else torch.float32


class Timed:
    """Times calls on a device, and tells how much memory they take beyond what was there."""

    def __init__(self, torch, device):
        self.torch, self.gpu = torch, device != "cpu"

    def __call__(self, run, repeats):
        wait = self.torch.cuda.synchronize if self.gpu else lambda: None
        run()
        wait()
        before = 0
        if self.gpu:
            self.torch.cuda.reset_peak_memory_stats()
            before = self.torch.cuda.memory_allocated()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            wait()
            times.append(1e3 * (time.perf_counter() - start))
        peak = self.torch.cuda.max_memory_allocated() - before if self.gpu else 0
        return dict(ms=statistics.median(times), mib=peak / 2**20)


def by_distance(torch, length, device):
    i = torch.arange(length, device=device)
    return i[:, None] - i[None]


def causal_mask(length, device):
    from torch.nn.attention.flex_attention import create_block_mask
    return create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=device)


def attention(mode, length, sizes, precision, device, repeats):
    import torch, torch.nn.functional as F
    number, (batch, heads, dim) = precise(torch, precision), sizes
    make = lambda *shape: torch.randn(*shape, device=device)
    q, k, v, up = (make(batch, heads, length, dim).to(number) for _ in range(4))
    r1, r2 = torch.rand(heads, 1, device=device) * 2, torch.rand(heads, 1, device=device)
    table = -r1 * torch.log1p(r2 * torch.arange(length, device=device, dtype=torch.float32))
    leaves = [q, k, v, *([table] if mode not in ("causal", "triton-plain") else [])]
    for leaf in leaves:
        leaf.requires_grad_()

    if mode in ("flex", "flash"):
        from torch.nn.attention.flex_attention import flex_attention
        compiled, mask = torch.compile(flex_attention), causal_mask(length, device)
        options = {"BACKEND": "FLASH"} if mode == "flash" else None
        mod = lambda s, b, h, i, j: s + table[h, (i - j).clamp(min=0)]
        forward = lambda: compiled(q, k, v, score_mod=mod, block_mask=mask, kernel_options=options)
    elif mode in TRITON.values():
        from kerple.torch import attention as fused, set_float32_precision
        set_float32_precision("tf32x3" if precision == "tf32" else "ieee")
        forward = lambda: fused(q, k, v, bias=table if mode == "triton" else None)
    elif mode == "causal":
        forward = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        d = by_distance(torch, length, device)

        def forward():
            bias = table[:, d.clamp(min=0)].masked_fill(d < 0, -math.inf).to(number)
            with sdpa_kernel(getattr(SDPBackend, BACKENDS[mode])):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])

    def run():
        out = forward()
        out.backward(up)
        found = [out.detach(), *(leaf.grad for leaf in leaves)]
        for leaf in leaves:
            leaf.grad = None
        return found

    def inference():
        with torch.no_grad():
            forward()

    timed = Timed(torch, device)
    row = timed(run, repeats)
    same = all(torch.equal(a, b) for a, b in zip(run(), run()))
    return dict(row, forward_ms=timed(inference, repeats)["ms"], same_bits=same)


def decode(mode, length, sizes, precision, device, repeats):
    """The next token of each sequence, with 4 query heads to a key head."""
    import torch, torch.nn.functional as F
    number, (batch, heads, dim) = precise(torch, precision), sizes
    make = lambda heads, rows: torch.randn(batch, heads, rows, dim, device=device).to(number)
    groups = max(1, heads // 4)
    q, k, v = make(heads, 1), make(groups, length), make(groups, length)
    table = -torch.log1p(torch.rand(heads, 1, device=device) * torch.arange(length, device=device, dtype=torch.float32))
    if mode == "flex":
        from torch.nn.attention.flex_attention import flex_attention
        compiled = torch.compile(flex_attention)
        run = lambda: compiled(q, k, v, score_mod=lambda s, b, h, i, j: s + table[h, length - 1 - j], enable_gqa=True)
    elif mode in TRITON.values():
        from kerple.torch import attention as fused, set_float32_precision
        set_float32_precision("tf32x3" if precision == "tf32" else "ieee")
        run = lambda: fused(q, k, v, bias=table if mode == "triton" else None)
    else:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        row = None if mode == "causal" else table.flip(1)[None, :, None].to(number)
        backends = [getattr(SDPBackend, BACKENDS[mode])] if mode != "causal" else [*SDPBackend.__members__.values()][1:]

        def run():
            with sdpa_kernel(backends):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=row, enable_gqa=True)

    with torch.no_grad():
        same = torch.equal(run(), run())
        row_of = Timed(torch, device)(run, repeats)
    return dict(row_of, forward_ms=row_of["ms"], same_bits=same)


def decoder(torch, layers, heads, dim, vocab):
    """GPT-NeoX with KERPLE's logarithm in FlexAttention, logits tied to nothing."""
    nn, F = torch.nn, torch.nn.functional
    from torch.nn.attention.flex_attention import flex_attention
    width = heads * dim

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
            block = lambda: nn.ModuleList([nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width),
                                           nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)])
            self.blocks, self.norm = nn.ModuleList(block() for _ in range(layers)), nn.LayerNorm(width)
            self.r1, self.r2 = nn.Parameter(torch.ones(heads, 1)), nn.Parameter(torch.full((heads, 1), 0.5))

        def forward(self, tokens, mask):
            batch, length = tokens.shape
            table = -self.r1 * torch.log1p(self.r2 * torch.arange(length, device=tokens.device, dtype=torch.float32))
            mod = lambda s, b, h, i, j: s + table[h, (i - j).clamp(min=0)]
            x = self.embedding(tokens)
            for norm1, qkv, out, norm2, up, down in self.blocks:
                q, k, v = (t.view(batch, length, heads, dim).transpose(1, 2) for t in qkv(norm1(x)).chunk(3, -1))
                if mask is None:  # there is no FlexAttention with a backward on a processor
                    d = by_distance(torch, length, tokens.device)
                    bias = table[:, d.clamp(min=0)].masked_fill(d < 0, -math.inf)
                    a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None].to(q.dtype))
                else:
                    a = flex_attention(q, k, v, score_mod=mod, block_mask=mask)
                x = x + out(a.transpose(1, 2).reshape(batch, length, width))
                x = x + down(F.gelu(up(norm2(x))))
            return self.head(self.norm(x))

    return Decoder()


def step(_mode, length, sizes, precision, device, repeats):
    import torch, torch.nn.functional as F
    precise(torch, precision)
    batch, layers, heads, dim, vocab = sizes
    model = decoder(torch, layers, heads, dim, vocab).to(device)
    compiled, optimizer = torch.compile(model), torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.0, fused=True)
    tokens = torch.randint(0, vocab, (batch, length + 1), device=device)
    mask = None if device == "cpu" else causal_mask(length, device)

    def run():
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            logits = compiled(tokens[:, :-1], mask)
        loss = F.cross_entropy(logits.reshape(-1, vocab).float(), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Timed(torch, device)(run, repeats)


def measured(work, *told):
    """Times and memory, or what was refused."""
    try:
        return {"attention": attention, "triton": attention, "decode": decode, "step": step}[work](*told)
    except Exception as error:  # whatever a version of PyTorch says of what it has not
        lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
        return dict(refused=" ".join(lines)[:160])


def ours(work, length, flags, biases):
    """Rows of `kerple bench` by their bias."""
    command = [KERPLE, "bench", work, "--lengths", str(length), *flags, "--json"]
    found = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            row = json.loads(line)
            if row["engine"] != "composed" and row["backward"]:
                found[row["bias"]] = dict(ms=row["median_ms"], mib=row.get("extra_mib"))
            if all(bias in found for bias in biases):
                process.kill()  # the definition, which comes behind, is not asked for
                return found
        told = process.stderr.read()
    sys.exit(f"`{' '.join(command)}` printed no row of {' and '.join(biases)}: {told.strip()[-600:]}")


def triton(work, length, sizes, precision, args):
    """The same rows of the Python package's kernels."""
    found = {bias: child(__file__, work, mode, length, sizes, precision, args.torch_device, args.repeats, narrow=False)
             for bias, mode in TRITON.items()}
    for row in found.values():
        if "refused" in row:
            sys.exit(f"kerple.torch.attention: {row['refused']}")
    return found


def told(row):
    """Forward pass and bits of a row of attention, where it has them."""
    if "forward_ms" not in row:
        return ""
    return f", forward {row['forward_ms']:.3f} ms, {'the same bits twice' if row['same_bits'] else 'other bits in a second run'}"


def mib(value):
    return "" if value is None else f"{value:.0f} MiB"


def compare(work, length, precision, args):
    batch, heads, dim, layers, vocab = (1, 2, 16, 2, 256) if args.small else (8, 12, 64, 12, 50304)
    flags = ["--batch", batch, "--heads", heads, "--head-dim", dim, "--device", args.device, "--precision", precision]
    flags += ["--repeats", args.repeats] + (["--layers", layers, "--vocab", vocab] if work == "step" else [])
    flags = [str(flag) for flag in flags]
    biases = ["none", "learned"] if work != "step" else ["learned"]
    sizes = (batch, heads, dim) if work != "step" else (batch, layers, heads, dim, vocab)
    own, theirs = {bias: [] for bias in biases}, {mode: [] for mode in MODES[work]}
    for _ in range(args.rounds):
        mine = triton(work, length, sizes, precision, args) if work in ("triton", "decode") else ours(work, length, flags, biases)
        for bias, row in mine.items():
            own[bias].append(row)
        for mode, rows in theirs.items():
            if not any("refused" in row for row in rows):
                rows.append(child(__file__, work, mode, length, sizes, precision, args.torch_device, args.repeats, narrow=False))
    what = f"{work} L={length} {precision}"
    median = lambda rows: statistics.median(row["ms"] for row in rows)
    print(f"{what}: kerple {median(own['learned']):.3f} ms, {mib(own['learned'][-1]['mib'])}{told(own['learned'][-1])}")
    if work != "step":
        costs = [learned["ms"] / none["ms"] for learned, none in zip(own["learned"], own["none"])]
        print(f"  its bias {'costs' if work == 'decode' else 'and the gradient of it cost'} {spread(costs)}")
    for mode, rows in theirs.items():
        if "refused" in rows[-1]:
            print(f"  against {mode:<10} refused: {rows[-1]['refused']}")
            continue
        ratios = [row["ms"] / mine["ms"] for row, mine in zip(rows, own["learned"])]
        print(f"  against {mode:<10} {spread(ratios)}, {median(rows):.3f} ms, {mib(rows[-1]['mib'])}{told(rows[-1])}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measured(*json.loads(sys.argv[2]))))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="all", choices=[*MODES, "all"])
    parser.add_argument("--device", default="cuda", help="kerple's")
    parser.add_argument("--torch-device", default="cuda", help="PyTorch's")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384], help="of attention")
    parser.add_argument("--precision", nargs="+", default=["bf16", "tf32", "f32"], choices=["bf16", "tf32", "f32"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10, help="timed calls of a round")
    parser.add_argument("--small", action="store_true", help="sizes for a rehearsal without a GPU")
    args = parser.parse_args()
    for precision in args.precision:
        for length in args.lengths if args.what != "step" else []:
            compare(args.what if args.what in ("triton", "decode") else "attention", length, precision, args)
        if args.what in ("step", "all"):
            compare("step", 64 if args.small else 512, precision, args)
