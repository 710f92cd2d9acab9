"""All ways to a gradient give the same gradient, and it is the derivative."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import DropoutConfig, ModelConfig, RecursiveConfig, ReversibleConfig, ToleranceConfig
from diffeqformer.errors import BadInput
from diffeqformer.model.loss import next_token_loss
from diffeqformer.model.transformer import Transformer
from tests.cases import slow, slow_but
from tests.models import KINDS, TINY, model_of, of_dtype, tokens
from tests.tolerances import GRADIENTS

METHODS = ("plain", "checkpointed", "recursive")
IDS = tokens(positions=13)
DROPPING = DropoutConfig(embedding=0.1, attention=0.2, residual=0.2)
REVERSIBLE = {
    "time": dataclasses.replace(TINY, scheme="reversible", dropout=DROPPING),
    "one mlp, llama, rk4": dataclasses.replace(
        TINY,
        weights=dataclasses.replace(TINY.weights, kind="time-shared-mlp"),
        field="llama",
        scheme=ReversibleConfig("rk4"),
        horizon=0.3,
    ),
    "shared, midpoint": dataclasses.replace(TINY, weights="shared", scheme=ReversibleConfig("midpoint", 0.9)),
}


def way(method: str | None, checkpoints: int = 2) -> object:
    """The section of a method."""
    return RecursiveConfig(checkpoints) if method == "recursive" else method


def gradient(config: ModelConfig, method: str, precision: type) -> list[np.ndarray]:
    """The gradient of the loss by a method, for a model of 5 steps that drops with a fixed key."""
    config = dataclasses.replace(config, gradient=way(method), steps=5)
    with jax.enable_x64(False):
        model = model_of(config)
    model = of_dtype(model, precision)
    key = jax.random.key(3) if any(dataclasses.astuple(config.dropout)) else None
    found = jax.jit(jax.grad(lambda model: next_token_loss(model, IDS, key=key)))(model)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(found)]


def difference(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    """Relative to the whole gradient's length."""
    flat = lambda leaves: np.concatenate([leaf.ravel() for leaf in leaves])
    return float(np.linalg.norm(flat(a) - flat(b)) / np.linalg.norm(flat(a)))


@pytest.mark.parametrize("kind", slow_but(["shared, midpoint"], REVERSIBLE))
def test_the_four_methods_agree(kind):
    config = REVERSIBLE[kind]
    plain, back = (gradient(config, method, jnp.float32) for method in ("plain", "reversible"))
    assert difference(plain, back) < GRADIENTS
    default, back = (model_of(dataclasses.replace(config, gradient=one)).adjoint for one in (None, "reversible"))
    assert default == back  # of a reversible scheme
    with jax.enable_x64(True):
        plain, *others = (gradient(config, method, jnp.float64) for method in (*METHODS, "reversible"))
    assert plain[0].dtype == np.float64
    assert all(difference(plain, other) < 1e-10 for other in others)


@pytest.mark.parametrize("kind", slow_but(["diffeqformer", "time, reversible"], KINDS))
def test_recomputation_changes_no_gradient(kind):
    plain, checkpointed = (gradient(KINDS[kind], method, jnp.float32) for method in ("plain", "checkpointed"))
    assert difference(plain, checkpointed) < GRADIENTS


def scaled(model: Transformer, factor: float) -> Transformer:
    """The model with the matrices, biases and norms that its time networks generate multiplied."""
    generated = lambda path: any(name in jax.tree_util.keystr(path) for name in ("projection", "constant"))
    return jax.tree_util.tree_map_with_path(lambda path, leaf: factor * leaf if generated(path) else leaf, model)


