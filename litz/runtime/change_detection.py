"""Change detection: whether memory has been written to since, byte by byte, by whatever code.

In: the tensors from which something was prepacked. Out: a `ChangeDetector`, the list of ranges that
the native function `litz_changed` checks (`codegen/llvm/change_detection.py`). Small ranges are
compared with a copy. For large ones Linux (6.7 and later) tracks which pages this process has
written, system calls included: the first write to a page costs about a microsecond, all else
nothing. If tracking is not available, or memory is shared with other processes or a file, all bytes
are hashed at each call. Example: `ChangeDetector([weight], record, fingerprint)` of 9 MB is two
copies of less than a page, and the tracked pages between.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from litz.ir.source import COPIED, HASHED, TRACKED

PAGE = mmap.PAGESIZE
SMALL = 1 << 16  # bytes that are copied rather than tracked
SYSTEM_CALL = {"x86_64": 323, "aarch64": 282}  # userfaultfd
USER_MODE_ONLY = 1  # UFFD_USER_MODE_ONLY: no privileges; the kernel resolves its own faults
API, REGISTER = 0xC018AA3F, 0xC020AA00  # UFFDIO_API, UFFDIO_REGISTER
TRACKS_UNTOUCHED, RESOLVES_ITSELF = 1 << 13, 1 << 15  # UFFD_FEATURE_WP_UNPOPULATED, _WP_ASYNC
WRITE_PROTECT = 2  # UFFDIO_REGISTER_MODE_WP
PAGEMAP_SCAN = 0xC0606610  # PAGEMAP_SCAN
PM_SCAN_WP_MATCHING, PM_SCAN_CHECK_WPASYNC, PAGE_IS_WRITTEN = (
    1,
    2,
    2,
)  # of its flags; the category of pages
REGIONS = 64  # how many regions one scan reports

Fingerprint = Callable[[int, int], int]


class PageTracker:
    """The kernel's tracking of writes to this process's pages. `lock` is held while pages are
    checked and while they are armed: arming pages erases the writes noted for other detectors."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.watches: weakref.WeakSet[ChangeDetector] = weakref.WeakSet()
        self._events = self._pagemap = -1
        self._works: bool | None = None

    @property
    def pagemap(self) -> int:
        return self._pagemap

    def works(self) -> bool:
        """Whether the kernel can do it, found out once by trying it on two pages."""
        if self._works is None:
            try:
                self._works = self._open() and self._try()
            except (OSError, ValueError):
                self._works = False
        return self._works

    def arm(self, start: int, end: int) -> bool:
        """Track writes to these pages from now on; False if they cannot be tracked. If some were
        written since they were last armed, the detectors that watch them are ended first."""
        try:
            if not self.works() or not _is_private(start, end):
                return False
            request = struct.pack("QQQQ", start, end - start, WRITE_PROTECT, 0)
            fcntl.ioctl(self._events, REGISTER, bytearray(request))
            if self._scan(start, end, PM_SCAN_WP_MATCHING):
                for watch in list(self.watches):
                    watch.end_if_within(start, end)
        except OSError:
            return False
        return True

    def forget(self) -> None:
        """In a forked child: end all detectors and close the files, which track the parent."""
        self.lock = threading.RLock()
        for watch in list(self.watches):
            watch.end()
        for file in (self._events, self._pagemap):
            if file >= 0:
                os.close(file)
        self._events = self._pagemap = -1
        self._works = None

    def _open(self) -> bool:
        number = SYSTEM_CALL.get(platform.machine())
        if not sys.platform.startswith("linux") or number is None:
            return False
        flags = os.O_CLOEXEC | os.O_NONBLOCK | USER_MODE_ONLY
        self._events = ctypes.CDLL(None, use_errno=True).syscall(number, flags)
        if self._events < 0:
            return False
        features = TRACKS_UNTOUCHED | RESOLVES_ITSELF
        fcntl.ioctl(self._events, API, bytearray(struct.pack("QQQ", 0xAA, features, 0)))
        self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        return True

    def _try(self) -> bool:
        pages = mmap.mmap(-1, 2 * PAGE)
        pages[0] = 1
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        end = start + 2 * PAGE
        request = struct.pack("QQQQ", start, end - start, WRITE_PROTECT, 0)
        fcntl.ioctl(self._events, REGISTER, bytearray(request))
        self._scan(start, end, PM_SCAN_WP_MATCHING)
        clean = not self._scan(start, end, 0)
        pages[PAGE] = 1
        return clean and self._scan(start, end, 0)

    def _scan(self, start: int, end: int, flags: int) -> bool:
        """Whether a page was written; PM_SCAN_WP_MATCHING arms the pages again in the same step."""
        found = False
        regions = (ctypes.c_uint64 * (3 * REGIONS))()
        while start < end:
            given = (
                start,
                end,
                0,
                ctypes.addressof(regions),
                REGIONS,
                0,
                0,
                PAGE_IS_WRITTEN,
                0,
                PAGE_IS_WRITTEN,
            )
            request = bytearray(struct.pack("12Q", 96, flags | PM_SCAN_CHECK_WPASYNC, *given))
            found |= fcntl.ioctl(self._pagemap, PAGEMAP_SCAN, request) > 0
            start = max(struct.unpack("12Q", request)[4], start + PAGE)
        return found


