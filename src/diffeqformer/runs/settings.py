"""Settings that the numbers of a run depend on, by dotted names, and where two runs differ in them."""

import dataclasses
from typing import Any

from diffeqformer.config import Config, to_dict
from diffeqformer.plain import Document, Values

MAY_CHANGE = frozenset((
    "run", "data.cache", "mesh.data", "mesh.fsdp", "mesh.tensor", "model.gradient", "model.gradient.kind",
    "model.gradient.checkpoints", "trainer.log_every", "trainer.evaluate_every", "trainer.evaluate_batches",
    "trainer.keep_last", "trainer.keep_best", "trainer.samples", "trainer.checkpoint_every",
    "trainer.checkpoint_minutes", "trainer.trackers", "trainer.tracker_project", "trainer.profile",
))  # fmt: skip
"""Settings that may change when a run is continued, because no update's numbers depend on them, except for
rounding."""


def numeric(config: Config | Document) -> Document:
    """Return the settings that numbers depend on, by dotted names such as `model.weights.d_emb`."""
    document = to_dict(config) if isinstance(config, Config) else config
    return {name: value for name, value in flat(document).items() if name not in MAY_CHANGE}


def flat(values: Document, prefix: str = "") -> Document:
    """Return settings in sections by their dotted names."""
    found: Document = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def first_difference(one: Values, other: Values) -> str | None:
    """Return the first name that both documents have with different values; a setting that only one has is newer than
    the other document, and had its default."""
    return next((name for name in one if name in other and one[name] != other[name]), None)


def difference(config: Config, ours: Document, kept: Document) -> tuple[str, str, str] | None:
    """Return the first setting in which a kept run differs from that of a config, and both values, as messages show
    them; `None` if there is none.

    A setting that is newer than the run had its default, which depends on the kinds of sections. If the config gives no
    vocabulary size (the tokenizer decides it), any size matches.

    **Arguments:** `ours`, those of the config's numeric settings that count; `kept`, the run's.
    """
    theirs = numeric(Config()) | kept
    sections = {name.rpartition(".")[0] for name in theirs}
    usual = {name: value for name, value in numeric(_usual(config)).items() if name.rpartition(".")[0] in sections}
    theirs = usual | theirs
    for name, value in ours.items():
        if theirs.get(name) != value and not (name == "model.vocabulary" and value is None):
            return name, repr(theirs.get(name)), repr(value)
    for name, value in kept.items():  # settings of a section that is not given here
        above = next((one for one in ours if ours[one] is None and name.startswith(f"{one}.")), None)
        if above and value is not None:
            return name, repr(value), f"{above} is not given"
    return None


def _usual(section: Any) -> Any:
    """Return a section, and those inside it, of the kinds that they have, with every setting at its default."""
    inner = {name: _usual(value) for name, value in vars(section).items() if dataclasses.is_dataclass(value)}
    return type(section)(**inner)
