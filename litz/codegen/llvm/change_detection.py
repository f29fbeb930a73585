"""Change detection: whether the parameters that weights are prepacked from still hold their values.

In: those parameters. Out: LLVM IR of `i64 @litz_changed(ptr table)`. It returns -1 if a parameter
has moved, 1 if one was written to or none is watched yet, and 0 if every byte is unchanged. torch
counts most writes, but not those through `.data`, NumPy or a foreign pointer. The table's last
entry is a record of 64-bit numbers: the address of each parameter, the number of watched ranges (-1
before there are any), the address of their list, and the file /proc/self/pagemap. A range is
{ kind, address, bytes, old value }:

    COPIED   small: compared with a copy
    TRACKED  whole pages: the kernel notes writes to them (`runtime/change_detection.py`)
    HASHED   large, where the kernel does not: `i64 @litz_fingerprint(ptr, i64)` of all its bytes
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.ir.call_plan import ARENA
from litz.ir.program import Buffer
from litz.ir.source import COPIED, HASHED, TRACKED

# Bytes that a thread takes at a time; the fingerprint is the same for any number of threads.
CHUNK = 1 << 20
# Odd, with its ones spread out: multiplying by it loses no bit and spreads every one.
GOLDEN_RATIO_64 = 0x9E3779B97F4A7C15
# PAGEMAP_SCAN, its flag "only memory whose writes are tracked", and the category "written to".
PAGEMAP_SCAN, PM_SCAN_CHECK_WPASYNC, PAGE_IS_WRITTEN = 0xC0606610, 2, 2

# If one element differs, so does the fingerprint: each step is one to one.
FINGERPRINT = f"""
declare i32 @memcmp(ptr, ptr, i64)
declare i32 @ioctl(i32, i64, ...)
declare i64 @llvm.vector.reduce.add.v8i64(<8 x i64>)

%litz.print = type {{ ptr, i64, i64 }}

define internal i64 @litz_chunk(ptr %from, i64 %bytes) #0 {{
entry:
  %whole = and i64 %bytes, -64
  %seed = insertelement <8 x i64> poison, i64 {GOLDEN_RATIO_64 - (1 << 64)}, i32 0
  %spread = shufflevector <8 x i64> %seed, <8 x i64> poison, <8 x i32> zeroinitializer
  br label %vectors
vectors:
  %v = phi i64 [ 0, %entry ], [ %v.next, %vector ]
  %sum = phi <8 x i64> [ <i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8>, %entry ],
                       [ %sum.next, %vector ]
  %more = icmp ult i64 %v, %whole
  br i1 %more, label %vector, label %joined
vector:
  %at = getelementptr i8, ptr %from, i64 %v
  %read = load <8 x i64>, ptr %at, align 1
  %mixed = xor <8 x i64> %sum, %read
  %sum.next = mul <8 x i64> %mixed, %spread
  %v.next = add i64 %v, 64
  br label %vectors
joined:
  %high = lshr <8 x i64> %sum, <i64 29, i64 31, i64 33, i64 37, i64 41, i64 43, i64 47, i64 53>
  %folded = xor <8 x i64> %sum, %high
  %again = mul <8 x i64> %folded, <i64 3, i64 5, i64 7, i64 9, i64 11, i64 13, i64 15, i64 17>
  %start = call i64 @llvm.vector.reduce.add.v8i64(<8 x i64> %again)
  br label %tail
tail:
  %b = phi i64 [ %whole, %joined ], [ %b.next, %byte ]
  %total = phi i64 [ %start, %joined ], [ %total.next, %byte ]
  %b.more = icmp ult i64 %b, %bytes
  br i1 %b.more, label %byte, label %done
byte:
  %b.at = getelementptr i8, ptr %from, i64 %b
  %b.read = load i8, ptr %b.at
  %b.wide = zext i8 %b.read to i64
  %b.mixed = xor i64 %total, %b.wide
  %total.next = mul i64 %b.mixed, {GOLDEN_RATIO_64 - (1 << 64)}
  %b.next = add i64 %b, 1
  br label %tail
