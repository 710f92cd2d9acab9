"""Test of the paper's inference that spectra tell which heads are induction heads, and its verdict in words."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from diffeqformer.analysis.correlation import spearman
from diffeqformer.analysis.tables import Summarised
from diffeqformer.report.table import Table
from diffeqformer.report.text import MISSING, finite, percent, signed

TESTS = (
    ("prefix matching", "QK positive share"), ("prefix matching", "QK sum ratio"),
    ("prefix matching", "QK spectral radius"), ("copying", "OV positive share"), ("copying", "OV sum ratio"),
    ("prefix matching", "QK and OV positive"), ("next token", "QK and OV positive"), ("next token", "OV sum ratio"),
)  # fmt: skip
"""Pairs of a behaviour and the spectral summary that it is compared with."""
COPYING = ("copying", "OV positive share")
"""A test that needs no induction heads: a head that copies has a large share of positive real parts in OV."""
MATCHING = 0.5
"""Least prefix matching of a head that is called an induction head without reservation."""
INFERENCE = ("prefix matching", "QK and OV positive")
"""The paper's inference: a head whose shares of positive real parts are large in QK and OV is an induction head."""


@dataclass(frozen=True)
class Correlation:
    """Rank correlation of a behaviour and a spectral summary, over all heads and steps."""

    behaviour: str
    summary: str
    rho: float
    """Spearman's rank correlation; NaN if either is constant, or if there are fewer than three points."""
    interval: tuple[float, float]
    """95 % bootstrap interval: steps and heads are resampled if weights are functions of time, because a head's values
    at all times go together; otherwise the heads of all layers are."""
    within: float = math.nan
    """Correlation of the ranks among the heads of each step, without the effects of depth that all heads share. NaN
    with one head."""
    within_interval: tuple[float, float] = (math.nan, math.nan)


def estimate(value: float, interval: tuple[float, float]) -> str:
    """Format a correlation and its 95 % interval as `+0.34 [−0.18, +0.71]`; a dash if there is none."""
    if not finite(value):
        return MISSING
    return f"{signed(value, 2)} [{', '.join(signed(end, 2) for end in interval)}]"


def _way(interval: tuple[float, float]) -> str:
    """Return `positively` or `negatively` if the interval of a correlation leaves no doubt, else nothing."""
    low, high = interval
    return "positively" if low > 0 else "negatively" if high < 0 else ""


