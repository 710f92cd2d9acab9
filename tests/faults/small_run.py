"""Small runs, each in a process of its own that can be killed at any moment.

`python -m tests.faults.small_run` imports everything once, then forks a child for each line on its standard input, a
JSON list of a run's settings; it prints the child's number at once, and the child's exit status in the end.
"""

import json
import os
import sys
from dataclasses import replace

from diffeqformer.config import Config, DataConfig, ModelConfig, OptimizerConfig, TimeConfig, TrainerConfig
from diffeqformer.errors import DiffEqFormerError
from diffeqformer.progress import Silent
from diffeqformer.training.finetune import finetune_config
from diffeqformer.training.run import load_run
from diffeqformer.training.trainer import train


class Printed(Silent):
    """Says lines on standard output."""

    def say(self, line: str) -> None:
        print(line, flush=True)


def config(updates: int, run: str, text: str, cache: str, base: str | None = None) -> Config:
    """A run that writes a checkpoint every second update, so that many kills fall into a write.

    **Arguments:** `base`, the run that it fine-tunes by LoRA, if any.
    """
    trainer = TrainerConfig(
        updates=updates, batch_size=4, log_every=5, evaluate_every=10, evaluate_batches=2, checkpoint_every=2
    )
    if base:
        tuned = finetune_config(load_run(base), run, steps=3, trainer=trainer)
        return replace(tuned, optimizer=replace(tuned.optimizer, learning_rate=1e-2))
    return Config(
        run=run,
        model=ModelConfig(steps=2, width=16, heads=2, context=16, time=TimeConfig(d_emb=8, frequencies=4)),
        data=DataConfig(source="files", train=(text,), tokenizer_vocabulary=280, cache=cache),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        trainer=trainer,
    )


def _child(settings: list) -> None:
    log = os.open(f"{settings[1]}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream, handle in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
        os.dup2(handle, stream)
    try:
        train(config(*settings), Printed())
    except DiffEqFormerError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(error.exit_code)


def main() -> None:
    """Fork a child for each line, one at a time."""
    for line in sys.stdin:
        child = os.fork()  # before JAX has a thread: nothing has been computed here
        if not child:
            _child(json.loads(line))
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
