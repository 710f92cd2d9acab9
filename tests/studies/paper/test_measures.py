"""Measures that ask for what is not on this machine."""

from diffeqformer.errors import BadInput
from diffeqformer.progress import Silent
from diffeqformer.studies.paper import measures as by


def test_a_task_that_cannot_be_had_is_looked_for_once(monkeypatch):
    asked = []

    def tasks(names, folders):
        asked.append(names)
        raise BadInput("no hub")

    monkeypatch.setattr(by, "Tasks", tasks)
    progress = Silent()
    assert [by._tasks("nowhere", (), progress) for _ in range(2)] == [None] * 2 and len(asked) == 1
