"""The hunt: programs one after the other until time or number is up; failures shrunk and stored.

In: a seed. Program k of a hunt has the seed plus k, so `--seed S --programs 1` repeats any one of
them. Out: `Tally`. Programs run in another process, since a wrong kernel may kill it.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from litz.fuzz.compare import REFERENCE, REFUSED, TORCH, Failure, check, check_calls
from litz.fuzz.coverage import Coverage, reached
from litz.fuzz.dynamo import ThroughDynamo
from litz.fuzz.generate import generate
from litz.fuzz.isolate import ChildProcess, Died, isolated
from litz.fuzz.locate import stage_of
from litz.fuzz.program import Program
from litz.fuzz.runs import captured
from litz.fuzz.shrink import shrink
from litz.report import Explanation

A_PROCESS = 300  # programs of one process: torch keeps memory for everything it has traced
LONGEST = 120.0  # seconds for one program
SHRINKING = 40.0  # seconds for one failure
LOCATING = 60.0  # seconds to find its stage
A_MOMENT = 0.5  # seconds between two looks at the clock
OFTEN = 2  # failures with the same signature are shrunk only so many times
MAX_EXCLUDED, FEW = 0.25, 10  # fraction of programs, plus a few: with more, the hunt is void
DEADLY = "deadly"  # the program kills eager's process: an integer divided by zero
EXCLUDED = {  # as text
    TORCH: "as torch's own capture",
    REFUSED: "refused by name",
    REFERENCE: "without float64",
    DEADLY: "that kill eager",
}


@dataclass(frozen=True)
class Find:
    """A failure, and the smallest program found that shows it."""

    seed: int
    failure: Failure
    program: Program | None  # None if failures like it were shrunk before

    def script(self) -> str:
        assert self.program is not None
        text = str(self.failure).replace("\\", "\\\\").replace('"""', "'''")
        return f'"""Found by `litz fuzz --seed {self.seed} --programs 1`.\n\n{text}\n"""\n\n' + (
            self.program.script()
        )


@dataclass(frozen=True)
class Result:
    """The outcome of a program: right, a find, or the reason why it is excluded."""

    steps: int = 0
    find: Find | None = None
    excluded: str = ""
    coverage: Coverage = field(default_factory=Coverage)  # if asked for


@dataclass
class Tally:
    """The totals of a hunt so far."""

    programs: int = 0
    steps: int = 0
    seconds: float = 0.0
    finds: list[Find] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)  # programs that are not judged
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, result: Result, seconds: float) -> None:
        self.programs += 1
        self.steps += result.steps
        self.seconds = seconds
        self.coverage += result.coverage
        if result.find is not None:
            self.finds.append(result.find)
        if result.excluded:
            self.excluded[result.excluded] += 1

    @property
    def is_void(self) -> bool:
        """Whether too many are excluded: the machine is at fault, and the hunt tested nothing."""
        return self.excluded.total() > MAX_EXCLUDED * self.programs + FEW

    def __str__(self) -> str:
        done = (
            f"{self.programs} programs, {self.steps} ops, {self.seconds:.0f} s, "
            f"{len(self.finds)} failed"
        )
        reasons = ", ".join(f"{n} {EXCLUDED[why]}" for why, n in sorted(self.excluded.items()))
        return f"{done}, {self.excluded.total()} excluded ({reasons})" if reasons else done


def signature(failure: Failure) -> str:
    """The failure's text without the parts that vary from program to program."""
    first = failure.text.strip().splitlines()[0] if failure.text.strip() else ""
    return f"{failure.who} {failure.kind} {re.sub(r'[vtxk]?[0-9.e+-]+', '#', first)[:80]}"


def judge(program: Program, notes: Explanation | None = None) -> Failure | None:
    """The failure of a program; reports of its compiles are added to `notes`."""
    if not program.is_plain:
        calls = [program.fresh_inputs(k) for k in range(program.calls)]
        often = program.function(), calls, program.options, program.labels
        return check_calls(*often, program.call_mode, program.parameters, notes, program.device)
    once = program.function(), program.fresh_inputs(), program.options, program.labels
    return check(*once, program.device, notes=notes)


def still_fails(program: Program, like: Failure) -> bool:
    """Whether a smaller program fails in the same way; one that eager rejects does not."""
    try:
        found = judge(program)
    except Exception:
        return False
    return found is not None and (found.who, found.kind) == (like.who, like.kind)


def try_program(
    program: Program, seed: int, known: list[str], notes: Explanation | None = None
) -> Result:
    """Judge one program; a failure like earlier ones is counted but not shrunk."""
    failure = judge(program, notes)
    done = Result(len(program.steps), coverage=reached(program, notes) if notes else Coverage())
    if failure is None:
        return done
    if failure.is_excluded:
        return replace(done, excluded=failure.who)
    small, kind = None, signature(failure)
    if known.count(kind) < OFTEN:
        small = shrink(program, partial(still_fails, like=failure), SHRINKING)
        failure = _located(small, judge(small) or failure)
    known.append(kind)
    return replace(done, find=Find(seed, failure, small))


def _located(program: Program, failure: Failure) -> Failure:
    """The failure with its first wrong stage. An error in the search does not lose the find."""
    try:
        return replace(failure, stage=stage_of(program, failure))
    except Exception as error:
        return replace(failure, stage=f"not found, for {type(error).__name__}: {error}")


