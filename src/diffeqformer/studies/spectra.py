"""`diffeqformer analyze spectra`: complex eigenvalues of a block's matrix pairs over depth, drawn and summarised."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from diffeqformer.config import LayerConfig, SharedConfig
from diffeqformer.config.bounds import MOST_STEPS, UINT32, setting, whole_numbers
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.report.text import digits, join, percent
from diffeqformer.studies.inputs import OfRun
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    import numpy as np

    from diffeqformer.analysis.spectra import Spectra
    from diffeqformer.report.page import Figure
    from diffeqformer.runs.opening import Run

AUTHORS_RANKS = (100, 500)
BETWEEN = 100
"""Default number of times besides the steps, shown for models that were trained between their steps."""
CURVES = " Curves are made by matching the eigenvalues of neighbouring times one to one, with the least movement."
WHAT = {
    "QK": "which tokens heads attend to",
    "OV": "what heads copy from the tokens they attend to",
    "FF": "the feed-forward block",
}
MEANING = (
    "Positive real parts tend to mean: QK attends most to tokens like the current one, OV adds the content of the "
    "attended tokens unchanged, and FF (without its activation) adds to its own input. Negative ones: QK attends away "
    "from such tokens, OV adds the content with its sign flipped, and FF subtracts from its input or flips its sign."
)
HALVES = "half and half"
"""Description of real parts of which neither sign has more than 60 %."""
TURN = 0.1
"""Smallest change in the share of a sign that is reported as a turn."""
Models = Sequence[tuple[str, "Spectra"]]
"""One or two models by name, drawn side by side."""


@dataclass(frozen=True, kw_only=True)
class Arguments(OfRun):
    """Complex eigenvalues of every head's QK and OV pair and of the feed-forward pair, over depth.

    Example: diffeqformer analyze spectra runs/quickstart/diffeqformer --against runs/quickstart/gpt
    """

    against: Annotated[str, tyro.conf.arg(metavar="RUN2")] = ""
    """A second run, such as a vanilla one, drawn beside the first."""
    times: int | None = setting(None, least=0, most=MOST_STEPS)
    """Equally spaced times between 0 and 1, besides those of the steps, if weights are functions of time; if not
    given, 100 for a model that was trained at more than its own steps (drawn depths, jitter, adaptive steps), unless
    its weights are shared, else none."""
    ranks: Annotated[str, tyro.conf.arg(metavar="R,R,...")] = ""
    """Sizes of random subsets of the feed-forward's hidden units; the authors' 100 and 500 if they fit."""
    seed: int = setting(0, least=0, most=UINT32)
    """Seed of these subsets."""
    fold_norm: bool = False
    """Multiply the norms' scales into the matrices that follow them; the paper does not."""


