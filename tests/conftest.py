"""Settings of the test suite: random tests draw the same examples in every run."""

from __future__ import annotations

from hypothesis import settings

# Compiling takes as long as it takes on a shared machine: a deadline would be noise.
settings.register_profile("litz", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("litz")
