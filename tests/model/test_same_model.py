"""One model, however it runs: as it is, populated, through the key-value cache, with early exit, exported and read
back, by adaptive steps; for random configs out of all that validation lets through.

Operation by operation: small shapes repeat from config to config, while hundreds of programs would have to be compiled.
"""

import dataclasses
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from diffeqformer.config import (
    GPTConfig,
    KnotsConfig,
    LayerConfig,
    LlamaConfig,
    ModelConfig,
    ReversibleConfig,
    SharedConfig,
    TimeConfig,
    ToleranceConfig,
    validate_model,
)
from diffeqformer.errors import BadInput
from diffeqformer.interop.huggingface import from_huggingface, to_huggingface
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.ode.schemes import SCHEMES, OneStep
from tests.models import model_of
from tests.tolerances import roundoff

IDS = jax.random.randint(jax.random.key(0), (2, 6), 0, 11)
PREFIX = 5
"""Positions that go into the cache at once; the last follows alone."""
NAMES = [name for name in SCHEMES if ":" not in name] + ["diffrax:Ralston", "diffrax:LeapfrogMidpoint"]
"""Every way to step, but not all of Diffrax's tableaux, which are one class."""


def draw(number: int, adaptive: bool) -> ModelConfig:
    """Random config `number` that validation lets through."""
    source = random.Random(number)
    pick = lambda *values: source.choice(values)
    while True:
        steps = pick(1, 2, 3)
        inner = sorted(round(source.uniform(0.1, 0.9), 3) for _ in range(steps - 1))
        schemes = [*NAMES, *(ReversibleConfig(base, pick(0.5, 1.0)) for base in NAMES[::2])]
        config = ModelConfig(
            weights=pick(
                TimeConfig(3, 2, highest_frequency=pick(3.0, 20.0), kind=pick("time", "time-shared-mlp")),
                KnotsConfig(pick(None, 1, 3), pick("hat", "cubic", "box"), pick("middle", "end"), pick(False, True)),
                LayerConfig(pick("step", "node")),
                SharedConfig(),
            ),
            field=pick(
                GPTConfig(),
                LlamaConfig(
                    pick(None, 1, 2), nested_norm=pick(True, False), norm_shift=pick(True, False),
                    final_norm_epsilon=pick(None, 1e-3),
                ),
            ),
            scheme=source.choice(schemes),
            tolerance=ToleranceConfig(1e-5, 1e-6) if adaptive else None,
            horizon=pick("unit", "steps", 0.3) if not adaptive else 0.3,
            steps=steps,
            first_step=pick(None, 0.3, 0.7),
            spacing=pick("equal", "dyadic"),
            edges=pick((), (0.0, *inner, 1.0)),
            width=8, heads=pick(1, 2), hidden=pick(None, 12), context=6, vocabulary=11,
            tied=pick(None, True, False), embedding_norm=pick(True, False),
            compute_dtype=pick("float32", "float32", "bfloat16") if not adaptive else "float32",
        )  # fmt: skip
        try:
            return validate_model(config)
        except BadInput:
            continue


def decoded(model: Transformer) -> np.ndarray:
    """Logits through the key-value cache of the populated model."""
    cache, logits = model.empty_cache(2, IDS.shape[1]), []
    for start, end in [(0, PREFIX), (PREFIX, IDS.shape[1])]:
        found, cache = model.decode(IDS[:, start:end], cache, jnp.int32(start))
        logits.append(np.asarray(found))
    return np.concatenate(logits, axis=1)


def read_back(model: Transformer, folder: Path) -> Transformer:
    """The model of the folder that an export writes."""
    settings, tensors = to_huggingface(model)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / "model.safetensors")
    return from_huggingface(folder)


def require_same(config: ModelConfig, folder: Path) -> None:
    """Check that all ways to run the model of a config give the same logits."""
    model, steps = model_of(config), config.steps
    with jax.disable_jit():
        exact = np.asarray(model(IDS, steps=steps))
        populated = model.populate()
        np.testing.assert_array_equal(populated(IDS), exact)
        others = {"cache": decoded(populated)}
        if isinstance(model.scheme, OneStep):
            others["early exit"] = np.asarray(model(IDS, steps=EarlyExit(steps, 1e-30)))
        try:
            found = read_back(model, folder)
        except BadInput as refusal:
            assert "can be exported only if it is" in str(refusal)
        else:
            same = found.replace(config=dataclasses.replace(found.config, compute_dtype=config.compute_dtype))
            np.testing.assert_array_equal(same(IDS, steps=steps), exact)
        if config.compute_dtype == "float32":
            # Every evaluation of the field sums some 60 terms one after the other.
            evaluations = steps * max(model.scheme.evaluations)
            atol = roundoff(np.float32, 60 * evaluations, scale=max(4.0, float(abs(exact).max())))
            for name, logits in others.items():
                np.testing.assert_allclose(logits, exact, rtol=0, atol=atol, err_msg=name)
            return
        wide = model.replace(config=dataclasses.replace(config, compute_dtype="float32"))
        truth = np.asarray(wide(IDS, steps=steps))
        error = lambda logits: float(np.sqrt(np.square(logits - truth).mean()))
        for name, logits in others.items():
            assert error(logits) < 3 * error(exact) + 1e-6, name


def require_limit(config: ModelConfig) -> None:
    """Check that the adaptive solution is what fixed steps of the same model converge to."""
    model = model_of(config)
    found = np.asarray(jax.jit(lambda model: model(IDS))(model))
    with jax.disable_jit():
        few, many = (float(abs(np.asarray(model(IDS, steps=steps)) - found).max()) for steps in (6, 24))
    assert many < max(few / 2, 1e-3), (few, many)


def each(check: Callable[[ModelConfig], None], numbers: Iterable[int], adaptive: bool) -> None:
    """Check configs by number; a failure names its own."""
    for number in numbers:
        config = draw(number, adaptive)
        try:
            check(config)
        except Exception as error:
            error.add_note(f"config {number}: {config}")
            raise


@pytest.mark.parametrize("numbers", [(11,), pytest.param(range(300), marks=pytest.mark.slow)], ids=["1", "300"])
def test_a_model_is_the_same_however_it_runs(numbers, tmp_path):
    each(lambda config: require_same(config, tmp_path), numbers, adaptive=False)


@pytest.mark.slow
def test_adaptive_steps_find_what_fixed_ones_converge_to():
    each(require_limit, range(12), adaptive=True)
