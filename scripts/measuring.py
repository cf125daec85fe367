"""What the scripts that time kerple against PyTorch have in common."""
import json, os, resource, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERPLE = os.environ.get("KERPLE", os.path.join(ROOT, "target", "release", "kerple"))
# the development program, built beside it by `cargo build --release -p kerple-conformance`
MEASURE = os.environ.get("MEASURE", os.path.join(os.path.dirname(KERPLE), "measure"))
# what keeps PyTorch's own kernels, oneDNN and MKL to the narrower instructions
NARROW = dict(ATEN_CPU_CAPABILITY="avx2", DNNL_MAX_CPU_ISA="AVX2", MKL_ENABLE_INSTRUCTIONS="AVX2")
# PyTorch 2.15 can crash on what an earlier `torch.compile` stored
UNCACHED = dict(TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")


def median_ms(run, repeats=3):
    """Milliseconds of a call that has been made before: the middle of so many, or of more until they take half a second."""
    run()
    times = []
    while len(times) < repeats or (sum(times) < 500 and repeats > 1):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def peak_mib():
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def limit_memory():
    """Asking for more than the machine has free fails, instead of ending other processes."""
    with open("/proc/meminfo") as file:
        free = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    with open("/proc/self/statm") as file:
        reserved = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    most = reserved + int(0.9 * free * 1024)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def child(script, *told, narrow, more=()):
    """What `script --child TOLD`, a process of its own whose peak of memory is its own, prints as JSON on its last line."""
    env = os.environ | UNCACHED | (NARROW if narrow else {})
    command = [sys.executable, os.path.abspath(script), "--child", json.dumps(told), *more]
    out = subprocess.run(command, capture_output=True, text=True, env=env)
    if out.returncode != 0:
        sys.exit(f"{told}: {out.stderr.strip()[-1500:]}")
    return json.loads(out.stdout.splitlines()[-1])


def spread(ratios):
    """The middle of some ratios, and what they lie between."""
    return f"{statistics.median(ratios):6.2f}x  ({min(ratios):.2f} .. {max(ratios):.2f})"


def bench(work, *options, pick):
    """The row of `kerple bench`, or of `measure`, that has these values."""
    return bench_rows(work, *options, picks=[pick])[0]


def bench_rows(work, *options, picks, repeats=3):
    """For each of `picks` the row that has its values; one program measures them in turns."""
    program = [KERPLE, "bench"] if work in ("attention", "step") else [MEASURE]
    command = [*program, work, *options, "--json", "--repeats", str(repeats)]
    found = [None] * len(picks)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        for line in process.stdout:
            row = json.loads(line)
            found = [one or (row if all(row[key] == value for key, value in pick.items()) else None) for one, pick in zip(found, picks)]
            if all(found):
                process.kill()  # the engines after it are not asked for
                return found
    sys.exit(f"`{' '.join(command)}` printed no row of {picks[found.index(None)]}")
