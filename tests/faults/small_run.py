"""The process that the fault tests kill: `small_run.py UPDATES RUN TEXT CACHE` trains one small DiffEqFormer."""

import sys

from diffeqformer.config import Config, DataConfig, ModelConfig, OptimizerConfig, TimeConfig, TrainerConfig
from diffeqformer.errors import DiffEqFormerError
from diffeqformer.progress import Silent
from diffeqformer.training.trainer import train


class Lines(Silent):
    """Says lines on standard output."""

    def say(self, line: str) -> None:
        print(line, flush=True)


def config(updates: int, run: str, text: str, cache: str) -> Config:
    """A run that writes a checkpoint every second update, so that many kills fall into a write."""
    return Config(
        run=run,
        model=ModelConfig(steps=2, width=16, heads=2, context=16, time=TimeConfig(d_emb=8, frequencies=4)),
        data=DataConfig(source="files", train=(text,), tokenizer_vocabulary=280, cache=cache),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        trainer=TrainerConfig(
            updates=updates, batch_size=4, log_every=5, evaluate_every=10, evaluate_batches=2, checkpoint_every=2
        ),
    )


if __name__ == "__main__":
    try:
        train(config(int(sys.argv[1]), *sys.argv[2:]), Lines())
    except DiffEqFormerError as error:
        sys.exit(f"{type(error).__name__}: {error}")
