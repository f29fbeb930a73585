"""The database of tuning: what was found, one JSON file a key, so that it is timed once.

In: a key, which is all that a result depends on, as JSON. Out: the value kept under it, or None. A
file is written once, by an atomic rename, with a checksum over key and value; one that cannot be
read or is not what it says is ignored with a note. The folder belongs to the user alone. Example:
`Database(folder).put({"program": ...}, {"block": 8})`.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from litz.config import Config

Json = dict[str, Any]


def folder_of(config: Config) -> Path | None:
    """Where results are kept; None if they are not."""
    if not config.autotune_local_cache:
        return None
    if config.cache_dir:
        return Path(config.cache_dir).expanduser() / "autotune"
    user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(user) / "litz" / "autotune"


class Database:
    """Without a folder it keeps nothing. `notes` says what could not be used."""

    def __init__(self, folder: Path | None) -> None:
        self.notes: list[str] = []
        self.folder = folder if folder is not None and self._is_ours(folder) else None

    def _is_ours(self, folder: Path) -> bool:
        """Make the folder, and trust it if no one else can write there."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = folder.stat()
        except OSError as error:
            self.notes.append(f"{folder} cannot be used: {error.strerror}")
            return False
        if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            self.notes.append(f"{folder} is open to others; chmod 700 it, or set cache_dir")
            return False
        return True

    def get(self, key: Json) -> Json | None:
        """What is kept under a key."""
        if self.folder is None:
            return None
        path = self.folder / name_of(key)
        try:
            found = json.loads(path.read_text())
            sound = found["checksum"] == _digest(found["key"], found["value"])
            value = found["value"] if sound and found["key"] == key else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            value = None
        if not isinstance(value, dict):
            self.notes.append(f"{path.name} is damaged, and is made anew")
            return None
        return value

    def put(self, key: Json, value: Json) -> None:
        """Keep a value. A disk that is full costs a note, no compile."""
        if self.folder is None:
            return
        entry = {"key": key, "value": value, "checksum": _digest(key, value)}
        try:
            descriptor, name = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            with os.fdopen(descriptor, "w") as file:
                json.dump(entry, file, indent=1)
            os.replace(name, self.folder / name_of(key))
        except OSError as error:
            self.notes.append(f"nothing is kept in {self.folder}: {error.strerror}")


def name_of(key: Json) -> str:
    return f"{_digest(key)[:32]}.json"


def _digest(*parts: Json) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