def study(arguments: Arguments, progress: Progress) -> Result:
    """Compute the spectra of one run, or of two side by side.

    **Raises:** `RunFailed` for a run whose weights are not finite.
    """
    given = whole_numbers(arguments.ranks, "--ranks") if arguments.ranks else None
    import numpy as np

    from diffeqformer.analysis.spectra import RADIUS, SHARE, hidden_subsets, spectra
    from diffeqformer.ode.schemes.splitting import length_taken
    from diffeqformer.runs.opening import load_run
    from diffeqformer.studies.spectra_figures import display_names

    opened, folder = arguments.open("spectra", progress)
    others = [arguments.against] if arguments.against else []
    runs = [opened, *(load_run(name, arguments.checkpoint, progress) for name in others)]
    ranks = [given or tuple(r for r in AUTHORS_RANKS if r <= one.model.config.hidden_width) for one in runs]
    for one, some in zip(runs, ranks, strict=True):  # check all before any is computed
        one.model.grid(arguments.steps)
        hidden_subsets(one.model.config.hidden_width, some)
    models, lengths, between = [], [], {}
    for one, some in zip(runs, ranks, strict=True):
        # A second run that is a table of layers has only one depth.
        steps = arguments.steps if one is runs[0] or not isinstance(one.model.config.weights, LayerConfig) else None
        shared = isinstance(one.config.model.weights, SharedConfig)
        usual = BETWEEN if one.config.trained_between and not shared else 0
        times = usual if arguments.times is None else arguments.times
        found = spectra(
            one.model, times=times, steps=steps, ranks=some,
            seed=arguments.seed, fold_norm=arguments.fold_norm, progress=progress,
        )  # fmt: skip
        models.append((str(one.folder), found))
        between[str(one.folder)] = caveats(one) if found.continuous else why_steps_alone(one)
        clock = one.model.config.interval * one.model.grid(steps).lengths
        lengths.append(np.asarray(length_taken(one.model.scheme, clock)))  # the factor of a step's update
    bare, comparable = models, len({tuple(own) for own in lengths}) > 1
    if comparable:
        models = [(name, found.scaled_by_step(own)) for (name, found), own in zip(bare, lengths, strict=True)]
    with progress.stage("Drawing", 1) as stage:
        drawn = figures(models)
        stage.advance()
    arrays = dict(bare[0][1].arrays())
    for _, found in bare[1:]:
        arrays |= {f"against_{key}": value for key, value in found.arrays().items()}
    whose = f"{display_names([name for name, _ in models])[models[0][0]]}: " if len(models) > 1 else ""
    return Result(
        "spectra", "How do eigenvalues change over depth?",
        (
            whose + headline(models[0][1]),
            *([change(models, SHARE, percent)] if len(models) > 1 else []),
            change(models, RADIUS, digits) + by_head(models[0][1]),
            MEANING,
        ),
        tuple(found.table(name) for name, found in models), drawn, arrays=arrays,
        document={"models": [one.which | numbers(found) for one, (_, found) in zip(runs, bare, strict=True)]},
        notes=notes(
            models, lengths if comparable else (), between, fold_norm=arguments.fold_norm, seed=arguments.seed
        ),
        folder=folder,
    )  # fmt: skip


def why_steps_alone(run: "Run") -> str:
    """Explain why nothing is shown between a model's steps."""
    from diffeqformer.analysis.over_depth import between_steps, know_steps

    if know_steps(run.model.weights):
        return "its weights know the length or the number of steps, and a time between steps has neither"
    if isinstance(run.config.model.weights, SharedConfig):
        return "its weights are the same at all depths"
    if between_steps(run.model):
        only = "those at the steps" if run.config.trained_between else "only those at the steps were trained and"
        return (
            f"its weights are functions of depth, of which {only} are shown; `--times {BETWEEN}` also shows those "
            "between them"
        )
    if run.model.continuous:
        return "its weights are functions of depth, and each step computes with their mean over it; that mean is shown"
    return "each step has weights of its own, so there is nothing between steps"


def caveats(run: "Run") -> str:
    """State the caveats of curves between a model's steps."""
    said = ""
    if not run.config.trained_between:
        said += " Weights between its steps were never trained: it computes with those at the steps alone."
    if getattr(run.config.model.weights, "basis", None) == "box":
        said += " Its weights jump from knot to knot, and no grid can follow that."
    if run.config.model.tolerance is not None:
        said += " A tolerance chooses its own steps; the marks are those of a fixed grid."
    return said


def numbers(found: "Spectra") -> Document:
    """Return the summaries of one model for the JSON document."""
    pairs = {
        pair: {what: values.tolist() for what, values in spectrum.summaries().items()}
        for pair, spectrum in found.pairs.items()
    }
    return {"times": found.times.tolist(), "pairs": pairs}


def figures(models: Models) -> "tuple[Figure, ...]":
    """Make the figures: real parts of every pair, summaries, and the flow of every model's pairs."""
    from diffeqformer.report.page import both_widths
    from diffeqformer.studies import spectra_figures as draw

    shared = [pair for pair in models[0][1].pairs if all(pair in found.pairs for _, found in models)]
    made = []
    for pair in ("QK", "OV", "FF", *(name for name in models[0][1].pairs if name.startswith("FF "))):
        some = models if pair in shared else models[:1]
        said = _real_parts_caption(pair, some)
        made.append(both_widths(_file("real-parts", pair), said, draw.real_parts, some, pair))
    said = (
        "Summaries of the spectra over depth. Thin lines: single heads. Points: their mean at each step of the forward "
        "pass. The spectral radius is on a logarithmic axis."
    )
    made.append(both_widths("summaries", said, draw.summaries, models))
    of_curves = "Each curve is one eigenvalue; dots are the steps of the forward pass"
    for number, (name, found) in enumerate(models):
        kind = of_curves if found.continuous else "Dots are the eigenvalues of the steps' weights"
        for pair in ("QK", "OV", "FF"):
            way = "" if found.alike else " on its way through depth"
            said = f"{name}: the whole spectrum of {pair}{way}, in the complex plane. {kind}."
            said += draw.beyond_frame(found, pair)
            file = _file("flow", pair) + ("-against" if number else "")
            made.append(both_widths(file, said, draw.flow, name, found, pair))
    return tuple(made)


