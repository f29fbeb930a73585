"""What a hunt says it reached is what it reached, whoever ran the programs."""

from __future__ import annotations

import re
from collections import Counter

from litz.fuzz.coverage import (
    ATEN,
    FLAGS,
    FUSION,
    FUSIONS,
    GRAPHS,
    KERNEL,
    LOOPS,
    PROGRAMS,
    TEXT,
    Coverage,
    known,
    reached,
)
from litz.fuzz.generate import OPTIONS, generate
from litz.fuzz.hunt import judge
from litz.fuzz.program import CallMode, Input, Program, Step
from litz.report import Explanation
from tests.fuzz.hunting import command

PROGRAM = Program(
    (
        Input("x0", (8, 37), "float32", later=((3, 37), (8, 37))),
        Input("x1", (37, 5), "float32", later=((37, 5), (37, 5))),
    ),
    (
        Step("v0", "{0}.softmax(1).cumsum(1)", ("x0",), "a text"),
        Step("v1", "{0}.sort(0)[0]", ("x1",), "another"),
        Step("", "{0}.add_(1)", ("x1",), "a text"),
    ),
    ("v0", "v1"),
    {"cpp.simdlen": 128},
)


def coverage_of(program: Program) -> Coverage:
    notes = Explanation()
    assert judge(program, notes) is None
    return reached(program, notes)


def test_what_a_program_reaches_is_read_off_its_kernels() -> None:
    found = coverage_of(PROGRAM)
    assert {"aten.exp", "aten.cumsum"} <= set(found.rows(KERNEL))
    assert "aten.sort" in found.rows(ATEN)
    assert found.rows(TEXT) == {"a text": 2, "another": 1}
    assert {"a scan", "a reduction", "several phases", "sizes that only a call knows"} <= set(
        found.rows(LOOPS)
    )
    assert {"inference", "symbolic sizes", "with ATen calls", "inputs updated"} <= set(
        found.rows(GRAPHS)
    )
    assert {"called 3 times", "mutation", "several results"} <= set(found.rows(PROGRAMS))
    assert found.rows(FLAGS) == {"cpp.simdlen = 128": 1}
    assert set(found.rows(FUSION)) & set(FUSIONS)


def test_what_is_not_reached_is_listed() -> None:
    found = coverage_of(PROGRAM)
    assert "attention" in found.missing(LOOPS)
    assert "a scan" not in found.missing(LOOPS)
    assert "gradients" in found.missing(PROGRAMS)
    assert "aten.sin" in found.missing(KERNEL)
    assert "aten.exp" not in found.missing(KERNEL)
    assert set(found.missing(TEXT)) == set(known(TEXT))


def test_training_reaches_other_graphs() -> None:
    program = Program(
        (Input("x0", (4, 5), "float32"),), (Step("v0", "{0}.sin()", ("x0",)),), ("v0",),
        call_mode=CallMode(gradients=True),
    )  # fmt: skip
    found = coverage_of(program)
    assert {"forward", "backward", "symbolic sizes"} <= set(found.rows(GRAPHS))


def test_every_step_of_a_drawn_program_is_a_text_of_the_vocabulary() -> None:
    steps = [step for seed in range(5) for step in generate(seed).steps]
    assert {step.drawn for step in steps} <= set(known(TEXT))
    flags = {f"{n} = {v!r}" for n, v in generate(3).options.items() if n in OPTIONS}
    assert flags <= set(known(FLAGS))


def test_counts_add_up() -> None:
    one, other = (
        Coverage(Counter({(LOOPS, "a scan"): 2})),
        Coverage(Counter({(LOOPS, "a scan"): 3})),
    )
    one += other
    assert one.rows(LOOPS) == {"a scan": 5}


def test_the_command_shows_the_counts_of_all_its_processes() -> None:
    tables = [
        command("--seed", "1", "--programs", "4", "--jobs", jobs, "--coverage") for jobs in "12"
    ]
    assert [t.returncode for t in tables] == [0, 0], tables[0].stderr
    one, two = (_rows(t.stdout) for t in tables)
    assert one == two
    assert "NOT REACHED" in tables[0].stdout
    assert int(one["several results"]) == 4


def _rows(text: str) -> dict[str, str]:
    """By what is in front of the count."""
    found = re.findall(r"^ (\S.*?)  +(\d+) *$", text, re.MULTILINE)
    return dict(found)
