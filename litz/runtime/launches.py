"""Runs of kernels as one launch, where an earlier call had every tensor at the same place.

In: the native function that launches a run of kernels one by one. Out: a callable that does the
same. torch's allocator gives memory back in the order it was returned, so that the calls of a loop
soon find all tensors where an earlier call had them. The second time that is so, the launches are
recorded as a CUDA graph; from then on one launch stands for all. The graph owns no memory and
copies nothing: it is a list of launches. Other addresses take the plain way. Example: 66 kernels
cost 66 calls of the driver, or one.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Protocol

from litz.ir.call_plan import STREAM

Native = Callable[[int], int]
# Graphs of one run: outputs that are alive move the next call's elsewhere, and back.
MOST_GRAPHS = 4
# Addresses that are remembered until they come again; if none did in so many, none will.
MOST_SEEN = 64


class Launcher(Protocol):
    """Who records launches: a GPU, or a stand-in."""

    def recorded(self, run: Callable[[int], int]) -> Callable[[int], int] | None:
        """What `run` launches on the stream it is given, as one launch; None if it cannot be."""


class Launches:
    """Calls `native` with a table; `used` are the table's entries that its kernels take."""

    def __init__(
        self, native: Native, used: tuple[int, ...], copied: Callable[[Any], Any], device: Launcher
    ) -> None:
        self.native, self.copied, self.device = native, copied, device
        self.addresses = itemgetter(*used) if len(used) > 1 else itemgetter(*used, *used)
        self.graphs: dict[tuple[Any, ...], Callable[[int], int]] = {}
        self.seen: set[tuple[Any, ...]] = set()

    def __call__(self, table: Any, address: int) -> int:
        """Launch the kernels; gives the driver's first error, or zero."""
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
        if graph is None:  # not now, and so not later: a stream that records elsewhere
            self.seen.discard(place)
            return
        self.graphs[place] = graph
