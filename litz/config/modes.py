"""Modes: named sets of flags, with the names that torch.compile gives them.

In: the name of a mode. Out: the flags it sets. Example:
`list_mode_options("reduce-overhead")` is `{"triton.cudagraphs": True}`.
"""

from __future__ import annotations

from typing import Any

from litz.config.flags import FLAGS
from litz.errors import UnknownMode

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"triton.cudagraphs": True},
    "max-autotune": {"max_autotune": True, "triton.cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}


def list_options() -> dict[str, Any]:
    """Every flag with its default; `python -m litz options` prints their meanings."""
    return {name: flag.default for name, flag in FLAGS.items()}


def list_mode_options(mode: str | None = None, dynamic: bool | None = None) -> dict[str, Any]:
    """The flags that a mode sets, or all modes with theirs. `dynamic`, an argument of torch's
    function of this name, is ignored."""
    if mode is None:
        return {name: dict(options) for name, options in MODES.items()}
    if mode not in MODES:
        raise UnknownMode(mode, MODES)
    return dict(MODES[mode])
