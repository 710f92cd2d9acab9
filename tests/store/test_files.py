"""A file is whole or not there, several of one folder belong together, and nothing that a kill left stays."""

import errno
import fcntl
import os

import pytest

from diffeqformer.errors import Damaged, RunFailed
from diffeqformer.store import files
from diffeqformer.store.files import read_sealed, write_outputs, write_together, write_whole


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_write_left_is_removed_by_the_next_one_and_no_other_file(tmp_path):
    aside = lambda digit, name="page.html": f".{name}.{digit * 16}.tmp"
    kept = [aside("0", "other.html"), ".page.html.mine.tmp", "page.html.tmp"]
    for name in (*kept, aside("1"), aside("2"), aside("a")):
        (tmp_path / name).write_text("left")
    (tmp_path / aside("f")).symlink_to(tmp_path / "page.html.tmp")
    with (tmp_path / aside("2")).open() as living:
        fcntl.flock(living, fcntl.LOCK_EX)  # its process writes it still
        write_whole(tmp_path / "page.html", "new")
    assert names(tmp_path) == sorted([*kept, aside("2"), aside("f"), "page.html"])
    write_whole(tmp_path / "page.html", "newer")
    assert aside("2") not in names(tmp_path) and (tmp_path / "page.html").read_text() == "newer"


def test_a_new_file_taken_for_abandoned_is_made_again(tmp_path, monkeypatch):
    """Between its making and its lock another process may see it unlocked."""
    taken, usual = [], fcntl.flock

    def flock(handle, how):
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        return usual(handle, how)

    monkeypatch.setattr(files.fcntl, "flock", flock)
    write_whole(tmp_path / "a", "content")
    assert taken and names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "content"


@pytest.mark.parametrize("name", ["n" * 255, "ä" * 127, "n" * 230])
def test_a_name_may_be_as_long_as_the_disk_allows(tmp_path, name):
    for content in ("one", "two"):
        write_whole(tmp_path / name, content)
    assert names(tmp_path) == [name] and (tmp_path / name).read_text() == "two"
    (tmp_path / files.hidden(name, "0" * 16 + ".tmp")).write_text("left")
    write_whole(tmp_path / name, "three")
    assert names(tmp_path) == [name]


def test_files_that_belong_together_are_all_old_when_the_disk_fills_up(tmp_path, monkeypatch):
    write_together(tmp_path, {"numbers": "old", "page": "old"})
    usual, flushed = files.flush, []

    def flush(file):
        flushed.append(file)
        if len(flushed) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        usual(file)

    monkeypatch.setattr(files, "flush", flush)
    with pytest.raises(RunFailed, match=rf"page '{tmp_path}/page' cannot be written: No space left"):
        write_outputs(tmp_path, {"numbers": "new", "page": "new"}, "page")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"numbers": "old", "page": "old"}


@pytest.mark.parametrize("moment", [1, 2])
def test_a_page_is_never_beside_numbers_that_are_not_its_own(tmp_path, monkeypatch, moment):
    """Killed between two renames."""
    write_together(tmp_path, {"numbers": "old", "page": "old"})
    usual, renamed = os.replace, []

    def replace(*paths):
        renamed.append(paths)
        if len(renamed) == moment:
            raise KeyboardInterrupt
        usual(*paths)

    monkeypatch.setattr(files.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_together(tmp_path, {"numbers": "new", "page": "new"})
    assert "page" not in names(tmp_path)
    monkeypatch.undo()
    write_together(tmp_path, {"numbers": "new", "page": "new"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"numbers": "new", "page": "new"}


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, Damaged), (errno.ESTALE, RunFailed), (errno.EMFILE, RunFailed)]
)
def test_what_hinders_reading_alone_is_no_damage(tmp_path, monkeypatch, number, kind):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "read_small", refuse)
    with pytest.raises(RunFailed, match=f"cannot be read: {os.strerror(number)}") as refusal:
        read_sealed(tmp_path / "document.json")
    assert type(refusal.value) is kind
