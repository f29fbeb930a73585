"""What is known of the ops that a program calls, by their names.

In: nothing. Out: sets. Example: of `mylib.keep.default` nothing is known: its namespace is not
among `KNOWN`.
"""

from __future__ import annotations

# Calls whose result only other calls can read: a weight as oneDNN wants it.
PACKERS = frozenset(
    {
        "mkldnn._reorder_convolution_weight.default",
        "mkldnn._reorder_convolution_transpose_weight.default",
    }
)

# Calls that only look whether a symbolic number is as the program says.
CHECKS = frozenset(
    {
        "aten._assert_scalar.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)

# Namespaces of ops that keep no operand, and do nothing but make their results. Any other op is
# somebody's code, or runs some: it may keep what it is given, count its calls, or talk to another
# process, long after it has returned.
KNOWN = frozenset(
    {"aten", "prims", "mkldnn", "onednn", "quantized", "quantized_decomposed", "litz"}
)

# Calls that place a window on the memory of their first operand, with the position of the argument
# that says where it begins.
BY_OFFSET = {
    "aten.as_strided.default": 3,
    "aten.as_strided_copy.default": 3,
    "aten.as_strided_scatter.default": 4,
}
