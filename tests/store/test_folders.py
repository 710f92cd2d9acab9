"""A folder is whole or not there, and a refusal says why."""

import os
import shutil

import pytest

from diffeqformer.errors import BadInput
from diffeqformer.store.folders import becoming


def test_an_error_of_a_library_says_what_happened(tmp_path):
    """Such as `shutil.Error`, an `OSError` that has words alone."""
    (tmp_path / "from").mkdir()
    os.mkfifo(tmp_path / "from" / "pipe")
    said = rf"run folder '{tmp_path}/run' cannot be written: .*`{tmp_path}/from/pipe` is a named pipe.*\."
    with pytest.raises(BadInput, match=said), becoming(tmp_path / "run", "run folder", "importing") as aside:
        shutil.copytree(tmp_path / "from", aside, dirs_exist_ok=True)
    assert [path.name for path in tmp_path.iterdir()] == ["from"]
