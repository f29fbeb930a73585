"""Trials in another process: the process and the client that talks to it.

In: jobs, a line of JSON each: two programs as text, their choices, flags. Out: a line of JSON for
each: the ratio, or what went wrong. Programs travel as text, which rebuilds them; nothing is
pickled. A trial that kills its process or takes too long costs only that trial: the next one gets a
new process. Example: `TuningProcess(config).tried(rule, other, 0.2)`.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import litz
from litz.autotune.results import Ratio
from litz.autotune.trial import InProcessRunner, Variant
from litz.config import Config, snapshot
from litz.ir.choices import Choices, GemmChoice, LoopChoice
from litz.ir.parse import parse_graph, parse_program
from litz.ir.program import Extern, KernelGraph, LoopProgram
from litz.ir.text import graph_text, program_text
from litz.target import Target, host
from litz.toolchain import Toolchain

# Calls with an out= form; the text of a program does not say which have one.
INTO = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default")


def variant_json(variant: Variant) -> dict[str, Any]:
    """A variant as JSON, without the names of nodes: they belong to a graph that stays here."""
    whole = isinstance(variant.program, LoopProgram)
    text = program_text(variant.program) if whole else graph_text(variant.program)  # type: ignore
    chosen = variant.choices
    return {
        "text": text,
        "whole": whole,
        "gemms": {name: choice.facts() for name, choice in chosen.gemms.items()},
        "kernels": {name: choice.facts() for name, choice in chosen.kernels.items()},
    }


def variant_of(facts: dict[str, Any]) -> Variant:
    """The inverse."""
    gemms = {name: GemmChoice(**given) for name, given in facts["gemms"].items()}
    kernels = {name: LoopChoice(**given) for name, given in facts["kernels"].items()}
    parsed: LoopProgram | KernelGraph
    parsed = parse_program(facts["text"]) if facts["whole"] else parse_graph(facts["text"])
    body: Any = tuple(map(_with_place, parsed.body))
    return Variant(replace(parsed, body=body), Choices(gemms, kernels))


def _with_place(step: Any) -> Any:
    """A call with an out= form writes into the plan's memory, as it did after lowering."""
    into = isinstance(step, Extern) and step.target in INTO
    return replace(step, into=True) if into else step


class TuningProcess:
    """Runs trials in another process, which is started when first needed."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.timeout = config.max_autotune_subproc_result_timeout_seconds
        self.process: subprocess.Popen[bytes] | None = None

    def tried(self, rule: Variant, other: Variant, seconds: float) -> Ratio | str:
        """The ratio, or a text that says what went wrong."""
        flags = {k: v for k, v in self.config.changed().items() if not callable(v)}
        job = {
            "rule": variant_json(rule), "other": variant_json(other), "flags": flags,
            "threads": torch.get_num_threads(), "seconds": seconds,
        }  # fmt: skip
        try:
            answer = self._ask(json.dumps(job).encode() + b"\n")
        except OSError as error:  # no process, no pipe, no memory
            self.stop()
            return f"failed: {type(error).__name__}: {error}"
        return answer if isinstance(answer, str) else Ratio(**answer)

    def _ask(self, line: bytes) -> Any:
        process = self.process = self.process or _started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
            found = _line(process.stdout.fileno(), self.timeout)
        except BrokenPipeError:
            found = b""
        if found.endswith(b"\n"):
            return json.loads(found)
        slow = process.poll() is None and found is not _END
        self.stop()
        return f"took more than {self.timeout:g} s" if slow else "ended its process"

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()


_END = b""  # the process closed its pipe


def _line(descriptor: int, timeout: float) -> bytes:
    """The bytes that a process writes until the end of a line, or until the timeout."""
    found, end = bytearray(), time.monotonic() + timeout
    ready = select.poll()  # accepts any descriptor; `select` only those below 1024
    ready.register(descriptor, select.POLLIN)
    while not found.endswith(b"\n"):
        if not ready.poll(max(1000 * (end - time.monotonic()), 0)):
            return b"late"
        more = os.read(descriptor, 1 << 16)
        if not more:
            return _END
        found += more
    return bytes(found)


def _started() -> subprocess.Popen[bytes]:
    """Starts the same Litz, wherever this one was imported from."""
    paths = [str(Path(litz.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    code = f"from litz.targets import TOOLCHAINS; from {__name__} import main; main(TOOLCHAINS)"
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe)


class TuningWorker:
    """Runs jobs; the compiled rule is reused if the next job has the same one."""

    def __init__(self, toolchains: Mapping[type[Target], Toolchain]) -> None:
        self.toolchains = toolchains
        self.settings: Any = None
        self.facts: Any = None
        self.rule: Variant
        self.here: InProcessRunner

    def answer(self, job: dict[str, Any]) -> Any:
        """Run one job."""
        settings = (job["flags"], job["threads"])
        if settings != self.settings:
            torch.set_num_threads(job["threads"])
            config = snapshot(job["flags"])
            target = host(config.cpp.threads, config.cpp.simdlen)
            self.here = InProcessRunner(target, self.toolchains[type(target)], config)
            self.settings, self.facts = settings, None
        if job["rule"] != self.facts:
            self.rule, self.facts = variant_of(job["rule"]), job["rule"]
        found = self.here.tried(self.rule, variant_of(job["other"]), job["seconds"])
        return vars(found) if isinstance(found, Ratio) else found


def main(toolchains: Mapping[type[Target], Toolchain]) -> None:
    """Answers jobs line by line. Libraries print to stderr, not into the answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = TuningWorker(toolchains)
    for line in sys.stdin:
        answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        answers.flush()
