"""The database: what is kept is found again, and what is damaged or not ours is not used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from litz.autotune.database import Database, folder_of, name_of
from litz.config import snapshot

KEY, VALUE = {"program": "x", "threads": 2}, {"choice": {"block": 8}, "trials": []}


def test_what_is_put_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "autotune"
    Database(folder).put(KEY, VALUE)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [f.name for f in folder.iterdir()] == [name_of(KEY)]
    assert Database(folder).get(dict(reversed(KEY.items()))) == VALUE
    assert Database(folder).get({**KEY, "threads": 1}) is None
    assert Database(None).get(KEY) is None


@pytest.mark.parametrize("damage", ["", "{", '{"key": 1}', "[]", "swap", "flip"])
def test_a_damaged_entry_is_ignored_with_a_note(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "autotune"
    Database(folder).put(KEY, VALUE)
    path = folder / name_of(KEY)
    text = path.read_text()
    changed = json.loads(text) | {"value": {"choice": {"block": 9}}}
    swapped = json.loads(text) | {"key": {"program": "y"}}
    texts = {"flip": json.dumps(changed), "swap": json.dumps(swapped)}
    path.write_text(texts.get(damage, damage))
    database = Database(folder)
    assert database.get(KEY) is None
    assert "damaged" in database.notes[0]
    database.put(KEY, VALUE)
    assert Database(folder).get(KEY) == VALUE


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "autotune"
    folder.mkdir()
    folder.chmod(0o777)
    database = Database(folder)
    database.put(KEY, VALUE)
    assert not list(folder.iterdir()) and "chmod 700" in database.notes[0]


def test_a_file_in_the_way_costs_a_note(tmp_path: Path) -> None:
    (tmp_path / "autotune").write_text("")
    assert "cannot be used" in Database(tmp_path / "autotune").notes[0]


def test_the_flags_say_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder_of(snapshot({})) == tmp_path / "litz" / "autotune"
    assert folder_of(snapshot({"cache_dir": "/there"})) == Path("/there/autotune")
    assert folder_of(snapshot({"autotune_local_cache": False})) is None


HISTORY = """
import os
from litz.ir.expr import axis, integer, apply
from litz.ir.parse import parse_graph
from litz.autotune.fingerprint import fingerprint

def made(order, factor):
    axes = [axis("i" + str(k), 64) for k in (0, 1, 2)]
    for k in order:
        apply("mul", axes[k], integer(64)), apply("mul", axes[k], integer(4096))
    (kernel,) = parse_graph(
f'''graph:
  input x: f32[64, 64, 64] strides (64, 4096, 1)
  buffer t: f32[64, 64, 64]
  kernel k:
    outer i0 < 64, i1 < 64, i2 < 64
    phase:
      t[i0, i1, i2] = x[i0, (i0 + i1 * {factor} + i2) % 64, i2] + f32(1.0)
  output t''').kernels
    print(fingerprint(kernel), flush=True)

for given in [([0, 1, 2], 3), ([2, 1, 0], 3), ([0, 1, 2], 5)]:
    if os.fork() == 0:
        made(*given)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def test_a_fingerprint_does_not_depend_on_history() -> None:
    """Each in a child that has made no expression yet: they are known for life in the process that
    made them."""
    done = subprocess.run([sys.executable, "-c", HISTORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    forwards, backwards, another = done.stdout.split()
    assert forwards == backwards != another
