"""Samples: whether a parameter has changed behind torch's back.

In: a plan that holds what it made of parameters. Out: LLVM IR of `i64 @litz_changed(ptr table)`,
which compares some elements of each of them with those seen before, remembers what it saw and gives
how many differ. torch counts changes in place, but not those through `.data` or a foreign pointer;
these change all of a tensor, or nearly so, and then the samples show it. If one lies elsewhere,
they are other parameters: nothing is compared, and the answer is -1.
"""

from __future__ import annotations

from litz.ir.program import Plan
from litz.ir.source import ARENA, SAMPLES

_ONE = """
define internal i64 @litz_samples_BYTES(ptr %tensor, ptr %seen, i64 %elements) #0 {
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  %found = phi i64 [ 0, %entry ], [ %sum, %loop ]
  %spread = mul i64 %k, %elements
  %element = udiv i64 %spread, SAMPLES
  %at = getelementptr iBITS, ptr %tensor, i64 %element
  %now = load iBITS, ptr %at, align BYTES
  %next = add i64 %k, 1
  %place = getelementptr i64, ptr %seen, i64 %next
  %old = load i64, ptr %place
  %wide = WIDE %now to i64
  store i64 %wide, ptr %place
  %differs = icmp ne i64 %wide, %old
  %one = zext i1 %differs to i64
  %sum = add i64 %found, %one
  %more = icmp ult i64 %next, SAMPLES
  br i1 %more, label %loop, label %done
done:
  ret i64 %sum
}
"""


def _one(size: int) -> str:
    """The function for elements of some bytes."""
    widened = "zext" if size < 8 else "bitcast"
    text = _ONE.replace("SAMPLES", str(SAMPLES)).replace("BITS", str(8 * size))
    return text.replace("BYTES", str(size)).replace("WIDE", f"{widened} i{8 * size}")


def samples_text(plan: Plan, layout: dict[str, int]) -> str:
    """The function, one call a parameter."""
    found = plan.sources
    lines = [_one(size) for size in sorted({b.dtype.bytes for b in found})]
    last = len(layout) + ARENA + 1
    lines += [
        "define i64 @litz_changed(ptr %table) #0 {",
        f"  %seen.slot = getelementptr ptr, ptr %table, i64 {last}",
        "  %seen = load ptr, ptr %seen.slot",
        "  %moved.0 = add i1 0, 0",
    ]
    for k, buffer in enumerate(found):
        lines += [
            f"  %slot{k} = getelementptr ptr, ptr %table, i64 {layout[buffer.name]}",
            f"  %tensor{k} = load ptr, ptr %slot{k}",
            f"  %seen{k} = getelementptr i64, ptr %seen, i64 {k * (SAMPLES + 1)}",
            f"  %before{k} = load ptr, ptr %seen{k}",
            f"  %differs{k} = icmp ne ptr %tensor{k}, %before{k}",
            f"  %moved.{k + 1} = or i1 %moved.{k}, %differs{k}",
        ]
    lines += [
        f"  br i1 %moved.{len(found)}, label %others, label %same",
        "others:",
        "  ret i64 -1",
        "same:",
        "  %total.0 = add i64 0, 0",
    ]
    for k, buffer in enumerate(found):
        steps = zip(buffer.shape, buffer.strides, strict=True)
        elements = 1 + sum((n.number - 1) * step.number for n, step in steps)
        call = f"@litz_samples_{buffer.dtype.bytes}(ptr %tensor{k}, ptr %seen{k}, i64 {elements})"
        lines += [
            f"  %new{k} = call i64 {call}",
            f"  %total.{k + 1} = add i64 %total.{k}, %new{k}",
        ]
    return "\n".join([*lines, f"  ret i64 %total.{len(found)}", "}", ""])
