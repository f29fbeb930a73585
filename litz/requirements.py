"""Requirements: the packages that Litz needs, checked when it is first imported.

In: nothing. Out: an error of ours, with what to install, instead of one from deep inside an import.
"""

from __future__ import annotations

from importlib import import_module

from litz.errors import MissingDependency, UnsupportedTorch

# The torch releases that the tests run with, and the same as pip's specifier in pyproject.toml.
SUPPORTED = ((2, 11), (2, 13))
SPECIFIER = ">=2.11,!=2.12.*,<2.14"


def check_torch(version: str) -> None:
    """Refuse other releases of torch: Litz uses its internal hooks, which differ between them."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) not in SUPPORTED:
        raise UnsupportedTorch(version, SPECIFIER)


def check() -> None:
    """Import the packages that everything else builds on."""
    for package in ("torch", "llvmlite", "numpy"):
        try:
            module = import_module(package)
        except ImportError as error:
            raise MissingDependency(package) from error
        if package == "torch":
            check_torch(module.__version__)


check()
