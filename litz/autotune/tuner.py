"""The tuner: works through tuning tasks by trials, the most expensive first, within a budget.

In: the captured graph, flags. Out: `Tuning`. The database answers tasks that any process has
solved before. A choice is taken if its interval lies below the margin, and does so again in a
second trial: of many choices, one looks fast by chance. If trials fail, the rule's choice remains.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from litz.autotune.cost import Machine, matmul_seconds
from litz.autotune.database import Database, Json
from litz.autotune.results import AnyChoice, Finding, Ratio, Trial, Tuning
from litz.autotune.serialization import choice_of, kept, trials_of, version_of
from litz.autotune.trial import MARGIN, InProcessRunner, Variant, kernels_of
from litz.autotune.tuning_tasks import TargetTuning, TuningTask, gemm_tasks, loop_tasks
from litz.autotune.worker import TuningProcess
from litz.config import Config
from litz.fuse import fuse
from litz.ir.choices import ANY, NO_CHOICES, Choices, GemmChoice
from litz.ir.graph import Graph
from litz.ir.program import Decision, Extern, KernelGraph, LoopProgram
from litz.lower import lower
from litz.target import Target
from litz.toolchain import Toolchain
from litz.trace import Trace

# Seconds of one trial, at most; most end as soon as the choice is clearly not faster.
TRIAL = 0.25
# The fraction of the remaining budget that is for timing; the rest may go into compiling ahead.
TIMING = 0.3
# A GEMM at this fraction of the machine's peak is not tuned: the possible gain is less than the
# margin, or little more. (Libraries of nothing but GEMMs reach 0.98.)
AT_ITS_PEAK = 0.9
# A task that takes less than this fraction of all GEMMs of the graph is not worth its trials.
TOO_SMALL = 0.01
# The version of the database's entries: a new number makes old results invalid.
VERSION = 4
# The tuning flags that change a result.
KEY_FLAGS = ("max_autotune_gemm_search_space", "coordinate_descent_tuning",
         "benchmark_epilogue_fusion", "max_autotune_gemm_backends",
         "max_autotune_conv_backends")  # fmt: skip


class Tuner:
    """Tunes one graph."""

    def __init__(
        self, graph: Graph, target: Target, tools: Toolchain, config: Config, trace: Trace
    ) -> None:
        self.graph, self.target, self.config, self.trace = graph, target, config, trace
        self.tools: Toolchain = tools
        self.target_tuning: TargetTuning = tools.tuning
        self.database = Database.of(config)
        self.choices = NO_CHOICES
        self.findings: list[Finding] = []
        self.decisions: list[Decision] = []
        self.timed = 0
        asked = config.max_autotune_budget_seconds
        self.end = time.monotonic() + (self.target_tuning.budget if asked is None else asked)
        self.runner: TuningProcess | InProcessRunner = InProcessRunner(target, tools, config)
        if config.autotune_in_subproc and self.target_tuning.no_subproc_reason is None:
            self.runner = TuningProcess(config)
        elif config.autotune_in_subproc:
            reason = f"autotune_in_subproc: {self.target_tuning.no_subproc_reason}"
            self.decisions.append(self._unmet(f"{graph.kind} graph", reason))

    def tuning(self, gemms: bool, loops: bool) -> Tuning:
        """GEMMs first: their fusions decide which other kernels there are."""
        try:
            if gemms:
                given = (self.graph, self._fully_fused(), self.target, self.tools, self.config)
                found = gemm_tasks(*given, self._without_library())
                named = self._solved(found)
                self.choices = replace(self.choices, gemms=named)
            if loops:
                kernels = self._kernels(self.choices)
                about = (kernels, self.target, self.tools, self.config)
                answers: dict[str, Any] = self._solved(loop_tasks(*about, self.choices))
                self.choices = replace(self.choices, **{self.target_tuning.field: answers})
        finally:
            if isinstance(self.runner, TuningProcess):
                self.runner.stop()
        self._report()
        notes = [self._unmet("database", note) for note in self.database.notes]
        decided = (*self.decisions, *notes)
        return Tuning(self.choices, tuple(self.findings), decided, self.timed)

    @cached_property
    def _by_rule(self) -> LoopProgram:
        return lower(self.graph, self.target, self.config, NO_CHOICES)

    def _kernels(self, choices: Choices) -> KernelGraph:
        given = (self.graph, self.target, self.config)
        program = lower(*given, choices) if choices.gemms else self._by_rule
        return fuse(program, self.target, self.config, choices)

    def _without_library(self) -> KernelGraph | None:
        """The kernels if all GEMMs were ours; None if they are by rule."""
        most = self.target_tuning.library_replacement(self.config)
        return None if most is None else self._kernels(Choices(gemms={ANY: most}))

    def _fully_fused(self) -> KernelGraph:
        """The kernels with as much as possible fused into each GEMM: the timed region then has
        everything that a choice may fuse or not."""
        most = GemmChoice(rows=True, prologue=True)
        together = Choices(gemms={ANY: most} if self.config.benchmark_epilogue_fusion else {})
        return fuse(self._by_rule, self.target, self.config, together)

    def _unmet(self, name: str, reason: str) -> Decision:
        return Decision("unmet", "max_autotune", name, reason)

    # -- tuning tasks ----------------------------------------------------------------------------

    def _solved(self, tuning_tasks: list[TuningTask]) -> dict[str, Any]:
        """The choice for each name whose choice is not the rule's."""
        open_: list[TuningTask] = []
        findings: list[Finding] = []
        for tuning_task in tuning_tasks:
            known = self._known(tuning_task)
            (open_ if known is None else findings).append(known or tuning_task)  # type: ignore
        if open_:
            machine = self._machine()
            open_ = self._profitable(sorted(open_, key=lambda q: -q.cost(machine)), machine)
            for number, search in enumerate(self._searches(open_, machine), 1):
                self.trace.count(number, len(open_))
                findings += self._search(search)
            self.trace.count(0, 0)
        self.findings += findings
        taken = [f for f in findings if f.choice != f.default]
        return {name: finding.choice for finding in taken for name in finding.names}

    def _searches(self, tuning_tasks: list[TuningTask], machine: Machine) -> Iterable[_Search]:
        """One after the other; or all at once, if their kernels are compiled ahead."""
        found = (_Search(self, tuning_task, machine) for tuning_task in tuning_tasks)
        if not isinstance(self.runner, InProcessRunner) or self.tools.precompile is None:
            return found
        searches = list(found)
        ahead = [variant for search in searches for variant in search.variants()]
        left = self.end - time.monotonic()
        self.runner.prepare(ahead, self.end - TIMING * max(left, 0.0))
        return searches

    def _profitable(self, tuning_tasks: list[TuningTask], machine: Machine) -> list[TuningTask]:
        """The tasks that the whole graph could gain from, or all if the search is exhaustive."""
        if self.exhaustive:
            return tuning_tasks
        lower_bound = TOO_SMALL * matmul_seconds(self.graph, machine)
        for tuning_task in (q for q in tuning_tasks if q.cost(machine) < lower_bound):
            reason = f"less than {TOO_SMALL:.0%} of what the graph's products take"
            self.decisions.append(self._unmet(tuning_task.what, reason))
        return [q for q in tuning_tasks if q.cost(machine) >= lower_bound]

    @property
    def exhaustive(self) -> bool:
        """Whether the user wants everything tried."""
        whole = self.config.max_autotune_gemm_search_space == "EXHAUSTIVE"
        return whole or self.config.coordinate_descent_tuning

    def _search(self, search: _Search) -> list[Finding]:
        tuning_task = search.tuning_task
        if time.monotonic() > self.end:
            self.decisions.append(self._unmet(tuning_task.what, "max_autotune_budget_seconds"))
            return []
        choice = search.best(self.config.coordinate_descent_tuning)
        trials = tuple(search.trials)
        if search.complete:
            self.database.put(self._key(tuning_task), kept(choice, trials))
        else:
            reason = "max_autotune_budget_seconds, before all was tried"
            self.decisions.append(self._unmet(tuning_task.what, reason))
        return [Finding(tuning_task.what, tuning_task.names, choice, tuning_task.default, trials)]

    def _known(self, tuning_task: TuningTask) -> Finding | None:
        value = self.database.get(self._key(tuning_task))
        if value is None:
            return None
        rule = tuning_task.default
        try:
            choice, trials = choice_of(rule, value["choice"]), trials_of(rule, value["trials"])
            if not tuning_task.fits(choice):
                raise ValueError(f"{choice} does not fit")
        except Exception:  # the database may hold anything
            self.database.notes.append(f"an entry about {tuning_task.what} makes no sense")
            return None
        return Finding(tuning_task.what, tuning_task.names, choice, rule, trials, kept=True)

    def _key(self, tuning_task: TuningTask) -> Json:
        """All that a result depends on, as JSON."""
        flags = {k: v for k, v in self.config.code_key() if isinstance(v, (bool, int, str))}
        tuning = {k: v for k, v in flags.items() if "autotune" not in k or k in KEY_FLAGS}
        return {
            **self._environment(),
            "program": tuning_task.program_key,
            "what": tuning_task.what,
            "flags": tuning,
        }

    def _environment(self) -> Json:
        """The machine, and the versions of the code generators."""
        ours = {"version": VERSION, "litz": version_of("litz"), "torch": torch.__version__}
        return {**ours, **self.target_tuning.environment(self.target)}

    def _machine(self) -> Machine:
        return self.target_tuning.machine(self.target, self.database, self._environment())

    # -- trials ----------------------------------------------------------------------------------

    def trial(self, rule: Variant, other: Variant) -> Ratio | str:
        """Compare two variants, in this process or in another."""
        self.timed += 1
        return self.runner.tried(rule, other, TRIAL)

    def fused(self, variant: Variant) -> Variant:
        """The same variant as kernels: fused once, for all that follows."""
        return replace(variant, program=kernels_of(variant, self.target, self.config))

    def signature(self, variant: Variant) -> object:
        """What the code of the kernels depends on: equal variants need not be timed."""
        graph = variant.program
        assert isinstance(graph, KernelGraph)
        given = (self.target, self.config, frozenset[str](), variant.choices)
        kernels = [self.tools.schedule(k, *given) for k in graph.kernels]
        calls = tuple((s.target, str(s.args)) for s in graph.body if isinstance(s, Extern))
        return (tuple(k.structure for k in kernels), calls)

    def _report(self) -> None:
        fresh = [f for f in self.findings if not f.kept]
        if fresh and self.config.max_autotune_report_choices_stats:
            for finding in fresh:
                self.trace.note(0, finding.title, finding.table())


