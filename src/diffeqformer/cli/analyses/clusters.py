"""`diffeqformer analyze clusters [--run RUN] [--text "..."]`"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from diffeqformer.cli.output import print_json, print_table
from diffeqformer.cli.parse import parse
from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress, Terminal

WHAT = "clusters"


@dataclass(frozen=True)
class Arguments:
    """Whether tokens gather as depth goes on: simulated particles or, with --run, a model's hidden states.

    Example: diffeqformer analyze clusters --run runs/quickstart/diffeqformer
    """

    run: str = ""
    """Folder of a run whose hidden states are measured; without it, particles are simulated."""
    text: str | None = None
    """A text to run the model on; stretches of its validation split if not given."""
    texts: int = 16
    """How many stretches of the validation split."""
    steps: int | None = None
    """Steps of depth (of the simulation: 200); the trained number if not given."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Newest checkpoint, or the one of lowest validation loss."""
    variants: tuple[Literal["particles", "sphere", "unnormed", "rescaled"], ...] = ("particles", "sphere", "rescaled")
    """Simulation: attention on standardised tokens, on the sphere (with or without softmax), with growth undone."""
    orders: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Simulation: orders of f(t), by which the weights grow; 0 are shared weights."""
    systems: int = 20
    """Simulation: draws of particles and weights; medians are over these, pictures of the first."""
    particles: int = 40
    """Simulation: particles of a system."""
    dt: float = 0.1
    """Simulation: time of a step."""
    unit: float | None = None
    """Simulation: f(t) = (t / unit)^order; the whole duration if not given, so that f rises to 1."""
    level: bool = False
    """Simulation: multiply f by order + 1, so that all orders have the same integral."""
    weights: Literal["gaussian", "identity"] | None = None
    """Simulation: both matrices; if not given, Gaussian for `particles` and identity for the others."""
    share: float = 0.1
    """Points are one cluster if single linkage joins them within this share of the mean distance of two points."""
    seed: int = 0
    """Simulation: of all draws."""
    to: str = ""
    """Folder for the files; RUN/analysis/clusters if not given, or analysis/clusters without a run."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Simulate or run, measure, write the files and print the ends of every curve."""
    arguments = parse(Arguments, words, f"diffeqformer analyze {WHAT}")
    _check(arguments)
    if arguments.run:
        _of_run(arguments, as_json, Terminal())
    else:
        _of_particles(arguments, as_json, Terminal())


def _check(arguments: Arguments) -> None:
    least = {"systems": 1, "particles": 2, "texts": 1} | ({} if arguments.steps is None else {"steps": 1})
    for name, low in least.items():
        if getattr(arguments, name) < low:
            raise BadInput(f"--{name} is {getattr(arguments, name)}, but must be at least {low}.")
    for name in ("dt", "share", *(() if arguments.unit is None else ("unit",))):
        if not 0 < getattr(arguments, name) < float("inf"):
            raise BadInput(f"--{name} is {getattr(arguments, name):g}, but must be more than 0.")
    for name in ("variants", "orders"):
        if not getattr(arguments, name):
            raise BadInput(f"--{name} is empty, but must name at least one.")
    if len({*arguments.variants}) < len(arguments.variants):
        raise BadInput(f"--variants are {' '.join(arguments.variants)}, but each must be named once.")
    if not all(0 <= order <= 9 for order in arguments.orders) or len({*arguments.orders}) < len(arguments.orders):
        raise BadInput(f"--orders are {' '.join(map(str, arguments.orders))}, but must be different, from 0 to 9.")
    if arguments.text is not None and not arguments.run:
        raise BadInput(f"--text is {arguments.text!r}, but there is no --run whose model could read it.")
    if arguments.seed < 0:
        raise BadInput(f"--seed is {arguments.seed}, but must be at least 0.")


