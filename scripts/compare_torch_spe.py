#!/usr/bin/env python3
"""Times linear attention with SineSPE and FAVOR+ against the same formulas in eager PyTorch, alternately, on this machine.

    pip install torch numpy
    cargo build --release -p kerple -p kerple-conformance
    python3 scripts/compare_torch_spe.py [--rounds 3] [--length 4096] [--simd avx2]

One layer, B1 H8 D64 R64, K sinusoids, M = 128 features, float32, forward and backward in q, k, v and what the code learns.
The PyTorch side follows the published formulas: codes q_bar and k_bar are made as tensors [1, L, H, D, R], multiplied into
queries and keys, mapped to exp(+-x Omega - |x|^2 / 2), and attention is causal by running sums over chunks (running sums over
all positions, as in the original's fallback, would hold L M D numbers a head). A ratio above 1 means that kerple is faster.
With --simd avx2 neither side uses wider ones.
"""
import argparse, json, math, os, sys
from measuring import bench, child, median_ms, spread

H, D, R, M = 8, 64, 64, 128


def torch_ms(length, waves, threads, chunk=128):
    import torch, torch.nn.functional as F
    torch.set_num_threads(threads)
    q, k, v, up = (torch.randn(1, length, H, D) for _ in range(4))
    freqs, offsets, gains = torch.randn(H, D, waves) - 4, torch.randn(H, D, waves), torch.randn(H, D, waves)
    gate = torch.randn(H, D)
    leaves = (q, k, v, freqs, offsets, gains, gate)
    for leaf in leaves:
        leaf.requires_grad_(True)
    omega = torch.randn(R, M // 2)
    # drawn outside of what is timed, as on the other side
    noise, shared = torch.randn(1, H, D, 2 * waves, R), torch.randn(H, D, R)

    def codes():
        z = noise / math.sqrt(2 * waves)
        z = z * F.softplus(gains).repeat_interleave(2, -1)[None, ..., None]
        f = torch.sigmoid(freqs) / 2
        angle = 2 * math.pi * f[:, :, None] * torch.arange(length, dtype=torch.float32)[None, None, :, None]
        def side(angle):
            basis = torch.stack([angle.cos(), angle.sin()], -1).flatten(-2)  # [H, D, L, 2K]
            return (basis[None] @ z).permute(0, 3, 1, 2, 4) / (R * D) ** 0.25  # [1, L, H, D, R]
        eps, share = shared / (D * R) ** 0.25, torch.sigmoid(gate)[None, None, :, :, None]
        mix = lambda code: (1 - share).sqrt() * code + share.sqrt() * eps
        return mix(side(angle + offsets[:, :, None])), mix(side(angle))

    def phi(x):
        x = x / R ** 0.25
        u, less = x @ omega, (x * x).sum(-1, keepdim=True) / 2 + 0.5 * math.log(M)
        return torch.cat([(u - less).exp(), (-u - less).exp()], -1)

    def forward():
        q_bar, k_bar = codes()
        fq, fk = (phi((x[..., None] * bar).sum(-2)).transpose(1, 2) for x, bar in ((q, q_bar), (k, k_bar)))
        n = length // chunk
        fq, fk = (x.reshape(1, H, n, chunk, M) for x in (fq, fk))
        vs = torch.cat([v, torch.ones(1, length, H, 1)], -1).transpose(1, 2).reshape(1, H, n, chunk, D + 1)
        sums = fk.transpose(-1, -2) @ vs
        sums = sums.cumsum(2) - sums
        out = fq @ sums + (fq @ fk.transpose(-1, -2)).tril() @ vs
        return (out[..., :D] / (out[..., D:] + 1e-6)).reshape(1, H, length, D).transpose(1, 2)

    def run():
        forward().backward(up)
        for leaf in leaves:
            leaf.grad = None

    return median_ms(run)


def kerple_ms(length, threads, instructions):
    told = ["linear", "--only", "sine_spe", "--lengths", length, "--heads", H, "--head-dim", D, "--threads", threads]
    told += ["--simd", instructions] if instructions else []
    return bench(*map(str, told), pick=dict(bias="sine_spe", backward=True, engine="chunked"))["median_ms"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--waves", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--simd", choices=["avx2"])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(torch_ms(*json.loads(args.child)))
        sys.exit()
    ratios = []
    for _ in range(args.rounds):
        ours = kerple_ms(args.length, args.threads, args.simd)
        theirs = child(__file__, args.length, args.waves, args.threads, narrow=bool(args.simd))
        ratios.append(theirs / ours)
        print(f"  L={args.length}: kerple {ours:.1f} ms, torch eager {theirs:.1f} ms", file=sys.stderr)
    print(f"SineSPE + FAVOR+ L={args.length} forward and backward: {spread(ratios)}")