def _is_private(start: int, end: int) -> bool:
    """Whether memory is private to this process and not mapped from a file."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, access, _, _, file, *_ = line.split()
            low, high = (int(part, 16) for part in span.split("-"))
            if low <= start < high:
                if access[3] != "p" or file != "0":
                    return False
                start = high
                if end <= high:
                    return True
    return False


TRACKER = PageTracker()
os.register_at_fork(after_in_child=TRACKER.forget)


class ChangeDetector:
    """Ranges of memory, and their contents when the watch began. `record` is for the native
    function: the number of ranges, the address of their list, the file of the page tracker."""

    _list: Any = None

    def __init__(
        self, tensors: Sequence[torch.Tensor], record: Any, fingerprint: Fingerprint
    ) -> None:
        self._record = record
        self._copies: list[Any] = []
        with TRACKER.lock:
            ranges = [r for t in tensors for r in self._ranges(*extent(t), fingerprint)]
            self._list = (ctypes.c_int64 * (4 * len(ranges)))(*(n for r in ranges for n in r))
            self._tracked = [(at, at + size) for kind, at, size, _ in ranges if kind == TRACKED]
            TRACKER.watches.add(self)
            record[1], record[2] = ctypes.addressof(self._list), TRACKER.pagemap
            record[0] = len(ranges)  # last: from here on the native function reads the record

    def _ranges(
        self, start: int, end: int, fingerprint: Fingerprint
    ) -> Iterator[tuple[int, int, int, int]]:
        first, last = -(-start // PAGE) * PAGE, end // PAGE * PAGE
        if end - start <= SMALL or last <= first:
            yield from self._copied(start, end)
        elif TRACKER.arm(first, last):
            yield TRACKED, first, last - first, 0
            yield from self._copied(start, first)  # this page also holds other data
            yield from self._copied(last, end)
        else:
            yield HASHED, start, end - start, fingerprint(start, end - start)

    def _copied(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        if start < end:
            copy = ctypes.create_string_buffer(ctypes.string_at(start, end - start), end - start)
            self._copies.append(copy)
            yield COPIED, start, end - start, ctypes.addressof(copy)

    def end_if_within(self, start: int, end: int) -> None:
        if any(low < end and start < high for low, high in self._tracked):
            self.end()

    def __del__(self) -> None:
        """End the watch if the record still points here: after an interrupt, the record may outlive
        this object, which owns the list."""
        if self._list is not None and self._record[1] == ctypes.addressof(self._list):
            self.end()

    def end(self) -> None:
        """Stop watching: the next check reports a change, so that all is prepacked anew."""
        self._record[0] = -1


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first address of a tensor's elements, and the one past their last."""
    if not tensor.numel():
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((n - 1) * step for n, step in steps)
    return tensor.data_ptr(), tensor.data_ptr() + int(span) * tensor.itemsize