def hunt(
    seed: int,
    seconds: float,
    programs: int | None,
    said: Callable[[Tally, Find | None], None],
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
    jobs: int = 1,
    covers: bool = False,
) -> Tally:
    """Look for failures; `said` is called after each program, with its find if it has one.

    It forks: call it in a process that has not started threads or used a GPU. `options` are flags
    for every program, besides those it draws, and `device` the one that it is compiled for. With
    `jobs` parallel processes, each takes every `jobs`-th seed. With `covers`, coverage is
    counted.
    """
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "this process has used a GPU, which no process forked from it can: "
            "call hunt() in one that has not"
        )
    _warm()
    tally = Tally()
    known: list[str] = []
    start = time.monotonic()
    seeds = None if programs is None else range(seed, seed + programs)
    shares = [
        Shard(seed + k, jobs, seeds, options or {}, known, device, covers) for k in range(jobs)
    ]
    for result in _in_turn([s.results(start + seconds) for s in shares], shares):
        tally.add(result, time.monotonic() - start)
        if result.find is not None:
            known.append(signature(result.find.failure))
        said(tally, result.find)
    tally.seconds = time.monotonic() - start
    return tally


def _in_turn(running: list[Iterator[Result | None]], shares: list[Shard]) -> Iterator[Result]:
    """The results of all shards as they come; None means that a shard waits for its process."""
    by_share = dict(zip(shares, running, strict=True))
    while by_share:
        waiting = True
        for shard, results in list(by_share.items()):
            try:
                result = next(results)
            except StopIteration:
                del by_share[shard]
                continue
            if result is not None:
                waiting = False
                yield result
        if waiting and by_share:
            wait([shard.process.ours for shard in by_share], A_MOMENT)


def _warm() -> None:
    """Load what torch loads at a first compile once, not in every process of the hunt. Not with
    CUDA: torch would initialise it, no fork could use it afterwards, and every program would fail,
    in torch's own capture as well as in Litz."""
    torch.set_num_threads(1)  # a fork must not inherit threads
    if not torch.backends.cuda.is_built():
        check(lambda x: [x + 1], [torch.ones(2)])
    gc.collect()
    gc.freeze()


class Shard:
    """The seeds of one parallel process. If the process dies, its current program is a find, and
    a new process continues after it."""

    def __init__(
        self, first: int, step: int, seeds: range | None, options: Mapping[str, Any],
        known: list[str], device: str = "cpu", covers: bool = False,
    ) -> None:  # fmt: skip
        self.next, self.step, self.seeds = first, step, seeds  # seeds None: no end
        self.options, self.known, self.device, self.covers = options, known, device, covers
        self.process: ChildProcess

    @property
    def is_left(self) -> bool:
        return self.seeds is None or self.next in self.seeds

    def program(self, seed: int) -> Program:
        program = generate(seed)
        options = {**program.options, **self.options}
        return replace(program, options=options, device=self.device)

    def work(self, channel: Any) -> None:
        """Send each program before it runs, so that it is known if the process dies."""
        _silence()
        gc.set_threshold(100_000, 20, 100)  # a program leaves little garbage
        for _ in range(A_PROCESS):
            if not self.is_left:
                return
            program = self.program(self.next)
            channel.send(program)
            channel.send(self._tried(program))
            self.next += self.step

    def _tried(self, program: Program) -> Result:
        notes = Explanation() if self.covers else None
        return try_program(program, self.next, self.known, notes)

    def results(self, end: float) -> Iterator[Result | None]:
        """The result of each program until `end`; None while waiting."""
        while self.is_left and time.monotonic() < end:
            with ChildProcess(self.work) as self.process:
                yield from self._of_process(end)

    def _of_process(self, end: float) -> Iterator[Result | None]:
        for _ in range(A_PROCESS):
            if not self.is_left or time.monotonic() > end:
                return
            program = yield from self._received(LONGEST)
            if isinstance(program, Died):
                self.next += self.step
                yield Result(excluded=DEADLY)
                return
            found = yield from self._received(LONGEST + SHRINKING + LOCATING)
            seed, self.next = self.next, self.next + self.step
            if isinstance(found, Died):
                yield _crash(program, seed, found)
                return
            yield found

    def _received(self, seconds: float) -> Generator[None, None, Any]:
        """The next message of the process, or how it died."""
        last = time.monotonic() + seconds
        while not self.process.ours.poll(0) and time.monotonic() < last:
            yield None
        return self.process.receive(0)


def _crash(program: Program, seed: int, died: Died) -> Result:
    """A program that kills its process, shrunk with a new process for each try. If torch's own
    capture does not finish in time, it is excluded: torch's solver for sizes may never end."""
    if died.status is None and isinstance(isolated(partial(_captures, program), LONGEST), Died):
        return Result(len(program.steps), excluded=TORCH)

    def dies(smaller: Program) -> bool:
        return isinstance(isolated(partial(_runs, smaller), LONGEST), Died)

    small = shrink(program, dies, 3 * SHRINKING)
    kind = "timeout" if died.status is None else "crash"
    find = Find(seed, _located(small, Failure("litz", kind, f"the process {died}")), small)
    return Result(len(program.steps), find)


def _captures(program: Program) -> bool:
    """Run it through torch's capture with eager as the backend; true even if that raises."""
    _silence()
    given = (program.call_mode, program.parameters, captured)
    run = ThroughDynamo(program.function(), {}, *given, device=program.device)
    with suppress(Exception):
        for call in range(program.calls):
            run(program.fresh_inputs(call))
    return True


def _silence() -> None:
    """Silence torch's warnings about random steps; C++ writes them to the file, not to Python."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)  # tracebacks are still shown
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _runs(program: Program) -> bool:
    _silence()
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