class _Search:
    """The trials of one tuning task."""

    def __init__(self, tuner: Tuner, tuning_task: TuningTask, machine: Machine) -> None:
        self.tuner, self.tuning_task, self.candidates = (
            tuner,
            tuning_task,
            tuning_task.candidates(machine),
        )
        self.lower_bound = 0.0 if tuner.exhaustive else tuning_task.lower_bound(machine)
        self.rule = tuner.fused(tuning_task.variant(tuning_task.default))
        self.made: dict[AnyChoice, Variant] = {}
        self.trials: list[Trial] = []
        self.seen = {tuner.signature(self.rule)}
        self.complete = True

    def variants(self) -> list[Variant]:
        """The variants of the listed choices that can be compiled, to compile them ahead."""
        found = {self.tuner.signature(self.rule): self.rule}
        for choice in self.candidates:
            with suppress(Exception):  # the trial will report it
                variant = self._variant(choice)
                found.setdefault(self.tuner.signature(variant), variant)
        return list(found.values())

    def _variant(self, choice: AnyChoice) -> Variant:
        if choice not in self.made:
            self.made[choice] = self.tuner.fused(self.tuning_task.variant(choice))
        return self.made[choice]

    def best(self, descend: bool) -> AnyChoice:
        """The fastest choice that is certainly faster than the rule's in two trials."""
        for choice in self.candidates:
            if not self._is_at_its_peak():
                self._try(choice)
        if descend:
            self._descend()
        for trial in self._winners():
            again = self._again(trial.choice)
            if isinstance(again, Ratio) and again.high < MARGIN:
                return trial.choice
        return self.tuning_task.default

    def _is_at_its_peak(self) -> bool:
        """Whether no choice could be much faster than the rule's, by its time in a trial."""
        known = (t.ratio.seconds for t in self.trials if t.ratio is not None)
        return self.lower_bound > AT_ITS_PEAK * next(known, float("inf"))

    def _winners(self) -> list[Trial]:
        sure = [(t.ratio.median, k) for k, t in enumerate(self.trials)
                if t.ratio is not None and t.ratio.high < MARGIN]  # fmt: skip
        return [self.trials[k] for _, k in sorted(sure)]

    def _descend(self) -> None:
        """Coordinate descent: from the best so far to its neighbours, while one is better."""
        at: AnyChoice | None = None
        while True:
            winners = self._winners()
            now = winners[0].choice if winners else self.tuning_task.default
            if now == at:
                return
            at = now
            for choice in self.tuning_task.neighbours(at):
                self._try(choice)

    def _try(self, choice: AnyChoice) -> None:
        if any(t.choice == choice for t in self.trials) or choice == self.tuning_task.default:
            return
        if time.monotonic() > self.tuner.end:
            self.complete = False
            return
        try:
            other = self._variant(choice)
            signature = self.tuner.signature(other)
        except Exception as error:  # a choice that cannot be compiled is skipped
            self.trials.append(Trial(choice, note=f"failed: {type(error).__name__}"))
            return
        if signature in self.seen:
            return
        self.seen.add(signature)
        found = self.tuner.trial(self.rule, other)
        if isinstance(found, Ratio):
            self.trials.append(Trial(choice, found))
        else:
            self.trials.append(Trial(choice, note=found))

    def _again(self, choice: AnyChoice) -> Ratio | str:
        return self.tuner.trial(self.rule, self._variant(choice))