done:
  ret i64 %total
}}

define internal void @litz_chunks(ptr %job, i64 %me, i64 %all) #0 {{
entry:
  %from = load ptr, ptr %job
  %bytes.at = getelementptr %litz.print, ptr %job, i32 0, i32 1
  %bytes = load i64, ptr %bytes.at
  %total.at = getelementptr %litz.print, ptr %job, i32 0, i32 2
  br label %next
next:
  %k = phi i64 [ %me, %entry ], [ %k.next, %chunk ]
  %begin = mul i64 %k, {CHUNK}
  %more = icmp ult i64 %begin, %bytes
  br i1 %more, label %chunk, label %done
chunk:
  %left = sub i64 %bytes, %begin
  %length = call i64 @llvm.umin.i64(i64 %left, i64 {CHUNK})
  %at = getelementptr i8, ptr %from, i64 %begin
  %one = call i64 @litz_chunk(ptr %at, i64 %length)
  %place = mul i64 %k, -3335678366873096957
  %placed = xor i64 %one, %place
  %mixed = mul i64 %placed, {GOLDEN_RATIO_64 - (1 << 64)}
  %before = atomicrmw add ptr %total.at, i64 %mixed monotonic
  %k.next = add i64 %k, %all
  br label %next
done:
  ret void
}}

define internal void @litz_chunks_worker(ptr %job) #0 {{
  %me32 = call i32 @omp_get_thread_num()
  %all32 = call i32 @omp_get_num_threads()
  %me = zext i32 %me32 to i64
  %all = zext i32 %all32 to i64
  call void @litz_chunks(ptr %job, i64 %me, i64 %all)
  ret void
}}

define i64 @litz_fingerprint(ptr %from, i64 %bytes) #0 {{
entry:
  %job = alloca %litz.print
  store ptr %from, ptr %job
  %bytes.at = getelementptr %litz.print, ptr %job, i32 0, i32 1
  store i64 %bytes, ptr %bytes.at
  %total.at = getelementptr %litz.print, ptr %job, i32 0, i32 2
  store i64 0, ptr %total.at
  %chunks = udiv i64 %bytes, {CHUNK}
  %available = call i32 @omp_get_max_threads()
  %wide = zext i32 %available to i64
  %some = add i64 %chunks, 1
  %threads = call i64 @llvm.umin.i64(i64 %wide, i64 %some)
  %alone = icmp ule i64 %threads, 1
  br i1 %alone, label %serial, label %parallel
serial:
  call void @litz_chunks(ptr %job, i64 0, i64 1)
  br label %done
parallel:
  %team = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @litz_chunks_worker, ptr %job, i32 %team, i32 0)
  br label %done
done:
  %total = load i64, ptr %total.at
  ret i64 %total
}}
"""

RANGES = f"""
define i64 @litz_written(ptr %watch) #0 {{
entry:
  %arg = alloca [12 x i64], align 8
  %region = alloca [3 x i64], align 8
  %count = load i64, ptr %watch
  %ranges.at = getelementptr i64, ptr %watch, i64 1
  %ranges = load ptr, ptr %ranges.at
  %file.at = getelementptr i64, ptr %watch, i64 2
  %file.wide = load i64, ptr %file.at
  %file = trunc i64 %file.wide to i32
  %nobody = icmp slt i64 %count, 0
  br i1 %nobody, label %changed, label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k.next, %same ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %range, label %unchanged
