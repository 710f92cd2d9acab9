"""The model card of an exported model: what it is, how to load it, what training measured.

The facts come from the run's config.yaml and results.json. Folder paths stay on this machine. Anything that somebody
else may have written (names of runs, datasets, tokenizers) is inserted as text, never as markup.
"""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from string import punctuation
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from diffeqformer.config import Config, to_dict
from diffeqformer.plain import Document, version_of
from diffeqformer.report.text import MISSING, counted_steps, number, ranges
from diffeqformer.runs.opening import Run
from diffeqformer.runs.results import name_of_run, results_of, weights_in_words

MADE = {"trained": "trained", "fine-tuned": "trained", "imported": "imported", "lifted": "lifted"}
"""How a run got its weights and its depth, in words, by its origin."""


@dataclass(frozen=True)
class Exported:
    """An exported folder that Transformers opens."""

    folder: Path
    architecture: str
    """Name of the class in Transformers, or in the folder's own file."""
    own_code: bool
    """Whether loading it needs `trust_remote_code=True`."""
    continuous: bool
    """Whether the weights are functions of depth, so that the model runs at any number of steps."""
    steps: int
    parameters: int
    dtype: str


def model_card(run: Run, made: Exported, adapter: bool) -> str:
    """Render README.md of an exported model, in Markdown, from `templates/card.md`.

    **Arguments:** `run`, the exported run; `made`, its export; `adapter`, whether its adapters are in their own folder.
    """
    m = run.config.model
    tags = {"diffeqformer": True, "neural-ode": m.time, "peft": run.model.config.lora}
    facts = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": [t for t in tags if tags[t]]}
    settings = yaml.safe_dump(_settings(run.config), sort_keys=False, allow_unicode=True)
    templates = Environment(
        loader=PackageLoader("diffeqformer.interop"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    templates.filters |= {"inline": inline, "count": "{:,}".format, "steps": counted_steps}
    entry, results = _results(run)
    made_as, depths = MADE[run.origin], run.config.trained_at  # none if a tolerance chose the steps
    at = f"at {ranges(depths)}" if depths else "by adaptive steps"
    came = f"as it was {made_as}" if depths == (made.steps,) else f"it was {made_as} {at}"
    return templates.get_template("card.md").render(
        facts=yaml.safe_dump(facts, sort_keys=False).rstrip(), name=name_of_run(run.config), m=m,
        base=run.config.base, made=made, run=run, adapter=adapter, version=version_of("diffeqformer"),
        weights=weights_in_words(m), entry=entry, results=results,
        settings=fenced(settings, "yaml"), made_as=made_as, depths=ranges(depths) if depths else "adaptive", came=came,
    )  # fmt: skip


def inline(text: Any) -> str:
    """Escape text as one line of Markdown without any markup."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return re.sub(f"([{re.escape(punctuation)}])", r"\\\1", line) if re.search(r"[\\`*_\[\]<>#|!&~]", line) else line


def fenced(text: str, language: str) -> str:
    """Return a code block that its text cannot close."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _results(run: Run) -> tuple[Document, dict[str, str]]:
    """Return facts of the run's entry in results.json, and rows to show; both empty if another version wrote it."""
    results = results_of(run.folder) or {}
    try:
        (entry,) = results["models"]
        corpus = results["corpus"]
        found = entry["validation"]
        known = lambda name, digits: number(math.nan if found[name] is None else found[name], digits)
        unknown = found["bits_per_byte"] is None and found["loss"] is not None  # such as the bytes of a puzzle
        tolerance = run.config.model.tolerance
        at = f"by adaptive steps (rtol {tolerance.rtol:g})" if tolerance else f"at {counted_steps(entry['steps'])}"
        return {"at": at, "steps": None if tolerance else entry["steps"], "updates": entry["updates"]}, {
            "text": inline(_text(run.config, corpus["name"])),
            "training tokens seen": f"{entry['tokens']:,}",
            "updates": f"{entry['updates']:,}",
            "validation tokens": f"{corpus['validation_tokens']:,}",
            "validation loss (nats)": known("loss", 4),
            "perplexity": known("perplexity", 2),
            "bits per byte": MISSING if unknown else known("bits_per_byte", 4),
        }
    except (KeyError, TypeError, ValueError):
        return {}, {}


def _text(config: Config, name: str) -> str:
    """Return the name of the training text, without the folders of its files."""
    if config.data.source != "files":
        return name.replace(config.data.dataset, _dataset(config.data.dataset))
    return ", ".join(Path(pattern).name for pattern in config.data.train)


def _dataset(name: str) -> str:
    """Return a dataset's name on the hub, which has at most two parts, or the last part of a folder's path."""
    local = name.startswith(("/", "~", ".")) or name.count("/") > 1 or os.path.exists(name)
    return (Path(name).name or name) if local else name


def _settings(config: Config) -> Document:
    settings = to_dict(config)
    for name in ("run", "base"):
        settings.pop(name, None)
    for name in ("train", "validation", "cache"):
        settings["data"].pop(name, None)
    if settings["data"].get("tokenizer") != "train":
        settings["data"].pop("tokenizer", None)
    settings["data"]["dataset"] = _dataset(config.data.dataset)
    return settings
