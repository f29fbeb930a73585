"""All entries of the zoo, by name."""

from __future__ import annotations

from tests.zoo.entry import Entry
from tests.zoo.images import IMAGES
from tests.zoo.pretrained import PRETRAINED
from tests.zoo.sequences import SEQUENCES
from tests.zoo.structures import STRUCTURES

ENTRIES: dict[str, Entry] = {
    entry.name: entry for entry in (*PRETRAINED, *SEQUENCES, *IMAGES, *STRUCTURES)
}
