"""Lifting: makes a run whose weights are a function of depth from a run of a table of layers, whole or not at all."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from diffeqformer.analysis.compression import second_moments
from diffeqformer.analysis.leaving_out import Kept, kept_order
from diffeqformer.config import BaseConfig, DepthConfig, Which, validate
from diffeqformer.data.beside import beside_tokenizer
from diffeqformer.data.cache import tokens_of
from diffeqformer.data.loader import spread_windows
from diffeqformer.data.tokenizer_files import load_tokenizer
from diffeqformer.errors import BadInput
from diffeqformer.model.build import own_parts
from diffeqformer.model.count import count
from diffeqformer.model.lift import (
    Lifted,
    aligned,
    difference,
    left_out,
    levelled,
    lift,
    table_of,
    table_of_whole_steps,
)
from diffeqformer.model.transformer import Transformer
from diffeqformer.plain import shown
from diffeqformer.progress import Progress, Silent
from diffeqformer.runs import folder as run_folder
from diffeqformer.runs.opening import Run
from diffeqformer.runs.results import name_of_run
from diffeqformer.store.folders import becoming, require_free, require_space
from diffeqformer.store.paths import path_of

TEXTS = 128
"""Number of windows, evenly spread over a text, from which second moments are computed."""
READ = 16_384
"""Approximate number of tokens of a text by which the layers to leave out are chosen."""


def lift_run(
    run: Run,
    to: str | Path,
    kind: Literal["knots", "time", "layerdrop", "levels"] = "knots",
    *,
    knots: int | None = None,
    d_emb: int | None = None,
    levels: Sequence[int] = (),
    align: bool = False,
    data: Sequence[str] = (),
    checkpoint: Which = "latest",
    progress: Progress | None = None,
) -> tuple[Run, Lifted]:
    """Write a new run of the model of `run` that works at other depths: `lift`, `left_out` or `levelled`, in folders.

    The text, and with it the validation split, stays that of `run`, if it has one.

    **Arguments:** `run`, as `load_run` opens it; `to`, the new run's folder, which must not exist or must be empty;
    `kind`, `knots` and `d_emb` as for `lift`, or `kind` `layerdrop`, to leave layers out in the order of `kept_order`,
    or `levels`, for a table for each of `levels`; `align`, whether neighbouring layers are aligned first; `data`, text
    files or globs, by whose activations fewer knots are weighted, or by whose loss layers are left out, also of the
    levels below the model's own depth; `checkpoint`, which of the run's checkpoints `run` is.

    **Returns:** the new run, at update 0, and what `lift` measured.

    **Raises:** `BadInput` for a model that cannot be lifted, or a folder that cannot be written; nothing has been
    written then.
    """
    progress, to = progress or Silent(), path_of(to)
    require_free(to)
    if levels and kind != "levels":
        raise BadInput(f"levels is {shown([*levels])}, but only the weights 'levels' read it.")
    moments, model = None, aligned(run.model) if align else run.model
    read = lambda: tokens_of(data, run.config.data, load_tokenizer(run.folder / run_folder.TOKENIZER), progress)[0]
    if kind == "layerdrop":
        if not data or align or knots is not None or d_emb is not None:
            raise BadInput("layers are left out by their loss on a text, data, and nothing else is to be set.")
        table_of_whole_steps(model)  # before the text is read
        lifted = without_layers(model, read(), progress)
        return write_derived(run, to, lifted.model, checkpoint), lifted
    if kind == "levels":
        depth = table_of(model).depth
        fewer = [level for level in levels if level < depth]
        if align or knots is not None or d_emb is not None:
            raise BadInput("a level's table has the model's layers as they are, and nothing but levels is to be set.")
        if fewer and not data:
            raise BadInput(
                f"level {fewer[0]} leaves out some of the model's {depth} layers, by their loss on a text, but data is "
                "not given."
            )
        if data and not fewer:
            raise BadInput(f"data is {shown(data[0])}, but only levels below the model's {depth} layers read a text.")
        if fewer:
            table_of_whole_steps(model)  # before the text is read
        lifted = with_levels(model, levels, read() if fewer else None, progress)
        return write_derived(run, to, lifted.model, checkpoint), lifted
    if data:
        table_of(run.model)  # before the text is read
        moments = second_moments(model, spread_windows(read(), TEXTS, run.config.model.context), progress=progress)
    with progress.stage("Lifting", 1) as stage:
        key = jax.random.key(run.config.trainer.seed)
        lifted = lift(model, kind, knots=knots, d_emb=d_emb, moments=moments, key=key)
        if align:
            lifted = replace(lifted, difference=difference(run.model, lifted.model))
        stage.advance(1)
    return write_derived(run, to, lifted.model, checkpoint), lifted


def without_layers(model: Transformer, tokens: np.ndarray, progress: Progress) -> Lifted:
    """Return the model that leaves layers out in the order of `kept_order`, found on about `READ` of the tokens."""
    kept = _kept(model, tokens, progress)
    made = left_out(model, kept.order)
    return Lifted(made, 1.0, difference(model, made), kept.losses, kept.order)


def with_levels(model: Transformer, levels: Sequence[int], tokens: np.ndarray | None, progress: Progress) -> Lifted:
    """Return the model with a table for each of `levels`, those below its depth by the order of `without_layers`."""
    kept = Kept((), {}) if tokens is None else _kept(model, tokens, progress)
    made = levelled(model, levels, kept.order)
    return Lifted(made, 1.0, difference(model, made), kept.losses, kept.order)


def _kept(model: Transformer, tokens: np.ndarray, progress: Progress) -> Kept:
    context = model.config.context
    return kept_order(model, spread_windows(tokens, -(-READ // context), context), progress=progress)


def require_made_of(folder: Path, run: Run) -> None:
    """Check that the run lifted into `folder` was made from the model that `run` has now.

    **Raises:** `BadInput` if it was made from another.
    """
    if run_folder.metadata_of(folder).get("base") not in (None, run.digest):
        raise BadInput(
            f"run folder {str(folder)!r} was made of another model than {str(run.folder)!r} has now; remove it and the "
            "runs that were fine-tuned from it, or choose another folder."
        )


def write_derived(run: Run, to: Path, model: Transformer, checkpoint: Which = "latest") -> Run:
    """Write a run, on the same text, of a model that was made from that of `run` without training.

    **Arguments:** `to`, its folder, new or empty; `checkpoint`, which of the run's checkpoints was used.

    **Raises:** `BadInput` for an invalid config, or a folder that cannot be written; nothing has been written then.
    """
    # As in a trained run, the config keeps the settings that the user's own parts replace: only `build` makes those.
    usual = {part: getattr(run.config.model, part) for part in own_parts(model)}
    config = validate(
        replace(
            run.config,
            run=str(to),
            base=BaseConfig(
                str(run.folder), checkpoint, run.step, system=name_of_run(run.config), imported=run.from_imported
            ),
            model=replace(model.config, **usual),
            depth=DepthConfig(),
            data=replace(run.config.data, tokenizer=str(to / run_folder.TOKENIZER)),
        )
    )
    with becoming(to, "run folder", "lifting", keep_lock=True) as aside:
        require_space(aside, 4 * count(model), "the run")  # in float32
        text = run_folder.text_digest_of(run.folder)
        beside = beside_tokenizer(run.folder, run.tokenizer)
        run_folder.write_model(aside, config, run.tokenizer, model, text, beside, run.digest)
    return Run(to, config, run.tokenizer, model, 0, "imported" if text is None else "lifted")