range:
  %kind.at = getelementptr [4 x i64], ptr %ranges, i64 %k, i32 0
  %kind = load i64, ptr %kind.at
  %from.at = getelementptr [4 x i64], ptr %ranges, i64 %k, i32 1
  %from = load ptr, ptr %from.at
  %bytes.at = getelementptr [4 x i64], ptr %ranges, i64 %k, i32 2
  %bytes = load i64, ptr %bytes.at
  %was.at = getelementptr [4 x i64], ptr %ranges, i64 %k, i32 3
  %was = load i64, ptr %was.at
  switch i64 %kind, label %changed [ i64 {COPIED}, label %copied  i64 {TRACKED}, label %tracked
                                     i64 {HASHED}, label %hashed ]
copied:
  %copy = inttoptr i64 %was to ptr
  %order = call i32 @memcmp(ptr %from, ptr %copy, i64 %bytes)
  %differs = icmp ne i32 %order, 0
  br i1 %differs, label %changed, label %same
hashed:
  %print = call i64 @litz_fingerprint(ptr %from, i64 %bytes)
  %other = icmp ne i64 %print, %was
  br i1 %other, label %changed, label %same
tracked:
  call void @llvm.memset.p0.i64(ptr %arg, i8 0, i64 96, i1 false)
  store i64 96, ptr %arg
  %flags.at = getelementptr i64, ptr %arg, i64 1
  store i64 {PM_SCAN_CHECK_WPASYNC}, ptr %flags.at
  %start.at = getelementptr i64, ptr %arg, i64 2
  store ptr %from, ptr %start.at
  %end.at = getelementptr i64, ptr %arg, i64 3
  %end = getelementptr i8, ptr %from, i64 %bytes
  store ptr %end, ptr %end.at
  %region.at = getelementptr i64, ptr %arg, i64 5
  store ptr %region, ptr %region.at
  %regions.at = getelementptr i64, ptr %arg, i64 6
  store i64 1, ptr %regions.at
  %pages.at = getelementptr i64, ptr %arg, i64 7
  store i64 1, ptr %pages.at
  %category_mask.at = getelementptr i64, ptr %arg, i64 9
  store i64 {PAGE_IS_WRITTEN}, ptr %category_mask.at
  %return_mask.at = getelementptr i64, ptr %arg, i64 11
  store i64 {PAGE_IS_WRITTEN}, ptr %return_mask.at
  %found = call i32 (i32, i64, ...) @ioctl(i32 %file, i64 {PAGEMAP_SCAN}, ptr %arg)
  %some = icmp ne i32 %found, 0  ; less than zero: the memory is no longer tracked
  br i1 %some, label %changed, label %same
same:
  %k.next = add i64 %k, 1
  br label %next
changed:
  ret i64 1
unchanged:
  ret i64 0
}}
"""


def change_detection_text(parameters: Sequence[Buffer], table: dict[str, int]) -> str:
    """The functions, and the check of the addresses of one graph's parameters: a loop over the
    entries of the table that hold them."""
    count = len(parameters)
    entries = ", ".join(f"i64 {table[buffer.name]}" for buffer in parameters)
    return f"""{FINGERPRINT}
{RANGES}
@litz_parameters = private constant [{count} x i64] [{entries}]

define i64 @litz_changed(ptr %table) #0 {{
entry:
  %record.slot = getelementptr ptr, ptr %table, i64 {len(table) + ARENA + 1}
  %record = load ptr, ptr %record.slot
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k.next, %parameter ]
  %more = icmp ult i64 %k, {count}
  br i1 %more, label %parameter, label %same
parameter:
  %entry.at = getelementptr i64, ptr @litz_parameters, i64 %k
  %row = load i64, ptr %entry.at
  %slot = getelementptr ptr, ptr %table, i64 %row
  %tensor = load ptr, ptr %slot
  %seen = getelementptr ptr, ptr %record, i64 %k
  %before = load ptr, ptr %seen
  %differs = icmp ne ptr %tensor, %before
  %k.next = add i64 %k, 1
  br i1 %differs, label %others, label %next
others:
  ret i64 -1
same:
  %watch = getelementptr i64, ptr %record, i64 {count}
  %changed = call i64 @litz_written(ptr %watch)
  ret i64 %changed
}}
"""
