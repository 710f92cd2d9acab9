"""One update of the parameters: gradients of the loss, accumulated over parts of the batch, then the optimiser."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from diffeqformer.config import Config, ModelConfig
from diffeqformer.model.adapt import adapt
from diffeqformer.model.build import build
from diffeqformer.model.loss import next_token_loss
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.grid import Steps
from diffeqformer.sharding import constrain_weights
from diffeqformer.training.optimizer import learning_rate, optimizer, split_trained

Build = Callable[[ModelConfig, Array], Transformer]
"""What makes a new model of a config and a key."""


class State(NamedTuple):
    """All that the next update depends on, beside the config."""

    model: Transformer
    optimizer: Any
    step: Array
    """Updates done, int32."""


class Measured(NamedTuple):
    """What one update measured, on the device."""

    loss: Array
    """Mean nats per token, before the update."""
    gradient_norm: Array
    """Global norm, before clipping."""
    learning_rate: Array


def initial_state(config: Config, base: Transformer | None = None, build: Build = build) -> State:
    """The state before the first update; `config.model.vocabulary` must be set.

    The model is `build`'s; with a `base`, its weights are that model's (`adapt`), and only what is new is drawn. The
    optimiser's state is that of the trained parameters. All randomness comes from one root key, `key(trainer.seed)`:
    the model's from `fold_in(root, 0)`, dropout's from `fold_in(fold_in(root, 1), step)`, the drawn depths' from
    `fold_in(root, 2)`, the times' between their steps from `fold_in(fold_in(root, 3), step)`.
    """
    rule = optimizer(config.optimizer, config.trainer.updates)

    @jax.jit  # one compilation instead of one for every small operation
    def initial(root: Array, base: Transformer | None) -> State:
        key = jax.random.fold_in(root, 0)
        model = build(config.model, key) if base is None else adapt(base, config.model, key)
        trained, _ = split_trained(model, config.optimizer)
        return constrain_weights(State(model, rule.init(trained), jnp.zeros((), jnp.int32)))

    return initial(jax.random.key(config.trainer.seed), base)


def make_update(config: Config) -> Callable[..., tuple[State, Measured]]:
    """The compiled update `(state, ids, steps) -> (state, measured)`; the memory of the state passed in is reused.

    `ids` is int32 (trainer.batch_size, context + 1), or has the parts below on a leading axis already; `steps` the
    depth, as the model's config has it if not given, each of which compiles once. With `trainer.accumulation` A the
    batch is A parts of equal size, one after the other, and the gradient is the mean of theirs, which equals the whole
    batch's.
    """
    parts = config.trainer.accumulation
    lora = config.model.lora
    drops = any((*dataclasses.astuple(config.model.dropout), lora and lora.dropout))
    rate = learning_rate(config.optimizer, config.trainer.updates)
    rule = optimizer(config.optimizer, config.trainer.updates)

    def loss_of(model: Transformer, steps: Steps | None, ids: Array, key: Array | None) -> Array:
        return next_token_loss(model, ids, steps=steps, key=key, block=config.trainer.loss_block)

    # All parts of a batch share one populated model, so that generating the weights, and the way back to their
    # networks, comes once per update (unless they are a table anyway, or steps are adaptive or unequal).
    jitter, adaptive = config.depth.jitter, config.model.tolerance
    first_stays = config.model.first_step is not None
    once = parts > 1 and config.model.weights.kind != "layer" and not adaptive and not jitter

    @partial(jax.jit, donate_argnums=0, static_argnums=2)
    def update(state: State, ids: Array, steps: int | None = None) -> tuple[State, Measured]:
        root = jax.random.key(config.trainer.seed)
        of_step = lambda use: jax.random.fold_in(jax.random.fold_in(root, use), state.step)
        keys = jax.random.split(of_step(1), parts) if drops else None
        between = steps
        if jitter:
            between = state.model.grid(steps).jittered(jitter, of_step(3), first_stays=first_stays)
        trained, frozen = split_trained(state.model, config.optimizer)
        whole = lambda trained: eqx.combine(trained, frozen)
        before, after = (
            (lambda trained: whole(trained).populate(steps), lambda model: model) if once else (_same, whole)
        )
        populated, to_trained = jax.vjp(before, trained)
        of_part = jax.value_and_grad(lambda *part: loss_of(after(part[0]), between, *part[1:]))
        loss, gradients = _mean_over_parts(of_part, populated, ids.reshape(parts, -1, ids.shape[-1]), keys)
        gradients = constrain_weights(to_trained(gradients)[0])
        with jax.numpy_dtype_promotion("standard"):  # Optax is not written for strict promotion
            now = jnp.asarray(rate(state.step), jnp.float32)
            changes, moments = rule.update(gradients, state.optimizer, trained)
        new = State(whole(optax.apply_updates(trained, changes)), moments, state.step + 1)
        return constrain_weights(new), Measured(loss, optax.tree.norm(gradients), now)  # pyright: ignore

    return update


def _same(tree: Any) -> Any:
    return tree


def _mean_over_parts(of_part: Callable, weights: Any, ids: Array, keys: Array | None) -> tuple[Array, Any]:
    """Loss and gradient, averaged over the leading axis of `ids` (and of `keys`), with one part in memory at a time."""
    if len(ids) == 1:
        return of_part(weights, ids[0], None if keys is None else keys[0])

    def add(total: Any, part: tuple[Array, Array | None]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, of_part(weights, *part)), None

    shapes = jax.eval_shape(of_part, weights, ids[0], None if keys is None else keys[0])
    zeros = constrain_weights(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))
    total, _ = jax.lax.scan(add, zeros, (ids, keys))
    return jax.tree.map(lambda x: x / len(ids), total)


@jax.jit
def all_finite(state: State) -> Array:
    """Whether no number of the state is NaN or infinite."""
    floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in floats]).all()