def _of_particles(arguments: Arguments, as_json: bool, progress: Progress) -> None:
    import numpy as np

    from diffeqformer.analysis.clusters import Simulation, simulate
    from diffeqformer.cli.analyses.common import folder_for
    from diffeqformer.report import cluster_figures as draw
    from diffeqformer.report.figures import NARROW
    from diffeqformer.report.page import Animation, Figure, Page, Table, write_page

    folder, share = folder_for(WHAT, arguments.to, None), arguments.share
    steps = 200 if arguments.steps is None else arguments.steps
    found: dict[str, list[Simulation]] = {
        variant: [
            simulate(
                variant,
                order,
                systems=arguments.systems,
                points=arguments.particles,
                steps=steps,
                dt=arguments.dt,
                unit=arguments.unit,
                identity=None if arguments.weights is None else arguments.weights == "identity",
                level=arguments.level,
                seed=arguments.seed,
                progress=progress,
            )
            for order in arguments.orders
        ]
        for variant in arguments.variants
    }
    rows = [_row(one, share) for several in found.values() for one in several]
    percent = f"{100 * share:g} %"
    figures, animations = [], []
    for variant, several in found.items():
        clouds = tuple(draw.cloud_of(one, share) for one in several)
        about = f"{_ABOUT[variant]} Time runs to {steps * arguments.dt:g} in {steps} steps."
        colours = f"Colour: points that end in one cluster ({percent} of the mean distance); dark: alone at the end."
        animations.append(Animation(f"{about} {colours}", clouds, several[0].times, "time"))
        paths = [draw.trajectories(clouds), draw.trajectories(clouds, width=NARROW)]
        curves = [draw.measures(several, share), draw.measures(several, share, width=NARROW)]
        said = f"Paths of the first system from ring to dot, {variant}. {colours}"
        figures.append(Figure(f"{variant}-trajectories", said, *paths))
        said = (
            f"How gathered the points are, {variant}: medians over {arguments.systems} systems, bands between the "
            "quartiles. Dotted: the energy if all points had one direction."
        )
        figures.append(Figure(f"{variant}-measures", said, *curves))
    columns = ("motion", "f", f"clusters, {percent} of first", f"{percent} of present", "mean distance", "energy",
               "energy fell")  # fmt: skip
    cells = tuple(
        (r["variant"], draw.growth_name(r["order"]), _ends(r, "clusters"), _ends(r, "clusters_of_present"),
         _ends(r, "distance"), _ends(r, "energy"), f"{100 * r['energy_fell']:.0f} %")
        for r in rows
    )  # fmt: skip
    unit = steps * arguments.dt if arguments.unit is None else arguments.unit
    page = Page(
        "Do particles that attend to each other gather?",
        (
            _finding(rows),
            f"{arguments.particles} particles in three dimensions, uniform in [-2, 2], moved by attention alone: one "
            "head, no feed-forward block, everyone sees everyone. Weights are A(t) = A f(t) and V(t) = V f(t) with "
            f"f = {'(order + 1) ' if arguments.level else ''}τ^order, τ = t / {unit:g}; order 0 is weight sharing. "
            f"Clusters are those of single linkage. {arguments.systems} systems, seed {arguments.seed}.",
        ),
        tuple(figures),
        (Table(_TABLE.format(arguments.systems), columns, cells),),
        (),
        tuple(animations),
    )
    arrays: dict[str, Any] = {}
    for variant, several in found.items():
        for one in several:
            kept = one.arrays() | {"heights": one.measures.heights.astype(np.float32)}
            arrays |= {f"{variant}_order{one.order}_{name}": value for name, value in kept.items()}
    path = write_page(folder, WHAT, page, arrays)
    if as_json:
        return print_json({"page": str(path), "share": share, "simulations": rows})
    print_table(f"{path}, medians over {arguments.systems} systems, start → end", columns, cells)


