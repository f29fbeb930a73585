"""Registration: torch learns that `backend="litz"` is `litz/backend.py`.

In: nothing. Out: the name in torch's table of backends, as soon as this module is imported: by
`litz.compile`, or by torch, which finds it among the entry points. torch loads an entry point and
registers its value without a lock: if several threads came first, all but one would fail with
"duplicate name: litz". So the import of this module registers the backend, since Python imports a
module once whatever the threads. The entry point itself is None, which torch does not register:
`register_backend(None, name="litz")` only returns a decorator.
"""

from __future__ import annotations

from contextlib import suppress

from torch._dynamo.backends.registry import register_backend

from litz.backend import litz

with suppress(AssertionError):  # torch has it already, from an entry point of an older installation
    register_backend(litz, name="litz")

ENTRY_POINT = None
