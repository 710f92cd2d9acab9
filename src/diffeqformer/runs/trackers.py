"""Sending a run's measurements during training to TensorBoard, Weights & Biases or Trackio, if requested.

`RunLog` always writes the JSON lines of `metrics.jsonl`, and sends the same numbers to the trackers. Trackers are an
extra: one that fails is left out with one warning, and training continues.
"""

import contextlib
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from diffeqformer.config import Config, dump_yaml, to_dict
from diffeqformer.errors import BadInput, Damaged, reason
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.report.text import finite
from diffeqformer.runs.folder import METRICS, RunFolder
from diffeqformer.runs.metrics import Metrics, Record, read_metrics
from diffeqformer.runs.results import Entry
from diffeqformer.store.files import read_sealed, write_sealed

STATE = "trackers.json"
"""File in the run's folder: `id`, by which trackers know the run, and `sent`, the last update sent to them."""


class Opening(NamedTuple):
    """What a tracker is opened with."""

    config: Config
    folder: Path
    id: str
    """Identifier of the run; the same each time that it is continued."""
    continued: bool
    """Whether the tracker has met this run before."""

    @property
    def name(self) -> str:
        """Name of the folder, in characters that every tracker allows."""
        return re.sub(r"[^\w.-]+", "-", self.folder.absolute().name)


Row = tuple[int, Mapping[str, float]]
"""The number of an update, and its measurements by names such as `train/loss`."""


@runtime_checkable
class Tracker(Protocol):
    """A tracker of one run. Any call may fail; the tracker is not called again after that."""

    def send(self, rows: Iterable[Row]) -> None:
        """Record these rows, as far as this process can ensure it; steps never decrease."""
        ...

    def close(self, failed: bool) -> None:
        """Stop sending from this process; `failed` says whether the run ended with an error."""
        ...


class TensorBoard:
    """Event files in `RUN/tensorboard`, written by tensorboardX, which needs no TensorFlow."""

    def __init__(self, run: Opening):
        from tensorboardX import summary  # pyright: ignore[reportMissingImports]
        from tensorboardX.event_file_writer import EventsWriter  # pyright: ignore[reportMissingImports]
        from tensorboardX.proto import event_pb2  # pyright: ignore[reportMissingImports]

        # Not its SummaryWriter: that passes events to a thread, and waits forever if a disk error stops the thread.
        self.event, self.summary = event_pb2.Event, summary  # pyright: ignore[reportAttributeAccessIssue]
        folder = run.folder / "tensorboard"
        folder.mkdir(exist_ok=True)
        self.file = EventsWriter(str(folder / "events"), f".{secrets.token_hex(4)}")
        if not run.continued:
            self._add(0, summary.text("config", f"```yaml\n{dump_yaml(run.config)}```"))

    def send(self, rows: Iterable[Row]) -> None:
        for step, numbers in rows:
            for name, value in numbers.items():
                self._add(step, self.summary.scalar(name, value))
        self.file.flush()

    def _add(self, step: int, what: Any) -> None:
        self.file.write_event(self.event(wall_time=time.time(), step=step, summary=what))

    def close(self, failed: bool) -> None:
        self.file.close()


