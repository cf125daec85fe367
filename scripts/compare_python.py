#!/usr/bin/env python3
"""Times kerple's attention for PyTorch against PyTorch's own on this machine, alternately, and prints ratios and memory.

    pip install './python[transformers]'
    python3 scripts/compare_python.py [overhead|attention|models|all] [--simd avx512,avx2] [--lengths 128,512,2048,8192]
        [--models bloom,mpt]

Attention is one KERPLE-log layer, B1 H12 D64, float32, causal, with the gradients of the kernel's two numbers a head; forward, and
forward with backward. FlexAttention has no backward on a processor. Models are one layer of the shape of BLOOM-560M and of
MPT-1B (width 2048, 16 heads), with attention "eager" and "kerple". Every measurement is a process of its own, so that its peak of
memory is, and may take no more than what the machine has free. A ratio above 1 means that kerple is faster. Instruction sets
alternate too; with avx2 neither side uses wider ones. Up to 2048 tokens a row is of three rounds of three calls each, of one round
beyond. Run it on a quiet machine.
"""
import argparse, json, statistics, time
from measuring import child, limit_memory, median_ms, peak_mib

SETS = ("avx512", "avx2")
LENGTHS = (128, 512, 2048, 8192)
MODEL_LENGTHS = (2048, 8192)
MODELS = {"bloom": dict(hidden_size=1024, n_head=16), "mpt": dict(d_model=2048, n_heads=16)}
# longer ones take seconds a call, which one round measures well enough
LONG = 4096


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


def model(mode, name, length, backward):
    """A function that runs one layer between embeddings and loss, without an optimizer."""
    import torch, transformers
    import kerple.transformers

    if name == "bloom":
        config = transformers.BloomConfig(vocab_size=512, n_layer=1, attention_dropout=0.0, hidden_dropout=0.0, **MODELS[name])
    else:
        config = transformers.MptConfig(vocab_size=512, n_layers=1, max_seq_len=length, **MODELS[name])
    net = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=mode).train()
    ids = torch.randint(512, (1, length))

    def run():
        net.zero_grad()
        with torch.set_grad_enabled(backward):
            loss = net(input_ids=ids, labels=ids, use_cache=False).loss
        if backward:
            loss.backward()

    return run


def overhead():
    """Microseconds of a call on one query and key, where nothing is computed: the least of many rounds, what else runs left out."""
    import torch
    from kerple.torch import attention

    q, bias = torch.randn(1, 1, 1, 8), torch.zeros(1, 1)
    leaf, up = q.clone().requires_grad_(), torch.randn_like(q)

    def microseconds(run):
        times = []
        for _ in range(40):
            start = time.perf_counter()
            for _ in range(500):
                run()
            times.append(1e6 * (time.perf_counter() - start) / 500)
        return round(min(times), 2)

    found = {}
    with torch.no_grad():
        found["forward_us"] = microseconds(lambda: attention(q, q, q, bias=bias))
        found["sdpa_forward_us"] = microseconds(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    found["tracked_forward_us"] = microseconds(lambda: attention(leaf, leaf, leaf, bias=bias))
    both = microseconds(lambda: torch.autograd.grad(attention(leaf, leaf, leaf, bias=bias), leaf, up))
    # a backward through nothing, which is torch's own
    found["forward_backward_us"], found["times_two_forward_backward_us"] = both, microseconds(lambda: torch.autograd.grad(leaf * 2, leaf, up))
    return found


def measured(instructions, kind, mode, *asked):
    import kerple

    kerple.limit_instruction_set(instructions)
    if kind == "overhead":
        return overhead()
    run = {"attention": attention, "model": model}[kind](mode, *asked)
    limit_memory()
    before = peak_mib()
    try:
        return dict(ms=median_ms(run, 1 if max(one for one in asked if not isinstance(one, str)) > LONG else 3), mib=peak_mib() - before)
    except (MemoryError, RuntimeError) as error:
        if "alloc" not in str(error):
            raise
        return dict(ms=None, mib=None)


def rows(rounds, sets, title, kind, modes, *asked):
    """Prints a row for each of `modes` against kerple, for each instruction set."""
    found = [
        {(most, mode): child(__file__, most, kind, mode, *asked, narrow=most == "avx2") for most in sets for mode in ("kerple", *modes)}
        for _ in range(rounds)
    ]
    for most, mode in ((most, mode) for most in sets for mode in modes):
        ours, theirs = ([one[most, name] for one in found] for name in ("kerple", mode))
        row = dict(
            work=title, instructions=most, against=mode, kerple_ms=round(statistics.median(one["ms"] for one in ours), 2),
            kerple_mib=round(max(one["mib"] for one in ours), 1),
        )
        if any(one["ms"] is None for one in theirs):
            print(json.dumps(row | dict(times_faster=None, why="more memory than the machine has")), flush=True)
            continue
        ratios = sorted(two["ms"] / one["ms"] for one, two in zip(ours, theirs))
        row |= dict(times_faster=round(statistics.median(ratios), 2), range=[round(ratios[0], 2), round(ratios[-1], 2)])
        print(json.dumps(row | dict(mib=round(max(one["mib"] for one in theirs), 1))), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="all", choices=["attention", "overhead", "models", "all"])
    parser.add_argument("--simd", default=",".join(SETS), help="avx512, avx2 or both")
    parser.add_argument("--lengths", help=f"default: {LENGTHS} of attention, {MODEL_LENGTHS} of models")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measured(*json.loads(args.child))))
        return
    sets = args.simd.split(",")
    lengths = lambda usual: map(int, args.lengths.split(",")) if args.lengths else usual
    if args.what in ("overhead", "all"):
        print(json.dumps(dict(work="overhead", **child(__file__, sets[0], "overhead", "kerple", narrow=False))), flush=True)
    passes = ((False, "forward"), (True, "forward and backward"))
    if args.what in ("attention", "all"):
        for length in lengths(LENGTHS):
            for backward, title in passes:
                modes = ("eager", "sdpa") if backward else ("eager", "sdpa", "flex")
                rows(1 if length > LONG else 3, sets, f"{title}, L = {length}", "attention", modes, length, backward)
    if args.what in ("models", "all"):
        for name in args.models.split(","):
            for length in lengths(MODEL_LENGTHS):
                for backward, title in passes:
                    what = f"a layer of {name}, {title}, L = {length}"
                    rows(1 if length > LONG else 2, sets, what, "model", ("eager",), name, length, backward)


if __name__ == "__main__":
    main()
