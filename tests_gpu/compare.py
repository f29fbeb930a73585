"""Litz beside TorchInductor on a GPU: `python -m tests_gpu.compare [--kernels] [MODEL ...]`.

In: a machine with a GPU and a C compiler, which TorchInductor needs. Out: a table: milliseconds a
call of each model in bfloat16, by mode, taken in turns, and the seconds of each first call. With
`--kernels`, where the GPU's time goes in each.
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
from tests_gpu.checks import DEVICE, ONE_TOKEN, SCALES, microseconds, moved
from tests_gpu.kernels import split_of

MODES = ("default", "reduce-overhead")
ROUNDS = 5


def compare(name: str, scale: Scale, kernels: bool) -> None:
    made = workload(name.split()[0], scale, torch.bfloat16)
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
    for key, run in calls.items() if kernels else ():
        found = split_of(lambda r=run: call(r))
        print(f"    {' '.join(key):24} {found}\n{found.longest(12)}", flush=True)


def main(arguments: list[str]) -> None:
    kernels, wanted = "--kernels" in arguments, [a for a in arguments if a[0] != "-"]
    if "litz" not in list_backends(None):
        register_backend(litz, "litz")
    columns = [f"{backend} {mode}" for backend in ("litz", "inductor") for mode in MODES]
    heads = ["model", "eager", *columns, *(f"first call, {c}" for c in columns)]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    models = SCALES | {"llama one token": ONE_TOKEN}
    for name, scale in models.items():
        if name in (wanted or models):
            compare(name, scale, kernels)


if __name__ == "__main__":
    main(sys.argv[1:])
