"""Every row of the tables in docs/speed.md: what it measures, and writing them there; `compare_torch.py --all` runs it."""
import datetime, os, re, statistics, subprocess, sys, time
from typing import Callable, NamedTuple
import compare_python, compare_torch, compare_torch_spe
from measuring import ROOT, bench_rows, child

PAGE = os.path.join(ROOT, "docs", "speed.md")
BEGIN, END = "<!-- measured: `compare_torch.py --all` writes what follows -->", "<!-- end of what is measured -->"


class Row(NamedTuple):
    """A row of a table; `measure(narrow)` is one ratio, or one share of the peak."""

    table: str
    work: str
    against: str
    measure: Callable[[bool], float]
    #: Rows that take minutes are measured once.
    long: bool = False


FASTER = "How many times faster kerple is than PyTorch"
PYTHON = "How many times faster `kerple.torch` is than PyTorch"
COST = "How long other encodings take, as a multiple of KERPLE-log"
SHARE = "Share of the peak of matrix products, measured between the repetitions"
MODES = {"eager": "eager", "sdpa": "SDPA with the bias as mask", "causal": "causal SDPA without any bias",
         "flex": "compiled FlexAttention", "dape": "eager", "compile": "`torch.compile`"}
WORKS = {"attention": "attention with a learned KERPLE-log", "dape": "attention with DAPE over KERPLE-log, 32 units",
         "step": "training step, 4 layers of width 256", "neox": "training step, 12 layers of width 768, 50304 tokens",
         "eval": "loss of one segment"}
PASSES = {"forward": ", forward", "both": ", forward and backward"}
ENCODINGS = ("alibi", "t5", "fox", "kerple_positions", "inkling", "wall", "grape_ap", "path", "fire", "cope", "transformer_xl", "dape")


def against_torch():
    for name, cases in compare_torch.CASES.items():
        for kind, modes, length in cases:
            for mode in modes:
                work = f"{WORKS[name]}{PASSES.get(kind, '')}, L = {length}"
                measure = lambda narrow, asked=(name, kind, mode, length): compare_torch.times_faster(*asked, narrow)
                yield Row(FASTER, work, MODES[mode], measure, name in ("neox", "eval"))

    def spe(narrow, length=4096, waves=5, threads=os.cpu_count()):
        ours = compare_torch_spe.kerple_ms(length, threads, "avx2" if narrow else None)
        return child(compare_torch_spe.__file__, length, waves, threads, narrow=narrow) / ours

    yield Row(FASTER, "linear attention, SineSPE and FAVOR+, forward and backward, L = 4096", "eager", spe)


def from_python():
    def measure(narrow, mode, length, backward):
        one = lambda mode: child(compare_python.__file__, "avx2" if narrow else "avx512", "attention", mode, length, backward, narrow=narrow)
        ours = one("kerple")["ms"]
        return one(mode)["ms"] / ours

    for length in (512, 2048):
        for kind, modes in (("forward", ("eager", "sdpa", "flex")), ("both", ("eager", "sdpa"))):
            for mode in modes:
                asked = dict(mode=mode, length=length, backward=kind == "both")
                work = f"one layer with KERPLE-log{PASSES[kind]}, L = {length}"
                yield Row(PYTHON, work, MODES[mode], lambda narrow, asked=asked: measure(narrow, **asked))


def cost_of_encodings():
    def measure(narrow, encoding, backward):
        picks = [dict(bias=bias, backward=backward) for bias in ("learned", encoding)]
        log, other = bench_rows("attention", "--lengths", "1024", "--encoding", encoding, *compare_torch.simd(narrow), picks=picks)
        return other["median_ms"] / log["median_ms"]

    for encoding in ENCODINGS:
        for kind in PASSES:
            asked = dict(encoding=encoding, backward=kind == "both")
            yield Row(COST, f"`{encoding}`{PASSES[kind]}", "", lambda narrow, asked=asked: measure(narrow, **asked))


def shares_of_peak():
    def share(narrow, work, options, pick):
        return bench_rows(work, *options.split(), *compare_torch.simd(narrow), picks=[pick])[0]["peak_share"]

    def row(text, work, options, **pick):
        return Row(SHARE, text, "", lambda narrow: share(narrow, work, options, pick))

    for length in (512, 2048, 8192):
        yield row(f"{WORKS['attention']}, forward and backward, L = {length}", "attention", f"--lengths {length}", bias="learned", backward=True)
    yield row(f"{WORKS['attention']}, forward and backward, 8 sequences of L = 128, 4 heads of 32", "attention",
              "--lengths 128 --batch 8 --heads 4 --head-dim 32", bias="learned", backward=True)
    for length in (1024, 4096, 65536):
        for bias, title in (("none", "without positions"), ("sine_spe", "with SineSPE"), ("kerple_log", "with KERPLE-log")):
            yield row(f"linear attention {title}, forward and backward, L = {length}", "linear", f"--lengths {length} --heads 4 --only {bias}",
                      bias=bias, backward=True, engine="chunked")
    yield row(f"{WORKS['step']}, L = 512", "step", "--layers 4 --heads 4 --batch 8 --vocab 256 --lengths 512", engine="fused")


def rows():
    yield from against_torch()
    yield from from_python()
    yield from cost_of_encodings()
    yield from shares_of_peak()


def cell(table, values):
    show = (lambda x: f"{100 * x:.0f} %") if table == SHARE else (lambda x: f"{x:.2f}" if x < 10 else f"{x:.1f}")
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
    for row in rows():
        if only not in f"{row.table} {row.work} {row.against}":
            continue
        values = {name: [] for name in sets}
        for _ in range(1 if row.long else rounds):
            for name, narrow in sets.items():
                values[name].append(row.measure(narrow))
        found.append((row, values))
        print(row.work, row.against, *(f"{name} {cell(row.table, values[name])}" for name in sets), sep=" | ", flush=True)
    if only:
        return
    import torch

    minutes = round((time.monotonic() - begun) / 60)
    lines = [
        f"Measured at commit {commit} on {datetime.date.today()}, on {machine()}, PyTorch {torch.__version__}, in {minutes}",
        f"minutes: the median of {rounds} rounds and their range; rows with one number were measured once.",
    ]
    for table in dict.fromkeys(row.table for row, _ in found):
        lines += table_lines(table, found, sets)
    text = open(PAGE).read()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    with open(PAGE, "w") as file:
        file.write("\n".join([before, "", *lines, "", after]))
