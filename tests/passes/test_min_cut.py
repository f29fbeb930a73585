"""The cut costs what networkx's does, and is the one nearest to the sink."""

from __future__ import annotations

import random

import networkx
import pytest

from litz.passes.min_cut import INFINITE, Network
from tests import draws


def _random_network(draw: random.Random) -> tuple[Network, dict[tuple[int, int], int]]:
    network, capacities = Network(), {}
    vertices = [network.add_vertex() for _ in range(draw.randint(3, 14))]
    for _ in range(draw.randint(2, 50)):
        start, end = draw.sample(vertices, 2)
        if (start, end) not in capacities:
            capacities[start, end] = draw.randint(0, 9)
            network.add_edge(start, end, capacities[start, end])
    return network, capacities


@pytest.mark.parametrize("seed", range(100))
def test_cuts_cost_what_they_must(seed: int) -> None:
    network, capacities = _random_network(draws.python_generator(seed))
    sink = len(network.edges) - 1
    reference = networkx.DiGraph()
    reference.add_nodes_from(range(sink + 1))
    for (start, end), capacity in capacities.items():
        reference.add_edge(start, end, capacity=capacity)
    side = network.sink_side(0, sink)
    cut = sum(c for (a, b), c in capacities.items() if a not in side and b in side)
    assert 0 not in side and sink in side
    assert cut == networkx.minimum_cut_value(reference, 0, sink)


def test_of_equal_cuts_the_one_nearest_to_the_sink_is_taken() -> None:
    network = Network()
    first, second, third, last = (network.add_vertex() for _ in range(4))
    for start, end in ((first, second), (second, third), (third, last)):
        network.add_edge(start, end, 2)
    assert network.sink_side(first, last) == {last}


def test_what_cannot_be_cut_is_said() -> None:
    network = Network()
    first, last = network.add_vertex(), network.add_vertex()
    network.add_edge(first, last, INFINITE)
    with pytest.raises(ValueError, match="cannot be cut"):
        network.sink_side(first, last)
