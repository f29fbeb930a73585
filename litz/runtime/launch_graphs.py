"""Launch graphs: a segment of kernels as one launch, if all addresses are those of an earlier call.

In: the native function that launches a segment's kernels one by one. Out: a callable that does the
same. torch's allocator reuses memory in a regular order, so that the calls of a loop soon have all
tensors at the addresses of an earlier call. The second time a set of addresses comes, the launches
are recorded as a CUDA graph; from then on one launch replaces them all. The graph owns no memory
and copies nothing: it is a list of launches. With other addresses, kernels are launched one by one.
Example: 66 kernels cost 66 calls of the driver, or one.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Protocol

from litz.ir.call_plan import STREAM

Native = Callable[[int], int]
# Graphs of one segment: an output that stays alive moves the next call's to another address, and
# back again later.
MOST_GRAPHS = 4
# Sets of addresses that are remembered until they come again; if none of so many did, none will.
MOST_SEEN = 64


class Launcher(Protocol):
    """Records launches: a GPU, or a stand-in in tests."""

    def recorded(self, run: Callable[[int], int]) -> Callable[[int], int] | None:
        """The launches of `run` on a stream, as one launch; None if they cannot be recorded."""


class LaunchGraphCache:
    """Calls `native` with a table; `used` are the table's entries that its kernels read."""

    def __init__(
        self, native: Native, used: tuple[int, ...], copied: Callable[[Any], Any], device: Launcher
    ) -> None:
        self.native, self.copied, self.device = native, copied, device
        self.addresses = itemgetter(*used) if len(used) > 1 else itemgetter(*used, *used)
        self.graphs: dict[tuple[Any, ...], Callable[[int], int]] = {}
        self.seen: set[tuple[Any, ...]] = set()

    def __call__(self, table: Any, address: int) -> int:
        """Launch the kernels; returns the driver's first error, or zero."""
        place = self.addresses(table)
        graph = self.graphs.get(place)
        if graph is not None:
            return graph(table[STREAM] or 0)
        if len(self.graphs) < MOST_GRAPHS and len(self.seen) < MOST_SEEN:
            self._remember(place, table)
        return self.native(address)

    def _remember(self, place: tuple[Any, ...], table: Any) -> None:
        if place not in self.seen:
            self.seen.add(place)
            return
        space = self.copied(table)

        def run(stream: int) -> int:
            space.table[STREAM] = stream
            return self.native(space.address)

        graph = self.device.recorded(run)
        if graph is None:  # torch is recording a graph on this stream
            self.seen.discard(place)
            return
        self.graphs[place] = graph
