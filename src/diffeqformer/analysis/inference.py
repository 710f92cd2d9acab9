"""Whether spectra tell which heads are induction heads: the paper's inference, tested, and what is said of it."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from diffeqformer.analysis.correlation import spearman
from diffeqformer.report.table import Table
from diffeqformer.report.text import MISSING, finite, percent, signed

TESTS = (
    ("prefix matching", "QK positive share"), ("prefix matching", "QK sum ratio"),
    ("prefix matching", "QK spectral radius"), ("copying", "OV positive share"), ("copying", "OV sum ratio"),
    ("prefix matching", "QK and OV positive"), ("next token", "QK and OV positive"), ("next token", "OV sum ratio"),
)  # fmt: skip
"""Which behaviour is compared with which summary of a spectrum."""
COPYING = ("copying", "OV positive share")
"""Of what needs no induction heads: a head that copies has large shares of positive real parts in OV."""
MATCHING = 0.5
"""Prefix matching of a head that is called an induction head without reserve."""
INFERENCE = ("prefix matching", "QK and OV positive")
"""The paper's: a head of which both shares of positive real parts are large is an induction head."""


@dataclass(frozen=True)
class Correlation:
    """How a behaviour and a summary of spectra go together, over all heads and steps."""

    behaviour: str
    summary: str
    rho: float
    """Spearman's rank correlation; NaN if either is the same everywhere, or of fewer than three points."""
    interval: tuple[float, float]
    """95 % bootstrap interval: steps and heads are drawn anew if weights are functions of time (a head's times go
    together), else heads of all layers are."""
    within: float = math.nan
    """The same of ranks among the heads of each step: what depth alone does to both, and so to all heads alike, is out
    of it. NaN with one head."""
    within_interval: tuple[float, float] = (math.nan, math.nan)


def estimate(value: float, interval: tuple[float, float]) -> str:
    """`+0.34 [−0.18, +0.71]`: a correlation and its 95 % interval; a dash if there is none."""
    if not finite(value):
        return MISSING
    return f"{signed(value, 2)} [{', '.join(signed(end, 2) for end in interval)}]"


