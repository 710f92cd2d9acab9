"""A folder is whole or not there, and a refusal says why."""

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.store.digests import file_digest
from diffeqformer.store.folders import becoming, require_free, require_sums


def test_an_error_of_a_library_says_what_happened(tmp_path):
    """Such as `shutil.Error`, an `OSError` that has words alone."""
    (tmp_path / "from").mkdir()
    os.mkfifo(tmp_path / "from" / "pipe")
    said = rf"run folder '{tmp_path}/run' cannot be written: .*`{tmp_path}/from/pipe` is a named pipe.*\."
    with pytest.raises(BadInput, match=said), becoming(tmp_path / "run", "run folder", "importing") as aside:
        shutil.copytree(tmp_path / "from", aside, dirs_exist_ok=True)
    assert [path.name for path in tmp_path.iterdir()] == ["from"]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunFailed, match="cannot be written: No space"), becoming(tmp_path / "run", "run", "importing"):
        pass
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_that_was_prepared_keeps_its_permissions(tmp_path):
    (tmp_path / "private").mkdir(mode=0o700)
    with becoming(tmp_path / "private", "folder", "exporting") as aside:
        (aside / "weights").write_text("mine")
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "private").iterdir()] == ["weights"]


def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (Path("."), tmp_path):
        with pytest.raises(BadInput, match="is the current one, which a new one would replace"):
            require_free(folder)
    require_free(tmp_path / "inside")


def test_the_longest_name_becomes_a_folder(tmp_path):
    with becoming(tmp_path / ("n" * 255), "folder", "exporting"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["n" * 255]


def test_a_failure_names_the_folder_that_was_asked_for(tmp_path):
    with pytest.raises(RunFailed, match=f"in '{tmp_path}/run/checkpoints'"):  # noqa: SIM117
        with becoming(tmp_path / "run", "run folder", "importing") as aside:
            raise RunFailed(f"the checkpoint at update 0 could not be written in '{aside}/checkpoints' (full).")


@pytest.mark.parametrize(
    "written", ["{}  {}", "{} *{}", "{}  ./{}", "# sums\n\n{}  {}", f"{'0' * 64}  onnx/config.json\n{{}}  {{}}"]
)
def test_sums_are_read_as_sha256sum_writes_them(written, tmp_path):
    file = tmp_path / "config.json"
    file.write_text("{}")
    (tmp_path / "SHA256SUMS").write_text(written.format(file_digest(file), file.name) + "\n")
    require_sums(tmp_path, ("*.json",))
    file.write_text("[]")
    with pytest.raises(BadInput, match="does not match SHA256SUMS"):
        require_sums(tmp_path, ("*.json",))
