"""One update of the parameters: gradients of the loss, accumulated over parts of the batch, then the optimiser."""

import dataclasses
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import PyTree

from diffeqformer.config import Config, LayerConfig, ModelConfig, OptimizerConfig, OwnConfig, TrainerConfig
from diffeqformer.model.adapt import adapt
from diffeqformer.model.build import Build, made_by
from diffeqformer.model.build import build as usual_build
from diffeqformer.model.loss import loss_of_depths, loss_of_rows
from diffeqformer.model.transformer import Transformer
from diffeqformer.ode.adjoints import Reconstructing
from diffeqformer.sharding import constrain_weights
from diffeqformer.training import factored
from diffeqformer.training.depths import trained_depths
from diffeqformer.training.optimizer import Guard, Rule, Schedule, optimizer, scheduled, split_trained

Rows = Array | np.ndarray
Batch = Rows | tuple[Rows, Rows]
"""Ids, or a pair of ids and a mask of the targets that count."""
Parts = tuple[Array, Array | None]
"""Ids, and a mask of the targets that count, `None` if all do."""


class State(NamedTuple):
    """All that the next update depends on, besides the config and the batch."""

    model: Transformer
    optimizer: PyTree
    step: Array
    """Number of updates done, int32."""
    average: PyTree = None
    """Average of the trained parameters, if `optimizer.average` asks for one."""

    @property
    def result(self) -> Transformer:
        """The model that is evaluated, kept and used: with averages in place of their parameters, if there are any.

        Do not use it in compiled functions that also return `model`: both share the arrays that are not averaged.
        """
        return self.model if self.average is None else eqx.combine(self.average, self.model)


class Measured(NamedTuple):
    """Measurements of one update, on the device."""

    loss: Array
    """Mean nats per target that counts, before the update, averaged over all depths that it trains at."""
    gradient_norm: Array
    """Global norm of the gradient, before clipping."""
    learning_rate: Array
    reconstruction_error: Array | None = None
    """Relative error of the state at depth 0, where the backward pass reconstructs states: the largest over the depths
    of the update, each a mean over the batch's parts."""
    skipped: Array | None = None
    """Whether the update was skipped, where `optimizer.spike` guards."""


def initial_state(
    config: Config, base: Transformer | None = None, build: Build = usual_build, rule: Rule | None = None
) -> State:
    """Make the state before the first update; `config.model.vocabulary` must be set.

    The model comes from `build`, or, with a `base`, from that model's weights (`adapt`), with only new parts drawn. The
    optimiser's state is that of the trained parameters, for `rule` or else the config's rule. All randomness comes from
    one root key, `key(trainer.seed)`: the model's from `fold_in(root, 0)`, dropout's from `fold_in(fold_in(root, 1),
    step)`, the drawn depths' from `fold_in(root, 2)`, the jittered step edges' from `fold_in(fold_in(root, 3),
    step)`.
    """
    # A user's own may depend on anything, such as a variable of a notebook, so nothing compiled is kept for them.
    program = _initial if build is usual_build and rule is None else _initial.__wrapped__
    return program(config.model, config.optimizer, build, rule)(jax.random.key(config.trainer.seed), base)


@lru_cache(maxsize=8)
def _initial(config: ModelConfig, settings: OptimizerConfig, build: Build, rule: Rule | None) -> Callable[..., State]:
    """Return the function from the root key and the base to the first state.

    It is compiled once, instead of once for every small operation.
    """

    @jax.jit
    def initial(root: Array, base: Transformer | None) -> State:
        key = jax.random.fold_in(root, 0)
        model = made_by(build, config, key) if base is None else adapt(base, config, key)
        trained, _ = split_trained(model, settings)
        average = None if settings.average is None else jax.tree.map(jnp.copy, trained)  # a buffer is donated once
        # Optax makes some numbers of its own in JAX's default type, which jax_enable_x64 changes.
        # Those of a rule of the user's own may be Python's.
        narrow = lambda x: x.astype(jnp.float32) if getattr(x, "dtype", None) == jnp.float64 else x
        moments = jax.tree.map(narrow, optimizer(settings, lambda count: 0.0, rule).init(trained))
        return constrain_weights(State(model, moments, jnp.zeros((), jnp.int32), average))

    return initial


