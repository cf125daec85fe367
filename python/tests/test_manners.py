"""What happens around a call: threads, forks, the interpreter's lock."""

import os
import threading
import time

import pytest
import torch

from kerple.torch import KerpleLog, attention


def heavy():
    return [torch.randn(1, 4, 2048, 32) for _ in range(3)]


def test_the_interpreter_runs_while_attention_does():
    """Another thread counts while a long call runs; it would stand still if the lock were held."""
    torch.set_num_threads(1)
    try:
        inputs, ticks, over = heavy(), [], threading.Event()

        def count():
            while not over.is_set():
                ticks.append(time.perf_counter())
                time.sleep(0.0005)

        other = threading.Thread(target=count)
        other.start()
        start = time.perf_counter()
        attention(*inputs)
        end = time.perf_counter()
        over.set()
        other.join()
    finally:
        torch.set_num_threads(os.cpu_count() or 1)
    within = [tick for tick in ticks if start < tick < end]
    assert len(within) >= min(3, (end - start) / 0.02), f"{len(within)} ticks in {end - start:.3f} s"


def test_python_threads_call_at_the_same_time():
    inputs = [torch.randn(1, 4, 512, 32) for _ in range(3)]
    want, found = attention(*inputs), [None] * 4

    def call(at):
        found[at] = attention(*inputs)

    threads = [threading.Thread(target=call, args=(at,)) for at in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(torch.equal(want, one) for one in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_computes():
    """The threads of the parent are not in the child: it must make its own, not wait for them."""
    torch.set_num_threads(2)
    inputs = heavy()
    want = attention(*inputs)  # the parent's threads are there before the fork
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # torch's own operations have threads that do not survive a fork: numpy compares
        same = (attention(*inputs).numpy() == want.numpy()).all()
        os.write(write, b"same" if same else b"other")
        os._exit(0)
    os.close(write)
    deadline = time.monotonic() + 60
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child waits for threads that it does not have")
        time.sleep(0.01)
    assert os.read(read, 16) == b"same"
    assert torch.equal(attention(*inputs), want)


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.kernel = KerpleLog(heads=2, head_dim=4, seed=1)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        q = torch.full((1, 2, 300, 4), float(index))
        return self.kernel(q, q, q).detach()


def test_workers_of_a_data_loader():
    rows = Rows()
    attention(*heavy())
    loader = torch.utils.data.DataLoader(rows, num_workers=2, batch_size=None, multiprocessing_context="fork")
    for index, got in enumerate(loader):
        assert torch.equal(got, rows[index])


def test_a_call_that_fails_leaves_the_next_one_alone():
    q = torch.randn(1, 1, 4, 4)
    for _ in range(3):
        with pytest.raises(ValueError, match="window = 0"):
            attention(q, q, q, window=0)
    assert attention(q, q, q).isfinite().all()


def test_attention_is_compiled_with_optimization():
    """Without it, attention is thirty times slower than PyTorch's."""
    q, k, v = [torch.randn(1, 4, 1024, 64) for _ in range(3)]
    bias = torch.zeros(4, 1024)

    def best(call):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return min(times)

    ours = best(lambda: attention(q, k, v, bias=bias))
    theirs = best(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert ours < 6 * theirs, f"{ours:.4f} s, PyTorch's without a bias {theirs:.4f} s"
