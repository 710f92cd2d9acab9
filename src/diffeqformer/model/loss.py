"""Next-token cross-entropy from integer targets, in blocks of positions.

Logits exist for only one block at a time: neither the float32 `positions x vocabulary` array of a whole batch nor
one-hot targets are ever made.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.embedding import known_ids
from diffeqformer.nn.linear import wide
from diffeqformer.ode.early_exit import EarlyExit
from diffeqformer.ode.grid import Steps, whole_number
from diffeqformer.ode.schemes import Evaluations
from diffeqformer.sharding import BATCH, batch_parts, constrain


class LossSum(NamedTuple):
    """A loss summed over positions, and what it cost."""

    nats: Float[Array, ""]
    positions: Float[Array, ""]
    """Number of positions counted."""
    evaluations: Evaluations
    """Evaluations of the vector field, averaged over the positions counted."""


class Teacher(NamedTuple):
    """The source of the predictions that are distilled."""

    model: Transformer
    states: Float[Array, "batch position width"]
    """The teacher's own normalised states, through which no gradient flows."""


def loss_sum(
    model: Transformer,
    ids: Int[Array, "batch position"],
    mask: Bool[Array, "batch target"] | None = None,
    *,
    steps: Steps | EarlyExit | None = None,
    block: int = 4096,
) -> LossSum:
    """Sum `-log p(ids[i+1] | ids[..i])` over positions, in nats, and count these positions.

    **Arguments:** `ids`, context + 1 tokens per row; `mask`, true where the prediction of `ids[:, 1:]` counts (all if
    not given); `steps` as for the model; `block`, positions whose logits exist at the same time on a device.

    **Returns:** a `LossSum`, float32.

    **Raises:** `BadInput` for ids that are not a batch of at least two tokens of the vocabulary per row, a mask of
    another shape, or a `block` below 1; as the model for `steps`.
    """
    ids, counted = _counted(model, ids, mask)
    solution = model.integrate(ids[:, :-1], steps=steps)
    states = model.normalise(solution.state, steps)
    nats, number = _nats(model, states, ids[:, 1:], counted, block), counted.sum().astype(wide(states.dtype))
    evaluations = solution.evaluations
    if isinstance(steps, EarlyExit):
        taken = jnp.where(counted, solution.carry.taken[..., 0], 0).sum().astype(number.dtype) / jnp.maximum(number, 1)
        evaluations = model.scheme.evaluations.times(taken)
    return LossSum(nats, number, evaluations)


def _counted(model: Transformer, ids: Array, mask: Array | None) -> tuple[Array, Array]:
    """Check the ids, and return them with a mask of the targets that count.

    All ids are checked here, since the last one of each row is only a target.

    **Raises:** `BadInput` if the ids are not a batch with at least two per row, or if the mask does not match their
    targets.
    """
    ids = known_ids(ids, model.embedding.tokens.shape[0], 2)
    shape = ids.shape[0], ids.shape[1] - 1
    if not shape[1]:
        raise BadInput("the text has 1 token, but must have at least 2, of which the second is predicted.")
    if mask is None:
        return ids, jnp.ones(shape, bool)
    mask = jnp.asarray(mask)
    if mask.dtype != bool or mask.shape != shape:
        raise BadInput(
            f"the mask is {mask.dtype} of the shape {mask.shape}, but must be bool of the shape {shape}: true where "
            "the prediction of ids[:, 1:] counts."
        )
    return ids, mask


def _nats(
    model: Transformer,
    states: Float[Array, "batch position width"],
    targets: Int[Array, "batch position"],
    counted: Bool[Array, "batch position"],
    block: int,
    teacher: Teacher | None = None,
    share: float = 0.0,
) -> Float[Array, ""]:
    """Sum the cross-entropy of the predictions from normalised states over the positions that count.

    With a `teacher`, a fraction `share` of the target distribution is the teacher's prediction.
    """
    block = whole("block", block, 1)
    taught = (teacher.states,) if teacher is not None and share else ()
    flat = [x.reshape(-1, *x.shape[2:]) for x in (states, targets, counted, *taught)]

    def of_block(states: Array, targets: Array, counted: Array, *taught: Array) -> Array:
        logits = constrain(model.unembed(states), BATCH, "tensor")
        at_target = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
        if taught and teacher is not None:
            told = jax.nn.softmax(constrain(teacher.model.unembed(taught[0]), BATCH, "tensor"), axis=-1)
            expected = (jax.lax.stop_gradient(told) * logits).sum(axis=-1)
            # Cross-entropy is linear in the target distribution, which sums to 1: one logsumexp serves both parts.
            at_target = (1 - share) * at_target + share * expected
        return jnp.where(counted, jax.nn.logsumexp(logits, axis=-1) - at_target, 0.0).sum()

    positions, parts = len(flat[1]), batch_parts()  # parts on devices; each divides its own positions into blocks
    if positions % parts:  # the rows of one depth need not divide evenly
        parts = 1
    if positions <= block * parts:
        return of_block(*flat)
    blocks = -(-positions // (block * parts))
    padding = blocks * block - positions // parts

    def in_blocks(x: Array) -> Array:
        own = x.reshape(parts, -1, *x.shape[1:])
        own = jnp.pad(own, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 1))
        # Each block has `block` positions of every device, so that all of them compute in every iteration.
        own = own.reshape(parts, blocks, block, *x.shape[1:]).swapaxes(0, 1)
        return constrain(own.reshape(blocks, parts * block, *x.shape[1:]), None, BATCH)

    body = eqx.filter_checkpoint(of_block)
    total, _ = jax.lax.scan(
        lambda total, now: (total + body(*now), None), jnp.zeros((), wide(states.dtype)), tuple(map(in_blocks, flat))
    )
    return total


