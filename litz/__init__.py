"""Litz: a compiler for PyTorch programs.

`torch.compile(model, backend="litz")`, or `litz.compile(model)`. Names are imported on first use:
a missing dependency then raises an error of ours that says what to install.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from litz import config as config
    from litz.api import compile as compile
    from litz.api import explain as explain
    from litz.api import list_mode_options as list_mode_options
    from litz.api import list_options as list_options
    from litz.api import reset as reset

__version__ = "0.1.0"
__all__ = ["compile", "config", "explain", "list_mode_options", "list_options", "reset"]


def __getattr__(name: str) -> Any:
    if name == "config":
        return import_module("litz.config")
    if name in __all__:
        import_module("litz.requirements")  # first: its errors say what to install
        return getattr(import_module("litz.api"), name)
    raise AttributeError(f"module 'litz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