@dataclass(frozen=True)
class Induction:
    """What every head does on repeated random sequences at every step, and what its spectra say."""

    times: np.ndarray
    """The ends of the steps, (step,)."""
    behaviours: dict[str, np.ndarray]
    """By name, (step, head); see `measure_induction`."""
    summaries: dict[str, np.ndarray]
    """Summaries of the QK and OV spectra of the weights that the same evaluations used, (step, head)."""
    correlations: tuple[Correlation, ...]
    chance: float
    """Prefix matching of a head that looks at all positions alike."""
    loss_first: float
    """Mean loss (nats) of the first copy's tokens, which cannot be known."""
    loss_later: float
    """Mean loss of the later copies', which can."""
    even: float
    """The loss of uniform guessing over the vocabulary."""
    length: int
    repeats: int
    sequences: int

    @property
    def inference(self) -> Correlation:
        """The test of the paper's inference: prefix matching against both pairs' shares of positive real parts."""
        return next(c for c in self.correlations if (c.behaviour, c.summary) == INFERENCE)

    def verdict(self) -> str:
        """Whether there are induction heads, and what the test means for the paper's inference on this model."""
        matching = self.behaviours["prefix matching"]
        most, (step, head) = float(matching.max()), np.unravel_index(matching.argmax(), matching.shape)
        than = f"uniform guessing: {self.even:.2f}"
        if min(self.loss_first, self.loss_later) > self.even:
            than += ", better than both: such text is foreign to this model, which may do otherwise in text of its own"
        measured = (
            f"the best head (step {step + 1}, head {head}) gives {percent(most, 1)} of its attention to what followed "
            f"earlier copies of the token ({percent(self.chance, 1)} by chance, 100 % if it were a perfect induction "
            f"head), and the loss is {self.loss_first:.2f} nats in the first copy of a random sequence, "
            f"{self.loss_later:.2f} in the later ones ({than})"
        )
        # Below twice chance, or 0.1 nats gained from repetition, there is no induction for spectra to tell.
        if most < 2 * self.chance or self.loss_later > self.loss_first - 0.1:
            return f"No: {measured}. The paper's inference from eigenvalues cannot be tested here. {self._copying()}"
        there = "Yes" if most >= MATCHING and self.loss_later < self.even else "Hardly"
        return f"{there}, on random tokens: {measured}. {self._inference()}"

    def _inference(self) -> str:
        """What becomes of the paper's inference where heads match prefixes."""
        found = self.inference
        (low, high), (least, _) = found.interval, found.within_interval
        alone = self.behaviours["prefix matching"].shape[-1] == 1
        spread = f"rank correlation {estimate(found.rho, found.interval)}"
        among = "" if alone else f"; among the heads of a step {estimate(found.within, found.within_interval)}"
        heads = (
            "Heads whose eigenvalues of both QK and OV have more positive real parts, from which the paper infers "
            "induction heads,"
        )
        if not finite(found.rho):
            return f"{heads} cannot be tested: they are fewer than three, or all alike."
        if low > 0 and (least > 0 or alone):
            return f"{heads} do match prefixes more ({spread}{among})."
        if low > 0:
            return (
                f"{heads} match prefixes more over heads and steps ({spread}), but not clearly among the heads "
                f"of a step ({estimate(found.within, found.within_interval)}){self._tells()}."
            )
        if high < 0:
            return f"{heads} match prefixes less ({spread}{among})."
        return f"{heads} do not clearly match prefixes more ({spread}{among})."

    def _tells(self) -> str:
        """Which single shares of positive real parts do tell a step's heads apart."""
        clear = lambda one: one.within_interval[0] > 0 or one.within_interval[1] < 0
        shares = [one for one in self.correlations if one.summary.endswith("positive share") and clear(one)]
        said = [
            f"{one.behaviour} goes {'with' if one.within > 0 else 'against'} {one.summary.split()[0]}'s share alone "
            f"({estimate(one.within, one.within_interval)})"
            for one in shares
        ]
        return f", where {' and '.join(said)}" if said else ""

    def _copying(self) -> str:
        """Whether heads copy where OV says so, which needs no induction heads."""
        found = next(c for c in self.correlations if (c.behaviour, c.summary) == COPYING)
        (low, high), most = found.interval, float(self.behaviours["copying"].max())
        if not finite(found.rho):
            return f"Copying, up to {most:.2f} here, cannot be tested: heads are fewer than three, or all alike."
        goes = "goes" if low > 0 else "goes the other way" if high < 0 else "does not clearly go"
        return (
            f"Copying, up to {most:.2f} here, {goes} with OV's share of positive real parts (rank correlation "
            f"{estimate(found.rho, found.interval)}){self._other_copying()}."
        )

    def _other_copying(self) -> str:
        """What copying clearly goes with besides."""
        others = (c for c in self.correlations if c.behaviour == COPYING[0] and c.summary != COPYING[1])
        clear = [c for c in others if c.interval[0] > 0 or c.interval[1] < 0]
        said = [f"{'with' if c.rho > 0 else 'against'} {c.summary} ({estimate(c.rho, c.interval)})" for c in clear]
        return f"; it goes {' and '.join(said)}" if said else ""

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything, to be saved."""
        found = {"times": self.times, "chance": np.asarray(self.chance)}
        found |= {name.replace(" ", "_"): value for name, value in (self.behaviours | self.summaries).items()}
        found["loss_first_and_later"] = np.array([self.loss_first, self.loss_later])
        found["correlations"] = np.array([(c.rho, *c.interval) for c in self.correlations])
        found["correlations_within"] = np.array([(c.within, *c.within_interval) for c in self.correlations])
        found["correlation_names"] = np.array([f"{c.behaviour} ~ {c.summary}" for c in self.correlations])
        return found

    def table(self, caption: str = "Rank correlations") -> Table:
        """The correlations."""
        rows = [
            (f"{c.behaviour} ~ {c.summary}",
             *(cell for value, ends in ((c.rho, c.interval), (c.within, c.within_interval))
               for cell in ((signed(value, 2), " to ".join(signed(end, 2) for end in ends)) if finite(value)
                            else (MISSING, MISSING))))
            for c in self.correlations
        ]  # fmt: skip
        columns = ("behaviour ~ spectrum", "rank correlation", "95 % interval", "among a step's heads", "95 % interval")
        return Table(caption, columns, rows)

    def _repr_html_(self) -> str:
        return self.table(self.verdict()).to_html()


def correlate(
    behaviour: str, x: np.ndarray, summary: str, y: np.ndarray, *, crossed: bool, samples: int = 1000, seed: int = 0
) -> Correlation:
    """Spearman's correlation of x and y, both (step, head), with a bootstrap interval.

    **Arguments:** `crossed`, true to draw steps and heads, each apart, and every pair of those drawn (Owen 2007, the
    pigeonhole bootstrap: a head's values at all steps go together, as do a step's of all heads; with few of either the
    interval is wide, as it should be), false to draw (step, head) points; `samples` of the bootstrap.
    """
    drawn = lambda values: values if crossed else values.reshape(1, -1)
    of_heads = lambda values: rankdata(values, axis=1) - (x.shape[1] + 1) / 2
    within = _estimated(drawn(of_heads(x)), drawn(of_heads(y)), samples, seed)
    return Correlation(behaviour, summary, *_estimated(drawn(x), drawn(y), samples, seed), *within)


def _estimated(x: np.ndarray, y: np.ndarray, samples: int, seed: int) -> tuple[float, tuple[float, float]]:
    """The correlation of two tables, and its interval: each axis drawn anew with replacement."""
    if x.size < 3 or not (np.ptp(x) and np.ptp(y)):
        return math.nan, (math.nan, math.nan)
    draw = np.random.default_rng(seed)
    picks = [np.ix_(*(draw.integers(0, size, size) for size in x.shape)) for _ in range(samples)]
    low, high = np.quantile(spearman(*(np.stack([z[some].ravel() for some in picks]) for z in (x, y))), (0.025, 0.975))
    return float(spearman(x.ravel(), y.ravel())), (float(low), float(high))
