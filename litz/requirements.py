"""What Litz needs of the machine, checked when it is first imported.

In: nothing. Out: an error of ours, with what to install, instead of one from deep inside an import.
"""

from __future__ import annotations

from importlib import import_module

from litz.errors import MissingDependency, UnsupportedTorch

# The releases that the tests are run with, and the same as pip reads it, as in pyproject.toml.
SUPPORTED = ((2, 11), (2, 13))
SPECIFIER = ">=2.11,!=2.12.*,<2.14"


def check_torch(version: str) -> None:
    """Litz follows torch's internal hooks, which differ between releases."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) not in SUPPORTED:
        raise UnsupportedTorch(version, SPECIFIER)


def check() -> None:
    """Import what everything else builds on."""
    for package in ("torch", "llvmlite", "numpy"):
        try:
            module = import_module(package)
        except ImportError as error:
            raise MissingDependency(package) from error
        if package == "torch":
            check_torch(module.__version__)


check()
