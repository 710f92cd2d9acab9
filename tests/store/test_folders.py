"""A folder is whole or not there, and a refusal says why."""

import errno
import os
import shutil

import pytest

from diffeqformer.errors import BadInput
from diffeqformer.store.digests import file_digest
from diffeqformer.store.folders import becoming, require_sums


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
    with pytest.raises(BadInput, match="cannot be written: No space"), becoming(tmp_path / "run", "run", "importing"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("written", ["{}  {}", "{} *{}", "{}  ./{}", "# sums\n\n{}  {}"])
def test_sums_are_read_as_sha256sum_writes_them(written, tmp_path):
    file = tmp_path / "config.json"
    file.write_text("{}")
    (tmp_path / "SHA256SUMS").write_text(written.format(file_digest(file), file.name) + "\n")
    require_sums(tmp_path, ("*.json",))
    file.write_text("[]")
    with pytest.raises(BadInput, match="does not match SHA256SUMS"):
        require_sums(tmp_path, ("*.json",))
