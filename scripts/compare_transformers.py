#!/usr/bin/env python3
"""Times the evaluation of a model by kerple against transformers, on the same cores.

    cargo build --release && python3 scripts/compare_transformers.py [--length 2048] [--tokens 8192] [--rounds 3] [--threads 2] [--memory 16384]

A GPT-NeoX model of the size of Pythia-160M is made with random weights, imported, and evaluated on random tokens by both: transformers
with eager attention and with scaled_dot_product_attention, without gradients, loss and all. They take turns, each in a process
of its own. Reported are tokens a second, the middle of the rounds, and the largest resident memory; then the same of a single
pass over `--memory` tokens. A ratio above 1 means that kerple is faster. Nothing else should run meanwhile.
"""
import argparse, json, multiprocessing, os, random, statistics, subprocess, sys, tempfile, time
from pathlib import Path
from measuring import KERPLE, child, limit_memory, peak_mib, spread

SIZES = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, vocab_size=50304)
KINDS = ("eager", "sdpa")


def make(folder, length):
    """A model of Pythia-160M's sizes with random weights, and a tokenizer of as many words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, rotary_pct=0.25, max_position_embeddings=length, eos_token_id=0)).save_pretrained(folder)
    words = {"<|endoftext|>": 0, **{f"w{i}": i for i in range(1, 50000)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)


def write_text(path, words):
    draw = random.Random(0)
    path.mkdir()
    for document in range(100):
        text = " ".join(f"w{draw.randrange(1, 50000)}" for _ in range(words // 80 + 1))
        (path / f"{document:03}.txt").write_text(text)


def theirs(folder, kind, length, tokens, threads):
    """In a process of its own: all sequences, once the model is loaded and has been called."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=kind, dtype=torch.float32).eval()
    ids = torch.randint(1, 50000, (max(tokens // length, 1), length), generator=torch.Generator().manual_seed(0))
    limit_memory()
    try:
        with torch.no_grad():
            model(ids[:1, :64])
            begun = time.perf_counter()
            for row in ids:
                model(row[None], labels=row[None])
            seconds = time.perf_counter() - begun
    except RuntimeError as error:
        if "alloc" not in str(error):
            raise
        return None
    return dict(rate=ids.numel() / seconds, mib=peak_mib())


def told(*command):
    """The last line a command printed, and the largest resident memory of it in MiB."""
    done = subprocess.Popen([KERPLE, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    out = done.stdout.read()
    _, status, used = os.wait4(done.pid, 0)
    if status:
        sys.exit(f"kerple {' '.join(map(str, command))} failed")
    return out, used.ru_maxrss / 1024


def ours(run, data, length, tokens, threads):
    """`kerple eval` by its own clock, which begins when the model is loaded."""
    (run / "evaluation.jsonl").unlink(missing_ok=True)  # what was evaluated is not evaluated again
    out, mib = told("eval", run, "--data", data, "--lengths", length, "--n-segments", max(tokens // length, 1), "--protocol", "segments",
                    "--threads", threads, "--json")
    row = json.loads(out)
    return dict(rate=row["tokens"] / row["seconds"], mib=mib)


def compare(work, rounds, length, tokens, threads):
    print(f"\nlength {length}, {tokens} tokens, {threads} threads", flush=True)
    found = {name: [] for name in ("kerple", *KINDS)}
    for _ in range(rounds):
        found["kerple"].append(ours(work / "run", work / "data", length, tokens, threads))
        for kind in KINDS:
            if None not in found[kind]:
                found[kind].append(child(__file__, str(work / "model"), kind, length, tokens, threads, narrow=False))
    for name, rows in found.items():
        if None in rows:
            print(f"{name:8} more memory than the machine has")
            continue
        rate, mib = statistics.median(row["rate"] for row in rows), max(row["mib"] for row in rows)
        against = "" if name == "kerple" else spread([one["rate"] / two["rate"] for one, two in zip(found["kerple"], rows)])
        print(f"{name:8} {rate:8.0f} tokens/s  {mib / 1024:6.2f} GiB  {against}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=int, default=16384, help="length of the single pass; 0: none")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(theirs(*json.loads(options.child))))
        return
    with tempfile.TemporaryDirectory(prefix="kerple-compare-") as work:
        work = Path(work)
        # not here: a process begins with the largest memory that the one which started it ever had
        maker = multiprocessing.Process(target=make, args=(work / "model", options.length))
        maker.start()
        maker.join()
        if maker.exitcode:
            sys.exit("no model was made")
        told("import", work / "model", "--out", work / "run")
        write_text(work / "text", max(options.tokens, options.memory) + 2 * options.length)
        told("prepare", "--input", work / "text", "--tokenizer", work / "run" / "tokenizer.json", "--eod-token", "<|endoftext|>",
             "--split", "0.02,0.02,0.96", "--out", work / "data")
        compare(work, options.rounds, options.length, options.tokens, options.threads)
        if options.memory:
            compare(work, 1, options.memory, options.memory, options.threads)


if __name__ == "__main__":
    main()
