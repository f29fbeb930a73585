"""Facts about the ops that a program calls, by their names.

In: nothing. Out: sets of names. Example: nothing is known of `mylib.keep.default`, since its
namespace is not in `KNOWN_NAMESPACES`.
"""

from __future__ import annotations

# Calls whose result only other calls can read: a weight in oneDNN's own layout.
PACKERS = frozenset(
    {
        "mkldnn._reorder_convolution_weight.default",
        "mkldnn._reorder_convolution_transpose_weight.default",
    }
)

# Calls that only check a condition of the program on symbolic numbers.
ASSERT_OPS = frozenset(
    {
        "aten._assert_scalar.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)

# Namespaces of ops that keep no operand and have no effect but their results. Any other op is, or
# runs, somebody's code: it may keep its operands after it has returned, count its calls, or talk to
# another process.
KNOWN_NAMESPACES = frozenset(
    {"aten", "prims", "mkldnn", "onednn", "quantized", "quantized_decomposed", "litz"}
)

# Calls that place a strided window on the memory of their first operand, with the position of the
# argument that is the window's offset.
STORAGE_OFFSET_ARG = {
    "aten.as_strided.default": 3,
    "aten.as_strided_copy.default": 3,
    "aten.as_strided_scatter.default": 4,
}
