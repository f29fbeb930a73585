"""How operands of a product are laid out follows from sizes and strides alone."""

from __future__ import annotations

import pytest

from litz.ir.dtypes import BF16, F32
from litz.ir.packing import (
    MANY_COLUMNS,
    PACKED_ROWS,
    PAGE_STRIDE,
    copies_left,
    packs_right,
    split_k_of,
)

ROWS, TURNED = (1, 768), (768, 1)  # how far apart neighbours along columns and along the sum lie


@pytest.mark.parametrize(
    ("rows", "columns", "group", "steps", "kept", "expected"),
    [
        (1, 768, 1, TURNED, True, True),  # of a parameter, whatever it looks like
        (1, 768, 2, TURNED, True, True),
        (512, 768, 2, ROWS, False, "groups"),
        (1, 768, 1, ROWS, False, False),  # whole panels, one row after the other
        (PACKED_ROWS, 768, 1, ROWS, False, False),
        (PACKED_ROWS, 768, 1, (1, PAGE_STRIDE), False, True),
        (PACKED_ROWS, 768, 1, TURNED, False, True),
        (PACKED_ROWS - 1, 768, 1, TURNED, False, "packed at each call"),
        (PACKED_ROWS - 1, 770, 1, ROWS, False, "packed at each call"),
    ],
)
def test_right_operands(
    rows: int, columns: int, group: int, steps: tuple[int, int], kept: bool, expected: bool | str
) -> None:
    found = packs_right(rows, columns, 64, group, steps, F32, kept)
    if isinstance(expected, str):
        assert isinstance(found, str) and expected in found
    else:
        assert found is expected


def test_left_operands() -> None:
    assert not copies_left(4096, 1, ROWS, F32)
    assert not copies_left(64, 1, TURNED, F32)  # the gradient of a weight
    assert copies_left(64, 2, TURNED, BF16)  # groups are neighbours along the sum
    assert copies_left(64, 1, (768, 2), F32)
    far = (PAGE_STRIDE // F32.bytes, 1)
    assert copies_left(MANY_COLUMNS, 1, far, F32) and not copies_left(MANY_COLUMNS - 1, 1, far, F32)


def test_slices() -> None:
    def slices(rows: int, depth: int, columns: int, chosen: int | None = None) -> int:
        return split_k_of(rows, depth, columns, 64, 1, 6, chosen)

    assert slices(6, 8192, 64) > 1
    assert slices(1, 8192, 64) == 1  # waits for memory, which threads share anyway
    assert slices(600, 8192, 64) == slices(6, 512, 64) == 1
    assert slices(600, 8192, 64, 4) == 4 and slices(6, 8191, 64, 4) == 1
