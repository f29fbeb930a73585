"""The tuning database: one JSON file for each result, so that it is timed only once.

In: a key, all that a result depends on, as JSON. Out: the value stored under it, or None. A file is
written once, by an atomic rename, with a checksum over key and value. A failed read is a miss with
a note; a failed write is a note and one warning: neither makes a compile fail. The folder must
belong to the user alone. Example: `Database(folder).put({"program": ...}, {"mr": 8})`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from litz.config import Config

Json = dict[str, Any]
# The largest file that is read: a thousand trials take a tenth of it.
LARGEST = 4 << 20

_warned: set[str] = set()  # folders that could not be used: each is warned about once a process


def folder_of(config: Config) -> Path | None:
    """The database folder; None if results are not kept. Raises RuntimeError without a home."""
    if not config.autotune_local_cache:
        return None
    if config.cache_dir:
        return Path(config.cache_dir).expanduser() / "autotune"
    user = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(user) / "litz" / "autotune"


class Database:
    """Without a folder it keeps nothing. `notes` lists what could not be read or written."""

    def __init__(self, folder: Path | None) -> None:
        self.notes: list[str] = []
        self.folder = folder if folder is not None and self._is_ours(folder) else None

    @classmethod
    def of(cls, config: Config) -> Database:
        """The database that the flags name."""
        try:
            return cls(folder_of(config))
        except Exception as error:
            found = cls(None)
            found._not_kept("a folder for tuning results", error)
            return found

    def _is_ours(self, folder: Path) -> bool:
        """Make the folder; true if nobody else can write there."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = folder.stat()
        except Exception as error:
            self._not_kept(str(folder), error)
            return False
        if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            self.notes.append(f"{folder} is open to others; chmod 700 it, or set cache_dir")
            return False
        return True

    def get(self, key: Json) -> Json | None:
        """The value stored under a key."""
        if self.folder is None:
            return None
        path = self.folder / name_of(key)
        try:
            found = json.loads(_text(path))
            sound = found["checksum"] == _digest(found["key"], found["value"])
            if sound and found["key"] == key and isinstance(found["value"], dict):
                return found["value"]
        except FileNotFoundError:
            return None
        except Exception as error:  # a disk, a decoder or a deep nesting can raise anything
            self.notes.append(f"{path.name} is damaged ({_named(error)}), and is made anew")
            return None
        self.notes.append(f"{path.name} is damaged, and is made anew")
        return None

    def put(self, key: Json, value: Json) -> None:
        """Store a value."""
        if self.folder is None:
            return
        name = ""
        try:
            text = json.dumps({"key": key, "value": value, "checksum": _digest(key, value)})
            descriptor, name = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, self.folder / name_of(key))
        except Exception as error:
            self._not_kept(str(self.folder), error)
        finally:
            with suppress(OSError):
                os.unlink(name)  # left by a write that failed or was interrupted

    def _not_kept(self, where: str, error: Exception) -> None:
        told = f"{where} cannot be used: {_named(error)}"
        self.notes.append(told)
        if where not in _warned:
            _warned.add(where)
            advice = "Set cache_dir, or autotune_local_cache=False."
            warnings.warn(f"Litz keeps no results of tuning: {told}. {advice}", stacklevel=2)


def name_of(key: Json) -> str:
    return f"{_digest(key)[:32]}.json"


def _text(path: Path) -> str:
    """The content of a regular file: opening a pipe would wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > LARGEST:
            raise ValueError("no file of ours")
        return file.read(LARGEST).decode("utf-8")


def _digest(*parts: Json) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _named(error: Exception) -> str:
    """An error in a few words: its text may be long, or empty."""
    text = (getattr(error, "strerror", None) or str(error)).partition("\n")[0][:100]
    return text or type(error).__name__
