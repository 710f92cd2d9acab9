"""`diffeqformer analyze induction`: which heads match prefixes and copy, and whether their spectra predict it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diffeqformer.config.bounds import SIZES, UINT32, setting
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.report.table import Table
from diffeqformer.report.text import counted, number
from diffeqformer.studies.inputs import OfRun, described
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.analysis.inference import Correlation, Induction


@dataclass(frozen=True, kw_only=True)
class Arguments(OfRun):
    """Which heads match prefixes and copy, measured on repeated random sequences, beside their spectra.

    Example: diffeqformer analyze induction runs/quickstart/diffeqformer
    """

    sequences: int = setting(32, least=1, most=SIZES)
    """Number of random sequences."""
    length: int = setting(25, least=1, most=SIZES)
    """Different tokens in each."""
    repeats: int = setting(4, least=1, most=SIZES)
    """Copies of each in a row; length times repeats must fit the context."""
    seed: int = setting(0, least=0, most=UINT32)
    """Random seed."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Measure every head's behaviours next to its spectra, and test the paper's inference."""
    from diffeqformer.analysis.induction import measure_induction
    from diffeqformer.data.tokenizer import ordinary
    from diffeqformer.report.page import both_widths
    from diffeqformer.studies import induction_figures as draw

    opened, folder = arguments.open("induction", progress)
    found = measure_induction(
        opened.model,
        candidates=ordinary(opened.tokenizer),
        sequences=arguments.sequences, length=arguments.length, repeats=arguments.repeats, steps=arguments.steps,
        seed=arguments.seed, progress=progress,
    )  # fmt: skip
    maps = (
        "Behaviours of every head at every step, and summaries of its spectra. Each map has its own colour scale: the "
        f"dark end of prefix matching is {draw.darkest(found):.2g}, where a perfect induction head has 1. The line in "
        "its bar marks chance."
    )
    test = (
        "The test: behaviour against spectrum, with a point for each head and step, and 95 % intervals. Within steps: "
        "among the heads of each. 'QK and OV positive' is the smaller of a head's two shares of eigenvalues with "
        "positive real parts. Dotted: chance."
    )
    return Result(
        "induction",
        "Are there induction heads?",
        (found.verdict(), about(described(opened), found)),
        (found.table(), strongest(found), strongest(found, "copying", 5)),
        (
            both_widths("induction-maps", maps, draw.induction_maps, found),
            both_widths("induction-test", test, draw.induction_scatter, found),
        ),
        arrays=found.arrays(),
        document={
            **opened.which,
            "verdict": found.verdict(),
            "loss_first": found.loss_first,
            "loss_later": found.loss_later,
            "chance": found.chance,
            "behaviours": {name: values.tolist() for name, values in found.behaviours.items()},
            "spectra": {name: values.tolist() for name, values in found.summaries.items()},
            "correlations": [known(one) for one in found.correlations],
        },
        notes=notes(found.chance),
        folder=folder,
    )


def known(one: "Correlation") -> Document:
    """Convert a correlation to a JSON document; `None` for a number or an interval that is not finite."""
    return {
        name: value if isinstance(value, str) or np.isfinite(value).all() else None for name, value in vars(one).items()
    }


def about(name: str, found: "Induction") -> str:
    """State what was read."""
    return (
        f"{name}: {counted(found.sequences, 'sequence')} of {found.length} random tokens, each {found.repeats} times "
        "in a row; mean loss of the first copy and of the later ones."
    )


def notes(chance: float) -> tuple[str, ...]:
    """Explain how behaviours and spectra were measured; `chance`, prefix matching of a head with uniform attention."""
    return (
        "Prefix matching (0 to 1): attention to the positions after earlier copies of the current token; "
        f"{chance:.3f} for a head that attends uniformly. Copying (-1 to 1): whether attending to a position "
        "raises the logit of the token there above those of the sequence's other tokens, counted in ranks. Attention "
        "and outputs are those of the forward pass itself (Olsson et al. 2022). Next token: like copying, but for all "
        "that the head adds at a position, and for the token that comes next there.",
        "The paper infers induction heads from positive real parts of the QK and OV eigenvalues. 'QK and OV positive' "
        "is the smaller of a head's two shares of positive real parts. Correlations are Spearman's: one over "
        "all heads and steps, and one of the ranks among the heads of each step, which depth as such cannot affect. "
        "Intervals are bootstrapped. Where weights are functions of depth, steps and heads are resampled separately, "
        "since a head's values at several steps are not independent; otherwise single heads are resampled.",
    )


def strongest(found: "Induction", behaviour: str = "prefix matching", most: int = 10) -> Table:
    """Tabulate the heads that match prefixes, or copy, most."""
    strength = found.behaviours[behaviour]
    best = [np.unravel_index(i, strength.shape) for i in np.argsort(-strength, axis=None)[:most]]
    shown = ("prefix matching", "copying", "next token", "QK positive share", "OV positive share")
    values = found.behaviours | found.summaries
    rows = [(f"step {s + 1}, head {h}", *(number(float(values[name][s, h]), 3) for name in shown)) for s, h in best]
    does = {"prefix matching": "match prefixes", "copying": "copy"}[behaviour]
    return Table(f"Heads that {does} most", ("step, head", *shown), rows)
