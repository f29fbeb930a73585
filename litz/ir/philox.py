"""Philox 4x32-10: random bits as a pure function of a seed and a counter.

In: seed and counter, arrays of int64. Out: 64 random bits each, as int64. A kernel that computes an
element twice, or in another order, or in another thread, gets the same number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = np.uint64(0xFFFFFFFF)


def random_bits(seed: Any, counter: Any) -> Any:
    """Words 0 and 1 of Philox's block number `counter` under the key `seed`."""
    key = np.asarray(seed, np.int64).astype(np.uint64)
    block = np.asarray(counter, np.int64).astype(np.uint64)
    k0, k1 = key & LOW, key >> np.uint64(32)
    c0, c1 = block & LOW, block >> np.uint64(32)
    c2 = c3 = np.zeros_like(c0)
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ k0,
            p1 & LOW,
            (p0 >> np.uint64(32)) ^ c3 ^ k1,
            p0 & LOW,
        )
        k0, k1 = (k0 + np.uint64(WEYL[0])) & LOW, (k1 + np.uint64(WEYL[1])) & LOW
    return (c0 | (c1 << np.uint64(32))).astype(np.int64)