class WeightsAndBiases:
    """A run of Weights & Biases; `WANDB_MODE=offline` keeps it in `RUN/wandb`, for `wandb sync`."""

    def __init__(self, run: Opening):
        import wandb  # pyright: ignore[reportMissingImports]

        self.run = wandb.init(
            project=run.config.trainer.tracker_project,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.folder),
            config=to_dict(run.config),
            settings=wandb.Settings(console="off", silent=True, login_timeout=30),
        )

    def send(self, rows: Iterable[Row]) -> None:
        for step, numbers in rows:
            self.run.log(dict(numbers), step=step)  # its own process writes and sends

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class Trackio:
    """A run of Trackio, in its database on this machine (`TRACKIO_DIR`), or where its own settings say."""

    def __init__(self, run: Opening):
        import trackio  # pyright: ignore[reportMissingImports]

        self.trackio = trackio
        self.run = trackio.init(
            project=run.config.trainer.tracker_project,
            name=f"{run.name}-{run.id}",  # runs of one name would be one run
            resume="allow",
            config=to_dict(run.config),
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def send(self, rows: Iterable[Row]) -> None:
        for step, numbers in rows:
            self.run.log(dict(numbers), step=step)  # its own thread writes

    def close(self, failed: bool) -> None:
        self.trackio.finish()  # the run's own method would be called again at exit, and print


class Kind(NamedTuple):
    """A tracker that can be requested."""

    name: str
    package: str
    open: Callable[[Opening], Tracker]


KINDS = {
    "tensorboard": Kind("TensorBoard", "tensorboardX", TensorBoard),
    "wandb": Kind("Weights & Biases", "wandb", WeightsAndBiases),
    "trackio": Kind("Trackio", "trackio", Trackio),
}


def require_trackers(config: Config) -> None:
    """Check that the packages of the trackers in a config are installed, without importing them.

    **Raises:** `BadInput` naming the first one that is not.
    """
    for tracker in config.trainer.trackers:
        if find_spec(KINDS[tracker].package) is None:
            raise BadInput(
                f"trainer.trackers has {tracker!r}, but {KINDS[tracker].package} is not installed; "
                f"pip install 'diffeqformer[{tracker}]' brings it."
            )


class RunLog:
    """Destination of a run's measurements: `metrics.jsonl` and every tracker of the config.

    Updates that a resumed run repeats are not sent to the trackers a second time.

    **Arguments:** `run`, the folder; `step`, the update that the run continues from; `progress`, which gets a line
    for each tracker that fails.

    **Raises:** `OSError` if the run's own files cannot be written.
    """

    def __init__(self, run: RunFolder, step: int, progress: Progress):
        config, folder = run.config, run.path
        self.progress, self.trackers = progress, {}
        names = dict.fromkeys(config.trainer.trackers)
        state = self._state(folder / STATE) if names else {}
        # `sent` dates from the last start: the lines since then were sent too, and `Metrics` may now remove them.
        before = [record["step"] for record in read_metrics(folder / METRICS)] if state else []
        self.sent = max([state.get("sent", -1), *before])
        self.metrics = Metrics(folder / METRICS, step)
        if names:
            opening = Opening(config, folder, state.get("id") or secrets.token_hex(4), bool(state))
            # Before any tracker is opened: after a kill the run goes on under the same id.
            write_sealed(folder / STATE, {"id": opening.id, "sent": self.sent})
            for name in names:
                if (tracker := self._try(name, KINDS[name].open, opening)) is not None:
                    self.trackers[name] = tracker

    @property
    def digest(self) -> str:
        """Digest of the lines of `metrics.jsonl` so far."""
        return self.metrics.digest

    def write(self, records: Iterable[Record]) -> None:
        """Write records to `metrics.jsonl` (see `Metrics.write`), and send them to the trackers."""
        records = list(records)
        self.metrics.write(records)
        self._send([(r["step"], _named(r)) for r in records if r["step"] > self.sent])

    def results(self, entry: Entry) -> None:
        """Send the results of a finished run: its entry of `results.json`."""
        found = {**entry["validation"], **{name: entry[name] for name in ("tokens", "seconds", "tokens_per_second")}}
        found |= {f"parameters_{name}": number for name, number in entry["parameters"].items()}
        self._send([(entry["updates"], {f"final/{name}": v for name, v in found.items() if finite(v)})])

    def _state(self, path: Path) -> Document:
        """Read the state that an earlier process left; empty if there was none."""
        try:
            return read_sealed(path)
        except FileNotFoundError:
            return {}
        except Damaged as error:
            self.progress.say(f"{error} Trackers will show the run as a new one.")
            return {}

    def _send(self, rows: list[Row]) -> None:
        for name in list(self.trackers) if rows else ():
            self._try(name, self.trackers[name].send, rows)

    def _try(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a tracker; if it fails, say so and leave it out from now on."""
        try:
            with contextlib.redirect_stdout(sys.stderr):  # some print
                return call(*arguments)
        except Exception as error:  # each has its own types, besides those of networks and disks
            self.trackers.pop(name, None)
            self.progress.say(
                f"{KINDS[name].name} failed ({type(error).__name__}: {reason(error, 200)}); the run goes on without "
                f"it, and {METRICS} has every number."
            )

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self.metrics.close()
        for name in list(self.trackers):
            self._try(name, self.trackers[name].close, kind is not None)


class NoLog:
    """The `RunLog` of all processes except the main one: it discards everything."""

    digest: str | None = None

    def write(self, records: Iterable[Record]) -> None: ...

    def results(self, entry: Entry) -> None: ...

    def __enter__(self) -> "NoLog":
        return self

    def __exit__(self, *_: object) -> None: ...


def _named(record: Record) -> dict[str, float]:
    """Return a record's numbers by the names under which trackers show them."""
    group = "validation" if record["kind"] == "validation" else "train"
    return {f"{group}/{k}": float(v) for k, v in record.items() if k not in ("step", "seconds") and finite(v)}