@pytest.mark.parametrize(
    ("steps", "compute"), [(24, "float32"), *slow((24, "bfloat16"), (96, "bfloat16"), (96, "float32"))]
)
def test_the_error_of_the_state_at_depth_0_rises_with_that_of_the_gradient(steps, compute):
    """On trained weights, and on these times 3, whose flow runs apart backwards."""
    config = dataclasses.replace(TINY, scheme="reversible", compute_dtype=compute)
    with_method = lambda model, method: model.replace(config=dataclasses.replace(config, gradient=method))
    gradient = jax.jit(jax.grad(lambda model: next_token_loss(model, IDS, steps=steps)))
    model = with_method(model_of(config).replace(probe=jnp.zeros(())), "reversible")
    errors, missed = [], []
    with jax.numpy_dtype_promotion("standard"):  # strictly, JAX does not lower products of bfloat16 summed in float32
        for _ in range(20):
            slope = gradient(model)
            model = jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, model, slope).replace(probe=model.probe)
        for factor in (0.3, 1.0, 3.0):
            found = gradient(scaled(model, factor))
            exact = gradient(scaled(with_method(model, "plain"), factor))
            missed.append(float(found.probe))
            errors.append(difference(jax.tree.leaves(exact), jax.tree.leaves(found.replace(probe=exact.probe))))
    assert missed == sorted(missed)
    # Both are the same rounding, enlarged by the same flow; in bfloat16 the field rounds once more each time.
    rounding = GRADIENTS if compute == "float32" else 2**-8
    assert all(error < 10 * miss + rounding for error, miss in zip(errors, missed, strict=True))
    assert errors[-1] > 10 * errors[0] and missed[-1] > 10 * missed[0]


def test_the_reversible_gradient_keeps_no_state_of_the_steps():
    """The compiled program of 64 steps needs no more memory than that of 8; keeping a state a step would."""
    temporary = {}
    for method in ("checkpointed", "reversible"):
        for steps in (8, 64):
            config = dataclasses.replace(REVERSIBLE["shared, midpoint"], gradient=method, steps=steps)
            compiled = jax.jit(jax.grad(next_token_loss)).lower(model_of(config), tokens(8, 13)).compile()
            temporary[method, steps] = compiled.memory_analysis().temp_size_in_bytes
    assert temporary["reversible", 64] <= 1.01 * temporary["reversible", 8]
    assert temporary["checkpointed", 64] > 1.5 * temporary["checkpointed", 8]


@pytest.mark.parametrize("method", ["recursive", "reversible"])
def test_times_between_steps_that_a_backward_pass_cannot_differentiate_are_refused(method):
    """Their derivative had been that through the weights alone, without that through the lengths of steps."""
    scheme = "reversible" if method == "reversible" else "euler"
    model = model_of(dataclasses.replace(TINY, weights="shared", scheme=scheme, gradient=way(method)))
    loss = lambda edges: next_token_loss(model, IDS, steps=edges)
    edges = jnp.array([0.0, 0.3, 1.0])
    with pytest.raises(BadInput, match="the times between steps are differentiated, but model.gradient"):
        jax.eval_shape(jax.grad(loss), edges)
    of_weights = jax.eval_shape(jax.grad(lambda model, edges: next_token_loss(model, IDS, steps=edges)), model, edges)
    assert of_weights.final_norm.scale.shape == (TINY.width,)


@pytest.mark.parametrize("method", ["checkpointed", *slow("plain", "recursive")])
def test_the_gradient_through_an_adaptive_solve_is_the_derivative(method):
    """Of the solution: as the tolerance goes to zero both go to the derivative of the exact flow."""
    time = dataclasses.replace(TINY.weights, highest_frequency=4.0)
    config = dataclasses.replace(TINY, scheme="diffrax:Tsit5", horizon=0.3, gradient=way(method, 8), weights=time)
    model = model_of(dataclasses.replace(config, tolerance=ToleranceConfig(1e-9, 1e-11)))
    with jax.enable_x64(True):
        model = of_dtype(model, np.float64)
        direction = jax.tree.map(lambda leaf: np.cos(np.arange(leaf.size)).reshape(leaf.shape), model)
        moved = lambda h: jax.tree.map(lambda a, d: a + h * d, model, direction)
        along = jax.jit(lambda h: next_token_loss(moved(h), IDS))
        exact = jax.jit(jax.grad(lambda h: next_token_loss(moved(h), IDS)))(0.0)
        h = 1e-3
        measured = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
        np.testing.assert_allclose(exact, measured, rtol=1e-5)
