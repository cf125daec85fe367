"""Every row of the tables in docs/speed.md: what it measures, and writing them there; `compare_torch.py --all` runs it."""
import datetime, json, math, os, re, statistics, subprocess, sys, time
from typing import Callable, NamedTuple
import compare_python, compare_torch, compare_torch_spe
from measuring import ROOT, bench, bench_rows, child

PAGE = os.path.join(ROOT, "docs", "speed.md")
BEGIN, END = "<!-- measured: `compare_torch.py --all` writes what follows -->", "<!-- end of what is measured -->"


class Row(NamedTuple):
    """A row of a table."""

    table: str
    work: str
    against: str = ""

    def __str__(self):
        return " | ".join(filter(None, [self.table, self.work, self.against]))


class Turn(NamedTuple):
    """What is measured together; `measure(narrow)` has a ratio, or a share of the peak, of each row."""

    rows: list[Row]
    measure: Callable[[bool], list[float]]
    #: What takes minutes is measured once.
    long: bool = False


FASTER = "How many times faster kerple is than PyTorch"
PYTHON = "How many times faster `kerple.torch` is than PyTorch"
COST = "How long other scores and weights take, as a multiple of KERPLE-log, at 2048 tokens"
MAPS = "How long changes of queries and keys alone take, as a share of attention with KERPLE-log, at 2048 tokens"
DECODING = "How long one query after cached keys takes, with a cold cache, as a multiple of one with a fixed bias"
TRAINING = "How long a training step takes, as a multiple of one with KERPLE-log"
WINDOWS = "Time per token under a window, as a multiple of L = 16384"
SHARE = "Share of the peak of matrix products, measured between the repetitions"
MODES = {"eager": "eager", "sdpa": "SDPA with the bias as mask", "causal": "causal SDPA without any bias",
         "flex": "compiled FlexAttention", "dape": "eager", "compile": "`torch.compile`"}
WORKS = {"attention": "attention with a learned KERPLE-log", "dape": "attention with DAPE over KERPLE-log, 32 units",
         "step": "training step, 4 layers of width 256", "neox": "training step, 12 layers of width 768, 50304 tokens",
         "eval": "loss of one segment"}
PASSES = {"forward": ", forward", "both": ", forward and backward"}
FEATURES = {"none": "without positions", "sine_spe": "with SineSPE", "kerple_log": "with KERPLE-log"}
MORE_FEATURES = {"conv_spe": "with ConvSPE", "fox": "with gates (FoX)", "relu": "with ReLU features", "elu": "with elu features"}
# options of `kerple bench attention`, and what its rows are called
SCORES = {
    **{f"`{kind}`": (["--encoding", kind], kind) for kind in
       ("alibi", "t5", "bam", "fox", "kerple_positions", "inkling", "wall", "grape_ap", "path", "pope", "fire", "cope", "transformer_xl", "dape")},
    '`wall`, `gate = "bounded"`': (["--encoding", '{"kind":"wall","gate":"bounded"}'], "wall"),
    "`selective_rope`, `decay`": (["--encoding", '{"kind":"selective_rope","decay":true}'], "selective_rope"),
    "`dape`, `kernel = 3`": (["--encoding", '{"kind":"dape","kernel":3}'], "dape"),
    "softpick": (["--normalizer", "softpick"], "softpick"),
    "stick-breaking": (["--normalizer", "stick_breaking"], "stick_breaking"),
    "selective attention": (["--selective-attention", "exclusive"], "selective"),
}
# the rates of 64 features whose period is at most the 512 tokens of a step; the others are 0
HOPE = [rate if 2 * math.pi <= 512 * rate else 0 for rate in (10000 ** (-n / 32) for n in range(32))]
STEP = ["--layers", "4", "--vocab", "1024", "--lengths", "512", "--batch", "2"]
# options of `kerple bench step`
STEPS = {
    **{f"`{kind}`": ["--encoding", kind] for kind in
       ("none", "alibi", "kerple_power", "t5", "bam", "fire", "learned", "rotary", "rotary_positions", "selective_rope", "pope", "fope", "fox",
        "kerple_positions", "inkling", "wall", "grape_ap", "path", "cope", "shaw", "transformer_xl", "dape")},
    **{f"`rotary`, {work}": ["--encoding", json.dumps({"kind": "rotary", key: value})] for work, key, value in
       (("`pct = 0.25` (partial)", "pct", 0.25), ("`keep = 0.75` (p-RoPE)", "keep", 0.75), ("`frequencies` (HoPE)", "frequencies", HOPE))},
    **{f"`{setting}`": ["--set", f"model.block.{setting}".replace(" ", "")] for setting in
       ("attn_softcap = 30", "qk_norm = true", 'sink = "learned"', "ssmax = 0.3", "dropout = 0.1", "clip_qkv = 8", "key_shift = true",
        "short_conv = 4", 'normalizer = "softpick"', 'normalizer = "stick_breaking"', 'selective_attention = "exclusive"', "glu = true",
        'norm = "rms"')},
}


