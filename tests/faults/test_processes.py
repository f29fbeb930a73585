"""Other processes and other threads: forked, spawned, with small stacks, with little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.processes import ROOT, THREADS_CRASH_TORCH, run

# -- fork --------------------------------------------------------------------------------------

FORK = """
import os, signal, sys, threading
import torch
from litz import compiler
from tests import draws

draws.begin()
torch.set_num_threads(2)
layer = torch.nn.Linear(256, 256)
x = torch.randn(4000, 256)
options = {"on_error": "raise"}

def function(x):  # kernels of two threads, a product with packed weights, a product of ATen's
    return (layer(x).exp() + 1).softmax(-1) @ x.t()[:, :8]

def check(fast, *inputs):
    torch.testing.assert_close(fast(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)

def in_child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # a child that waits for ever ends by it
        try:
            with torch.no_grad():
                work()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    print(work.__name__, status, flush=True)

with torch.no_grad():
    fast = torch.compile(function, backend="litz", options=options)
    check(fast, x)

def calls():
    check(fast, x)
    layer.weight.data[3] += 1  # packed anew
    check(fast, x)

def compiles():
    check(torch.compile(lambda x: function(x) , backend="litz", options=options), x)

def forks_again():
    check(fast, x)
    in_child(calls)

in_child(calls)
in_child(compiles)
in_child(forks_again)

# Another thread is in the middle of a compile, and of packing weights.
begun, go_on = threading.Event(), threading.Event()
optimize = compiler.optimize

def slow(*given):
    begun.set()
    go_on.wait()
    return optimize(*given)

slow.stage_name = "passes"
compiler.optimize = slow
held = [h for h in __import__("litz.runtime.prepacked", fromlist=["ALL"]).ALL]
assert held
thread = threading.Thread(target=torch.compile(lambda x: x.sin() + 1, backend="litz"), args=(x,))
thread.start()
begun.wait()
compiler.optimize = optimize

def packs():
    for each in held:
        each._lock.acquire()
    begun.set()
    go_on.wait()
    for each in held:
        each._lock.release()

begun.clear()
other = threading.Thread(target=packs)
other.start()
begun.wait()
in_child(calls)
in_child(compiles)
go_on.set()
thread.join()
other.join()
with torch.no_grad():
    check(fast, x)
print("done")
"""


def test_a_forked_process_calls_and_compiles() -> None:
    """After kernels have run on two threads, and while other threads compile. (There, eager waits
    for ever: the threads of OpenMP are not forked.)"""
    printed = run(FORK, OMP_NUM_THREADS="2").split("\n")
    assert [line for line in printed if line] == [
        "calls 0", "compiles 0", "calls 0", "forks_again 0", "calls 0", "compiles 0", "done",
    ]  # fmt: skip


UNTOUCHED = """
import os, sys
import torch
from litz import compiler  # without any call of a kernel
torch.set_num_threads(2)
pid = os.fork()
if pid == 0:
    x = torch.randn(4000, 256)
    fast = torch.compile(lambda x: x.exp() + 1, backend="litz")
    torch.testing.assert_close(fast(x), x.exp() + 1)
    os._exit(torch.get_num_threads())
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_process_that_is_forked_before_keeps_its_threads() -> None:
    assert run(UNTOUCHED, OMP_NUM_THREADS="2").strip() == "2"


SPAWN = """
import multiprocessing as mp
import torch

def work(queue, k):
    x = torch.randn(16, 33)
    fast = torch.compile(lambda x: (x * k).softmax(-1).sort(-1)[0], backend="litz")
    torch.testing.assert_close(fast(x), (x * k).softmax(-1).sort(-1)[0])
    queue.put(k)

if __name__ == "__main__":
    context = mp.get_context("spawn")
    torch.compile(lambda x: x + 1, backend="litz")(torch.ones(3))
    queue = context.Queue()
    processes = [context.Process(target=work, args=(queue, k)) for k in (2,)]
    for process in processes:
        process.start()
    print(sorted(queue.get(timeout=120) for _ in processes))
    for process in processes:
        process.join()
        assert process.exitcode == 0
"""


def test_a_spawned_process(tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"  # a child imports it by its path
    script.write_text(SPAWN)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], cwd=ROOT, capture_output=True, text=True,
        timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.strip() == "[2]", done.stderr[-3000:]


# -- small stacks ------------------------------------------------------------------------------

SMALL = """
import sys, threading
import torch
import torch.nn.functional as F
from tests import draws

draws.begin()
torch.set_num_threads(2)
layer = torch.nn.Linear(64, 64)
x = torch.randn(500, 64)
w = torch.randn(8, 3, 3, 3)
image = torch.randn(2, 3, 32, 32)
q = torch.randn(2, 4, 128, 32)
FUNCTIONS = [
    (lambda x: (layer(x).softmax(-1) + 1).sort(-1)[0], x),
    (lambda x: F.layer_norm(x, (64,)).cumsum(1), x),
    (lambda x: (x @ x.t()).relu().sum(0), x),
    (lambda x: x.t().contiguous().exp().var(0), x),
    (lambda i: F.max_pool2d(F.conv2d(i, w), 2), image),
    (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q),
    (lambda x: torch.stack([x * k for k in range(60)]).sum(0), x),
]
fast = [torch.compile(f, backend="litz", options={"on_error": "raise"}) for f, _ in FUNCTIONS]
wrong = []

@torch.no_grad()
def work():
    try:
        for run, (function, given) in zip(fast, FUNCTIONS):
            torch.testing.assert_close(run(given), function(given), rtol=1e-4, atol=1e-4)
    except BaseException as error:
        wrong.append(error)

def on_a_stack_of(kilobytes):
    threading.stack_size(kilobytes << 10)
    threads = [threading.Thread(target=work) for _ in range(int(sys.argv[2]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]

if sys.argv[1] == "calls":
    work()  # compiles, on the main thread
on_a_stack_of(512)
print("done")
"""


@pytest.mark.parametrize("what", ["calls", "compiles"])
def test_threads_with_small_stacks(what: str) -> None:
    """512 KB, as on macOS and in many servers; Linux gives 8 MB."""
    threads = "1" if what == "compiles" and THREADS_CRASH_TORCH else "2"
    assert run(SMALL, what, threads, OMP_NUM_THREADS="2", OMP_STACKSIZE="512K").strip() == "done"
