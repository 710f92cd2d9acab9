"""What the tests of training share."""

import dataclasses
import random
from pathlib import Path
from typing import Any

from diffeqformer.config import Config
from diffeqformer.store.files import read_sealed, write_sealed


def write_text(path: Path, lines: int = 400, seed: int = 0) -> Path:
    """Write a text with something to learn: sentences of a small grammar."""
    draw = random.Random(seed)
    words = [["the", "a", "one"], ["cat", "dog", "river"], ["sees", "eats", "likes"], ["stars", "fish", "songs"]]
    path.write_text("".join(" ".join(draw.choice(kind) for kind in words) + ".\n" for _ in range(lines)))
    return path


def forget(run: Path) -> Path:
    """Make the checkpoints of a run forget what its config, tokenizer and text were, so that a test may edit these."""
    for manifest in run.glob("checkpoints/*/manifest.json"):
        content = read_sealed(manifest)
        content["metadata"] = {k: v for k, v in content["metadata"].items() if k not in ("config", "tokenizer", "text")}
        write_sealed(manifest, content)
    return run


def changed(config: Config, **settings: Any) -> Config:
    """The config with settings changed, named as in `trainer__updates=3`."""
    for name, value in settings.items():
        if "__" in name:
            section, _, rest = name.partition("__")
            part = changed(getattr(config, section), **{rest: value})
            config = dataclasses.replace(config, **{section: part})
        else:
            config = dataclasses.replace(config, **{name: value})
    return config