def make_update(
    config: Config, rule: Rule | None = None, schedule: Schedule | None = None, teacher: Transformer | None = None
) -> Callable[..., tuple[State, Measured]]:
    """Make the compiled update `(state, batch, steps) -> (state, measured)`, which reuses the memory of `state`.

    `rule` and `schedule` replace the config's own; `teacher` is the frozen model of `depth.teacher`, if any.

    `batch` is ids, int32 (trainer.batch_size, context + 1), or a pair of ids and a mask, (trainer.batch_size, context),
    true for the targets that the loss is a mean over; it may already have the parts below on a leading axis. `steps` is
    the depth drawn, the model's own if not given; each depth compiles once. With `trainer.accumulation` A, the batch
    is A parts of equal size, one after the other. The gradient is the mean of theirs, which equals the whole batch's.
    With `depth.together: rows`, each part has its own share of every depth, at least one sequence. Runs that differ
    only in length, folder or evaluations share one compiled program, unless `rule` is given.
    """
    t = config.trainer
    # Of the trainer's settings, only those that the program depends on: it is found again by these.
    own = TrainerConfig(batch_size=t.batch_size, accumulation=t.accumulation, seed=t.seed, loss_block=t.loss_block)
    make = _program if rule is None else _program.__wrapped__  # as in `initial_state`
    program = make(Config(model=config.model, optimizer=config.optimizer, depth=config.depth, trainer=own), rule)
    rate, average = scheduled(config.optimizer, t.updates, schedule), config.optimizer.average
    share = average.build(t.updates) if average else lambda step: None
    # Outside the program, so that its cache does not depend on lengths and schedules.
    rate_and_share = jax.jit(lambda step: (rate(step), share(step)))

    def update(state: State, batch: Batch, steps: int | None = None) -> tuple[State, Measured]:
        with jax.numpy_dtype_promotion("standard"):  # Optax is not written for strict promotion
            scheduled = rate_and_share(state.step)
        return program(state, batch, *scheduled, steps, teacher)

    return update


