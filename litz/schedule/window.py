"""The schedule of windows over single channels: a block of neighbouring windows in registers.

In: a flat `Kernel` that convolves each channel by itself. Out: a `Choice` with a `Sliding`, or
None. A task is a block of windows for all channels: of each vector of channels, the sums of the
block stay in registers while the taps pass by. Example: 56 x 56 windows are 56 x 4 blocks of 14.
"""

from __future__ import annotations

from litz.ir.expr import extent_of
from litz.ir.program import Kernel
from litz.ir.scheduled import Choice, Sliding
from litz.ir.sizes import is_known
from litz.ir.window import windows_of
from litz.target import CpuTarget

# Floating-point operations worth waking a thread for; they come with more memory than a product's.
WORTH_A_THREAD = 500_000


def schedule_windows(kernel: Kernel, target: CpuTarget) -> Choice | None:
    """How to run a kernel of windows; None if it is none."""
    windows = windows_of(kernel)
    lanes = target.vector_bytes // 4
    if windows is None or not is_known(*(a.extent for a in kernel.outer)):
        return None
    if lanes < 2 or windows.channel.extent.number < lanes:
        return None
    count = windows.along.extent.number
    # Half of the registers for sums, less one for the weight and one for the image.
    most = target.registers // 2 - 2
    blocks = -(-count // most)
    others = tuple(a for a in kernel.outer if a not in (windows.along, windows.channel))
    sliding = Sliding(-(-count // blocks), count, extent_of(others))
    channels, taps = windows.channel.extent.number, extent_of(windows.node.attr[1])
    work = 2 * sliding.block * channels * taps
    return Choice(lanes, windows.channel, 1, 1, max(WORTH_A_THREAD // work, 1), sliding=sliding)
