"""The declarations: what must hold of every flag, and the key computed from them."""

from __future__ import annotations

import dataclasses

import pytest

from litz import config
from litz.config import FLAGS, MODES, Config
from litz.config.flags import GROUPS
from litz.config.values import check

HARMLESS = {"on_error", "debug", "verify", "disable_progress", "compile_threads"}
HARMLESS |= {"max_autotune_budget_seconds", "max_autotune_report_choices_stats"}
HARMLESS |= {"autotune_in_subproc", "max_autotune_subproc_result_timeout_seconds"}
HARMLESS |= {"autotune_local_cache", "cache_dir"}
HARMLESS |= {"triton.launch_graphs"}


@pytest.mark.parametrize("flag", FLAGS.values(), ids=FLAGS)
def test_every_flag_is_declared_well(flag) -> None:
    assert check(flag, flag.default) == flag.default
    assert flag.sentence.endswith(".") and flag.sentence.count(". ") == 0
    assert flag.stage
    assert flag.name == flag.name.lower()
    assert flag.affects_code == (flag.name not in HARMLESS)


def test_environment_names_are_distinct() -> None:
    assert len({flag.env for flag in FLAGS.values()}) == len(FLAGS)
    assert FLAGS["max_fusion_size"].env == "LITZ_MAX_FUSION_SIZE"
    assert FLAGS["cpp.threads"].env == "LITZ_CPP_THREADS"


def test_no_flag_hides_a_name_of_the_package() -> None:
    top = {name for name in FLAGS if "." not in name} | GROUPS
    assert not top & set(vars(config))


def test_modes_set_flags_that_exist() -> None:
    for options in MODES.values():
        for name, value in options.items():
            assert check(FLAGS[name], value) == value


def test_a_config_is_frozen_and_hashable() -> None:
    one = Config(max_fusion_size=1)
    assert one == Config(max_fusion_size=1) != Config()
    assert hash(one) == hash(Config(max_fusion_size=1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.max_fusion_size = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.cpp.threads = 2  # type: ignore[misc]


def test_changed_names_what_differs_from_the_defaults() -> None:
    assert Config().changed() == {}
    assert config.snapshot({"cpp.threads": 3, "debug": 0}).changed() == {"cpp.threads": 3}


@pytest.mark.parametrize("name", sorted(set(FLAGS) - HARMLESS))
def test_a_flag_that_affects_code_changes_the_key(name: str) -> None:
    assert _changed(name).code_key() != Config().code_key()


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_a_flag_that_does_not_affect_code_leaves_the_key(name: str) -> None:
    assert _changed(name) != Config()
    assert _changed(name).code_key() == Config().code_key()


def test_a_pass_is_known_by_its_uuid_and_else_by_itself() -> None:
    class Named:
        def __init__(self, uuid: str) -> None:
            self.uuid = lambda: uuid

        def __call__(self, graph: object) -> None: ...

    def key(function: object) -> tuple[tuple[str, object], ...]:
        return config.snapshot({"post_grad_custom_pre_pass": function}).code_key()

    def made() -> object:
        return lambda graph: None  # the same name and code each time, another function

    assert key(Named("a")) == key(Named("a")) != key(Named("b"))
    function = made()
    assert key(function) == key(function) != key(made())


def _changed(name: str) -> Config:
    """The defaults but for one flag."""
    default = FLAGS[name].default
    other = {
        "on_error": "raise",
        "cpp.simdlen": 256,
        "cpp.weight_prepack_check": "versions",
        "max_autotune_gemm_backends": "ATEN",
        "max_autotune_conv_backends": "ATEN",
        "max_autotune_gemm_search_space": "EXHAUSTIVE",
        "triton.descriptive_names": "inductor_node",
        "cache_dir": "here",
        "multi_kernel_hints": (8, 512),
        "max_fusion_unique_io_buffers": 4,
        "max_autotune_budget_seconds": 3.0,
        "joint_custom_pre_pass": print,
        "joint_custom_post_pass": print,
        "custom_partitioner_fn": print,
        "post_grad_custom_pre_pass": print,
        "post_grad_custom_post_pass": print,
    }
    value = not default if isinstance(default, bool) else other.get(name)
    return config.snapshot({name: default + 1 if value is None else value})