@lru_cache(maxsize=8)
def _program(config: Config, rule: Rule | None) -> Callable[..., tuple[State, Measured]]:
    """Make the update `(state, batch, rate, share, steps, teacher) -> (state, measured)`, compiled once for each depth.

    `share` is the weight of its parameters in their average, `None` without an average.
    """
    parts = config.trainer.accumulation
    lora = config.model.lora
    drops = any((*dataclasses.astuple(config.model.dropout), lora and lora.dropout))
    jitter, first_stays = config.depth.jitter, config.model.first_step is not None
    # All parts of a batch share one populated model, so that generating the weights, and the backward pass to their
    # networks, happens once per update (unless they are a table anyway).
    once = factored.on_one_grid(config) and parts > 1 and not isinstance(config.model.weights, LayerConfig)

    @partial(jax.jit, donate_argnums=0, static_argnums=4)
    def update(
        state: State, batch: Batch, rate: Array, share: Array | None, steps: int | None, teacher: Transformer | None
    ) -> tuple[State, Measured]:
        ids, mask = batch if isinstance(batch, tuple) else (batch, None)
        divided = jax.tree.map(lambda rows: rows.reshape(parts, -1, rows.shape[-1]), (ids, mask))
        count = None if mask is None else jnp.maximum(mask.sum(), 1) / parts  # the parts may have more or fewer targets
        root = jax.random.key(config.trainer.seed)
        of_step = lambda use: jax.random.fold_in(jax.random.fold_in(root, use), state.step)
        # A field of the user's own may drop whatever the config says.
        own_field = isinstance(state.model.config.field, OwnConfig)
        keys = jax.random.split(of_step(1), parts) if drops or own_field else None
        numbers, sequences = zip(*trained_depths(config, steps), strict=True)
        rows = tuple(own // parts for own in sequences) if config.depth.together == "rows" else None
        # None, not the model's own number: a tolerance may choose the steps.
        depths = (steps,) if config.depth.alone else numbers
        if jitter:
            grids = map(state.model.grid, depths)
            depths = tuple(grid.jittered(jitter, of_step(3), first_stays=first_stays) for grid in grids)
        trained, frozen = split_trained(state.model, config.optimizer)
        whole = lambda trained: eqx.combine(trained, frozen)
        populate = lambda trained: whole(trained).populate(steps)
        # The loss is a function of `start`: the populated model, whose gradient `to_trained` maps back to the trained
        # parameters, or the trained parameters themselves.
        model_of = lambda start: start
        if rule is None and factored.stays_factored(config, state.model, steps):  # a user's own rules take arrays
            start, to_trained = factored.vjp(populate, trained, steps)
        elif once:
            start, to_trained = jax.vjp(populate, trained)
        else:
            start, to_trained, model_of = trained, lambda gradients: (gradients,), whole
        # A backward pass can report only derivatives: the probe's is the error of the reconstructed state.
        probe = jnp.zeros(len(depths), jnp.float32) if isinstance(state.model.adjoint, Reconstructing) else None
        loss_of = partial(loss_of_rows, rows=rows) if rows else loss_of_depths
        of_part = jax.value_and_grad(
            lambda start_and_probe, batch, key: loss_of(
                model_of(start_and_probe[0]).replace(probe=start_and_probe[1]), *batch, depths=depths,
                distill=config.depth.distill, teacher=teacher, key=key, count=count, block=config.trainer.loss_block,
            )
        )  # fmt: skip
        loss, (gradients, errors) = _mean_over_parts(of_part, (start, probe), divided, keys)
        error = None if errors is None else errors.max()
        gradients = constrain_weights(to_trained(gradients)[0])
        with jax.numpy_dtype_promotion("standard"):  # Optax is not written for strict promotion
            rate = jnp.asarray(rate, jnp.float32)
            # The rate is that of the run's own step: Optax's count stands still where the guard skips an update.
            changes, moments = optimizer(config.optimizer, lambda count: rate, rule).update(
                gradients, state.optimizer, trained
            )
        trained, average = optax.apply_updates(trained, changes), state.average
        if share is not None:
            average = optax.incremental_update(trained, average, jnp.asarray(share, jnp.float32))
        skipped = moments.skipped if isinstance(moments, Guard) else None
        new = State(whole(trained), moments, state.step + 1, average)
        measured = Measured(loss, factored.norm(gradients), rate, error, skipped)
        return constrain_weights(new), measured

    return update


def _mean_over_parts(of_part: Callable, weights: PyTree, batch: Parts, keys: Array | None) -> tuple[Array, PyTree]:
    """Average loss and gradient over the leading axis of `batch` and `keys`, with one part in memory at a time."""
    parts, first = len(batch[0]), jax.tree.map(lambda x: x[0], (batch, keys))
    if parts == 1:
        return of_part(weights, *first)

    def add(total: PyTree, part: tuple[Parts, Array | None]) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, of_part(weights, *part)), None

    shapes = jax.eval_shape(of_part, weights, *first)
    # A loop's carry keeps one sharding, and zeros imply none.
    zeros = constrain_weights(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))
    total, _ = jax.lax.scan(add, zeros, (batch, keys))
    return jax.tree.map(lambda x: x / parts, total)


@jax.jit
def all_finite(state: State) -> Array:
    """Return whether no number of the state is NaN or infinite."""
    floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in floats]).all()
