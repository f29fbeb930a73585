"""The layers: environment, assignment, patch, options and modes, and how they restore."""

from __future__ import annotations

import copy
import inspect
import threading
import warnings
from collections.abc import Iterator

import pytest

import litz.config
from litz.config.settings import Group, Settings
from litz.errors import (
    FlagValueError,
    ModeWithOptions,
    UnknownFlag,
    UnknownMode,
    WrongFlagType,
)


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    """No test may leave a setting behind."""
    assert litz.config.snapshot().changed() == {}
    yield
    assert litz.config.snapshot().changed() == {}


@pytest.fixture
def settings() -> Settings:
    """Settings of their own, with an empty environment."""
    return Settings({})


def test_flags_are_attributes() -> None:
    assert litz.config.max_fusion_size == 64
    assert litz.config.cpp.threads == -1
    assert litz.config.triton.cudagraphs is False
    assert {"max_fusion_size", "cpp", "patch"} <= set(dir(litz.config))
    assert dir(litz.config.cpp) == sorted(
        ["threads", "simdlen", "huge_pages", "min_chunk_size", "weight_prepack", "opt_level"]
        + ["enable_concat_linear", "fold_affine_into_weights", "weight_prepack_check"]
    )


def test_assignment_holds_until_the_next(settings: Settings) -> None:
    settings.set("max_fusion_size", 7)
    Group(settings, "cpp.").threads = 2
    assert settings.get("max_fusion_size") == 7
    assert settings.snapshot().changed() == {"max_fusion_size": 7, "cpp.threads": 2}


def test_the_module_assigns() -> None:
    litz.config.max_fusion_size, litz.config.cpp.threads = 9, 3
    try:
        assert litz.config.snapshot().changed() == {"max_fusion_size": 9, "cpp.threads": 3}
    finally:
        litz.config.max_fusion_size, litz.config.cpp.threads = 64, -1


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (({"cpp.threads": 1, "max_fusion_size": 2},), {}),
        (({"cpp.threads": 1},), {"max_fusion_size": 2}),
        (("cpp.threads", 1), {"max_fusion_size": 2}),
        ((), {"cpp.threads": 1, "max_fusion_size": 2}),
    ],
)
def test_patch_takes_a_dict_a_pair_or_keywords(args: tuple, named: dict) -> None:
    with litz.config.patch(*args, **named):
        assert (litz.config.cpp.threads, litz.config.max_fusion_size) == (1, 2)
    assert (litz.config.cpp.threads, litz.config.max_fusion_size) == (-1, 64)


def test_patches_nest_and_restore_on_error() -> None:
    with litz.config.patch(max_fusion_size=2):
        with pytest.raises(KeyError), litz.config.patch(max_fusion_size=3, debug=1):
            assert litz.config.max_fusion_size == 3
            raise KeyError
        assert (litz.config.max_fusion_size, litz.config.debug) == (2, 0)


def test_patch_decorates_a_recursive_function() -> None:
    @litz.config.patch(max_fusion_size=5)
    def countdown(n: int) -> list[int]:
        """Counts."""
        return [litz.config.max_fusion_size] + (countdown(n - 1) if n else [])

    assert countdown(2) == [5, 5, 5]
    assert countdown.__doc__ == "Counts."
    assert litz.config.max_fusion_size == 64


def test_a_patch_that_is_wrong_changes_nothing() -> None:
    with pytest.raises(UnknownFlag):
        litz.config.patch({"max_fusion_size": 1, "cpp.thread": 1})
    with pytest.raises(WrongFlagType):
        litz.config.patch(max_fusion_size=1, debug="2")


def test_assignment_inside_a_patch_ends_with_it(settings: Settings) -> None:
    with settings.patch(max_fusion_size=2):
        settings.set("max_fusion_size", 3)
        settings.set("debug", 1)
        assert settings.get("max_fusion_size") == 3
    assert (settings.get("max_fusion_size"), settings.get("debug")) == (64, 1)