def multiplied(models: Models, lengths: "Sequence[np.ndarray]") -> str:
    """State that OV and FF are multiplied by step lengths, as the models' differ."""
    spans = (f"{own.min():.3g}" if own.max() - own.min() < 1e-9 else f"{own.min():.3g} to {own.max():.3g}"
             for own in lengths)  # fmt: skip
    said = ", ".join(f"{span} in {name}" for (name, _), span in zip(models, spans, strict=True))
    return (
        f"On this page OV and FF are multiplied by it, {said}: their sizes are what a step adds, so they can be "
        "compared. The arrays hold the bare products."
    )


def _file(kind: str, pair: str) -> str:
    return f"{kind}-{pair.lower().replace(' ', '-')}"


def _real_parts_caption(pair: str, models: Models) -> str:
    of = {"QK": "W_Q W_Kᵀ of every head", "OV": "W_V W_O of every head", "FF": "W_up W_down"}
    what = of.get(pair) or f"W_up W_down over {pair.split()[1]} of the hidden units, drawn at random"
    continuous = any(found.continuous for _, found in models)
    once = all(found.steps(pair).sum() == len(found.edges) - 1 for _, found in models)
    column = "a step" if once else "a time at which steps take weights"
    marks = " Marks above: the steps of the forward pass." if continuous else f" Each column is {column}."
    said = f"Real parts of the eigenvalues of {what}, sorted at each time, over depth"
    return f"{said} (the paper's figure 2, appendix E).{marks}"


def over_steps(models: Models) -> str:
    """State over which steps summaries of the models are given."""
    if not all(found.alike for _, found in models):
        return " from the first step to the last"
    one = all(found.steps(pair).sum() == 1 for _, found in models for pair in WHAT)
    return " in the one step" if one else ", the same at all steps"


def change(models: Models, what: str, write: Callable[[float], str]) -> str:
    """State how a summary changes from the first to the last step: means over heads, for every pair."""
    paths = lambda found: ", ".join(f"{pair} {path(found, pair, what, write)}" for pair in WHAT)
    said = [f"{name}: {paths(found)}." for name, found in models]
    return f"{what[0].upper()}{what[1:]}{over_steps(models)} (means over heads). {' '.join(said)}"


def path(found: "Spectra", pair: str, what: str, write: Callable[[float], str]) -> str:
    """Format a summary at the first step, at its turns if any, and at the last: `0.58 → 0.32 at step 8 → 0.73`."""
    values = mean_at_steps(found, pair, what)
    if found.alike:
        return write(values[0])
    between = [f"{write(values[i])} at {_where(found, pair, i)}" for i in turns(values, what)]
    return " → ".join((write(values[0]), *between, write(values[-1])))


def turns(values: "np.ndarray", what: str) -> list[int]:
    """Return the steps where a summary is lowest or highest, if that is beyond both ends by a tenth: relative for a
    spectral radius, absolute for a share."""
    from diffeqformer.analysis.spectra import RADIUS

    least, largest = int(values.argmin()), int(values.argmax())
    low, high = sorted((values[0], values[-1]))
    down, up = (low / 1.1, high * 1.1) if what == RADIUS else (low - TURN, high + TURN)
    return sorted(place for place, far in {least: values[least] < down, largest: values[largest] > up}.items() if far)


