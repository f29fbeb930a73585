"""Ops whose compiled result may differ from eager's: by name, with the reason. Read by every test.

In: nothing. Out: `EXCEPTIONS[op, dtype]`, where a dtype of "" stands for all of them, and
`UNDEFINED`, ops that are compared in all but their values; `STRIDES`, in all but their strides;
`REFUSALS`, what is computed here and refused by eager.
"""

from __future__ import annotations

import torch

EXCEPTIONS: dict[tuple[str, str], str] = {}

_EMPTY = "what an empty tensor holds is undefined, in eager too"
UNDEFINED: dict[str, str] = dict.fromkeys(
    (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    ),
    _EMPTY,
)

# Results of these have the strides that are foretold.
_FORETOLD = "torch 2.11 foretells other strides than its kernels give"
STRIDES: dict[str, str] = dict.fromkeys(
    ("fft.fft", "fft.ifft", "fft.ihfft", "fft.rfft") if torch.__version__ < "2.13" else (),
    _FORETOLD,
)


def excepted(op: str, dtype: str) -> str | None:
    """Why a difference is no failure, or None if it is one."""
    return EXCEPTIONS.get((op, dtype)) or EXCEPTIONS.get((op, ""))


# Ops whose gradients may differ from eager's.
GRADIENTS: dict[str, str] = {}

# Calls that eager refuses and that are computed: an op, the beginning of a case, and the reason.
REFUSALS: dict[tuple[str, str], str] = {
    ("__rpow__", "type bool"): "eager takes the same types where the base is 1",
    ("count_nonzero", "type"): "eager takes the same types of some shapes",
}


def computed_though_refused(op: str, case: str) -> str | None:
    """Why a refusal may be missing, or None if it may not."""
    return next((why for (o, c), why in REFUSALS.items() if o == op and case.startswith(c)), None)
