"""Answers to the questions of the explorer's page about runs, as JSON documents."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.analysis.attribution import ATTRIBUTIONS, attribute
from diffeqformer.analysis.end_to_end import end_to_end
from diffeqformer.analysis.faithfulness import END_TO_END, PAIRWISE
from diffeqformer.analysis.lyapunov import pairwise
from diffeqformer.analysis.over_depth import evaluation_times, rows_at
from diffeqformer.analysis.reading import (
    Walk,
    eigenvalues,
    eigenvalues_of,
    lens,
    likeliest,
    looks,
    most_likely,
    settled,
    walk,
)  # fmt: skip
from diffeqformer.config import LayerDropConfig
from diffeqformer.config.bounds import MOST_STEPS
from diffeqformer.errors import BadInput, DiffEqFormerError
from diffeqformer.model.solving import with_scheme
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.adaptive import can_adapt
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.ode.schemes import SCHEMES
from diffeqformer.plain import Document, Values, shown
from diffeqformer.progress import Progress
from diffeqformer.report.text import ranges
from diffeqformer.runs.opening import Run
from diffeqformer.runs.results import name_of_run, weights_in_words
from diffeqformer.studies import inputs

SCHEMES_OFFERED = ("euler", "euler-middle", "lie-trotter", "lie-trotter-middle", "midpoint", "heun", "rk4", "strang")
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5)
TOKENS = 32
"""Length of the text that the page opens with."""
ANY_TEXT = "The answer to the question is"
TEXT_UNIT = 16
"""Texts are padded to multiples of this many tokens, so that an edit needs no recompilation: no token sees what follows
it."""
KEPT = 3
"""Forward passes kept with the weights of their steps, for cells that the user opens."""
LONGEST_TEXT = 1 << 16
MOST_THRESHOLD = 1e6
EXPLANATIONS = (PAIRWISE, END_TO_END, *ATTRIBUTIONS)
BLOCKS = {"gpt": "blocks as in GPT", "llama": "blocks as in Llama", "own": "blocks of its own"}
POINTS = 8
"""Quadrature points of integrated gradients."""


class Session:
    """One or two open runs, and answers about them."""

    def __init__(self, runs: Sequence[Run], text: str | None, progress: Progress) -> None:
        self.runs = tuple(runs)
        self.text = opening_text(runs[0], progress) if text is None else text
        # One cache per session: a cache on the method would be shared by all sessions, and keep them alive.
        self._walk, self._explain = lru_cache(KEPT)(self._walked), lru_cache(KEPT)(self._explained)
        self._rows = lru_cache(KEPT)(lambda number: rows_at(runs[number].model.merge(), runs[number].model.grid()))
        self.answers = {
            name: getattr(self, name) for name in ("read", "cell", "predict", "explain", "reach", "weights")
        }
        for run in runs[:1] if text is None else runs:
            inputs.ids_of(run, self.text)

    def about(self) -> list[Document]:
        """Return what there is to choose from, by run."""
        return [about_run(run) for run in self.runs]

    def read(self, asked: Values) -> Document:
        """Return a text's readings after every step: tokens and predictions, both also as ids, times, movements.

        **Raises:** `BadInput` for an invalid run, text, number of steps, scheme or tolerance.
        """
        run, ids, taken = self._asked(asked)
        length, padded = len(ids), taken.states[0].shape[1]
        found = lens(taken, np.pad(ids[1:], (0, padded - length + 1)))
        numbers = lambda values: inputs.finite_rows(np.round(np.asarray(values, np.float64), 6))
        following = np.s_[:, : length - 1]
        moved = np.sqrt(taken.moved[:, :, :length]).swapaxes(0, 1)
        unique, place = np.unique(found.top[:, :length], return_inverse=True)
        pieces = np.asarray(inputs.pieces_of(run, unique), object)
        return {
            "tokens": list(inputs.pieces_of(run, ids)),
            "ids": ids.tolist(),
            "times": np.round(taken.grid.edges, 6).tolist(),
            "top": pieces[place.reshape(-1, length)].tolist(),
            "top_ids": found.top[:, :length].tolist(),
            "p": numbers(found.probability[:, :length]),
            # Where predictions agree, rounding may take a divergence below zero.
            "kl": numbers(np.maximum(found.kl[:, :length], 0)),
            "next": numbers(np.exp(found.log_next[following])),
            "loss": numbers([-found.log_next[following].mean(-1)])[0] if length > 1 else None,
            "moved": {"attention": numbers(moved[0]), "feed_forward": numbers(moved[1])},
        }

    def cell(self, asked: Values) -> Document:
        """Describe one token after one step: most likely tokens, where its heads look, eigenvalues of their matrices.

        **Raises:** `BadInput` as `read`, and for an invalid step or position.
        """
        run, ids, taken = self._asked(asked)
        step = _whole(asked, "step", 0, taken.grid.steps)
        position = _whole(asked, "position", 0, len(ids) - 1)
        top, p = most_likely(taken, step, position)
        return {
            "top": list(zip(inputs.pieces_of(run, top), _known(p), strict=True)),
            "time": float(taken.grid.edges[step]),
            "attention": np.round(looks(taken, step, position)[:, : position + 1].astype(float), 5).tolist()
            if step and taken.carries
            else None,
            "eigenvalues": _parts(eigenvalues(taken, step)) if step else None,
        }

    def predict(self, asked: Values) -> Document:
        """Predict the most likely token after each position from `since` on, and the steps it took: greedy decoding.

        With a `threshold`, tokens exit early (`EarlyExit`).

        **Raises:** `BadInput` as `read`, and for an invalid threshold or position.
        """
        number, ids, steps, scheme, rtol = self._question(asked)
        since, threshold = _whole(asked, "since", 0, len(ids) - 1), asked.get("threshold")
        if threshold is not None and not (isinstance(threshold, int | float) and 0 < threshold <= MOST_THRESHOLD):
            raise BadInput(f"threshold is {shown(threshold)}, but must be above 0 and at most {MOST_THRESHOLD:g}.")
        run, padded = self.runs[number], self._padded(number, ids)
        if threshold is None:
            taken = self._walk(number, ids.tobytes(), steps, scheme, rtol)
            top, p, used = *likeliest(taken.model, taken.states[-1]), np.full(len(ids), taken.grid.steps)
        else:
            exit_early = EarlyExit(steps or run.config.model.steps, float(threshold))
            top, p, used = settled(self._model(number, scheme, rtol), padded, exit_early)
        here = np.s_[since : len(ids)]
        return {
            "ids": top[here].tolist(),
            "pieces": list(inputs.pieces_of(run, top[here])),
            "p": _known(p[here]),
            "taken": used[here].tolist(),
        }

    def explain(self, asked: Values) -> Document:
        """Explain the prediction after `position` by a `method`: scores of the tokens up to it.

        **Raises:** `BadInput` as `read`, and for an invalid position or method.
        """
        number, ids, *how = self._question(asked)
        position, method = _whole(asked, "position", 0, len(ids) - 1), asked.get("method")
        if method not in EXPLANATIONS:
            raise BadInput(f"method is {shown(method)}, but must be one of {'; '.join(EXPLANATIONS)}.")
        group = method if method in (PAIRWISE, END_TO_END) else ATTRIBUTIONS
        taken = self._walk(number, ids.tobytes(), *how)
        top, p = most_likely(taken, taken.grid.steps, position, 1)
        (known,) = _known(p)
        scores = self._explain(number, ids.tobytes(), position, group, *how)[method]
        return {
            "piece": inputs.pieces_of(self.runs[number], top)[0],
            "p": known,
            "scores": inputs.finite_rows(scores[:, : position + 1])[0],
        }

    def reach(self, asked: Values) -> dict[str, float]:
        """Return the largest real or imaginary part of the eigenvalues of QK and of OV over all steps, for one scale.

        **Raises:** `BadInput` as `read`.
        """
        _, _, taken = self._asked(asked)
        found = [_parts(eigenvalues(taken, step)) for step in range(1, taken.grid.steps + 1)]
        return {name: float(max(np.abs(one[name]).max() for one in found)) for name in ("QK", "OV")}

    def weights(self, asked: Values) -> dict[str, list]:
        """Return eigenvalues of QK and OV of every head, and of the feed-forward pair, at a `time` from 0 to 1.

        **Raises:** `BadInput` for an invalid run or time.
        """
        run, time = self.runs[_whole(asked, "run", 0, len(self.runs) - 1)], asked.get("time")
        if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time <= 1:
            raise BadInput(f"time is {shown(time)}, but must be from 0 to 1.")
        taken = np.array([]) if run.config.trained_between else np.union1d(*evaluation_times(run.model))
        near = taken[np.abs(taken - time) < 1e-8]  # the page has them rounded
        found = self._rows(asked["run"])(near[:1]) if near.size else run.model.merge().weights.at(np.asarray([time]))
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[0], found)
        return _parts(eigenvalues_of(rows, run.model.config, ("QK", "OV", "FF")))

    def _asked(self, asked: Values) -> tuple[Run, np.ndarray, Walk]:
        number, ids, *how = self._question(asked)
        return self.runs[number], ids, self._walk(number, ids.tobytes(), *how)

    def _question(self, asked: Values) -> tuple[int, np.ndarray, int | None, str | None, float | None]:
        """Check a question; return the run's number, the text's tokens with those `added`, steps, scheme, tolerance."""
        number = _whole(asked, "run", 0, len(self.runs) - 1)
        text, scheme, rtol, added = (asked.get(name) for name in ("text", "scheme", "rtol", "added"))
        if not isinstance(text, str) or len(text) > LONGEST_TEXT:
            raise BadInput(f"text must be at most {LONGEST_TEXT} characters.")
        if not text:
            raise BadInput("the text is empty, but must have at least one token.")
        if scheme is not None and (not isinstance(scheme, str) or scheme not in SCHEMES):
            raise BadInput(f"scheme is {shown(scheme)}, but must be one of {', '.join(SCHEMES)}.")
        if rtol is not None and not (isinstance(rtol, float) and 0 < rtol < 1):
            raise BadInput(f"rtol is {shown(rtol)}, but must be between 0 and 1.")
        steps = None if rtol is not None else _whole(asked, "steps", 1, MOST_STEPS)
        run = self.runs[number]
        ids = inputs.ids_of(run, text, "the text")
        if added is not None:
            context, vocabulary = run.config.model.context, run.model.embedding.tokens.shape[0]
            if not isinstance(added, list) or not all(type(one) is int and 0 <= one < vocabulary for one in added):
                raise BadInput(f"added must be a list of tokens, whole numbers from 0 to {vocabulary - 1}.")
            if len(ids) + len(added) > context:
                raise BadInput(f"the text has {len(ids) + len(added)} tokens, but the model's context is {context}.")
            ids = np.append(ids, np.asarray(added, np.int32))
        return number, ids, steps, scheme, rtol

    def _model(self, number: int, scheme: str | None, rtol: float | None) -> Transformer:
        model = self.runs[number].model
        return model if scheme is None and rtol is None else with_scheme(model, scheme, rtol)

    def _padded(self, number: int, ids: np.ndarray) -> np.ndarray:
        return np.pad(ids, (0, min(-len(ids) % TEXT_UNIT, self.runs[number].config.model.context - len(ids))))

    def _explained(
        self, number: int, ids: bytes, position: int, group: str | tuple[str, ...], steps: int | None, *how: Any
    ) -> dict[str, np.ndarray]:
        """Compute the scores of all methods of a group together, by name."""
        model, text = self._model(number, *how), jnp.asarray(self._padded(number, np.frombuffer(ids, np.int32)))
        tangents, probes = inputs.directions(None, None, model.config.width)
        if group == PAIRWISE:
            found = pairwise(model, text, (position,), tangents=tangents, iterations=0, steps=steps)
            return {PAIRWISE: found.leading}
        if group == END_TO_END:
            return {END_TO_END: end_to_end(model, text, (position,), probes=probes, steps=steps).growth}
        return attribute(model, text, (position,), points=POINTS, steps=steps).scores

    def _walked(self, number: int, ids: bytes, steps: int | None, scheme: str | None, rtol: float | None) -> Walk:
        text = np.frombuffer(ids, np.int32)
        # Adaptive steps are chosen for all tokens together, so padding would change them.
        if rtol is None:
            text = self._padded(number, text)
        return walk(self._model(number, scheme, rtol), text, steps=steps)


def _known(p: np.ndarray) -> list[float]:
    """Round probabilities for the page.

    **Raises:** `BadInput` if one is not finite.
    """
    if not np.isfinite(p).all():
        raise BadInput("the prediction is not finite: a state overflows on the way; choose another number of steps.")
    return np.round(p.astype(float), 6).tolist()


def _parts(values: Mapping[str, np.ndarray]) -> dict[str, list]:
    """Split complex numbers into their real and imaginary parts."""
    return {name: np.round(np.stack([np.real(own), np.imag(own)], -1), 5).tolist() for name, own in values.items()}


def about_run(run: Run) -> Document:
    """Return what the page says about a run, and what it offers."""
    config, any_depth = run.config.model, run.model.continuous
    own, steps = config.scheme.kind, run.model.grid().steps
    dropped = config.weights if isinstance(config.weights, LayerDropConfig) else None
    return {
        "name": name_of_run(run.config),
        "folder": run.folder.name,
        "update": run.step,
        "said": in_words(run),
        "trained": list(run.config.trained_at),
        "steps": steps,
        "most": MOST_STEPS if any_depth else (dropped and dropped.layers) or steps,
        "least": 1 if any_depth or dropped else steps,
        "scheme": own,
        "stops": [] if run.config.trained_between else np.round(np.union1d(*evaluation_times(run.model)), 9).tolist(),
        "schemes": [own, *(name for name in SCHEMES_OFFERED if name != own)] if any_depth else [own],
        "tolerances": [rtol for rtol in TOLERANCES if _adapts(run.model, rtol)],
        "context": config.context,
        "heads": config.heads,
    }


def in_words(run: Run) -> str:
    """Say in words what kind of model a run has."""
    config = run.config.model
    made = f"{BLOCKS[config.field.kind]}, weights that are {weights_in_words(config)}"
    if config.tolerance:
        trained = f"trained with adaptive steps (rtol {config.tolerance.rtol:g})"
    else:
        depths = ranges(run.config.trained_at)
        trained = f"trained at {depths} step{'' if depths == '1' else 's'}"
    changed = "" if config.modulation is None else ", norms and gains of their own by depth and length of the step"
    return f"{made}{changed}, scheme {config.scheme.kind}, {trained}"


def _adapts(model: Transformer, rtol: float) -> bool:
    try:
        return model.continuous and can_adapt(with_scheme(model, None, rtol).scheme)
    except BadInput:
        return False


def opening_text(run: Run, progress: Progress) -> str:
    """Return a document's text at the beginning of the run's own validation split; if unavailable, another text."""
    try:
        (tokens,), _ = inputs.evaluation_windows(run, (), 1, min(TOKENS, run.config.model.context), progress)
        text = run.tokenizer.decode(inputs.of_one_document(run, tokens).tolist())
        inputs.ids_of(run, text)
        return text
    except DiffEqFormerError:
        return ANY_TEXT


def _whole(asked: Values, name: str, least: int, most: int) -> int:
    value = asked.get(name)
    if type(value) is not int or not least <= value <= most:
        raise BadInput(f"{name} is {shown(value)}, but must be a whole number from {least} to {most}.")
    return value
