"""Launches: LLVM IR that runs several kernels as one, their work shared out over the threads.

In: nothing. Out: `RUNTIME`, text that every module holds. A launch is { function, places of its
arguments, number of arguments, tasks, work }. Tasks and work that depend on symbolic sizes are -1 -
entry of the table. `@litz_run` puts the arguments of all launches side by side on the stack. A
large kernel is shared by all threads: thread t of n takes the t-th n-th of its tasks, which take
equal time, while the work of one kernel relative to another is only an estimate. The work of small
kernels lies end to end, and a thread takes the t-th n-th of that: part of one kernel, or several:

    launch 0 (work 100)      launch 1 (work 20)  launch 2 (80)
    |--------------------|----|-----------------|
    thread 0             thread 1

A batch is { first launch, how many, the arguments of all, whether one of them checks }.
`@litz_run_batches` runs one after the other, up to one whose check failed. Batches are data, since
LLVM takes half a millisecond for a function and more than linear time for a long one.
"""

from __future__ import annotations

# The work that is worth a thread of its own.
UNIT = 64
# A kernel is large if its work is at least this, times the number of threads.
LARGE = 2 * UNIT

RUNTIME = f"""
declare i32 @omp_get_max_threads()
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @llvm.umin.i32(i32, i32)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)

%litz.launch = type {{ ptr, ptr, i64, i64, i64 }}
%litz.batch = type {{ i64, i64, i64, i64 }}
%litz.call = type {{ ptr, ptr, i64, i64 }}
%litz.job = type {{ ptr, i64 }}

define internal i64 @litz_number(ptr %table, i64 %given) alwaysinline #0 {{
  %known = icmp sge i64 %given, 0
  %entry = xor i64 %given, -1
  %row = select i1 %known, i64 0, i64 %entry
  %at = getelementptr i64, ptr %table, i64 %row
  %listed = load i64, ptr %at
  %number = select i1 %known, i64 %given, i64 %listed
  ret i64 %number
}}

define internal i64 @litz_cut(i64 %number, i64 %me, i64 %all) alwaysinline #0 {{
  %before = mul i64 %number, %me
  %cut = udiv i64 %before, %all
  ret i64 %cut
}}

define internal void @litz_thread_share(ptr %job, i64 %me, i64 %all) #0 {{
entry:
  %calls = load ptr, ptr %job
  %count.at = getelementptr %litz.job, ptr %job, i32 0, i32 1
  %count = load i64, ptr %count.at
  %large = mul i64 %all, {LARGE}
  %next = add i64 %me, 1
  br label %sum
sum:
  %s = phi i64 [ 0, %entry ], [ %s.next, %sum ]
  %small = phi i64 [ 0, %entry ], [ %small.next, %sum ]
  %sum.at = getelementptr %litz.call, ptr %calls, i64 %s, i32 3
  %sum.work = load i64, ptr %sum.at
  %sum.apart = icmp uge i64 %sum.work, %large
  %sum.part = select i1 %sum.apart, i64 0, i64 %sum.work
  %small.next = add i64 %small, %sum.part
  %s.next = add i64 %s, 1
  %s.more = icmp ult i64 %s.next, %count
  br i1 %s.more, label %sum, label %cut
cut:
  %low = call i64 @litz_cut(i64 %small.next, i64 %me, i64 %all)
  %high = call i64 @litz_cut(i64 %small.next, i64 %next, i64 %all)
  br label %launch
launch:
  %k = phi i64 [ 0, %cut ], [ %k.next, %done ]
  %first = phi i64 [ 0, %cut ], [ %after, %done ]
  %work.at = getelementptr %litz.call, ptr %calls, i64 %k, i32 3
  %work = load i64, ptr %work.at
  %tasks.at = getelementptr %litz.call, ptr %calls, i64 %k, i32 2
  %tasks = load i64, ptr %tasks.at
  %apart = icmp uge i64 %work, %large
  %taken = select i1 %apart, i64 0, i64 %work
  %after = add i64 %first, %taken
  br i1 %apart, label %even, label %queued
even:
  %even.begin = call i64 @litz_cut(i64 %tasks, i64 %me, i64 %all)
  %even.end = call i64 @litz_cut(i64 %tasks, i64 %next, i64 %all)
  br label %part
queued:
  %from = call i64 @llvm.umax.i64(i64 %low, i64 %first)
  %to.any = call i64 @llvm.umin.i64(i64 %high, i64 %after)
  %to = call i64 @llvm.umax.i64(i64 %from, i64 %to.any)
  %from.own = sub i64 %from, %first
  %to.own = sub i64 %to, %first
  %from.part = mul i64 %from.own, %tasks
  %to.part = mul i64 %to.own, %tasks
  %divisor = call i64 @llvm.umax.i64(i64 %work, i64 1)  ; none of a way that is not taken
  %queued.begin = udiv i64 %from.part, %divisor
  %queued.end = udiv i64 %to.part, %divisor
  br label %part
part:
  %begin = phi i64 [ %even.begin, %even ], [ %queued.begin, %queued ]
  %end = phi i64 [ %even.end, %even ], [ %queued.end, %queued ]
  %some = icmp ult i64 %begin, %end
  br i1 %some, label %run, label %done
run:
  %fn.at = getelementptr %litz.call, ptr %calls, i64 %k, i32 0
  %fn = load ptr, ptr %fn.at
  %args.at = getelementptr %litz.call, ptr %calls, i64 %k, i32 1
  %args = load ptr, ptr %args.at
  call void %fn(ptr %args, i64 %begin, i64 %end)
  br label %done
done:
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %count
  br i1 %more, label %launch, label %out
out:
  ret void
}}

define internal void @litz_worker(ptr %job) #0 {{
  %me32 = call i32 @omp_get_thread_num()
  %all32 = call i32 @omp_get_num_threads()
  %me = zext i32 %me32 to i64
  %all = zext i32 %all32 to i64
  call void @litz_thread_share(ptr %job, i64 %me, i64 %all)
  ret void
}}

define internal void @litz_run(ptr %table, ptr %launches, i64 %count, i64 %pointers,
                               i32 %most) #0 {{
entry:
  %args = alloca ptr, i64 %pointers
  %calls = alloca %litz.call, i64 %count
  %job = alloca %litz.job
  %flag = load ptr, ptr %table
  %arena.at = getelementptr ptr, ptr %table, i64 1
  %arena = load ptr, ptr %arena.at
  br label %launch
launch:
  %k = phi i64 [ 0, %entry ], [ %k.next, %filled ]
  %free = phi ptr [ %args, %entry ], [ %free.next, %filled ]
  %before = phi i64 [ 0, %entry ], [ %work, %filled ]
  %call = getelementptr %litz.call, ptr %calls, i64 %k
  %fn.at = getelementptr %litz.launch, ptr %launches, i64 %k, i32 0
  %fn = load ptr, ptr %fn.at
  store ptr %fn, ptr %call
  %call.args = getelementptr %litz.call, ptr %call, i32 0, i32 1
  store ptr %free, ptr %call.args
  %tasks.at = getelementptr %litz.launch, ptr %launches, i64 %k, i32 3
  %tasks.given = load i64, ptr %tasks.at
  %tasks = call i64 @litz_number(ptr %table, i64 %tasks.given)
  %call.tasks = getelementptr %litz.call, ptr %call, i32 0, i32 2
  store i64 %tasks, ptr %call.tasks
  %own.at = getelementptr %litz.launch, ptr %launches, i64 %k, i32 4
  %own.given = load i64, ptr %own.at
  %own = call i64 @litz_number(ptr %table, i64 %own.given)
  %call.work = getelementptr %litz.call, ptr %call, i32 0, i32 3
  store i64 %own, ptr %call.work
  %work = add i64 %before, %own
  %places.at = getelementptr %litz.launch, ptr %launches, i64 %k, i32 1
  %places = load ptr, ptr %places.at
  %n.at = getelementptr %litz.launch, ptr %launches, i64 %k, i32 2
  %n = load i64, ptr %n.at
  br label %place
place:
  %j = phi i64 [ 0, %launch ], [ %j.next, %place ]
  %place.at = getelementptr i64, ptr %places, i64 %j
  %p = load i64, ptr %place.at
  %outside = icmp sge i64 %p, 0
  %row = select i1 %outside, i64 %p, i64 0
  %entry.at = getelementptr ptr, ptr %table, i64 %row
  %listed = load ptr, ptr %entry.at
  %offset = xor i64 %p, -1
  %inside = getelementptr i8, ptr %arena, i64 %offset
  %pointer = select i1 %outside, ptr %listed, ptr %inside
  %arg = getelementptr ptr, ptr %free, i64 %j
  store ptr %pointer, ptr %arg
  %j.next = add i64 %j, 1
  %more = icmp ult i64 %j.next, %n
  br i1 %more, label %place, label %filled
filled:
  %last = getelementptr ptr, ptr %free, i64 %n
  store ptr %flag, ptr %last
  %free.next = getelementptr ptr, ptr %last, i64 1
  %k.next = add i64 %k, 1
  %again = icmp ult i64 %k.next, %count
  br i1 %again, label %launch, label %ready
ready:
  store ptr %calls, ptr %job
  %count.at = getelementptr %litz.job, ptr %job, i32 0, i32 1
  store i64 %count, ptr %count.at
  %useful = udiv i64 %work, {UNIT}
  %little = icmp ule i64 %useful, 1
  br i1 %little, label %serial, label %ask
ask:
  %available = call i32 @omp_get_max_threads()
  %allowed = call i32 @llvm.umin.i32(i32 %available, i32 %most)
  %wide = zext i32 %allowed to i64
  %threads = call i64 @llvm.umin.i64(i64 %wide, i64 %useful)
  %alone = icmp ule i64 %threads, 1
  br i1 %alone, label %serial, label %parallel
serial:
  call void @litz_thread_share(ptr %job, i64 0, i64 1)
  ret void
parallel:
  %team = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @litz_worker, ptr %job, i32 %team, i32 0)
  ret void
}}

define internal void @litz_run_batches(ptr %table, ptr %launches, ptr %batches, i64 %count,
                                       i32 %most) #0 {{
entry:
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k.next, %ran ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %batch, label %done
batch:
  %first.at = getelementptr %litz.batch, ptr %batches, i64 %k, i32 0
  %first = load i64, ptr %first.at
  %own = getelementptr %litz.launch, ptr %launches, i64 %first
  %many.at = getelementptr %litz.batch, ptr %batches, i64 %k, i32 1
  %many = load i64, ptr %many.at
  %pointers.at = getelementptr %litz.batch, ptr %batches, i64 %k, i32 2
  %pointers = load i64, ptr %pointers.at
  call void @litz_run(ptr %table, ptr %own, i64 %many, i64 %pointers, i32 %most)
  %checks.at = getelementptr %litz.batch, ptr %batches, i64 %k, i32 3
  %checks = load i64, ptr %checks.at
  %checked = icmp ne i64 %checks, 0
  br i1 %checked, label %look, label %ran
look:
  %record = load ptr, ptr %table
  %site = load i64, ptr %record
  %failed = icmp ne i64 %site, 0
  br i1 %failed, label %done, label %ran
ran:
  %k.next = add i64 %k, 1
  br label %next
done:
  ret void
}}
"""
