"""Scopes: where in a function each instruction goes.

In: loops opened and closed. Out: lines in order. Every open loop has a scope with its own lines. An
instruction that does not depend on a loop is written into the scope around it, which comes first:
that is all of loop-invariant code motion. Example: the reciprocal of a row's sum is written in the
scope of the row, not inside the loop over its columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.ir.expr import Expr

I64 = Type("i64", 1)


@dataclass
class Scope:
    """A loop body, a branch or the function: its lines, their last block, the values known there.

    When it closes, `enter`, the lines and `leave` are appended to the scope outside, which then
    continues in the block `after`.
    """

    lines: list[str]
    block: str
    enter: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    after: str = ""
    values: dict[Expr, Value] = field(default_factory=dict)
    broadcasts: dict[str, Value] = field(default_factory=dict)  # scalars copied to all lanes


class Scopes:
    """The stack of open scopes. The builder writes into whichever one is selected."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.stack = [Scope(builder.lines, builder.block)]
        self.selected = 0

    @property
    def depth(self) -> int:
        return len(self.stack) - 1

    def select(self, level: int) -> None:
        """Write into the scope at `level`."""
        scope = self.stack[level]
        self.selected = level
        self.builder.lines, self.builder.block = scope.lines, scope.block

    def find(self, node: Expr) -> Value | None:
        for scope in reversed(self.stack):
            found = scope.values.get(node)
            if found is not None:
                return found
        return None

    def bind(self, level: int, node: Expr, value: Value) -> None:
        self.stack[level].values[node] = value

    def open_loop(
        self,
        start: Value,
        end: Value,
        step: Value | int,
        *,
        whole_steps: bool = False,
        rolled: bool = False,
    ) -> Value:
        """Begin `for (i = start; i < end; i += step)`; with whole_steps, while i + step <= end.
        A rolled loop is not unrolled by LLVM."""
        name = self.builder.fresh("loop")
        counter = Value(f"%{name}.i", I64)
        by = step.text if isinstance(step, Value) else step
        ahead = f"  %{name}.ahead = add nsw i64 {counter.text}, {by if whole_steps else 0}"
        test = f"icmp {'sle' if whole_steps else 'slt'} i64 %{name}.ahead, {end.text}"
        enter = (
            f"  br label %{name}.head",
            f"{name}.head:",
            f"  {counter.text} = phi i64 [ {start.text}, %{self.stack[-1].block} ],"
            f" [ %{name}.next, %{name}.latch ]",
            ahead,
            f"  %{name}.go = {test}",
            f"  br i1 %{name}.go, label %{name}.body, label %{name}.exit",
            f"{name}.body:",
        )
        leave = (
            f"  br label %{name}.latch",
            f"{name}.latch:",
            f"  %{name}.next = add nsw i64 {counter.text}, {by}",
            f"  br label %{name}.head{', !llvm.loop !0' if rolled else ''}",
            f"{name}.exit:",
        )
        self._open(Scope([], f"{name}.body", enter, leave, f"{name}.exit"))
        return counter

    def open_if(self, condition: Value) -> None:
        """Begin a block that runs only where a scalar condition holds."""
        name = self.builder.fresh("if")
        enter = (
            f"  br i1 {condition.text}, label %{name}.then, label %{name}.exit",
            f"{name}.then:",
        )
        leave = (f"  br label %{name}.exit", f"{name}.exit:")
        self._open(Scope([], f"{name}.then", enter, leave, f"{name}.exit"))

    def _open(self, scope: Scope) -> None:
        self.stack.append(scope)
        self.select(self.depth)

    def close(self) -> None:
        """End the innermost scope; its lines follow what was hoisted out of it."""
        inner = self.stack.pop()
        outer = self.stack[-1]
        outer.lines += [*inner.enter, *inner.lines, *inner.leave]
        outer.block = inner.after
        self.select(self.depth)
