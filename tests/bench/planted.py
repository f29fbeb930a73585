"""Results that nobody measured, for what must be computed from them and shown of them."""

from __future__ import annotations

from litz.bench.results import Results, Row

MACHINE = {
    "processor": "Planted <CPU>",
    "architecture": "znver9",
    "vectors": "512 bits",
    "threads": "2",
    "caches": "L1 32 KiB, L2 1024 KiB a core",
    "system": "Linux x86_64",
    "python": "3.11.0",
    "torch": "2.13.0",
    "llvmlite": "0.50.0",
    "litz": "0.1.0",
    "run": "planted",
}
ROUNDS = 9


def steady(**seconds: float) -> dict[str, tuple[float, ...]]:
    """The same sample in every round."""
    return {name: (value,) * ROUNDS for name, value in seconds.items()}


BERT = Row("cpu", "bert", "batch 1", "call", steady(litz=0.010, inductor=0.020, eager=0.040))
GPT2 = Row("cpu", "gpt2", "batch 1", "call", steady(litz=0.010, inductor=0.005, eager=0.040))
VIT = Row(
    "cpu", "vit", "batch 1", "call", steady(litz=0.010, eager=0.040),
    missing={"inductor": "RuntimeError: no <headers>"},
)  # fmt: skip
COMPILE = Row(
    "compile", "bert", "", "first call, cold",
    {"litz": (1.0, 2.0), "inductor": (20.0, 20.0)}, facts={"ms an op": 0.125},
)  # fmt: skip
RESULTS = Results(MACHINE, ("inductor", "eager"), (BERT, GPT2, VIT, COMPILE))