def against_torch():
    for name, cases in compare_torch.CASES.items():
        for kind, modes, length in cases:
            work = f"{WORKS[name]}{PASSES.get(kind, '')}, L = {length}"
            measure = lambda narrow, asked=(name, kind, modes, length): compare_torch.times_faster(*asked, narrow)
            yield Turn([Row(FASTER, work, MODES[mode]) for mode in modes], measure, name in ("neox", "eval"))

    def spe(narrow, length=4096, waves=5, threads=os.cpu_count()):
        ours = compare_torch_spe.kerple_ms(length, threads, "avx2" if narrow else None)
        return [child(compare_torch_spe.__file__, length, waves, threads, narrow=narrow) / ours]

    yield Turn([Row(FASTER, "linear attention, SineSPE and FAVOR+, forward and backward, L = 4096", "eager")], spe)


def from_python():
    def measure(narrow, modes, length, backward):
        one = lambda mode: child(compare_python.__file__, "avx2" if narrow else "avx512", "attention", mode, length, backward, narrow=narrow)
        ours = one("kerple")["ms"]
        return [one(mode)["ms"] / ours for mode in modes]

    for length in (512, 2048):
        for kind, modes in (("forward", ("eager", "sdpa", "flex")), ("both", ("eager", "sdpa"))):
            asked = dict(modes=modes, length=length, backward=kind == "both")
            rows = [Row(PYTHON, f"one layer with KERPLE-log{PASSES[kind]}, L = {length}", MODES[mode]) for mode in modes]
            yield Turn(rows, lambda narrow, asked=asked: measure(narrow, **asked))


def cost_of_scores():
    def measure(narrow, options, bias):
        picks = [dict(bias=one, backward=backward) for backward in (False, True) for one in ("learned", bias)]
        times = [row["median_ms"] for row in bench_rows("attention", "--lengths", "2048", *options, *compare_torch.simd(narrow), picks=picks)]
        return [times[1] / times[0], times[3] / times[2]]

    for work, asked in SCORES.items():
        yield Turn([Row(COST, f"{work}{text}") for text in PASSES.values()], lambda narrow, asked=asked: measure(narrow, *asked))


def cost_of_steps(together=3):
    def step(narrow, options):
        return bench("step", *STEP, *options, *compare_torch.simd(narrow), pick=dict(engine="fused"))["median_ms"]

    def measure(narrow, works):
        plain = step(narrow, [])
        return [step(narrow, STEPS[work]) / plain for work in works]

    works = list(STEPS)
    for first in range(0, len(works), together):
        asked = works[first : first + together]
        yield Turn([Row(TRAINING, work) for work in asked], lambda narrow, asked=asked: measure(narrow, asked))


def cost_of_maps():
    kinds = ("rotary", "selective_rope", "fope")

    def measure(narrow):
        picks = [dict(bias=bias) for bias in ("learned", *kinds)]
        attention, *maps = (row["median_ms"] for row in bench_rows("maps", *compare_torch.simd(narrow), picks=picks, repeats=9))
        return [one / attention for one in maps]

    yield Turn([Row(MAPS, f"`{kind}`, forward and backward") for kind in kinds], measure)


def cost_of_decoding():
    def measure(narrow, length):
        picks = [dict(bias=bias) for bias in ("inkling", "fixed")]
        inkling, fixed = (row["median_ms"] for row in bench_rows("decode", "--lengths", str(length), *compare_torch.simd(narrow), picks=picks, repeats=25))
        return [inkling / fixed]

    for length in (1024, 8192):
        yield Turn([Row(DECODING, f"`inkling` after {length} keys")], lambda narrow, length=length: measure(narrow, length))


