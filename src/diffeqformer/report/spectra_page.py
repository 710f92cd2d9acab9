"""The pages of the analyses of spectra and of induction heads."""

import numpy as np

from diffeqformer.analysis.induction import Induction
from diffeqformer.analysis.spectra import RADIUS, SHARE
from diffeqformer.report import spectra_figures as draw
from diffeqformer.report.figures import NARROW
from diffeqformer.report.page import Figure, Page, Table
from diffeqformer.report.spectra_figures import Models


def spectra_page(models: Models, *, fold_norm: bool, seed: int) -> Page:
    """Figures and tables of one model's spectra, or of two side by side."""
    shared = [pair for pair in models[0][1].pairs if all(pair in found.pairs for _, found in models)]
    figures = []
    for pair in ("QK", "OV", "FF", *(name for name in models[0][1].pairs if name.startswith("FF "))):
        some = models if pair in shared else models[:1]
        both = draw.real_parts(some, pair), draw.real_parts(some, pair, width=NARROW)
        figures.append(Figure(_file("real-parts", pair), _real_parts_caption(pair, some), *both))
    figures.append(
        Figure(
            "summaries",
            "Summaries of the spectra over depth. Thin: heads; thick: their mean; points: the forward pass's steps. "
            "The spectral radius is on a logarithmic axis.",
            draw.summaries(models),
            draw.summaries(models, width=NARROW),
        )
    )
    for number, (name, found) in enumerate(models):
        for pair in ("QK", "OV", "FF"):
            kind = (
                "Each curve is one eigenvalue, dots are the forward pass's steps; what leaves the frame is cut off"
                if found.continuous
                else "Dots are the eigenvalues of the layers"
            )
            figures.append(
                Figure(
                    _file("flow", pair) + ("-against" if number else ""),
                    f"{name}: the whole spectrum of {pair} on its way through depth, in the complex plane. {kind}.",
                    draw.flow(name, found, pair),
                    draw.flow(name, found, pair, width=NARROW),
                )
            )
    tables = []
    for name, found in models:
        columns, rows = found.table()
        tables.append(Table(name, columns, tuple(rows)))
    return Page("Spectra over depth", tuple(_says(models, fold_norm, seed)), tuple(figures), tuple(tables))


def induction_page(name: str, found: Induction) -> Page:
    """Figures and tables of the behaviours of heads beside their spectra, and the verdict on the paper's inference."""
    says = (
        found.verdict(),
        f"{name}: {found.sequences} sequences of {found.length} random tokens, each {found.repeats} times in a row. "
        f"Mean loss {found.loss_first:.2f} nats in the first copy, {found.loss_later:.2f} in the later ones.",
        "Prefix matching (0 to 1): attention to the positions behind earlier copies of the current token; "
        f"{found.chance:.3f} for a head that looks everywhere alike. Copying (-1 to 1): whether looking at a position "
        "raises the logit of the token there above those of the sequence's other tokens, counted in ranks. Attention "
        "and outputs are those of the forward pass itself (Olsson et al. 2022).",
        "The paper infers induction heads from positive real parts of the QK and OV eigenvalues. 'QK and OV positive' "
        "is the smaller of a head's two shares of positive real parts; 'sum ratio' is sum(λ)/sum|λ| (Elhage et al. "
        "2021). A correlation is Spearman's, over all heads and steps, with a bootstrap interval.",
    )
    figures = (
        Figure(
            "induction-maps",
            "Behaviours of every head at every step, and summaries of its spectra.",
            draw.induction_maps(found),
            draw.induction_maps(found, width=NARROW),
        ),
        Figure(
            "induction-test",
            "The test: behaviour against spectrum, a point for each head and step. Dotted: chance.",
            draw.induction_scatter(found),
            draw.induction_scatter(found, width=NARROW),
        ),
    )
    columns, rows = found.table()
    matching = found.behaviours["prefix matching"]
    order = np.argsort(-matching, axis=None)[:10]
    best = [np.unravel_index(i, matching.shape) for i in order]
    shown = ("prefix matching", "copying", "next token", "QK positive share", "OV positive share")
    values = found.behaviours | found.summaries
    strongest = Table(
        "Heads that match prefixes most",
        ("step, head", *shown),
        tuple((f"step {s + 1}, head {h}", *(f"{values[name][s, h]:.2f}" for name in shown)) for s, h in best),
    )
    return Page("Induction heads", says, figures, (Table("Rank correlations", columns, tuple(rows)), strongest))


def _file(kind: str, pair: str) -> str:
    return f"{kind}-{pair.lower().replace(' ', '-')}"


def _real_parts_caption(pair: str, models: Models) -> str:
    of = {"QK": "W_Q W_Kᵀ of every head", "OV": "W_V W_O of every head", "FF": "W_up W_down"}
    what = of.get(pair) or f"W_up W_down over {pair.split()[1]} random hidden units"
    marks = " Marks above: the forward pass's steps." if any(found.continuous for _, found in models) else ""
    said = f"Real parts of the eigenvalues of {what}, sorted at each time, over depth"
    return f"{said} (the paper's figure 2, appendix E).{marks}"


def finding(models: Models, what: str, write: str) -> str:
    """How a summary changes from the first to the last step, in numbers: means over heads of every pair."""
    said = []
    for name, found in models:
        ends = {p: found.pairs[p].summaries()[what][found.steps(p)].mean(-1)[[0, -1]] for p in ("QK", "OV", "FF")}
        parts = (f"{pair} {write.format(a)} → {write.format(b)}" for pair, (a, b) in ends.items())
        said.append(f"{name}: {', '.join(parts)}.")
    return f"{what[0].upper()}{what[1:]} at the first and the last step (means over heads). {' '.join(said)}"


def _says(models: Models, fold_norm: bool, seed: int) -> list[str]:
    says = [
        finding(models, SHARE, "{:.0%}"),
        finding(models, RADIUS, "{:.3g}"),
        "Eigenvalues of the matrices that a state meets: QK = W_Q W_Kᵀ (who looks at whom, before the softmax), "
        "OV = W_V W_O (what is taken from there), FF = W_up W_down (the feed-forward block without its activation). "
        "They are computed in float64, from the small matrices that have the same nonzero eigenvalues; "
        + ("the norms' scales are multiplied in." if fold_norm else "the bare products, without the norms' scales."),
        "A step multiplies what OV and FF give by its length: 1/L for continuous models, 1 for ordinary transformers. "
        "The products are shown without it, so their sizes are not comparable between the two.",
        "Real parts alone are half of a spectrum: the figures of the complex plane show the rest. Curves are made by "
        "matching the eigenvalues of neighbouring times one to one, so that they move least.",
    ]
    for name, found in models:
        if found.continuous:
            jumps = ", ".join(f"{pair} {spectrum.jump.max():.2f}" for pair, spectrum in found.pairs.items())
            says.append(
                f"{name}: {len(found.times)} times. Largest move of an eigenvalue between two of them, as part of the "
                f"spectral radius: {jumps}. Where this is not small, the grid is too coarse to follow curves there. "
                "Weights between the steps were never trained: only the steps are what the model computes with."
            )
        else:
            says.append(f"{name}: a table of layers, so there is nothing between its steps.")
    if any(pair.startswith("FF ") for pair in models[0][1].pairs):
        says.append(f"Random hidden units are drawn with seed {seed}, and are the same at all times.")
    return says
