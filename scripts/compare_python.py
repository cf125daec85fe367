#!/usr/bin/env python3
"""Times kerple's attention for PyTorch against PyTorch's own on this machine, alternately, and prints ratios and memory.

    pip install './python[transformers]'
    python3 scripts/compare_python.py [attention|overhead|models|all] [--rounds 3] [--instructions avx2] [--lens 128,2048]

Attention is one KERPLE-log layer, B1 H12 D64, float32, causal, with the gradients of the kernel's two numbers a head; forward, and
forward with backward. FlexAttention has no backward on a processor. Models are two layers of the shape of BLOOM-560M and of MPT-7B,
forward and backward, with attention "eager" and "kerple". Every measurement is a process of its own, so that its peak of memory is.
A ratio above 1 means that kerple is faster. With --instructions avx2 neither side uses wider ones. Run it on a quiet machine.
"""
import argparse, json, os, resource, statistics, subprocess, sys, time

# what keeps PyTorch's own kernels, oneDNN and MKL to the narrower instructions
NARROW = dict(ATEN_CPU_CAPABILITY="avx2", DNNL_MAX_CPU_ISA="AVX2", MKL_ENABLE_INSTRUCTIONS="AVX2")
# PyTorch 2.15 can crash on what an earlier `torch.compile` stored
UNCACHED = dict(TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
LENGTHS = (128, 512, 2048, 8192)
#: Shapes of two layers: the largest length that eager attention is asked for has 1 GiB of scores a head or so.
MODELS = {"bloom": dict(hidden_size=1024, n_head=16), "mpt": dict(d_model=4096, n_heads=32)}


def median_ms(run, repeats):
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def attention(mode, length, backward):
    """A function that runs one layer once."""
    import torch
    from kerple.conformance import Call
    from kerple.conformance.backends import BUILT_IN
    from kerple.torch import KerpleLog

    q, k, v, up = (torch.randn(1, 12, length, 64) for _ in range(4))
    kernel = KerpleLog(heads=12, seed=1)
    leaves = [q, k, v, *kernel.parameters()]
    for leaf in leaves:
        leaf.requires_grad_(backward)
    distances = torch.arange(length)

    def bias():
        if mode == "kerple":
            return kernel.table(length)[0]
        return -kernel.r1[:, None] * torch.log1p(kernel.r2[:, None] * distances)

    def run():
        with torch.set_grad_enabled(backward):
            out = BUILT_IN[mode](Call(q, k, v, bias(), True, None, None, 64**-0.5))
        if backward:
            torch.autograd.grad(out, leaves, up)

    return run


def model(mode, name, length):
    """A function that trains two layers for one step, without the optimizer."""
    import torch, transformers
    import kerple.transformers

    if name == "bloom":
        config = transformers.BloomConfig(vocab_size=512, n_layer=2, attention_dropout=0.0, hidden_dropout=0.0, **MODELS[name])
    else:
        config = transformers.MptConfig(vocab_size=512, n_layers=2, max_seq_len=length, **MODELS[name])
    net = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=mode).train()
    ids = torch.randint(512, (1, length))

    def run():
        net.zero_grad()
        net(input_ids=ids, labels=ids, use_cache=False).loss.backward()

    return run


def overhead():
    """Microseconds of a call on one query and key, where nothing is computed."""
    import torch
    from kerple.torch import attention

    q = torch.randn(1, 1, 1, 8)
    bias = torch.zeros(1, 1)

    def microseconds(run):
        for _ in range(1000):
            run()
        times = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(500):
                run()
            times.append(1e6 * (time.perf_counter() - start) / 500)
        return statistics.median(times)

    with torch.no_grad():
        forward = microseconds(lambda: attention(q, q, q, bias=bias))
        sdpa = microseconds(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    leaf, up = q.clone().requires_grad_(), torch.randn_like(q)
    tracked = microseconds(lambda: attention(leaf, leaf, leaf, bias=bias))
    both = microseconds(lambda: torch.autograd.grad(attention(leaf, leaf, leaf, bias=bias), leaf, up))
    return dict(forward_us=forward, forward_tracked_us=tracked, forward_backward_us=both, sdpa_forward_us=sdpa)


def measured(kind, mode, *asked):
    if kind == "overhead":
        return overhead()
    run = {"attention": attention, "model": model}[kind](mode, *asked)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    milliseconds = median_ms(run, 3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return dict(ms=milliseconds, mib=(peak - before) / 1024)


def child(args, *told):
    env = os.environ | UNCACHED | (NARROW if args.instructions == "avx2" else {})
    command = [sys.executable, os.path.abspath(__file__), "--child", json.dumps(told), "--instructions", args.instructions]
    out = subprocess.run(command, capture_output=True, text=True, env=env, cwd="/")
    if out.returncode != 0:
        sys.exit(f"{told}: {out.stderr.strip()[-1500:]}")
    return json.loads(out.stdout.splitlines()[-1])


def alternate(args, title, kind, modes, *asked):
    """A row for each of `modes` against kerple."""
    rounds = [{mode: child(args, kind, mode, *asked) for mode in ("kerple", *modes)} for _ in range(args.rounds)]
    own = statistics.median(one["kerple"]["ms"] for one in rounds)
    room = max(one["kerple"]["mib"] for one in rounds)
    for mode in modes:
        ratios = sorted(one[mode]["ms"] / one["kerple"]["ms"] for one in rounds)
        theirs = max(one[mode]["mib"] for one in rounds)
        row = dict(
            work=title, against=mode, times_faster=round(statistics.median(ratios), 2),
            range=[round(ratios[0], 2), round(ratios[-1], 2)], kerple_ms=round(own, 2), kerple_mib=round(room, 1), mib=round(theirs, 1),
        )
        print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="all", choices=["attention", "overhead", "models", "all"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--instructions", default="avx512", choices=["avx2", "avx512"])
    parser.add_argument("--lens", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        import kerple

        kerple.limit_instruction_set(args.instructions)
        print(json.dumps(measured(*json.loads(args.child))))
        return
    if args.what in ("overhead", "all"):
        print(json.dumps(dict(work="overhead", **child(args, "overhead", "kerple"))), flush=True)
    if args.what in ("attention", "all"):
        for length in map(int, args.lens.split(",")):
            alternate(args, f"forward, L = {length}", "attention", ("eager", "sdpa", "flex"), length, False)
            alternate(args, f"forward and backward, L = {length}", "attention", ("eager", "sdpa"), length, True)
    if args.what in ("models", "all"):
        for name in MODELS:
            for length in (2048, 8192):
                alternate(args, f"two layers of {name}, L = {length}", "model", ("eager",), name, length)


if __name__ == "__main__":
    main()
