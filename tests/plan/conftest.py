"""Plans as they are by themselves: without the guards that the suite's own setting adds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from litz import config


@pytest.fixture(autouse=True)
def unpoisoned() -> Iterator[None]:
    with config.patch(debug_poison_memory=False):
        yield
