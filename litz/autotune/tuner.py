"""The tuner: answers questions about kernels by trials, the dearest first, within a budget.

In: the captured graph, flags. Out: `Tuning`. The database answers what was asked before, in
whatever process. A choice is taken if its interval lies below the margin, and if it does so again
in a second trial: of many that are tried, one looks quick by chance. Whatever happens to a trial,
the rule's choice is there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from litz.autotune.cost import Machine, multiplying
from litz.autotune.database import Database, Json
from litz.autotune.questions import Question, TargetTuning, loop_questions, product_questions
from litz.autotune.results import AnyChoice, Finding, Ratio, Trial, Tuning
from litz.autotune.stored import choice_of, kept, trials_of, version_of
from litz.autotune.trial import MARGIN, Here, Variant, kernels_of
from litz.autotune.worker import Apart
from litz.config import Config
from litz.fuse import fuse
from litz.ir.choices import ANY, NO_CHOICES, Choices, ProductChoice
from litz.ir.graph import Graph
from litz.ir.program import Decision, Extern, KernelGraph, LoopProgram
from litz.lower import lower
from litz.target import Target
from litz.toolchain import Toolchain
from litz.trace import Trace

# Seconds of one trial, at most; most are over as soon as it is plain that they lead nowhere.
TRIAL = 0.25
# The part of what is left of the budget that is for timing; the rest may go into compiling ahead.
TIMING = 0.3
# A product at so much of the machine's peak is left as it is: what could be gained is less than a
# choice must be quicker by, or little more. (Libraries that are nothing but products reach 0.98.)
AT_ITS_PEAK = 0.9
# What takes less than this part of all products of the graph is not worth its trials.
TOO_SMALL = 0.01
# Of what the database keeps: with another number, old results are asked for anew.
VERSION = 4
# Flags that change the answer, of those that tuning itself reads.
ASKED = ("max_autotune_gemm_search_space", "coordinate_descent_tuning",
         "benchmark_epilogue_fusion", "max_autotune_gemm_backends",
         "max_autotune_conv_backends")  # fmt: skip


class Tuner:
    """Tunes one graph."""

    def __init__(
        self, graph: Graph, target: Target, tools: Toolchain, config: Config, trace: Trace
    ) -> None:
        self.graph, self.target, self.config, self.trace = graph, target, config, trace
        self.tools: Toolchain = tools
        self.ways: TargetTuning = tools.tuning
        self.database = Database.of(config)
        self.choices = NO_CHOICES
        self.findings: list[Finding] = []
        self.decisions: list[Decision] = []
        self.timed = 0
        asked = config.max_autotune_budget_seconds
        self.end = time.monotonic() + (self.ways.budget if asked is None else asked)
        self.runner: Apart | Here = Here(target, tools, config)
        if config.autotune_in_subproc and self.ways.apart is None:
            self.runner = Apart(config)
        elif config.autotune_in_subproc:
            reason = f"autotune_in_subproc: {self.ways.apart}"
            self.decisions.append(self._unmet(f"{graph.kind} graph", reason))

    def tuning(self, products: bool, loops: bool) -> Tuning:
        """Products first: what they are fused with decides what other kernels there are."""
        try:
            if products:
                given = (self.graph, self._joined(), self.target, self.tools, self.config)
                found = product_questions(*given, self._all_ours())
                named = self._answered(found)
                self.choices = replace(self.choices, products=named)
            if loops:
                kernels = self._kernels(self.choices)
                about = (kernels, self.target, self.tools, self.config)
                answers: dict[str, Any] = self._answered(loop_questions(*about, self.choices))
                self.choices = replace(self.choices, **{self.ways.field: answers})
        finally:
            if isinstance(self.runner, Apart):
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
        program = lower(*given, choices) if choices.products else self._by_rule
        return fuse(program, self.target, self.config, choices)

    def _all_ours(self) -> KernelGraph | None:
        """The kernels if products were all ours; None where the rules have them so."""
        most = self.ways.library_as_ours(self.config)
        return None if most is None else self._kernels(Choices(products={ANY: most}))

    def _joined(self) -> KernelGraph:
        """The kernels with as much around each product as may be: what is timed holds all that a
        choice may join, or take apart."""
        most = ProductChoice(rows=True, prologue=True)
        together = Choices(products={ANY: most} if self.config.benchmark_epilogue_fusion else {})
        return fuse(self._by_rule, self.target, self.config, together)

    def _unmet(self, name: str, reason: str) -> Decision:
        return Decision("unmet", "max_autotune", name, reason)

    # -- questions -------------------------------------------------------------------------------

    def _answered(self, questions: list[Question]) -> dict[str, Any]:
        """For each name that another choice than the rule's is taken for, that choice."""
        open_: list[Question] = []
        findings: list[Finding] = []
        for question in questions:
            known = self._known(question)
            (open_ if known is None else findings).append(known or question)  # type: ignore
        if open_:
            machine = self._machine()
            open_ = self._worth_it(sorted(open_, key=lambda q: -q.cost(machine)), machine)
            for number, search in enumerate(self._searches(open_, machine), 1):
                self.trace.count(number, len(open_))
                findings += self._asked(search)
            self.trace.count(0, 0)
        self.findings += findings
        taken = [f for f in findings if f.choice != f.default]
        return {name: finding.choice for finding in taken for name in finding.names}

    def _searches(self, questions: list[Question], machine: Machine) -> Iterable[_Search]:
        """One after the other; or all at once, if their kernels are compiled ahead."""
        found = (_Search(self, question, machine) for question in questions)
        if not isinstance(self.runner, Here) or self.tools.build_ahead is None:
            return found
        searches = list(found)
        ahead = [variant for search in searches for variant in search.variants()]
        left = self.end - time.monotonic()
        self.runner.prepare(ahead, self.end - TIMING * max(left, 0.0))
        return searches

    def _worth_it(self, questions: list[Question], machine: Machine) -> list[Question]:
        """Those that the whole could gain from, unless all are to be asked."""
        if self.asks_all:
            return questions
        least = TOO_SMALL * multiplying(self.graph, machine)
        for question in (q for q in questions if q.cost(machine) < least):
            reason = f"less than {TOO_SMALL:.0%} of what the graph's products take"
            self.decisions.append(self._unmet(question.what, reason))
        return [q for q in questions if q.cost(machine) >= least]

    @property
    def asks_all(self) -> bool:
        """Whether the user wants everything tried."""
        whole = self.config.max_autotune_gemm_search_space == "EXHAUSTIVE"
        return whole or self.config.coordinate_descent_tuning

    def _asked(self, search: _Search) -> list[Finding]:
        question = search.question
        if time.monotonic() > self.end:
            self.decisions.append(self._unmet(question.what, "max_autotune_budget_seconds"))
            return []
        choice = search.best(self.config.coordinate_descent_tuning)
        trials = tuple(search.trials)
        if search.complete:
            self.database.put(self._key(question), kept(choice, trials))
        else:
            reason = "max_autotune_budget_seconds, before all was tried"
            self.decisions.append(self._unmet(question.what, reason))
        return [Finding(question.what, question.names, choice, question.default, trials)]

    def _known(self, question: Question) -> Finding | None:
        value = self.database.get(self._key(question))
        if value is None:
            return None
        rule = question.default
        try:
            choice, trials = choice_of(rule, value["choice"]), trials_of(rule, value["trials"])
            if not question.fits(choice):
                raise ValueError(f"{choice} does not fit")
        except Exception:  # any type may stand in any place
            self.database.notes.append(f"an entry about {question.what} makes no sense")
            return None
        return Finding(question.what, question.names, choice, rule, trials, kept=True)

    def _key(self, question: Question) -> Json:
        """All that an answer depends on, as JSON."""
        flags = {k: v for k, v in self.config.code_key() if isinstance(v, (bool, int, str))}
        tuning = {k: v for k, v in flags.items() if "autotune" not in k or k in ASKED}
        return {**self._place(), "program": question.mark, "what": question.what, "flags": tuning}

    def _place(self) -> Json:
        """The machine and the versions of what makes the code."""
        ours = {"version": VERSION, "litz": version_of("litz"), "torch": torch.__version__}
        return {**ours, **self.ways.place(self.target)}

    def _machine(self) -> Machine:
        return self.ways.machine(self.target, self.database, self._place())

    # -- trials ----------------------------------------------------------------------------------

    def trial(self, rule: Variant, other: Variant) -> Ratio | str:
        """Two variants side by side, here or in a process of their own."""
        self.timed += 1
        return self.runner.tried(rule, other, TRIAL)

    def fused(self, variant: Variant) -> Variant:
        """The same as kernels: fused once, for all that follows."""
        return replace(variant, program=kernels_of(variant, self.target, self.config))

    def signature(self, variant: Variant) -> object:
        """What the code of kernels depends on: equal ones need not be timed."""
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
    """The trials about one question."""

    def __init__(self, tuner: Tuner, question: Question, machine: Machine) -> None:
        self.tuner, self.question, self.listed = tuner, question, question.listed(machine)
        self.least = 0.0 if tuner.asks_all else question.least(machine)
        self.rule = tuner.fused(question.variant(question.default))
        self.made: dict[AnyChoice, Variant] = {}
        self.trials: list[Trial] = []
        self.seen = {tuner.signature(self.rule)}
        self.complete = True

    def variants(self) -> list[Variant]:
        """What the trials of the listed choices compile, as far as it can be compiled."""
        found = {self.tuner.signature(self.rule): self.rule}
        for choice in self.listed:
            with suppress(Exception):  # the trial will say
                variant = self._variant(choice)
                found.setdefault(self.tuner.signature(variant), variant)
        return list(found.values())

    def _variant(self, choice: AnyChoice) -> Variant:
        if choice not in self.made:
            self.made[choice] = self.tuner.fused(self.question.variant(choice))
        return self.made[choice]

    def best(self, descend: bool) -> AnyChoice:
        """The quickest choice that is surely quicker than the rule's, twice."""
        for choice in self.listed:
            if not self._is_at_its_peak():
                self._try(choice)
        if descend:
            self._descend()
        for trial in self._winners():
            again = self._again(trial.choice)
            if isinstance(again, Ratio) and again.high < MARGIN:
                return trial.choice
        return self.question.default

    def _is_at_its_peak(self) -> bool:
        """Whether no choice could be much quicker than the rule's, by what a trial took."""
        known = (t.ratio.seconds for t in self.trials if t.ratio is not None)
        return self.least > AT_ITS_PEAK * next(known, float("inf"))

    def _winners(self) -> list[Trial]:
        sure = [(t.ratio.median, k) for k, t in enumerate(self.trials)
                if t.ratio is not None and t.ratio.high < MARGIN]  # fmt: skip
        return [self.trials[k] for _, k in sorted(sure)]

    def _descend(self) -> None:
        """From the best so far to what lies beside it, while that is better."""
        at: AnyChoice | None = None
        while True:
            winners = self._winners()
            now = winners[0].choice if winners else self.question.default
            if now == at:
                return
            at = now
            for choice in self.question.near(at):
                self._try(choice)

    def _try(self, choice: AnyChoice) -> None:
        if any(t.choice == choice for t in self.trials) or choice == self.question.default:
            return
        if time.monotonic() > self.tuner.end:
            self.complete = False
            return
        try:
            other = self._variant(choice)
            signature = self.tuner.signature(other)
        except Exception as error:  # a choice that cannot be compiled is none
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
