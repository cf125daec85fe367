"""Times the evaluation of a model by kerple against transformers, on the same cores.

    python scripts/compare_transformers.py [--bin target/release] [--length 2048] [--tokens 16384] [--threads 2] [--memory 16384]

A GPT-NeoX model of the size of Pythia-160M is made with random weights, imported, and evaluated on random tokens by both: transformers
with eager attention and with scaled_dot_product_attention, without gradients, loss and all. Reported are tokens a second, the best
of `--repeats` runs, each in a process of its own, and the largest resident memory of a single pass over `--memory` tokens.
Nothing else should run meanwhile.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZES = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, vocab_size=50304)


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


def theirs(folder, kind, length, tokens, threads):
    """In a process of its own: seconds for all sequences, and the largest resident memory in bytes."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=kind, dtype=torch.float32).eval()
    ids = torch.randint(1, 50000, (max(tokens // length, 1), length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(ids[:1, :64])
        begun = time.perf_counter()
        for row in ids:
            model(row[None], labels=row[None])
        seconds = time.perf_counter() - begun
    print(json.dumps({"tokens_per_second": ids.numel() / seconds, "bytes": peak()}))


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def child(*command):
    """The last line a command printed, and the largest resident memory of it."""
    done = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    out = done.stdout.read()
    _, status, used = os.wait4(done.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed")
    return out, used.ru_maxrss * 1024


def ours(binary, run, data, length, tokens, threads):
    """Tokens a second of `kerple eval` by its own clock, which begins when the model is loaded, and the largest resident memory."""
    (run / "evaluation.jsonl").unlink(missing_ok=True)  # what was evaluated is not evaluated again
    out, used = child(
        binary, "eval", str(run), "--data", str(data), "--lengths", str(length), "--segments", str(max(tokens // length, 1)),
        "--protocol", "segments", "--threads", str(threads), "--json",
    )
    row = json.loads(out)
    return {"tokens_per_second": row["tokens"] / row["seconds"], "bytes": used}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "target" / "release"))
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=int, default=16384, help="length at which memory is compared; 0: not at all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--theirs", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.theirs:
        folder, kind, length, tokens = options.theirs
        return theirs(folder, kind, int(length), int(tokens), options.threads)
    kerple = str(Path(options.bin) / "kerple")
    with tempfile.TemporaryDirectory(prefix="kerple-compare-") as work:
        work = Path(work)
        make(work / "model", options.length)
        child(kerple, "import", str(work / "model"), "--out", str(work / "run"))
        write_text(work / "text", max(options.tokens, options.memory) + 2 * options.length)
        child(kerple, "prepare", "--input", str(work / "text"), "--tokenizer", str(work / "run" / "tokenizer.json"),
              "--end-of-document", "<|endoftext|>", "--split", "0.02,0.02,0.96", "--out", str(work / "data"))
        for length, tokens in [(options.length, options.tokens), (options.memory, options.memory)][: 2 if options.memory else 1]:
            print(f"\nlength {length}, {tokens} tokens, {options.threads} threads")
            report("kerple", [ours(kerple, work / "run", work / "data", length, tokens, options.threads) for _ in range(options.repeats)])
            for kind in ("eager", "sdpa"):
                command = [sys.executable, __file__, "--threads", str(options.threads), "--theirs", str(work / "model"), kind, str(length), str(tokens)]
                found = []
                for _ in range(options.repeats):
                    out, _ = child(*command)
                    found.append(json.loads(out.splitlines()[-1]))
                report(f"transformers, {kind}", found)


def write_text(path, words):
    import random

    draw = random.Random(0)
    path.mkdir()
    for document in range(100):
        text = " ".join(f"w{draw.randrange(1, 50000)}" for _ in range(words // 80 + 1))
        (path / f"{document:03}.txt").write_text(text)


def report(name, found):
    best = max(one["tokens_per_second"] for one in found)
    most = max(one["bytes"] for one in found)
    print(f"{name:22} {best:10.0f} tokens/s  {most / 2**30:8.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
