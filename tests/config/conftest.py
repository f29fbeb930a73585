"""Flags as they are by themselves: the suite's own setting is none of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from litz import config


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    with config.patch(debug_poison_memory=False):
        yield
