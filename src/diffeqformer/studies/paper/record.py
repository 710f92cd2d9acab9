"""The record of `reproduce paper`: verdicts, models and learning rates of earlier runs, whose folders may be gone.

All items at once take hours, and runs are large. A record is a sealed JSON file with which items and seeds are judged
one after another, on any machine: effects of the runs at hand are added to those of other seeds in the record, and
replace those of the same seed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diffeqformer.errors import BadInput
from diffeqformer.plain import Document, Values, finite_or_none
from diffeqformer.report.table import Table
from diffeqformer.report.text import finite
from diffeqformer.store.files import read_sealed, write_sealed
from diffeqformer.studies.paper.claims import VERDICTS, Claim, Verdict, judge
from diffeqformer.studies.reproduce.experiments import Rates, losses_of

MODEL_COLUMNS = ("model", "parameters (M)", "rate", "searched for", "loss (nats per token)", "seeds")
"""Columns of the page's table of models, whose rows are kept."""
SEEDS_COLUMN = MODEL_COLUMNS.index("seeds")


@dataclass(frozen=True)
class Record:
    """What is known about the claims, models and learning rates of one scale, length and text."""

    of: Values
    """Scale, updates and texts to which its numbers belong."""
    claims: Mapping[tuple[str, str], Verdict] = field(default_factory=dict)
    """Verdicts by item and sentence."""
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rows of the page's table of models, by name."""
    rates: Rates = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)
    """Captions of the figures beside the page, by name."""
    tables: Mapping[str, Values] = field(default_factory=dict)
    """Tables of the module `tables`, by name."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """`TokenCache.content` of each model's training text, by model: files of the same name may have other texts."""

    def verdict(self, item: str, claim: Claim, found: Verdict) -> Verdict:
        """Return the verdict on what is `found` and the record's other seeds; without randomness, on what is found
        alone; if the record has no effects, return the verdict with more seeds."""
        known = self.claims.get((item, claim.sentence))
        if known is None or (claim.exact and found.effects):  # without randomness all seeds say the same
            return found
        if len(known.effects) == known.seeds:
            return judge({**known.effects, **found.effects}, exact=claim.exact)
        return found if known.seeds <= found.seeds else known

    def require_texts(self, texts: Mapping[str, str]) -> None:
        """Check that models were trained on the record's texts.

        **Raises:** `BadInput` naming one that was not.
        """
        for name in texts.keys() & self.texts.keys():
            if texts[name] != self.texts[name]:
                raise BadInput(
                    f"{name} was trained on another text, or with another tokenizer, than it was for the record (the "
                    "standard library of another Python is another text); name another --record."
                )

    def other(self, item: str, claim: Claim, found: Verdict) -> Verdict | None:
        """Return the record's verdict if `found` changes it; `None` if it stands or is untested before or after."""
        known, now = self.claims.get((item, claim.sentence)), self.verdict(item, claim, found)
        if known is None or "untested" in (known.word, now.word) or known.word == now.word:
            return None
        return known


def read(path: Path, of: Values) -> Record:
    """Read the record in a file; return an empty one if there is no file.

    **Raises:** `BadInput` if its numbers do not belong to `of`; `Damaged` if it is not as it was written.
    """
    if not path.is_file():
        return Record(of)
    document = read_sealed(path)
    try:
        record = _parsed(document, of)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise BadInput(f"file {str(path)!r} is no record of `reproduce paper`; name another --record.") from None
    if any(document["of"][name] != of[name] for name in document["of"].keys() & of):
        known = ", ".join(f"{name} {value}" for name, value in document["of"].items())
        asked = ", ".join(f"{name} {value}" for name, value in of.items())
        raise BadInput(f"the record {str(path)!r} is of {known}, but this would be of {asked}; name another --record.")
    return record


def _parsed(document: Values, of: Values) -> Record:
    """Parse a record; raise one of Python's own errors if the document is not a record."""
    # Records that were written before figures, tables and texts were kept have none.
    known, figures, tables = document["of"], document.get("figures", {}), document.get("tables", {})
    texts = document.get("texts", {})
    if any(type(known[name]) is not kind for name, kind in (("scale", str), ("updates", int), ("text", str))):
        raise TypeError
    rates = {name: (one["best"], losses_of(one["losses"])) for name, one in document["rates"].items()}
    if not all(finite(best) and best > 0 for best, _ in rates.values()):
        raise ValueError
    rows = {row[0]: tuple(map(str, row)) for row in document["models"]}
    if any(len(row) < len(MODEL_COLUMNS) or not row[SEEDS_COLUMN].isdecimal() for row in rows.values()):
        raise ValueError
    if not all(isinstance(said, str) for said in (*figures.values(), *texts.values())):
        raise TypeError
    for table in tables.values():
        Table(**table)
    claims = {(one["item"], one["claim"]): _verdict(one) for one in document["claims"]}
    return Record({**known, **of}, claims, rows, rates, dict(figures), dict(tables), dict(texts))


def write(path: Path, document: Values, of: Values) -> None:
    """Write the page's document as a record, completely or not at all; other entries of the old `of` stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = read_sealed(path)["of"] if path.is_file() else {}
    write_sealed(path, {"of": {**known, **of}, **document})


def of_claim(item: str, sentence: str, unit: str, verdict: Verdict) -> Document:
    """Return a claim as the page's document and the record store it."""
    return {
        "item": item, "claim": sentence, "unit": unit, "verdict": verdict.word, "seeds": verdict.seeds,
        "mean": finite_or_none(verdict.mean), "low": finite_or_none(verdict.low), "high": finite_or_none(verdict.high),
        "effects": {str(seed): effect for seed, effect in verdict.effects.items()},
    }  # fmt: skip


def _verdict(one: Values) -> Verdict:
    number = lambda name: math.nan if one[name] is None else float(one[name])
    ends = number("mean"), number("low"), number("high")
    effects = {int(seed): float(effect) for seed, effect in one["effects"].items()}
    if one["verdict"] not in VERDICTS:
        raise ValueError
    return Verdict(one["verdict"], effects, *ends, int(one["seeds"]))
