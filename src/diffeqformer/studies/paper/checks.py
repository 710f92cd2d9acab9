"""Measures of claims of `items` without randomness, or none that matters: they need a config, but no run."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from diffeqformer.config import Config, with_values
from diffeqformer.data.loader import Loader
from diffeqformer.model.build import build
from diffeqformer.model.count import parameters, update_operations, vanilla_twin
from diffeqformer.studies.inputs import shipped
from diffeqformer.studies.paper.claims import Trained
from diffeqformer.studies.paper.measures import measured
from diffeqformer.studies.paper.reported import TWINS

PUBLISHED = {"gpt-small": 124.4e6, "gpt-medium": 354.8e6, "gpt-large": 774.0e6}
"""Parameters of GPT-2."""
LLAMA = 1213
"""Millions of parameters of Llama-1B in the paper's table 3."""
CHANGED = 8
"""Number of tokens that are changed, one after another, at equal distances."""


def counts(found: Trained) -> float:
    """Return half a per cent minus the largest relative error of the vanilla presets' parameters."""
    stored = {name: parameters(shipped(name).model).stored for name in PUBLISHED}
    return 0.005 - max(abs(stored[name] / number - 1) for name, number in PUBLISHED.items())


def llama_count(found: Trained) -> float:
    """Return half a million minus the distance of Llama-1B's parameters from the paper's, in millions."""
    return 0.5 - abs(parameters(shipped("llama-1b").model).stored / 1e6 - LLAMA)


def twin_counts(found: Trained) -> float:
    """Return half a million minus the largest distance of DiffEqFormer's parameters from the authors', in millions."""
    configs = {size: shipped(f"diffeqformer-gpt-{size}") for size in TWINS}
    model = lambda size, d_emb: with_values(configs[size], {"model.weights.d_emb": d_emb}).model
    return 0.5 - max(
        abs(parameters(model(size, d_emb)).stored / 1e6 - known)
        for size, twins in TWINS.items()
        for d_emb, known in twins.items()
    )


@measured
def causal(found: Trained, name: str) -> float:
    """Return 1 if changing a token changes no bit of earlier logits, but does change its own; else minus the share of
    changed tokens for which this is not so.
    """
    config = shipped(name).model
    vocabulary, context = config.vocabulary or 0, config.context
    logits = eqx.filter_jit(build(config, jax.random.key(found.seed)))
    # One sequence at a time: in a batch a row's place can decide how its sums are rounded.
    ids = np.random.default_rng(found.seed).integers(0, vocabulary, (1, context), np.int32)
    before, places = np.asarray(logits(jnp.asarray(ids))), np.linspace(1, context - 1, CHANGED).astype(int)
    leaks = 0
    for place in places:
        other = ids.copy()
        other[0, place] = (other[0, place] + 1) % vocabulary
        same = (np.asarray(logits(jnp.asarray(other))) == before).all(-1)[0]
        leaks += not same[:place].all() or same[place]
    return -leaks / len(places) if leaks else 1.0


def true_baseline(found: Trained) -> float:
    """Return 1 if GPT's config is that of DiffEqFormer's vanilla twin; else minus the number of other settings."""
    ours, gpt = (shipped(f"quickstart-{name}").model for name in ("diffeqformer", "gpt"))
    twin = vanilla_twin(ours)
    # Minus zero is false, so that no difference gives 1.
    return -float(sum(getattr(twin, one.name) != getattr(gpt, one.name) for one in dataclasses.fields(gpt))) or 1.0


def same_batches(found: Trained) -> float:
    """Return 1 if two models get the same windows in the same order; else minus the share of batches that differ."""
    ours, gpt = (_windows(shipped(f"quickstart-{name}"), found.seed) for name in ("diffeqformer", "gpt"))
    return -float((ours != gpt).any((1, 2)).mean()) or 1.0


def _windows(config: Config, seed: int) -> np.ndarray:
    """Return all batches of a run, (update, sequence, token), on a text of as many distinct tokens as it reads."""
    t, context = config.trainer, config.model.context
    tokens = np.arange(t.updates * t.batch_size * context + 1)
    loader = Loader(tokens, context, t.batch_size, seed)
    return np.stack([np.asarray(loader[k]) for k in range(t.updates)])


def equal_compute(found: Trained) -> float:
    """Return a fiftieth minus the relative difference in operations of an update of DiffEqFormer from one of GPT."""
    ours, gpt = (shipped(f"quickstart-{name}") for name in ("diffeqformer", "gpt"))
    operations = lambda config: update_operations(config.model, config.trainer.batch_size)
    return 1 / 50 - abs(operations(ours) / operations(gpt) - 1)
