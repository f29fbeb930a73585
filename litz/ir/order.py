"""An order of expressions that is the same in every process, whatever was compiled before.

In: an `Expr`. Out: a key to sort by. Axes come first, then sizes, each by name (`i2` before `i10`),
then everything else by a digest of its structure. Sums and products of the index algebra are
written in this order, so that a program has one text. Example: `i1 + i0 * 8` is `i0 * 8 + i1`.
"""

from __future__ import annotations

import hashlib
from typing import Any

from litz.ir.expr import Expr, walk
from litz.ir.program import Buffer

Key = tuple[int, int, str, str]
AXIS, SIZE, OTHER = range(3)


def order(node: Expr) -> Key:
    """The sort key of a node: no two nodes have the same one."""
    if node.order is None:
        node.order = _key(node)
    return node.order


def digest(root: Expr) -> str:
    """A hash of the structure of a node; computed once for each node."""
    if root.digest is None:
        for node in walk(root):
            if node.digest is None:
                node.digest = _digest(node)
    assert root.digest is not None
    return root.digest


def _key(node: Expr) -> Key:
    if node.op in ("axis", "size"):
        name = node.attr if node.op == "axis" else node.attr[0]
        return AXIS if node.op == "axis" else SIZE, len(name), name, digest(node)
    return OTHER, 0, "", digest(node)


def _digest(node: Expr) -> str:
    below = [a.digest for a in node.args]
    text = repr((node.op, node.dtype.name, _attribute(node.attr), below))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _attribute(attr: Any) -> Any:
    """A node's `attr` (a number, a name, a buffer, axes that it binds) in a form to be hashed."""
    if isinstance(attr, tuple):
        return [_attribute(part) for part in attr]
    if isinstance(attr, Expr):
        return digest(attr)
    return layout_of(attr) if isinstance(attr, Buffer) else repr(attr)


def layout_of(buffer: Buffer) -> Any:
    """A buffer's name, type, layout and device."""
    layout = [digest(n) for n in (*buffer.shape, *buffer.strides)]
    return [buffer.name, buffer.dtype.name, layout, buffer.device]
