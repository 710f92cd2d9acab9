"""Temporary files have a folder, also where the usual ones cannot be written; an output must not lie anywhere."""

import os
import tempfile

import pytest

from diffeqformer.errors import BadInput
from diffeqformer.store import paths


@pytest.mark.parametrize("usual", [True, False])
def test_temporary_files_lie_in_memory_where_no_folder_can_be_written(tmp_path, monkeypatch, usual):
    own = str(tmp_path / "usual")
    monkeypatch.setenv("TMPDIR", own)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [own])
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(paths, "MEMORY", str(tmp_path))
    if usual:
        (tmp_path / "usual").mkdir()
    paths.have_temporary_folder()
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == (own if usual else str(tmp_path))


def test_without_memory_either_nothing_is_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(paths, "MEMORY", str(tmp_path / "none"))
    paths.have_temporary_folder()
    with pytest.raises(FileNotFoundError):
        tempfile.gettempdir()


def test_a_link_to_nothing_is_no_place_for_an_output(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(BadInput, match=r"run folder '.*link' cannot be written: it is a link to 'nowhere', which does"):
        paths.require_writable(tmp_path / "link", "run folder")


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/9", "checkpoints/6/model/new", "link/9"])
def test_nothing_is_written_among_the_checkpoints_of_a_run(tmp_path, place):
    (tmp_path / "run/checkpoints/6").mkdir(parents=True)
    (tmp_path / "run/checkpoints/6/manifest.json").touch()
    (tmp_path / "run/link").symlink_to("checkpoints")
    with pytest.raises(BadInput, match=r"--to '.*' cannot be written: the checkpoints of run '.*run' are there"):
        paths.require_writable(tmp_path / "run" / place, "--to")


def test_a_folder_of_that_name_without_any_is_like_any_other(tmp_path):
    (tmp_path / "checkpoints/mine").mkdir(parents=True)
    paths.require_writable(tmp_path / "checkpoints/mine/new", "--to")
