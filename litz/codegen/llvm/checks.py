"""Runtime checks: a comparison and a branch if all is well, a note on the stack if not.

In: the lanes that fail, and the index and size of each. Out: a call of a function that LLVM
inlines, so that callers need not know of basic blocks. On failure it writes the lanes to `noted`,
which is on the kernel's stack, and replaces the indices of the failing lanes by zero. When the
kernel ends, and only if something was noted, `@litz_note` copies the site and the values of its
first failing lane to the call's error record, if that is still empty. `ir/checks.py` says what its
words mean.

    %i = call <8 x i64> @litz_check_8(<8 x i1> %bad, <8 x i64> %index, <8 x i64> %size, i64 7, ...)

`noted` holds the site, a bit for each lane that failed, each lane's index, and each lane's size.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Type, Value

WORD = Type("i64", 1)
MOST_LANES = 256  # four vectors of bytes
CHECK_RECORD = f"[{2 + 2 * MOST_LANES} x i64]"
CHECK_PREFIX = "@litz_check_"  # found in the text of every function with checks
RARELY = '!prof !{!"branch_weights", i32 1, i32 2000}'

REPORT_CHECK = f"""
define internal void @litz_note(ptr %slot, ptr %noted) noinline cold nounwind {{
  %site = load i64, ptr %noted
  %record = load ptr, ptr %slot
  %swapped = cmpxchg ptr %record, i64 0, i64 %site monotonic monotonic
  %first = extractvalue {{ i64, i1 }} %swapped, 1
  br i1 %first, label %write, label %done
write:
  %lane.at = getelementptr i64, ptr %noted, i64 1
  %lane = load i64, ptr %lane.at
  %index.place = add i64 %lane, 2
  %index.at = getelementptr i64, ptr %noted, i64 %index.place
  %index = load i64, ptr %index.at
  %size.place = add i64 %lane, {2 + MOST_LANES}
  %size.at = getelementptr i64, ptr %noted, i64 %size.place
  %size = load i64, ptr %size.at
  %record.index = getelementptr i64, ptr %record, i64 1
  store i64 %index, ptr %record.index
  %record.size = getelementptr i64, ptr %record, i64 2
  store i64 %size, ptr %record.size
  br label %done
done:
  ret void
}}"""

# Volatile, or LLVM would carry the note through the loop around it in registers.
CHECK = f"""
define internal WIDE @litz_check_LANES(KIND %bad, WIDE %index, WIDE %size, i64 %site,
                                       ptr %noted) alwaysinline nounwind {{
entry:
  %any = ANY
  br i1 %any, label %failed, label %fine, {RARELY}
failed:
  store volatile i64 %site, ptr %noted
  %mask = bitcast KIND %bad to iLANES
  %first = call iLANES @llvm.cttz.iLANES(iLANES %mask, i1 false)
  %lane = WIDENED
  %lane.at = getelementptr i64, ptr %noted, i64 1
  store volatile i64 %lane, ptr %lane.at
  %index.at = getelementptr i64, ptr %noted, i64 2
  store volatile WIDE %index, ptr %index.at, align 8
  %size.at = getelementptr i64, ptr %noted, i64 {2 + MOST_LANES}
  store volatile WIDE %size, ptr %size.at, align 8
  %safe = select KIND %bad, WIDE zeroinitializer, WIDE %index
  br label %fine
fine:
  %given = phi WIDE [ %index, %entry ], [ %safe, %failed ]
  ret WIDE %given
}}"""


def check_lanes(
    b: Builder, bad: Value, site: int, index: Value, size: Value, noted: Value
) -> Value:
    """The index of each lane, with zero in the bad ones, which are noted. `index` and `size` have
    as many lanes as `bad`."""
    lanes = bad.type.lanes
    assert lanes <= MOST_LANES, f"{lanes} lanes, and room for {MOST_LANES}"
    b.declares.add(_check(lanes))
    b.declares.add(f"declare i{lanes} @llvm.cttz.i{lanes}(i{lanes}, i1)")
    if bad.type.lanes > 1:
        b.declares.add(f"declare i1 @{_reduced(bad.type)}({bad.type})")
    given = ", ".join(map(str, (bad, index, size, Value(str(site), WORD), noted)))
    return b.emit(f"call {index.type} {CHECK_PREFIX}{bad.type.lanes}({given})", index.type)


def _reduced(kind: Type) -> str:
    return f"llvm.vector.reduce.or.{kind.mangled}"


def _as_word(lanes: int) -> str:
    """The number of the first bad lane, from an integer with one bit a lane, as an i64."""
    if lanes == 64:
        return "add i64 %first, 0"
    return f"{'trunc' if lanes > 64 else 'zext'} i{lanes} %first to i64"


def _check(lanes: int) -> str:
    """The check function for that many lanes."""
    kind = Type("i1", lanes)
    known = {
        "ANY": f"call i1 @{_reduced(kind)}({kind} %bad)" if lanes > 1 else "or i1 %bad, false",
        "WIDENED": _as_word(lanes),
        "KIND": str(kind),
        "WIDE": str(Type("i64", lanes)),
        "LANES": str(lanes),
    }
    text = CHECK
    for name, meaning in known.items():
        text = text.replace(name, meaning)
    return text
