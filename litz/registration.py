"""Registration: torch learns that `backend="litz"` is `litz/backend.py`.

In: nothing. Out: the name in torch's table, as soon as this module is imported: by `litz.compile`,
or by torch itself, which finds it among the entry points. torch loads an entry point, and enters
what it gets, without a lock: of several threads that ask first, all but one would be told
"duplicate name: litz". Python imports a module once, whoever asks, so that it is done here; and
what torch loads is None, which it does not enter: `register_backend(None, name="litz")` gives a
decorator.
"""

from __future__ import annotations

from contextlib import suppress

from torch._dynamo.backends.registry import register_backend

from litz.backend import litz

with suppress(AssertionError):  # torch has it already, from an entry point of an older installation
    register_backend(litz, name="litz")

ENTRY_POINT = None
