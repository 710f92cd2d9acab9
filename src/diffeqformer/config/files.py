"""Configs as files: the shipped ones, and any YAML file."""

import dataclasses
from pathlib import Path

import yaml

from diffeqformer.config.run import Config
from diffeqformer.config.strict import StrictLoader, from_dict
from diffeqformer.errors import BadInput, reason
from diffeqformer.plain import nearest, shown
from diffeqformer.store.paths import path_of
from diffeqformer.store.regular import read_small

MOST_BYTES = 1 << 20
"""Largest size of a config file."""


def shipped_configs() -> dict[str, Path]:
    """Return the paths of the configs that come with the package, by name."""
    folder = Path(__file__).parents[1] / "configs"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_shipped(name: str) -> Config:
    """Read one of the configs that come with the package."""
    return read_yaml(shipped_configs()[name])


def find_config(name: str, others: str = "a file") -> Path:
    """Find a config file by path, or one of the shipped ones by name.

    **Arguments:** `name`; `others`, what else it might have been, for the message.

    **Raises:** `BadInput` if there is neither, with the nearest name.
    """
    shipped = shipped_configs()
    path = path_of(name)
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        return path
    if name in shipped:
        return shipped[name]
    if (path / "config.yaml").is_file():
        raise BadInput(f"config {shown(name)} is the folder of a run, whose config is {str(path / 'config.yaml')!r}.")
    advice = nearest(name, shipped, f"the shipped ones are {', '.join(shipped)}.")
    raise BadInput(f"config {shown(name)} is neither {others} nor the name of a shipped config; {advice}")


def read_yaml(path: str | Path) -> Config:
    """Read a `Config` from a YAML file; settings that are not named keep their defaults.

    **Raises:** `BadInput` if the file is missing, is not YAML, or does not fit `Config`.
    """
    path = path_of(path)
    try:
        text = read_small(path, MOST_BYTES).decode()
    except FileNotFoundError:
        raise BadInput(f"config file {str(path)!r} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"config file {str(path)!r} cannot be read: {reason(error)}.") from None
    try:
        values = yaml.load(text, StrictLoader)
    except RecursionError:
        raise BadInput(f"config file {str(path)!r} is nested too deeply to be a config.") from None
    except Exception as error:  # besides its own errors, PyYAML lets through those of values that do not fit their tag
        raise BadInput(f"config file {str(path)!r} is not YAML: {reason(error)}.") from None
    config = from_dict(Config, {} if values is None else values)
    if "run" not in (values or {}):
        config = dataclasses.replace(config, run=f"runs/{path.stem}")
    return config
