"""What a run measured, as JSON lines: one object a line, strict JSON, whole lines only.

Every line has `kind` and `step` (updates done):

- `update`: `loss` (nats), `gradient_norm` (before clipping), `learning_rate`, and `steps` if depth is drawn; exactly
  one for every update;
- `validation`: `loss` (nats) of an evaluation on the way;
- `timing`: `seconds` and `tokens_per_second`, and if depth is drawn `depths`: the updates at each and their seconds.
  The only kind that two equal runs disagree about.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from diffeqformer.errors import RunFailed
from diffeqformer.training.files import write_whole


class Metrics:
    """Appends to `metrics.jsonl`; opened by the one process that holds the run's lock.

    **Arguments:** `path`, the file; `step`, the update that the run continues from. Lines of later updates, and a
    last line that a crash tore, are removed first (written aside and renamed), because those updates will be repeated.
    """

    def __init__(self, path: Path, step: int = 0):
        if path.exists():
            write_whole(path, "".join(_line(record) for record in read_metrics(path) if record["step"] <= step))
        self.file = path.open("a", encoding="utf-8")

    def write(self, records: Iterable[dict[str, Any]]) -> None:
        """Append `records` and flush them to the disk, so that no checkpoint is ever ahead of its metrics.

        **Raises:** `ValueError` for a number that JSON does not have (NaN, infinity); `OSError` if the disk is full.
        """
        self.file.write("".join(map(_line, records)))
        self.file.flush()
        os.fsync(self.file.fileno())

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics file, in order; a torn last line is left out, and so is a missing file.

    **Raises:** `RunFailed` naming the first line, other than a torn last one, that cannot be read.
    """
    if not path.exists():
        return []
    records: list[dict[str, Any]] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is empty or torn
        try:
            record = json.loads(line)
            valid = isinstance(record, dict) and isinstance(record.get("step"), int)
        except ValueError:
            valid = False
        if not valid:
            raise RunFailed(f"line {number} of {str(path)!r} is not a record of metrics: {line[:60]!r}.")
        records.append(record)
    return records
