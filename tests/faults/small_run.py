"""Small runs, each in a process of its own that can be killed at any moment.

`python -m tests.faults.small_run` imports everything once, then forks a child for each line on its standard input: JSON
with the `settings` of a run, the child's `log`, and how it is `joined` with others, if it is. It prints the child's
number at once, and the child's exit status in the end.
"""

import json
import os
import sys
from dataclasses import replace

import jax

from diffeqformer.config import Config, DataConfig, MeshConfig, ModelConfig, OptimizerConfig, TimeConfig, TrainerConfig
from diffeqformer.errors import DiffEqFormerError
from diffeqformer.progress import Silent
from diffeqformer.runs.distributed import join
from diffeqformer.runs.finetune import finetune_config
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.trainer import train


class Printed(Silent):
    """Says lines on standard output."""

    def say(self, line: str) -> None:
        print(line, flush=True)


def config(updates: int, run: str, text: str, cache: str, base: str | None = None, devices: int = 1) -> Config:
    """A run that writes a checkpoint every second update, so that many kills fall into a write.

    **Arguments:** `text`, a stream if it is a .jsonl; `base`, the run that it fine-tunes by LoRA, if any; `devices`,
    over which it cuts its batches.
    """
    trainer = TrainerConfig(
        updates=updates, batch_size=4, log_every=5, evaluate_every=10, evaluate_batches=2, checkpoint_every=2
    )
    if base:
        tuned = finetune_config(load_run(base), run, steps=3, trainer=trainer)
        return replace(tuned, optimizer=replace(tuned.optimizer, learning_rate=1e-2))
    return Config(
        run=run,
        model=ModelConfig(steps=2, width=16, heads=2, context=16, weights=TimeConfig(d_emb=8, frequencies=4)),
        data=DataConfig(
            source="files", train=(text,), tokenizer_vocabulary=280, cache=cache, stream=60 * text.endswith(".jsonl")
        ),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        trainer=trainer,
        mesh=MeshConfig(data=devices),
    )


def _child(settings: list, log: str, joined: list | None) -> None:
    """**Arguments:** `joined`, the arguments of `join`."""
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream, handle in enumerate((os.open(os.devnull, os.O_RDONLY), said, said)):
        os.dup2(handle, stream)
    try:
        if joined:
            join(*joined)
        train(config(*settings), Printed())
        jax.distributed.shutdown()
    except DiffEqFormerError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(error.exit_code)


def main() -> None:
    """Fork a child for each line, one at a time."""
    for line in sys.stdin:
        child = os.fork()  # before JAX has a thread: nothing has been computed here
        if not child:
            _child(**json.loads(line))
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
