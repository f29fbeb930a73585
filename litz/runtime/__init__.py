"""Stage 9: a plan and its machine code become a callable.

In: `Plan`, `Source`, `Binary`. Out: `CompiledGraph`, which takes the list of inputs and returns the
list of outputs. Kernels between two ATen calls run in one native call; intermediates live in one
arena; outputs are all that is allocated.
"""

from __future__ import annotations

import torch

from litz.config import Config
from litz.ir.program import Plan
from litz.ir.source import Binary, Source
from litz.runtime.graph import CompiledGraph
from litz.trace import stage


@stage("link", "a callable")
def link(
    plan: Plan, source: Source, binary: Binary, constants: dict[str, torch.Tensor], config: Config
) -> CompiledGraph:
    """Settle what is known beforehand, so that a call does the rest line by line."""
    return CompiledGraph(plan, source, binary, constants, config)


__all__ = ["CompiledGraph", "link"]
