"""The current settings: the environment, assignments, patches, and the `Config` that results.

In: names and values. Out: `snapshot()`, a frozen `Config`. Later layers win: declared default,
environment variable, assignment, patch, then the mode or options of one compile. Assignments hold
for the process. Patches are in a context variable: a thread or a task sees only its own. Every
value is checked when it is set.

    litz.config.max_fusion_size = 32             # for the process
    with litz.config.patch({"cpp.threads": 1}):  # for the block, in this thread
        config = litz.config.snapshot()          # for one compile
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType, ModuleType
from typing import Any, Protocol, TypeVar

from litz.config.flags import FLAGS, GROUPS, Config, Flag
from litz.config.modes import list_mode_options
from litz.config.values import check, parse
from litz.errors import ModeWithOptions, UnknownFlag

F = TypeVar("F", bound=Callable[..., Any])
_NOTHING: Mapping[str, Any] = MappingProxyType({})
# The prefix of variables that seed the test suite (tests/draws.py), which are no flags.
TESTS = "LITZ_TEST_"


class Patch(Protocol):
    """The result of `patch`: for `with patch(...):`, or `@patch(...)` above a function."""

    def __enter__(self) -> None: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> bool | None: ...
    def __call__(self, function: F, /) -> F: ...


def find(name: str) -> Flag:
    """The flag of that dotted name."""
    if name not in FLAGS:
        raise UnknownFlag(name, difflib.get_close_matches(name, FLAGS, n=2))
    return FLAGS[name]


def checked(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, after checking that each is a known flag and has its type."""
    return {name: check(find(name), value) for name, value in changes.items()}


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """The flags set by `LITZ_*` variables; an unknown one is reported with the nearest name."""
    known = {flag.env: flag for flag in FLAGS.values()}
    values: dict[str, Any] = {}
    for variable, text in environment.items():
        if variable in known:
            values[known[variable].name] = parse(known[variable], text)
        elif variable.startswith("LITZ_") and not variable.startswith(TESTS):
            near = difflib.get_close_matches(variable, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            warnings.warn(f"the environment sets {variable}, no flag of Litz{hint}", stacklevel=2)
    return values


class Settings:
    """The layers below one compile. `litz.config` has the only instance outside the tests."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        defaults = {name: flag.default for name, flag in FLAGS.items()}
        # Changed key by key, and copied whole: a snapshot in another thread sees all of an
        # assignment or nothing.
        self._process = defaults | from_environment(environment)
        self._patched: ContextVar[Mapping[str, Any]] = ContextVar("patched", default=_NOTHING)

    def get(self, name: str) -> Any:
        patched = self._patched.get()
        find(name)
        return patched[name] if name in patched else self._process[name]

    def set(self, name: str, value: Any) -> None:
        """Assign. If this thread has patched the flag, the patch changes, and ends as usual."""
        change = checked({name: value})
        patched = self._patched.get()
        if name in patched:
            self._patched.set({**patched, **change})
        else:
            self._process.update(change)

    def patch(self, *changes: Any, **named: Any) -> Patch:
        """Other settings for a block or a function: a dict, a name and a value, or keywords."""
        if len(changes) == 2:
            changes = ({changes[0]: changes[1]},)
        # `contextmanager` makes a fresh manager for each use, so a decorated function may recurse.
        return self._applied(checked({**dict(*changes), **named}))

    @contextmanager
    def _applied(self, changes: Mapping[str, Any]) -> Iterator[None]:
        before = self._patched.get()
        self._patched.set({**before, **changes})
        try:
            yield
        finally:
            self._patched.set(before)

    def snapshot(
        self, overrides: Mapping[str, Any] | None = None, mode: str | None = None
    ) -> Config:
        """The settings of one compile: the current ones, then its options or those of its mode."""
        if mode is not None and overrides:
            raise ModeWithOptions
        chosen = overrides or ({} if mode is None else list_mode_options(mode))
        return Config.of({**self._process, **self._patched.get(), **checked(chosen)})


class Group:
    """The flags below a prefix, to read and to assign: `litz.config.cpp.threads = 1`."""

    def __init__(self, settings: Settings, prefix: str) -> None:
        object.__setattr__(self, "_settings", settings)
        object.__setattr__(self, "_prefix", prefix)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and inspect look for optional protocol methods
            raise AttributeError(name)
        return self._settings.get(self._prefix + name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._settings.set(self._prefix + name, value)

    def __dir__(self) -> list[str]:
        return [name[len(self._prefix) :] for name in FLAGS if name.startswith(self._prefix)]


class ConfigModule(ModuleType):
    """A module whose attributes are the flags; `litz.config` is made one of these."""

    _settings: Settings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # the import system and inspect look for optional attributes
            raise AttributeError(name)
        settings = self._settings
        return Group(settings, f"{name}.") if name in GROUPS else settings.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system binds submodules and dunder names; all the rest are flags.
        if name.startswith("_") or isinstance(value, ModuleType):
            super().__setattr__(name, value)
        else:
            self._settings.set(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *GROUPS, *(n for n in FLAGS if "." not in n)})