def test_a_patch_is_seen_by_its_own_thread_alone() -> None:
    seen: dict[int, set[int]] = {size: set() for size in (1, 2, 3, 4)}
    barrier = threading.Barrier(len(seen))

    def work(size: int) -> None:
        with litz.config.patch(max_fusion_size=size):
            for _ in range(50):
                barrier.wait(timeout=30)
                seen[size].add(litz.config.snapshot().max_fusion_size)

    with litz.config.patch(max_fusion_size=9):
        threads = [threading.Thread(target=work, args=(size,)) for size in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert litz.config.max_fusion_size == 9
    assert seen == {size: {size} for size in seen}


def test_a_snapshot_does_not_follow_later_changes(settings: Settings) -> None:
    taken = settings.snapshot()
    settings.set("max_fusion_size", 2)
    assert (taken.max_fusion_size, settings.snapshot().max_fusion_size) == (64, 2)


def test_layers_win_in_order() -> None:
    settings = Settings({"LITZ_MAX_FUSION_SIZE": "2"})
    assert settings.snapshot().max_fusion_size == 2
    settings.set("max_fusion_size", 3)
    assert settings.snapshot().max_fusion_size == 3
    with settings.patch(max_fusion_size=4):
        assert settings.snapshot().max_fusion_size == 4
        assert settings.snapshot({"max_fusion_size": 5}).max_fusion_size == 5


def test_modes_set_their_flags() -> None:
    assert litz.config.snapshot(mode="default").changed() == {}
    assert litz.config.snapshot(mode="reduce-overhead").triton.cudagraphs
    tuned = litz.config.snapshot(mode="max-autotune")
    assert tuned.changed() == {"max_autotune": True, "triton.cudagraphs": True}
    tuned = litz.config.snapshot(mode="max-autotune-no-cudagraphs")
    assert tuned.changed() == {"max_autotune": True}
    assert litz.config.list_mode_options("reduce-overhead") == {"triton.cudagraphs": True}
    assert next(iter(litz.config.list_mode_options())) == "default"


def test_listed_modes_are_copies() -> None:
    litz.config.list_mode_options("default")["debug"] = 6
    litz.config.list_mode_options()["default"]["debug"] = 6
    assert litz.config.list_mode_options("default") == {}


def test_options_and_modes_that_are_wrong() -> None:
    with pytest.raises(UnknownFlag, match=r"'max_fusion_size'"):
        litz.config.snapshot({"max_fusion_sise": 1})
    with pytest.raises(UnknownMode, match="reduce-overhead"):
        litz.config.snapshot(mode="fast")
    with pytest.raises(UnknownMode):
        litz.config.list_mode_options("fast")
    with pytest.raises(ModeWithOptions):
        litz.config.snapshot({"debug": 1}, mode="default")


def test_list_options_gives_names_and_defaults() -> None:
    listed = litz.config.list_options()
    assert listed["max_fusion_size"] == 64
    assert listed["cpp.threads"] == -1
    assert litz.config.snapshot(listed) == litz.config.snapshot()


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(UnknownFlag, match=r"did you mean 'max_fusion_size'"):
        _ = litz.config.max_fusion_sise
    with pytest.raises(UnknownFlag, match=r"did you mean 'cpp.threads'"):
        litz.config.cpp.thread = 1
    with pytest.raises(UnknownFlag, match=r"no flag 'zzz'\. "):
        litz.config.zzz = 1
    with pytest.raises(UnknownFlag):
        litz.config.cpp = 1  # a group is no flag
    assert not hasattr(litz.config, "zzz")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_fusion_size", True),
        ("max_fusion_size", 4.0),
        ("max_fusion_size", None),
        ("verify", 1),
        ("on_error", 3),
        ("cpp.simdlen", "256"),
        ("post_grad_custom_pre_pass", "my_pass"),
        ("max_autotune_budget_seconds", "1"),
        ("max_autotune_budget_seconds", True),
    ],
)
def test_types_are_exact(name: str, value: object) -> None:
    with pytest.raises(WrongFlagType, match=name):
        litz.config.patch({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_fusion_size", 0),
        ("debug", 7),
        ("on_error", "ignore"),
        ("cpp.simdlen", 100),
        ("max_fusion_unique_io_buffers", 0),
    ],
)
def test_values_stay_in_range(name: str, value: object) -> None:
    with pytest.raises(FlagValueError, match=name):
        litz.config.patch({name: value})


def test_introspection_does_not_trip_over_flags() -> None:
    assert inspect.ismodule(litz.config)
    assert inspect.getmembers(litz.config.cpp, inspect.isroutine) is not None
    assert copy.copy(litz.config.cpp).threads == -1
    assert not hasattr(litz.config, "__wrapped__")


def test_the_environment_is_parsed_by_type() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = Settings(
            {
                "LITZ_MAX_FUSION_SIZE": " 3",
                "LITZ_VERIFY": "False",
                "LITZ_EMULATE_PRECISION_CASTS": "1",
                "LITZ_CPP_THREADS": "-1",
                "LITZ_CPP_SIMDLEN": "None",
                "LITZ_ON_ERROR": "raise",
                "LITZ_MAX_AUTOTUNE_BUDGET_SECONDS": "2.5",
                "PATH": "/bin",
            }
        ).snapshot()
    assert config.changed() == {
        "max_fusion_size": 3,
        "verify": False,
        "emulate_precision_casts": True,
        "on_error": "raise",
        "max_autotune_budget_seconds": 2.5,
    }


@pytest.mark.parametrize(
    ("variable", "text", "error"),
    [
        ("LITZ_MAX_FUSION_SIZE", "many", WrongFlagType),
        ("LITZ_MAX_FUSION_SIZE", "", WrongFlagType),
        ("LITZ_MAX_FUSION_SIZE", "0", FlagValueError),
        ("LITZ_VERIFY", "yes", WrongFlagType),
        ("LITZ_ON_ERROR", "ignore", FlagValueError),
        ("LITZ_MAX_AUTOTUNE_BUDGET_SECONDS", "long", WrongFlagType),
        ("LITZ_MAX_AUTOTUNE_BUDGET_SECONDS", "inf", WrongFlagType),
        ("LITZ_MAX_AUTOTUNE_BUDGET_SECONDS", "-1", FlagValueError),
        ("LITZ_POST_GRAD_CUSTOM_PRE_PASS", "my.module", WrongFlagType),
    ],
)
def test_a_wrong_environment_names_its_variable(variable: str, text: str, error: type) -> None:
    with pytest.raises(error, match=variable):
        Settings({variable: text})


def test_an_unknown_variable_warns_with_the_nearest() -> None:
    with pytest.warns(UserWarning, match="sets LITZ_DEBGU, .* did you mean LITZ_DEBUG?"):
        Settings({"LITZ_DEBGU": "1"})