def windows(window=512, first=16384):
    def per_token(narrow, length, *options):
        sizes = ["--lengths", str(length), "--heads", "2", "--window", str(window), *options]
        return bench("attention", *sizes, *compare_torch.simd(narrow), pick=dict(bias="learned", backward=True))["median_ms"] / length

    others = {f"L = {length}": (length,) for length in (65536, 1048576)}
    others[f"L = {first}, 4 first tokens (`sink_tokens = 4`)"] = (first, "--sink-tokens", "4")
    for work, asked in others.items():
        measure = lambda narrow, asked=asked: [per_token(narrow, *asked) / per_token(narrow, first)]
        yield Turn([Row(WINDOWS, f"a window of {window}, forward and backward, {work}")], measure, asked[0] > 100_000)


def shares_of_peak():
    def turn(titles, work, options, picks):
        def measure(narrow):
            return [row["peak_share"] for row in bench_rows(work, *options.split(), *compare_torch.simd(narrow), picks=picks)]

        return Turn([Row(SHARE, title) for title in titles], measure)

    learned = dict(bias="learned", backward=True)
    for length in (512, 2048, 8192):
        yield turn([f"{WORKS['attention']}, forward and backward, L = {length}"], "attention", f"--lengths {length}", [learned])
    yield turn([f"{WORKS['attention']}, forward and backward, 8 sequences of L = 128, 4 heads of 32"], "attention",
               "--lengths 128 --batch 8 --heads 4 --head-dim 32", [learned])
    for length, features in ((1024, FEATURES | MORE_FEATURES), (4096, FEATURES | MORE_FEATURES), (65536, FEATURES)):
        titles = [f"linear attention {title}, forward and backward, L = {length}" for title in features.values()]
        picks = [dict(bias=bias, backward=True, engine="chunked") for bias in features]
        yield turn(titles, "linear", f"--lengths {length} --heads 4 --only {','.join(features)}", picks)
    yield turn([f"{WORKS['step']}, L = 512"], "step", "--layers 4 --heads 4 --batch 8 --vocab 256 --lengths 512", [dict(engine="fused")])


def turns():
    yield from against_torch()
    yield from from_python()
    yield from cost_of_scores()
    yield from cost_of_maps()
    yield from cost_of_decoding()
    yield from cost_of_steps()
    yield from windows()
    yield from shares_of_peak()


def cell(table, values):
    show = (lambda x: f"{100 * x:.{0 if table == SHARE else 1}f} %") if table in (SHARE, MAPS) else (lambda x: f"{x:.2f}" if x < 10 else f"{x:.1f}")
    middle = show(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({show(min(values))} .. {show(max(values))})"


def table_lines(table, found, sets):
    mine = [(row, values) for row, values in found if row.table == table]
    against = any(row.against for row, _ in mine)
    columns = ["work", *(["against"] if against else []), *sets]
    yield from ("", f"### {table}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|")
    for row, values in mine:
        yield f"| {' | '.join([row.work, *([row.against] if against else []), *(cell(table, values[one]) for one in sets)])} |"


def machine():
    """The processor, as Linux names it."""
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", open("/proc/cpuinfo").read(), re.M))
    return f"{os.cpu_count()} cores of {found['model name']} (family {found['cpu family']}, model {found['model']})"


def measure(rounds, only):
    wide = "avx512f" in open("/proc/cpuinfo").read()
    sets = {**({"AVX-512": False} if wide else {}), "AVX2": True}
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    if not only and commit.endswith("dirty"):
        sys.exit("docs/speed.md names the commit that was measured: commit your changes and build them first")
    begun, found = time.monotonic(), []
    for turn in turns():
        if not any(only in str(row) for row in turn.rows):
            continue
        values = {name: [] for name in sets}
        for _ in range(1 if turn.long else rounds):
            for name, narrow in sets.items():
                values[name].append(turn.measure(narrow))
        of_rows = {name: list(zip(*rounds_of_rows)) for name, rounds_of_rows in values.items()}
        for at, row in enumerate(turn.rows):
            if only not in str(row):
                continue
            found.append((row, {name: of_rows[name][at] for name in sets}))
            print(row, *(f"{name} {cell(row.table, of_rows[name][at])}" for name in sets), sep=" | ", flush=True)
    if only:
        return
    import torch

    minutes = round((time.monotonic() - begun) / 60)
    lines = [
        f"Measured at commit {commit} on {datetime.date.today()}, on {machine()}, PyTorch {torch.__version__}, in {minutes}",
        "minutes, every row once." if rounds == 1 else
        f"minutes: the median of {rounds} rounds and their range; rows with one number were measured once.",
    ]
    for table in dict.fromkeys(row.table for row, _ in found):
        lines += table_lines(table, found, sets)
    text = open(PAGE).read()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    with open(PAGE, "w") as file:
        file.write("\n".join([before, "", *lines, "", after]))
