"""The hunt: programs one after the other until time or number is up; failures shrunk and stored.

In: a seed; program k of a hunt has the seed plus k, so that `--seed S --programs 1` shows any of
them again. Out: `Tally`. Programs run in a process of their own, since a wrong kernel may kill it.
"""

from __future__ import annotations

import multiprocessing as mp
import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from litz.fuzz.compare import Failure, check
from litz.fuzz.generate import generate
from litz.fuzz.isolate import Died, isolated
from litz.fuzz.program import Program
from litz.fuzz.shrink import shrink

A_PROCESS = 150  # programs: torch keeps memory for what it has traced
LONGEST = 120.0  # seconds for one program
SHRINKING = 60.0  # seconds for one failure
OFTEN = 3  # failures that read alike are shrunk so many times


@dataclass(frozen=True)
class Find:
    """A failure, and the smallest program found that shows it."""

    seed: int
    failure: Failure
    program: Program | None  # None: like others before it, and not shrunk

    def script(self) -> str:
        assert self.program is not None
        text = str(self.failure).replace("\\", "\\\\").replace('"""', "'''")
        return f'"""Found by `litz fuzz --seed {self.seed} --programs 1`.\n\n{text}\n"""\n\n' + (
            self.program.script()
        )


@dataclass
class Tally:
    """What a hunt has done so far."""

    programs: int = 0
    steps: int = 0
    seconds: float = 0.0
    finds: list[Find] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.programs} programs, {self.steps} ops, {self.seconds:.0f} s, "
            f"{len(self.finds)} failed"
        )


def signature(failure: Failure) -> str:
    """The failure's text without what differs from program to program."""
    first = failure.text.strip().splitlines()[0] if failure.text.strip() else ""
    return f"{failure.who} {failure.kind} {re.sub(r'[vtxk]?[0-9.e+-]+', '#', first)[:80]}"


def judge(program: Program) -> Failure | None:
    return check(program.function(), program.fresh_inputs(), program.options, program.labels)


def still_fails(program: Program, like: Failure) -> bool:
    """Whether a smaller program fails in the same way; one that eager rejects does not."""
    try:
        found = judge(program)
    except Exception:
        return False
    return found is not None and (found.who, found.kind) == (like.who, like.kind)


def try_program(seed: int, known: list[str]) -> tuple[int, Find | None]:
    """One program; a failure like many before it is counted and not shrunk."""
    program = generate(seed)
    failure = judge(program)
    if failure is None:
        return len(program.steps), None
    small, kind = None, signature(failure)
    if known.count(kind) < OFTEN:
        small = shrink(program, partial(still_fails, like=failure), SHRINKING)
        failure = judge(small) or failure
    known.append(kind)
    return len(program.steps), Find(seed, failure, small)


def hunt(
    seed: int, seconds: float, programs: int | None, said: Callable[[Tally, Find | None], None]
) -> Tally:
    """Look for failures; `said` is called after each program, with its find if it has one."""
    tally = Tally()
    known: list[str] = []
    start = time.monotonic()
    while tally.seconds < seconds and (programs is None or tally.programs < programs):
        left = A_PROCESS if programs is None else min(A_PROCESS, programs - tally.programs)
        for steps, find in _batch(seed + tally.programs, left, start + seconds, known):
            tally.programs += 1
            tally.steps += steps
            tally.seconds = time.monotonic() - start
            if find is not None:
                tally.finds.append(find)
                known.append(signature(find.failure))
            said(tally, find)
        tally.seconds = time.monotonic() - start
    return tally


def _batch(
    first: int, count: int, end: float, known: list[str]
) -> Iterator[tuple[int, Find | None]]:
    """Programs in one process. When it dies, the program it was at is the last of the batch."""
    context = mp.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def work() -> None:
        warnings.simplefilter("ignore")  # of torch, about steps that nobody meant
        for seed in range(first, first + count):
            theirs.send(try_program(seed, known))

    process = context.Process(target=work, daemon=True)
    process.start()
    theirs.close()
    try:
        for seed in range(first, first + count):
            if time.monotonic() > end:
                return
            found = _received(ours)
            if isinstance(found, Died):
                yield 0, _crash(seed, found)
                return
            yield found
    finally:
        process.kill()
        process.join()
        ours.close()


def _received(channel: Any) -> Any:
    try:
        return channel.recv() if channel.poll(LONGEST + SHRINKING) else Died(None)
    except EOFError:
        return Died(-1)


def _crash(seed: int, died: Died) -> Find:
    """A program that kills its process, shrunk with a process for each try."""
    torch.set_num_threads(1)  # a fork must not inherit threads
    program = generate(seed)

    def dies(smaller: Program) -> bool:
        return isinstance(isolated(lambda: _runs(smaller), LONGEST), Died)

    small = shrink(program, dies, 3 * SHRINKING)
    kind = "timeout" if died.status is None else "crash"
    return Find(seed, Failure("litz", kind, "the process ended"), small)


def _runs(program: Program) -> bool:
    warnings.simplefilter("ignore")
    try:
        return judge(program) is None
    except Exception:
        return False


def store(find: Find, folder: Path) -> Path | None:
    """Write the script of a find; one that was not shrunk has none."""
    if find.program is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"find_{find.seed}.py"
    path.write_text(find.script())
    return path
