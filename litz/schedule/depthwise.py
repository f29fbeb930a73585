"""The schedule of a depthwise convolution: a block of neighbouring windows in registers.

In: a flat `Kernel` that convolves each channel by itself. Out: a `Choice` with a `DepthwiseTiling`,
or None. A task is a block of windows for all channels: for each vector of channels, the block's
accumulators stay in registers over all taps. Example: 56 x 56 windows are 56 x 4 blocks of 14.
"""

from __future__ import annotations

from litz.ir.depthwise import depthwise_of
from litz.ir.expr import extent_of
from litz.ir.program import Kernel
from litz.ir.scheduled import Choice, DepthwiseTiling
from litz.ir.sizes import is_known
from litz.target import CpuTarget

# The least flops that are worth waking a thread; they come with more memory than a GEMM's.
MIN_FLOPS_PER_THREAD = 500_000


def schedule_depthwise(kernel: Kernel, target: CpuTarget) -> Choice | None:
    """The schedule of a depthwise kernel; None if it is not one."""
    windows = depthwise_of(kernel)
    lanes = target.vector_bytes // 4
    if windows is None or not is_known(*(a.extent for a in kernel.outer)):
        return None
    if lanes < 2 or windows.channel.extent.number < lanes:
        return None
    count = windows.along.extent.number
    # Half of the registers for accumulators, minus one for the weight and one for the image.
    most = target.registers // 2 - 2
    blocks = -(-count // most)
    others = tuple(a for a in kernel.outer if a not in (windows.along, windows.channel))
    depthwise = DepthwiseTiling(-(-count // blocks), count, extent_of(others))
    channels, taps = windows.channel.extent.number, extent_of(windows.node.attr[1])
    work = 2 * depthwise.block * channels * taps
    return Choice(
        lanes, windows.channel, 1, 1, max(MIN_FLOPS_PER_THREAD // work, 1), depthwise=depthwise
    )
