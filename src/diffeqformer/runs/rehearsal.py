"""Rehearsal of a run before it begins: its text, memory and time, and its first loss."""

import time
from dataclasses import replace
from typing import NamedTuple

import jax

from diffeqformer.config import Config, MeshConfig
from diffeqformer.data.cache import TokenCache, prepare
from diffeqformer.data.loader import Loader
from diffeqformer.model.build import require_no_own
from diffeqformer.plain import Document
from diffeqformer.progress import Progress
from diffeqformer.runs.finetune import open_base, teacher_of
from diffeqformer.runs.folder import RunFolder, as_moved
from diffeqformer.runs.footprint import Footprint, update_footprint
from diffeqformer.runs.opening import Run
from diffeqformer.runs.trainer import batches_of, fitting
from diffeqformer.sharding import laid_out, mesh_of, placed, sizes_of
from diffeqformer.training.depths import compute_of, passes
from diffeqformer.training.recipe import Batches
from diffeqformer.training.update import initial_state, make_update

TIMED = 3
"""Number of updates that are timed, after the first one, which compiles."""


class Rehearsal(NamedTuple):
    """Findings of a rehearsal."""

    text: Document
    """Statistics of the text, as `TokenCache.statistics`."""
    epochs: float | None
    """How often training reads the training split; `None` for a stream."""
    memory: Footprint
    """Memory of an update on one device, in bytes."""
    first_loss: float
    """Loss of the first update in nats per token; at random weights, about the logarithm of the vocabulary's size."""
    seconds_per_update: float
    """Seconds of one update at `model.steps`."""
    seconds: float
    """Seconds of all updates; evaluations and checkpoints come on top."""


def made_ready(config: Config, progress: Progress) -> tuple[Config, TokenCache, Run | None, Loader | Batches]:
    """Prepare what training of a config, as `validate` returns it, begins with; only the token cache is written.

    **Returns:** the config with the vocabulary's size, the tokens, the base if there is one, and the batches.

    **Raises:** `BadInput` as `train` before its first update.
    """
    require_no_own(config.model)
    config = as_moved(config)
    folder = RunFolder(config)
    folder.require_own()
    mesh_of(config)  # called only for its checks
    base = open_base(config.base, progress) if config.base.run else None
    tokens = prepare(folder.data, progress, lambda tokens: fitting(config, tokens, base))
    config, batches = fitting(config, tokens, base)
    return config, tokens, base, batches


def rehearse(config: Config, progress: Progress) -> Rehearsal:
    """Prepare a run as `made_ready`, then time and discard its first updates.

    **Raises:** `BadInput` as `train` before its first update.
    """
    config, tokens, base, loader = made_ready(config, progress)
    memory = update_footprint(replace(config, mesh=MeshConfig(*sizes_of(config))))
    with laid_out(mesh_of(config)):
        state = placed(initial_state(config, base and placed(base.model)))
        update, batch = make_update(config, teacher=teacher_of(base, config)), batches_of(config, loader)
        drawn = config.model.steps if config.depth.drawn else None
        state, first = jax.block_until_ready(update(state, batch(0), drawn))
        began = time.perf_counter()
        for k in range(1, TIMED + 1):
            state, _ = jax.block_until_ready(update(state, batch(k), drawn))
    each = (time.perf_counter() - began) / TIMED
    own = sum(one.steps * one.sequences for one in passes(config, drawn)) / config.trainer.batch_size
    total = each * compute_of(config) / own
    epochs = config.trainer.updates / len(loader) if isinstance(loader, Loader) else None
    return Rehearsal(tokens.statistics, epochs, memory, float(first.loss), each, total)
