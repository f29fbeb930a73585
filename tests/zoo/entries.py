"""All entries of the zoo, by name."""

from __future__ import annotations

from tests.zoo.entry import Entry
from tests.zoo.pretrained import PRETRAINED

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in PRETRAINED}
