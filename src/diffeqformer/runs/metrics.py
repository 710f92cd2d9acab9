"""The measurements of a run as JSON lines: one object per line, strict JSON, whole lines only.

Every line has `kind` and `step` (updates done):

- `update`: `loss` (nats per token), `gradient_norm` (before clipping), `learning_rate`, `steps` if depth is drawn,
  `reconstruction_error` (relative) where the backward pass reconstructs states, `skipped` (1 for a spike, else 0) with
  `optimizer.spike`; exactly one for every update;
- `own`: what callbacks log; `sample`: `prompt` and `text` of `trainer.samples`;
- `validation`: `loss` (nats per token) of an evaluation during training;
- `timing`: `seconds` and `tokens_per_second`; on accelerators whose peak is known `utilization`, the MFU; if depth is
  drawn `depths`: the updates at each and their seconds. The only kind in which two equal runs differ.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from diffeqformer.errors import Damaged
from diffeqformer.plain import Document
from diffeqformer.store.digests import SCHEME
from diffeqformer.store.digests import digest as digest_of
from diffeqformer.store.files import flush, write_whole
from diffeqformer.store.regular import open_to_append, open_to_read

Record = Document
"""One line of `metrics.jsonl`."""
LONGEST_LINE = 1 << 20
"""Maximum bytes of a record; a longer line is read as two, which are not records."""


class Metrics:
    """Appends to `metrics.jsonl`; opened only by the process that holds the run's lock.

    **Arguments:** `path`, the file; `step`, the update that the run continues from. Lines of later updates, and a
    last line that a crash tore, are removed first (atomically), because those updates will be repeated; at 0, all lines
    are removed.
    """

    def __init__(self, path: Path, step: int = 0):
        before = _lines(path, step)
        if path.exists():
            write_whole(path, before)
        self._hash = SCHEME(before.encode())
        self.file = open_to_append(path)

    @property
    def digest(self) -> str:
        """Digest of all lines so far, for `require_lines`."""
        return self._hash.hexdigest()

    def write(self, records: Iterable[Record]) -> None:
        """Append `records` and flush them to the disk, so that no checkpoint is ever ahead of its metrics.

        **Raises:** `ValueError` for a number that JSON does not have (NaN, infinity); `OSError` if the disk is full.
        """
        lines = "".join(map(_line, records))
        self.file.write(lines)
        self._hash.update(lines.encode())
        flush(self.file)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def require_lines(path: Path, step: int, digest: str | None) -> None:
    """Check that the lines up to update `step` have this `Metrics.digest`; a missing file passes.

    **Raises:** `Damaged` if they are not.
    """
    if digest is None or not path.exists():
        return
    try:
        found = digest_of(_lines(path, step).encode())
    except ValueError:  # a number that JSON does not have, which was never written
        found = None
    if found != digest:
        raise Damaged(
            f"file {str(path)!r} is damaged, or was edited: its lines are not those that the checkpoint at update "
            f"{step} was written with; put it back from a copy, or delete it to go on without the curve so far."
        )


def _lines(path: Path, step: int) -> str:
    # JSON preserves floats exactly, so that a line that is read and written again does not change.
    return "".join(_line(record) for record in read_metrics(path) if record["step"] <= step) if step else ""


def _line(record: Record) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def read_metrics(path: Path) -> list[Record]:
    """Read all whole lines of a metrics file, in order; a torn last line is ignored, and a missing file has none.

    **Raises:** `Damaged` naming the first line, other than a torn last one, that cannot be read.
    """
    if not path.exists():
        return []
    records: list[Record] = []
    try:
        file = open_to_read(path)
    except OSError as error:
        raise Damaged(f"file {str(path)!r} cannot be read: {error.strerror}.") from None
    with file:
        lines = list(iter(lambda: file.readline(LONGEST_LINE), b""))
    if lines and not lines[-1].endswith(b"\n") and len(lines[-1]) < LONGEST_LINE:
        lines.pop()  # torn
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            valid = isinstance(record, dict) and isinstance(record.get("step"), int)
        except (ValueError, RecursionError):
            valid = False
        if not valid:
            raise Damaged(f"line {number} of {str(path)!r} is not a record of metrics: {line.rstrip()[:60]!r}.")
        records.append(record)
    return records
