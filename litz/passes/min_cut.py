"""Minimum cut: the cheapest edges whose removal separates a source from a sink.

In: a network of edges with capacities. Out: the vertices on the sink's side. Dinic's algorithm:
breadth-first levels, then flow along paths that descend them, until no path is left. Example:

    network = Network()
    source, middle, sink = (network.add_vertex() for _ in range(3))
    network.add_edge(source, middle, 3)
    network.add_edge(middle, sink, 5)
    network.sink_side(source, sink)      # {middle, sink}: the edge of 3 is cut
"""

from __future__ import annotations

INFINITE = float("inf")


class Network:
    """Edges come in pairs: edge e and its reverse e ^ 1, each with its residual capacity."""

    def __init__(self) -> None:
        self.edges: list[list[int]] = []  # by vertex: the edges that leave it
        self.target: list[int] = []
        self.left: list[float] = []

    def add_vertex(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def add_edge(self, start: int, end: int, capacity: float) -> None:
        self.edges[start].append(len(self.target))
        self.edges[end].append(len(self.target) + 1)
        self.target += (end, start)
        self.left += (capacity, 0)

    def sink_side(self, source: int, sink: int) -> set[int]:
        """The vertices that still reach the sink at maximum flow.

        Of several cuts of equal cost this is the one nearest to the sink.
        """
        while True:
            level = self._levels(sink)
            if level[source] < 0:
                return {vertex for vertex, distance in enumerate(level) if distance >= 0}
            self._saturate(source, sink, level)

    def _levels(self, sink: int) -> list[int]:
        """Each vertex's distance to the sink over edges with residual capacity; -1 if none."""
        level = [-1] * len(self.edges)
        level[sink] = 0
        front = [sink]
        for vertex in front:  # grows during the loop
            for edge in self.edges[vertex]:
                before = self.target[edge]
                if level[before] < 0 and self.left[edge ^ 1] > 0:
                    level[before] = level[vertex] + 1
                    front.append(before)
        return level

    def _saturate(self, source: int, sink: int, level: list[int]) -> None:
        """Send flow down the levels until every path to the sink has a saturated edge."""
        untried = [len(edges) for edges in self.edges]  # edges of each vertex not yet given up
        path: list[int] = []
        vertex = source
        while True:
            if vertex == sink:
                vertex = self._send(path)
            elif (edge := self._downward(vertex, level, untried)) is not None:
                path.append(edge)
                vertex = self.target[edge]
            elif path:  # a dead end: step back and give up that edge
                vertex = self.target[path.pop() ^ 1]
                untried[vertex] -= 1
            else:
                return

    def _downward(self, vertex: int, level: list[int], untried: list[int]) -> int | None:
        edges, wanted = self.edges[vertex], level[vertex] - 1
        while untried[vertex]:
            edge = edges[untried[vertex] - 1]
            if self.left[edge] > 0 and level[self.target[edge]] == wanted:
                return edge
            untried[vertex] -= 1
        return None

    def _send(self, path: list[int]) -> int:
        """Saturate the narrowest edge of a path; return the vertex it starts from, and cut the path
        off there."""
        flow = min(self.left[edge] for edge in path)
        if flow == INFINITE:
            raise ValueError("source and sink are joined by edges that cannot be cut")
        for edge in path:
            self.left[edge] -= flow
            self.left[edge ^ 1] += flow
        full = next(k for k, edge in enumerate(path) if self.left[edge] <= 0)
        start = self.target[path[full] ^ 1]
        del path[full:]
        return start