@dataclass(frozen=True, repr=False)
class Induction(Summarised):
    """What every head does on repeated random sequences at every step, and what its spectra say."""

    times: np.ndarray
    """Times at the ends of the steps, (step,)."""
    behaviours: dict[str, np.ndarray]
    """Behaviours by name, each (step, head); see `measure_induction`."""
    summaries: dict[str, np.ndarray]
    """Summaries of the QK and OV spectra by name, of the weights at the same evaluations, each (step, head)."""
    correlations: tuple[Correlation, ...]
    chance: float
    """Prefix matching of a head that attends to all positions uniformly."""
    loss_first: float
    """Mean loss (nats) on the tokens of the first copy, which cannot be predicted."""
    loss_later: float
    """Mean loss (nats) on the tokens of the later copies, which can be predicted."""
    even: float
    """The loss of uniform guessing over the vocabulary."""
    length: int
    repeats: int
    sequences: int

    @property
    def inference(self) -> Correlation:
        """The test of the paper's inference: prefix matching against the shares of positive real parts in QK and OV."""
        return self.test(*INFERENCE)

    def test(self, behaviour: str, summary: str) -> Correlation:
        """Return the test of a behaviour against a summary, one of `TESTS`."""
        return next(c for c in self.correlations if (c.behaviour, c.summary) == (behaviour, summary))

    def verdict(self) -> str:
        """Say whether there are induction heads, and what the test means for the paper's inference on this model."""
        matching = self.behaviours["prefix matching"]
        most, (step, head) = float(matching.max()), np.unravel_index(matching.argmax(), matching.shape)
        than = f"uniform guessing: {self.even:.2f}"
        if min(self.loss_first, self.loss_later) > self.even:
            than += ", better than both: such text is foreign to this model, which may do otherwise on text of its own"
        measured = (
            f"the best head (step {step + 1}, head {head}) gives {percent(most, 1)} of its attention to what followed "
            f"earlier copies of the token ({percent(self.chance, 1)} by chance, 100 % for a perfect induction "
            f"head). The loss is {self.loss_first:.2f} nats on the first copy of a random sequence and "
            f"{self.loss_later:.2f} on the later ones ({than})"
        )
        # Below twice chance, or 0.1 nats gained from repetition, there is no induction for spectra to tell.
        if most < 2 * self.chance or self.loss_later > self.loss_first - 0.1:
            return f"No: {measured}. The paper's inference from eigenvalues cannot be tested here. {self._copying()}"
        there = "Yes" if most >= MATCHING and self.loss_later < self.even else "Hardly"
        return f"{there}, on random tokens: {measured}. {self._inference()}"

    def _inference(self) -> str:
        """Say whether the paper's inference holds, given that heads match prefixes."""
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
            return f"{heads} cannot be tested: there are fewer than three or all are alike."
        if low > 0 and (least > 0 or alone):
            return f"{heads} do match prefixes more ({spread}{among})."
        if low > 0:
            return (
                f"{heads} match prefixes more across heads and steps ({spread}), but not clearly among the heads "
                f"of a step ({estimate(found.within, found.within_interval)}){self._tells()}."
            )
        if high < 0:
            return f"{heads} match prefixes less ({spread}{among})."
        return f"{heads} do not clearly match prefixes more ({spread}{among})."

    def _tells(self) -> str:
        """Say which single shares of positive real parts do tell the heads of a step apart."""
        said = [
            f"{c.behaviour} correlates {way} with {c.summary.split()[0]}'s share alone "
            f"({estimate(c.within, c.within_interval)})"
            for c in self.correlations
            if c.summary.endswith("positive share") and (way := _way(c.within_interval))
        ]
        return f", where {' and '.join(said)}" if said else ""

    def _copying(self) -> str:
        """Say whether heads copy where OV predicts it, which needs no induction heads."""
        found, most = self.test(*COPYING), float(self.behaviours["copying"].max())
        if not finite(found.rho):
            return (
                f"Copying, up to {most:.2f} here, cannot be tested: there are fewer than three heads or all are alike."
            )
        way = _way(found.interval)
        how = f"correlates {way}" if way else "does not clearly correlate"
        return (
            f"Copying, up to {most:.2f} here, {how} with OV's share of positive real parts (rank correlation "
            f"{estimate(found.rho, found.interval)}){self._other_copying()}."
        )

    def _other_copying(self) -> str:
        """Say which other summaries copying clearly correlates with."""
        said = [
            f"{way} with {c.summary} ({estimate(c.rho, c.interval)})"
            for c in self.correlations
            if c.behaviour == COPYING[0] and c.summary != COPYING[1] and (way := _way(c.interval))
        ]
        return f"; it correlates {' and '.join(said)}" if said else ""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all results as arrays, by name."""
        found = {"times": self.times, "chance": np.asarray(self.chance)}
        found |= {name.replace(" ", "_"): value for name, value in (self.behaviours | self.summaries).items()}
        found["loss_first_and_later"] = np.array([self.loss_first, self.loss_later])
        found["correlations"] = np.array([(c.rho, *c.interval) for c in self.correlations])
        found["correlations_within"] = np.array([(c.within, *c.within_interval) for c in self.correlations])
        found["correlation_names"] = np.array([f"{c.behaviour} ~ {c.summary}" for c in self.correlations])
        return found

    def table(self, caption: str = "Rank correlations") -> Table:
        """Return the correlations as a table."""
        ends = lambda interval: " to ".join(signed(end, 2) for end in interval)
        cells = lambda value, interval: (signed(value, 2), ends(interval)) if finite(value) else (MISSING, MISSING)
        rows = [
            (f"{c.behaviour} ~ {c.summary}", *cells(c.rho, c.interval), *cells(c.within, c.within_interval))
            for c in self.correlations
        ]
        columns = ("behaviour ~ spectrum", "rank correlation", "95 % interval", "among a step's heads", "95 % interval")
        return Table(caption, columns, rows)

    def _repr_html_(self) -> str:
        return self.table(self.verdict()).to_html()


def correlate(
    behaviour: str, x: np.ndarray, summary: str, y: np.ndarray, *, crossed: bool, samples: int = 1000, seed: int = 0
) -> Correlation:
    """Compute Spearman's correlation of x and y, both (step, head), with a bootstrap interval.

    **Arguments:** `crossed`, true to resample steps and heads separately and take every pair of those drawn (Owen 2007,
    the pigeonhole bootstrap: a head's values at all steps go together, as do a step's values of all heads; with few of
    either the interval is wide, as it should be), false to resample (step, head) points; `samples` of the bootstrap.
    """
    drawn = lambda values: values if crossed else values.reshape(1, -1)
    of_heads = lambda values: rankdata(values, axis=1) - (x.shape[1] + 1) / 2
    within = _estimated(drawn(of_heads(x)), drawn(of_heads(y)), samples, seed)
    return Correlation(behaviour, summary, *_estimated(drawn(x), drawn(y), samples, seed), *within)


def _estimated(x: np.ndarray, y: np.ndarray, samples: int, seed: int) -> tuple[float, tuple[float, float]]:
    """Return the correlation of two tables, and its interval: each axis is resampled with replacement."""
    if x.size < 3 or not (np.ptp(x) and np.ptp(y)):
        return math.nan, (math.nan, math.nan)
    draw = np.random.default_rng(seed)
    picks = [np.ix_(*(draw.integers(0, size, size) for size in x.shape)) for _ in range(samples)]
    low, high = np.quantile(spearman(*(np.stack([z[some].ravel() for some in picks]) for z in (x, y))), (0.025, 0.975))
    return float(spearman(x.ravel(), y.ravel())), (float(low), float(high))
