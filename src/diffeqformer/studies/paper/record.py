"""The record of `reproduce paper`: verdicts, models and learning rates of earlier runs, whose folders may be gone.

Nobody has hours for all items at once, and runs are large. A record is a sealed JSON file beside which items are
judged one after another, and one seed after another, on any machine: the effects of the runs at hand join those that it
has of other seeds, and replace those that it has of the same.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diffeqformer.errors import BadInput
from diffeqformer.plain import Document, Values, finite_or_none
from diffeqformer.store.files import read_sealed, write_sealed
from diffeqformer.studies.paper.claims import Claim, Verdict, judge
from diffeqformer.studies.reproduce.experiments import Rates, losses_of

MODEL_COLUMNS = ("model", "parameters (M)", "rate", "searched for", "loss (nats per token)", "seeds")
"""Of the page's table of models, whose rows are kept."""
SEEDS_COLUMN = MODEL_COLUMNS.index("seeds")


@dataclass(frozen=True)
class Record:
    """What is known of the claims, models and learning rates of one scale, length and text."""

    of: Values
    """Scale, updates and texts, which its numbers are of."""
    claims: Mapping[tuple[str, str], Verdict] = field(default_factory=dict)
    """By item and sentence."""
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rows of the page's table."""
    rates: Rates = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)
    """Captions of the figures beside the page, by name."""
    tables: Mapping[str, Values] = field(default_factory=dict)
    """Those of `tables`, by name."""

    def verdict(self, item: str, claim: Claim, found: Verdict) -> Verdict:
        """Of what is `found` and the record's other seeds; where nothing random enters, of what is found; if it has no
        effects, whichever has more seeds."""
        known = self.claims.get((item, claim.sentence))
        if known is None or (claim.exact and found.effects):  # without chance a seed says no more than another
            return found
        if len(known.effects) == known.seeds:
            return judge({**known.effects, **found.effects}, exact=claim.exact)
        return found if known.seeds <= found.seeds else known

    def other(self, item: str, claim: Claim, found: Verdict) -> Verdict | None:
        """The record's verdict where what is `found` changes it; `None` if it stands or is untested before or after."""
        known, now = self.claims.get((item, claim.sentence)), self.verdict(item, claim, found)
        if known is None or "untested" in (known.word, now.word) or known.word == now.word:
            return None
        return known


def read(path: Path, of: Values) -> Record:
    """The record in a file, empty if there is none.

    **Raises:** `BadInput` if its numbers are not `of` what is asked; `Damaged` if it is not what was written.
    """
    if not path.is_file():
        return Record(of)
    document = read_sealed(path)
    if any(document["of"][name] != of[name] for name in document["of"].keys() & of):
        known = ", ".join(f"{name} {value}" for name, value in document["of"].items())
        asked = ", ".join(f"{name} {value}" for name, value in of.items())
        raise BadInput(f"the record {str(path)!r} is of {known}, but this would be of {asked}; name another --record.")
    return Record(
        {**document["of"], **of},
        {(one["item"], one["claim"]): _verdict(one) for one in document["claims"]},
        {row[0]: tuple(row) for row in document["models"]},
        {name: (one["best"], losses_of(one["losses"])) for name, one in document["rates"].items()},
        document.get("figures", {}),
        document.get("tables", {}),
    )


def write(path: Path, document: Values, of: Values) -> None:
    """Keep what the page's document says, whole or not at all; what the record there is `of` besides stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = read_sealed(path)["of"] if path.is_file() else {}
    write_sealed(path, {"of": {**known, **of}, **document})


def of_claim(item: str, sentence: str, unit: str, verdict: Verdict) -> Document:
    """A claim as the page's document and the record have it."""
    return {
        "item": item, "claim": sentence, "unit": unit, "verdict": verdict.word, "seeds": verdict.seeds,
        "mean": finite_or_none(verdict.mean), "low": finite_or_none(verdict.low), "high": finite_or_none(verdict.high),
        "effects": {str(seed): effect for seed, effect in verdict.effects.items()},
    }  # fmt: skip


def _verdict(one: Values) -> Verdict:
    number = lambda name: math.nan if one[name] is None else one[name]
    ends = number("mean"), number("low"), number("high")
    effects = {int(seed): effect for seed, effect in one["effects"].items()}
    return Verdict(one["verdict"], effects, *ends, one["seeds"])
