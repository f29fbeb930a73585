"""The captured graph: a functional ATen FX module with fake values, and where each node came from.

In: the facts that `capture` collected. Out: `Graph`, which `passes` rewrite and `lower` reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from litz.ir.program import Decision, Origin

NamedTensor = tuple[str, torch.Tensor]
# Key in a node's meta: its value, of a half type, must be rounded even if fusion keeps it inside a
# kernel.
ROUNDED = "litz_rounded"
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass
class Graph:
    """`kind` is inference, forward or backward; `attributes` are the module's own tensors; `static`
    names the placeholders of parameters, which seldom change from call to call. `values` are the
    parameters that may become constants, with the names that the user gave them; `frozen` are those
    that did."""

    module: torch.fx.GraphModule
    kind: str = "inference"
    name: str = "graph"
    attributes: dict[str, Any] = field(default_factory=dict)
    static: frozenset[str] = frozenset()
    values: dict[str, NamedTensor] = field(default_factory=dict)
    frozen: dict[str, NamedTensor] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    @property
    def nodes(self) -> list[torch.fx.Node]:
        return list(self.module.graph.nodes)

    @property
    def constants(self) -> dict[str, Any]:
        """The module's own tensors, by the names of their buffers."""
        held = self.attributes.items()
        return {constant_name(p): t for p, t in held if isinstance(t, torch.Tensor)}


def at_path(module: torch.nn.Module, path: str) -> Any:
    """The attribute that a `get_attr` node of a module reads."""
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def constant_name(path: str) -> str:
    return path.replace(".", "_")


def origin_of(node: torch.fx.Node) -> Origin:
    """The captured op and the innermost line of the user's program that asked for it."""
    ordered = str(node.target) == "with_effects"  # wraps an op whose calls must keep their order
    op = node.args[1] if ordered else node.target
    return Origin(node.name, str(op), _user_line(node.meta.get("stack_trace") or ""))


def _user_line(stack_trace: str) -> str:
    """`file.py:12` of the last frame; the trace lists callers first."""
    frames = list(_FRAME.finditer(stack_trace))
    if not frames:
        return ""
    return f"{frames[-1]['file'].rsplit('/', 1)[-1]}:{frames[-1]['line']}"