def _of_run(arguments: Arguments, as_json: bool, progress: Progress) -> None:
    from diffeqformer.analysis.clusters import watch_states
    from diffeqformer.cli.analyses.common import folder_for, ids_of, validation_windows
    from diffeqformer.report import cluster_figures as draw
    from diffeqformer.report.figures import NARROW
    from diffeqformer.report.page import Animation, Cloud, Figure, Page, Table, visible, write_page
    from diffeqformer.runs.opening import load_run

    opened = load_run(arguments.run, arguments.checkpoint, progress)
    folder = folder_for(WHAT, arguments.to, opened)
    if arguments.text is not None:
        texts = ids_of(opened, arguments.text)[None]
        if texts.shape[1] < 2:
            raise BadInput(f"--text is {arguments.text!r}, a single token; distances need at least two.")
    else:
        texts = validation_windows(opened, arguments.texts, opened.config.model.context, progress)
    found = watch_states(opened.model, texts, steps=arguments.steps, progress=progress)
    shares = tuple(sorted({arguments.share, 0.25, 0.5, 0.75}))
    tokens = texts.shape[1]
    rows = []
    for place, depth in enumerate(found.times):
        rows.append(
            {
                "depth": float(depth),
                "clusters": {f"{s:g}": float(found.measures.clusters(s, of="now")[place].mean()) for s in shares},
                "length": float(found.norm[place].mean()),
                "distance": float(found.measures.distance[place].mean()),
                "energy": float(found.measures.energy[place].mean()),
            }
        )
    columns = ("depth", *(f"clusters within {100 * s:g} %" for s in shares), "length", "mean distance", "energy")
    cells = tuple(
        (f"{r['depth']:.3f}", *(f"{n:.1f}" for n in r["clusters"].values()), f"{r['length']:.3g}",
         f"{r['distance']:.3g}", f"{r['energy']:.3f}")
        for r in rows
    )  # fmt: skip
    first = opened.tokenizer.decode(texts[0].tolist(), skip_special_tokens=False)
    begin = visible(first if len(first) <= 60 else f"{first[:59]}…")
    explained = 100 * found.explained[:3].sum()
    places = "Orange: the first tokens of the text; blue: the last"
    caption = (
        f"Hidden states of the text “{begin}” from the embedding to the end of depth, at each depth in units of their "
        f"mean length there, in the directions in which they then vary most ({explained:.0f} % of the variance). "
        f"{places}."
    )
    spread = (4, 4, 4, 1, 1, 0, 0)  # bands of the text: orange to blue
    series = tuple(spread[place * len(spread) // tokens] for place in range(tokens))
    animation = (
        (Animation(caption, (Cloud("", found.projection, series),), found.times, "depth"),)
        if found.projection.shape[-1] == 3
        else ()
    )
    start, end = rows[0], rows[-1]
    half = f"{shares[-2]:g}"
    page = Page(
        f"Do the tokens of {opened.folder.name} gather in depth?",
        (
            f"{_gathering(start, end, half)} From the embedding to the end of depth, the interaction energy goes from "
            f"{start['energy']:.3f} to "
            f"{end['energy']:.3f} (1.359 if all states had one direction), the mean distance of two tokens from "
            f"{start['distance']:.3g} to {end['distance']:.3g}, and of {tokens} tokens there are "
            f"{start['clusters'][half]:.0f}, then {end['clusters'][half]:.0f} clusters within half the mean distance.",
            f"Hidden states before the final norm of {len(texts)} text{'s' * (len(texts) > 1)} of {tokens} tokens, at "
            f"depth 0 and after each of {len(rows) - 1} steps. Clusters are those of single linkage at a share of the "
            "mean distance of the same depth; the energy is that of the directions of the states.",
        ),
        (
            Figure(
                "states-measures",
                f"How gathered the tokens are: medians over {len(texts)} texts, bands from the first to the third "
                "quartile. Dotted: the energy if all states had one direction.",
                draw.state_measures(found, shares),
                draw.state_measures(found, shares, width=NARROW),
            ),
            Figure("states-trajectories", f"{caption} Rings: the start.", draw.state_trajectories(found),
                   draw.state_trajectories(found, width=NARROW)),
        ),
        (Table(f"Means over {len(texts)} texts of {tokens} tokens", columns, cells),),
        (),
        animation,
    )  # fmt: skip
    path = write_page(folder, WHAT, page, found.arrays() | {"texts": texts})
    if as_json:
        return print_json({"page": str(path), "run": str(opened.folder), "update": opened.step, "depths": rows})
    print_table(f"{path}, means over {len(texts)} texts of {tokens} tokens", columns, cells)


_TABLE = (
    "Start and end of every measure: medians over {} systems. Clusters are counted within a share of the first and of "
    "the present mean distance of two points; the last column is the share of steps on which the energy fell."
)
_ABOUT = {
    "particles": "Particles as in the paper's appendix C.8: tokens are standardised before attention.",
    "sphere": "Particles on the sphere, which put themselves back onto it: the motion of a normalised transformer.",
    "unnormed": "Particles on the sphere with exp instead of softmax: the gradient flow of the interaction energy.",
    "rescaled": "Particles without norms, their growth undone: z = exp(-∫V) x.",
}


def _row(one: Any, share: float) -> dict[str, Any]:
    import numpy as np

    ends = lambda values: [float(np.median(values[place])) for place in (0, -1)]
    fell = np.diff(one.measures.energy, axis=0) < -1e-12
    return {
        "variant": one.variant,
        "order": one.order,
        "clusters": ends(one.measures.clusters(share)),
        "clusters_of_present": ends(one.measures.clusters(share, of="now")),
        "distance": ends(one.measures.distance),
        "energy": ends(one.measures.energy),
        "energy_fell": float(fell.mean()),
    }


def _ends(row: dict[str, Any], name: str) -> str:
    return " → ".join(f"{value:.3g}" if value >= 1e-3 or not value else f"{value:.0e}" for value in row[name])


def _gathering(start: dict[str, Any], end: dict[str, Any], share: str) -> str:
    """Whether tokens gather: both in direction (energy) and in the shape of the cloud (clusters), by more than 10 %."""
    energy, clusters = end["energy"] / start["energy"], end["clusters"][share] / start["clusters"][share]
    if energy > 1.1 and clusters < 0.9:
        return "Tokens gather."
    return "Tokens scatter." if energy < 0.9 and clusters > 1.1 else "Tokens do not clearly gather or scatter."


def _finding(rows: Sequence[dict[str, Any]]) -> str:
    """What the numbers say for every motion: where the fewest clusters are left, and where the most."""
    from diffeqformer.report.cluster_figures import growth_name

    said = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        name = "clusters_of_present" if variant == "particles" else "clusters"
        least, most = (pick(own, key=lambda row: row[name][1]) for pick in (min, max))
        if least[name][1] == most[name][1]:
            said.append(f"{variant}: {least[name][1]:.3g} for every f")
        else:
            said.append(
                f"{variant}: {least[name][1]:.3g} with {growth_name(least['order'])}, {most[name][1]:.3g} with "
                f"{growth_name(most['order'])}"
            )
    return f"Clusters left at the end, of {own[0]['clusters'][0]:.3g} at the start. " + "; ".join(said) + "."
