"""Settings of the test suite: every test draws the same numbers in every run.

A test is seeded by its name and `LITZ_TEST_SEED` (`tests/draws.py`), and so are a fixture that
several tests share and the loading of a module, so that numbers depend neither on which tests run
nor on their order. pytest's
cache keeps which tests drew any; `--drawing` runs those alone.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import core, settings
from torch._dynamo import config as dynamo
from torch._dynamo import guards

from tests import draws

# All memory of a call is filled with NaN before it, in subprocesses too: what is read before it is
# written shows. What tests the flag itself, or texts and times without it, sets it.
os.environ.setdefault("LITZ_DEBUG_POISON_MEMORY", "1")

# Compiling takes as long as it takes on a shared machine: a deadline would be noise.
settings.register_profile(
    "litz", deadline=None, derandomize=not draws.RUN, database=None, print_blob=True
)
settings.load_profile("litz")
if draws.RUN:
    core.global_force_seed = draws.RUN

# For a line of its log, Dynamo empties the processor's caches after every compile and times its
# guards: 20 ms each, a tenth of the suite.
guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[assignment]

DREW = ("drew numbers", True)
LISTED = "litz/drawing"
BEFORE = pytest.StashKey[Any]()
Wrapper = Generator[None, Any, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--drawing", action="store_true", help="only tests known to draw numbers")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "cache") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Drawing(config.cache))


class Drawing:
    """Keeps which tests drew numbers; what did not run stays as it was."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.ran: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.ran[report.nodeid] = DREW in report.user_properties

    def pytest_sessionfinish(self) -> None:
        before = set(self.cache.get(LISTED, []))
        drew = {name for name, drawn in self.ran.items() if drawn}
        self.cache.set(LISTED, sorted(before - self.ran.keys() | drew))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--drawing"):
        listed = set(config.cache.get(LISTED, []))  # type: ignore[union-attr]
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in listed])
        items[:] = [i for i in items if i.nodeid in listed]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Wrapper:
    """What a module draws as it is loaded is its own too, whichever modules were loaded before."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    draws.begin(collector.nodeid)
    before = draws.state()
    report = yield
    if draws.state() != before:
        draws.note_import(collector.module.__name__)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seeded before its fixtures are set up, which may draw too. With torch 2.11, calls of one with
    `dynamic=True` in several threads may leave every size symbolic: its settings are shared by all
    threads, and each puts back what it found."""
    if not dynamo.assume_static_by_default:
        dynamo.assume_static_by_default = True
    draws.begin(item.nodeid)
    item.stash[BEFORE] = draws.state()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: Any) -> Wrapper:
    """What several tests share is seeded by its own name: any of them may come first."""
    if fixturedef.scope == "function":
        return (yield)
    name = os.environ[draws.NAME]
    draws.begin(f"{fixturedef.baseid}::{fixturedef.argname}")
    try:
        return (yield)
    finally:
        draws.begin(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Note whether it drew; Hypothesis draws from generators that it puts back."""
    if (
        draws.state() != item.stash.get(BEFORE, None)
        or item.get_closest_marker("hypothesis") is not None
        or draws.drew_at_import(getattr(item, "module", draws))
    ):
        item.user_properties.append(DREW)
