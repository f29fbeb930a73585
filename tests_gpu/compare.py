"""Litz beside TorchInductor on a GPU: `python -m tests_gpu.compare [MODEL ...]`.

In: a machine with a GPU and a C compiler, which TorchInductor needs. Out: a table: milliseconds a
call of each model in bfloat16, by mode, taken in turns, and the seconds of each first call.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from torch._dynamo import list_backends, register_backend

from litz.backend import litz
from litz.bench.zoo import Scale, first_tensor, workload
from tests_gpu.checks import DEVICE, SCALES, microseconds, moved

MODES = ("default", "reduce-overhead")
ROUNDS = 5


def compare(name: str, scale: Scale) -> None:
    made = workload(name, scale, torch.bfloat16)
    model = made.model.to(DEVICE)
    inputs = {k: moved(v) for k, v in made.inputs.items()}

    def call(run: Any) -> torch.Tensor:
        with torch.no_grad():
            return first_tensor(run(**inputs))

    calls, first = {("eager", ""): model}, {}
    torch._dynamo.reset()
    for backend in ("litz", "inductor"):
        for mode in MODES:
            run = torch.compile(model, backend=backend, mode=mode)
            start = time.monotonic()
            call(run)
            torch.cuda.synchronize()
            first[backend, mode] = time.monotonic() - start
            calls[backend, mode] = run
    times: dict[Any, list[float]] = {key: [] for key in calls}
    for _ in range(ROUNDS):
        for key, run in calls.items():
            times[key].append(microseconds(lambda r=run: call(r), 15) / 1e3)
    cells = [f"{statistics.median(times[key]):.2f}" for key in calls]
    cells += [f"{seconds:.1f}" for seconds in first.values()]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main(wanted: list[str]) -> None:
    if "litz" not in list_backends(None):
        register_backend(litz, "litz")
    columns = [f"{backend} {mode}" for backend in ("litz", "inductor") for mode in MODES]
    heads = ["model", "eager", *columns, *(f"first call, {c}" for c in columns)]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name, scale in SCALES.items():
        if name in (wanted or SCALES):
            compare(name, scale)
    if not wanted:
        compare("llama", Scale(2048, 16, 8, 1, 1, 224))


if __name__ == "__main__":
    main(sys.argv[1:])