def next_token_loss(
    model: Transformer,
    ids: Int[Array, "batch position"],
    mask: Bool[Array, "batch target"] | None = None,
    *,
    steps: Steps | EarlyExit | None = None,
    key: Key[Array, ""] | None = None,
    block: int = 4096,
) -> Float[Array, ""]:
    """Compute the mean of `loss_sum` over the positions counted, in nats; with early exit it has no gradient.

    **Raises:** `BadInput` as `loss_sum`.
    """
    return loss_of_depths(model, ids, mask, depths=(steps,), key=key, block=block)


def loss_of_depths(
    model: Transformer,
    ids: Int[Array, "batch position"],
    mask: Bool[Array, "batch target"] | None = None,
    *,
    depths: Sequence[Steps | EarlyExit | None],
    distill: float = 0.0,
    teacher: Transformer | None = None,
    key: Key[Array, ""] | None = None,
    block: int = 4096,
    count: Array | None = None,
) -> Float[Array, ""]:
    """Average the mean loss over several depths, in nats.

    At all depths but the first, a fraction `distill` of the loss is the cross-entropy with the prediction at the first
    depth, through which no gradient flows: shallow depths learn from a deep one. With a `teacher`, all depths learn
    from that model at its own depth. Early exits are read in one pass, with the same dropout masks at all depths.
    Sources: Yu & Huang 2019 (universally slimmable networks, arXiv:1903.05134); LoopFormer, arXiv:2602.11451; Hinton et
    al. 2015, arXiv:1503.02531; Lee et al. 2015 (deeply-supervised nets, arXiv:1409.5185).

    **Arguments:** `depths`, with the one that teaches first; `distill`, from 0 to 1; `teacher`, frozen; `count`, the
    number of positions to divide by (those counted, if not given): that of the whole batch, where `ids` is part of one;
    the others as for `loss_sum`.

    **Raises:** `BadInput` as `loss_sum`, or for no depth at all.
    """
    if not len(depths):
        raise BadInput("depths is empty, but must have at least one number of steps.")
    (ids, counted), taught = _counted(model, ids, mask), None
    if teacher is not None and distill:
        taught = Teacher(teacher, jax.lax.stop_gradient(teacher.hidden(ids[:, :-1])))
    nats: list[Array] = []
    for states in _readings(model, ids[:, :-1], depths, key):
        nats.append(_nats(model, states, ids[:, 1:], counted, block, taught, distill))
        taught = Teacher(model, jax.lax.stop_gradient(states)) if taught is None else taught
    total, number = sum(nats[1:], nats[0]), jnp.maximum(counted.sum(), 1) if count is None else count
    return total / (len(depths) * number.astype(total.dtype))


def _readings(
    model: Transformer, ids: Array, depths: Sequence[Steps | EarlyExit | None], key: Array | None
) -> Iterator[Array]:
    """Yield `hidden` at each depth, from one pass if the model has early exits and all depths are numbers of steps."""
    own = [model.config.steps if steps is None else steps for steps in depths]
    numbers = [number for steps in own if (number := whole_number(steps)) is not None]
    if model.early_exits and len(numbers) == len(depths) and len(set(numbers)) > 1:
        yield from model.hidden_at_each(ids, numbers, key=key)
        return
    for depth, steps in enumerate(depths):
        yield _probed(model, depth).hidden(ids, steps=steps, key=key)


def loss_of_rows(
    model: Transformer,
    ids: Int[Array, "batch position"],
    mask: Bool[Array, "batch target"] | None = None,
    *,
    depths: Sequence[Steps | EarlyExit | None],
    rows: Sequence[int],
    key: Key[Array, ""] | None = None,
    count: Array | None = None,
    **settings: Any,
) -> Float[Array, ""]:
    """Compute the mean loss of a batch, in nats, where each depth reads its own rows.

    **Arguments:** `rows`, the number of rows for each of `depths`, in order; the others, including `settings`, as for
    `loss_of_depths`.

    **Raises:** `BadInput` as `loss_sum`.
    """
    ends, (ids, counted) = np.cumsum(rows)[:-1], _counted(model, ids, mask)
    # Counted over the whole batch, not over each part, so that the parts' losses add up to its mean.
    count = jnp.maximum(counted.sum(), 1) if count is None else count
    parts = zip(jnp.split(ids, ends), jnp.split(counted, ends), strict=True)
    keys = [key] * len(rows) if key is None else jax.random.split(key, len(rows))
    return jnp.stack([
        # The probe is then a scalar, which `_readings` leaves alone.
        loss_of_depths(_probed(model, number), *part, depths=(steps,), key=key, count=count, **settings)
        for number, (part, steps, key) in enumerate(zip(parts, depths, keys, strict=True))
    ]).sum()  # fmt: skip


def _probed(model: Transformer, depth: int) -> Transformer:
    """Return the model with the probe of one of several depths: in a shared one, their errors would add up."""
    return model.replace(probe=model.probe[depth]) if model.probe is not None and model.probe.ndim else model
