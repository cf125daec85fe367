"""lm-evaluation-harness against `kerple serve`: its numbers are those of `kerple eval` and of the model itself.

    python scripts/check_serve.py target/release/kerple

Needs lm_eval with its api extra, and no network: the tasks are local files. Trains a tiny model, serves it, and compares
 * rolling log-likelihood (word and byte perplexity, bits per byte) with the rows and the results file of `kerple eval`,
 * generation in batches with what the server writes of one prompt alone,
 * log-likelihood of that text, which has to be the greedy one, from tokens and from text.
"""

import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import urllib.request

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

WINDOW = 48
RUN = """
seed = 5
[data]
path = "data"
[encoding]
kind = "kerple_log"
[model]
n_layers = 2
n_heads = 2
head_dim = 16
[train]
train_len = 32
batch_size = 8
steps = 150
"""


def documents(count, seed):
    """Sentences with white space at the ends, in runs, and of several bytes a character."""
    draw = random.Random(seed)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "naïve", "文字", "it's", "3.14"]
    space = [" ", " ", " ", "  ", "\n", "\t", "\u00a0", "\u3000"]
    texts = []
    for number in range(count):
        parts = [draw.choice(words) + draw.choice(space) for _ in range(draw.randrange(1, 60))]
        texts.append((" " if number % 3 == 0 else "") + "".join(parts))
    return texts


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def task(folder, name, kind, data, more):
    (folder / f"{name}.yaml").write_text(
        f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n"
        f"output_type: {kind}\n{more}metadata:\n  version: 1\n"
    )


def evaluated(folder, url, tasks, **more):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    arguments = {"model": "tiny", "base_url": f"{url}/v1/completions", "num_concurrent": 1, "max_length": WINDOW + 2} | more
    found = simple_evaluate(
        model="local-completions", model_args=arguments, tasks=tasks, bootstrap_iters=0, batch_size=4, log_samples=True,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
    )
    return found["results"], found["samples"]


def same(what, found, expected, tolerance=1e-5):
    # sums of f32 losses, each within 1e-6
    print(f"{what}: {found} and {expected}")
    if not math.isclose(found, expected, rel_tol=tolerance):
        raise SystemExit(f"{what} differs: {found} instead of {expected}")


def check(kerple, folder):
    def run(*arguments):
        return subprocess.run([kerple, *arguments], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout

    text = folder / "text"
    text.mkdir()
    held_out = documents(12, 1)
    write_lines(text / "train.jsonl", [{"text": line} for line in documents(400, 2)])
    write_lines(text / "valid.jsonl", [{"text": line} for line in documents(10, 3)])
    write_lines(text / "test.jsonl", [{"text": line} for line in held_out])
    (folder / "run.toml").write_text(RUN)
    run("prepare", "--input", "text", "--out", "data")
    run("train", "--config", "run.toml", "--out", "run")
    evaluate = ["eval", "run", "--protocol", f"rolling:{WINDOW}", "--lm-eval", "results.json", "--json"]
    row = json.loads(run(*evaluate))
    written = json.loads((folder / "results.json").read_text())["results"][f"kerple_test_rolling_{WINDOW}"]
    expected = {"word_perplexity": row["rolling"]["word_perplexity"], "byte_perplexity": row["rolling"]["byte_perplexity"],
                "bits_per_byte": row["bits_per_byte"]}

    prompts = [line.strip()[:20] for line in held_out[:4] if len(line.strip()) > 20]
    metrics = "".join(f"  - metric: {name}\n" for name in expected)
    task(folder, "rolling", "loglikelihood_rolling", text / "test.jsonl",
         f"doc_to_text: ''\ndoc_to_target: '{{{{text}}}}'\nmetric_list:\n{metrics}")
    write_lines(folder / "prompts.jsonl", [{"prompt": prompt} for prompt in prompts])
    task(folder, "writing", "generate_until", folder / "prompts.jsonl",
         "doc_to_text: '{{prompt}}'\ndoc_to_target: ''\ngeneration_kwargs:\n  until: ['\\n\\n\\n']\n  max_gen_toks: 12\n"
         "  temperature: 0\nmetric_list:\n  - metric: bypass\n")

    server = subprocess.Popen([kerple, "serve", "run", "--port", "0", "--served-model-name", "tiny"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip()
        results, samples = evaluated(folder, url, ["rolling", "writing"])
        for name, value in expected.items():
            same(f"{name}, results file", written[f"{name},none"], value, 1e-12)
            same(f"{name}, served", results["rolling"][f"{name},none"], value)

        continued = []
        for prompt, sample in zip(prompts, samples["writing"], strict=True):
            said = sample["resps"][0][0]
            request = {"prompt": list(prompt.encode()), "max_tokens": 12, "temperature": 0}
            body = urllib.request.Request(f"{url}/v1/completions", json.dumps(request).encode())
            alone = json.load(urllib.request.urlopen(body))["choices"][0]["text"].split("\n\n\n")[0]
            print(f"writing: {prompt!r} goes on {said!r}")
            if said != alone:
                raise SystemExit(f"{prompt!r} went on as {said!r}, alone as {alone!r}")
            if said and "\ufffd" not in said:
                continued.append({"prompt": prompt, "said": said})
        write_lines(folder / "greedy.jsonl", continued)
        task(folder, "greedy", "loglikelihood", folder / "greedy.jsonl",
             "doc_to_text: '{{prompt}}'\ndoc_to_target: '{{said}}'\ntarget_delimiter: ''\nmetric_list:\n  - metric: acc\n")
        found = []
        for how in [{}, {"tokenized_requests": False}]:
            results, samples = evaluated(folder, url, ["greedy"], **how)
            same("share of greedy texts that are the greedy ones", results["greedy"]["acc,none"], 1.0, 0)
            found.append([sample["filtered_resps"][0][0] for sample in samples["greedy"]])
        for of_tokens, of_text in zip(*found, strict=True):
            same("log-likelihood of tokens and of the same text", of_tokens, of_text)
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    if code != 130:
        raise SystemExit(f"the server ended with {code}, 130 was expected")


with tempfile.TemporaryDirectory() as place:
    os.environ |= {"HF_HOME": place, "HF_DATASETS_CACHE": f"{place}/cache"}
    check(str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(place))
print("lm-evaluation-harness and kerple agree")