def headline(found: "Spectra") -> str:
    """State which sign most eigenvalues of every pair have, from the first step to the last, as shares of positive real
    parts; pairs whose sign turns come first."""
    from diffeqformer.analysis.spectra import SHARE

    said: list[tuple[int, str]] = []
    for pair, does in WHAT.items():
        values = mean_at_steps(found, pair, SHARE)
        first, last = _mostly(values[0]), _mostly(values[-1])
        others = [one for one in map(_mostly, values[turns(values, SHARE)]) if one not in (first, last)]
        rank, does_what = (
            (0, f"turn from {first} to {last}")
            if first != last and abs(values[-1] - values[0]) > TURN
            else (1, f"turn {others[0]} on the way and back")
            if others
            else (2, f"{'are' if found.alike else 'stay'} {first if first == last else HALVES}")
        )
        said.append((rank, f"those of {pair} ({does}) {does_what} ({path(found, pair, SHARE, percent)})"))
    told = "; ".join(sentence for _, sentence in sorted(said, key=lambda one: one[0]))
    return (
        f"Signs of the eigenvalues' real parts{over_steps([('', found)])}, as shares of positive ones, means over "
        f"heads: {told}."
    )


def _mostly(share: float) -> str:
    return "mostly positive" if share > 0.6 else "mostly negative" if share < 0.4 else HALVES


def by_head(found: "Spectra") -> str:
    """State in how many heads QK and OV grow, if there are several heads: a mean may be typical of none."""
    said = []
    for pair in () if found.alike else ("QK", "OV"):
        first, last = found.pairs[pair].radius[found.steps(pair)][[0, -1]]
        if last.size > 1:
            said.append(f"{pair} in {int((last > first).sum())} of {last.size} heads")
    return f" From the first step to the last it grows in {join(said)}." if said else ""


def mean_at_steps(found: "Spectra", pair: str, what: str) -> "np.ndarray":
    """Return a summary at each step, the mean over heads, (step,)."""
    return found.pairs[pair].summaries()[what][found.steps(pair)].mean(-1)


def _where(found: "Spectra", pair: str, place: int) -> str:
    times = found.times[found.steps(pair)]
    return f"step {place + 1}" if len(times) == len(found.edges) - 1 else f"t = {times[place]:.2f}"


def notes(
    models: Models, lengths: "Sequence[np.ndarray]", between: Mapping[str, str], *, fold_norm: bool, seed: int
) -> tuple[str, ...]:
    """Explain what the matrices are (OV and FF may be multiplied by the `lengths` of every model's steps), and how far
    the curves can be trusted; `between` holds, by model, why only its steps are shown, or caveats of its curves."""
    said = [
        "Eigenvalues of the matrices that act on a state: QK = W_Q W_Kᵀ (which token attends to which, before the "
        "softmax), OV = W_V W_O (what is copied from the attended tokens), FF = W_up W_down (the feed-forward block "
        "without its activation). They are computed in float64, from the small matrices that have the same nonzero "
        "eigenvalues; "
        + ("the norms' scales are multiplied in." if fold_norm else "the bare products, without the norms' scales."),
        "A step multiplies the output of OV and FF by its length, horizon / steps: 1 for ordinary transformers. "
        + (multiplied(models, lengths) if lengths else "The products are shown without it."),
        "Real parts are only half of a spectrum: the figures in the complex plane show the rest."
        + (CURVES if any(found.continuous for _, found in models) else ""),
    ]
    for name, found in models:
        if found.continuous:
            largest = {pair: spectrum.jump.max() for pair, spectrum in found.pairs.items()}
            jumps = ", ".join(f"{pair} {jump:.2f}" for pair, jump in largest.items())
            trusted = "" if max(largest.values()) < 0.3 else " Here it is not small: dots are right, lines are guesses."
            said.append(
                f"{name}: {len(found.times)} times. Largest move of an eigenvalue between two of them, as a fraction "
                f"of the spectral radius: {jumps}. If it is not small, the grid is too coarse for curves.{trusted}"
                f"{between[name]}"
            )
        else:
            said.append(f"{name}: {between[name]}.")
    if any(pair.startswith("FF ") for pair in models[0][1].pairs):
        said.append(f"Random hidden units are drawn with seed {seed} and are the same at all times.")
    return tuple(said)
