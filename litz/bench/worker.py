"""The worker: measures one case with one candidate in a fresh process, then ends.

In: words: compile|memory, suite, case, variant, candidate, threads (0: the default), and optionally
`quick`. Out: one line of JSON. The backend's modules are loaded before the clock starts: the time
is that of Dynamo, AOTAutograd, the backend, and one run. Example:

    python -m litz.bench.worker compile cpu bert "batch 1" litz 2
    {"graph": 0.31, "first call": 1.9}
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.fx

from litz.backend import litz
from litz.bench.agreement import Agreement
from litz.bench.calls import running_on
from litz.bench.candidates import CANDIDATES, OPTIONS, backend_seconds
from litz.bench.case import Case, Program
from litz.bench.suites import case_named
from litz.bench.training import Training
from litz.ir.program import buffer_bytes
from litz.report import Explanation
from litz.runtime.memory import IDLE_ARENAS

Found = dict[str, float | None]
Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def backend_of(name: str, notes: Explanation) -> Backend:
    """A candidate's backend, with its modules loaded: loading them is not part of compiling."""
    if name == "litz":
        return partial(litz, options=OPTIONS, explanation=notes)  # times itself
    if name == "eager":
        return lambda module, _: module.forward
    known = CANDIDATES[name].backend
    if callable(known):
        return known
    wrapper: Any = torch._TorchCompileInductorWrapper(None, None, None)
    wrapper.get_compiler_config()
    return wrapper  # type: ignore[no-any-return]


def compile_times(program: Program, name: str) -> Found:
    """Seconds from AOTAutograd's graph to a callable, and of the whole first call."""
    notes = Explanation()
    compiled = torch.compile(program.function, backend=backend_of(name, notes))
    start = time.perf_counter()
    result = program(compiled)
    whole = time.perf_counter() - start
    _insist(Agreement(program).fault(result))
    noted = backend_seconds(notes)
    return {"graph": sum(noted) if noted else None, "first call": whole}


def memory_peak(program: Program, name: str) -> Found:
    """Bytes that a warm call of a compiled program adds, at its peak, to what was resident.

    Litz keeps its arenas from call to call, so they are added. Its packed weights are counted
    apart: they are not intermediates, and do not grow with the batch.
    """
    if isinstance(program.function, Training):
        return step_peak(program, name)
    agreement, notes, peaks = Agreement(program), Explanation(), [0]
    backend = backend_of(name, notes)

    def watched(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        function = backend(module, inputs)

        def run(*args: Any) -> Any:
            before = _start_watching()
            result = function(*args)
            peaks.append(_resident("VmHWM") - before)
            return result

        return run

    compiled = torch.compile(program.function, backend=watched)
    _insist(agreement.fault(program(compiled)))
    peaks[:] = [0]
    program(compiled)
    plans = [graph.plan for graph in notes.graphs]
    arenas = _arenas()
    found: Found = {"memory": float(max(peaks) + arenas)}
    if plans:
        prepacked = sum(buffer_bytes(b) for plan in plans for b in plan.graph.prepacked)
        unplanned = sum(plan.unplanned_bytes for plan in plans)
        found |= {
            "arena": float(arenas),
            "unplanned": float(unplanned),
            "prepacked": float(prepacked),
        }
    return found


def step_peak(program: Program, name: str) -> Found:
    """Bytes that a training step adds, once it is compiled and the optimizer has its state.

    The memory that Litz keeps from call to call is resident by then, and is added.
    """
    agreement, notes = Agreement(program), Explanation()
    step = torch.compile(program.function, backend=backend_of(name, notes))
    for _ in range(2):
        _insist(agreement.fault(program(step)))
    before = _start_watching()
    program(step)
    prepacked = _arenas()
    return {"memory": float(_resident("VmHWM") - before + prepacked), "arena": float(prepacked)}


def _arenas() -> int:
    """Bytes of the arenas that Litz keeps between calls; graphs share them."""
    return sum(arena.numel() for arena in IDLE_ARENAS)


def _start_watching() -> int:
    """Release free memory, reset the high-water mark, and return the resident bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # 5 resets the peak
    return _resident("VmRSS")


def _resident(field: str) -> int:
    """Bytes as the system counts them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"the system does not tell {field}")


def _insist(fault: str) -> None:
    if fault:
        raise SystemExit(fault)


TASKS = {"compile": compile_times, "memory": memory_peak}


def main(words: list[str]) -> None:
    task, suite, name, variant, candidate, threads, *quick = words
    case: Case = case_named(suite, name, variant, bool(quick))
    with running_on(int(threads) or None):
        found = TASKS[task](case.build(), candidate)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
