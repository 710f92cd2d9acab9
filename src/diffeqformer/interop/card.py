"""The model card of an exported model: what it is, how to load it, what training measured.

The facts are those of the run's config.yaml and results.json. Names of files and folders stay on this machine. Whatever
somebody else may have written (names of runs, datasets, tokenizers) is text here and never markup.
"""

import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from string import punctuation
from typing import Any

import yaml

from diffeqformer.config import Config, to_dict
from diffeqformer.runs.folder import RESULTS
from diffeqformer.runs.opening import Run
from diffeqformer.runs.results import name_of_run, read_results

WEIGHTS = {
    "time": "smooth functions of depth, given by a small network for each",
    "time-shared-mlp": "smooth functions of depth, given by one small network for all",
    "shared": "the same at every depth",
    "layer": "a table of layers",
}


@dataclass(frozen=True)
class Exported:
    """A folder that Transformers opens."""

    folder: Path
    architecture: str
    """The class in Transformers, or in the folder's own file."""
    own_code: bool
    """Whether loading it needs `trust_remote_code=True`."""
    steps: int
    parameters: int
    dtype: str


def model_card(run: Run, made: Exported, adapter: bool) -> str:
    """README.md of an exported model, in Markdown.

    **Arguments:** `run`, what was exported; `made`, as what; `adapter`, whether its adapters lie in their own folder.
    """
    facts = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": _tags(run)}
    parts = [
        "---\n" + yaml.safe_dump(facts, sort_keys=False).rstrip() + "\n---",
        f"# {inline(made.folder.name)}",
        _about(run, made),
        "## Use",
        fenced(_use(made, adapter), "python"),
        _notes(run, made),
        "## Model",
        _table(_sizes(run.config, made)),
        "## Results",
        _results(run, made),
        "## Training",
        "Settings of the run, without its files and folders:",
        fenced(yaml.safe_dump(_settings(run.config), sort_keys=False, allow_unicode=True), "yaml"),
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def inline(text: Any) -> str:
    """Text on one line of Markdown, none of it markup."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return re.sub(f"([{re.escape(punctuation)}])", r"\\\1", line) if re.search(r"[\\`*_\[\]<>#|!&~]", line) else line


def fenced(text: str, language: str) -> str:
    """A code block that its text cannot end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _tags(run: Run) -> list[str]:
    return [
        "diffeqformer",
        *(["neural-ode"] if run.config.model.time else []),
        *(["peft"] if run.model.config.lora else []),
    ]


def _about(run: Run, made: Exported) -> str:
    m = run.config.model
    kind = WEIGHTS.get(m.weights.kind, m.weights.kind)
    weights = f"Its weights were trained as {kind}, and are populated here for {made.steps} steps"
    trained = "as it was trained" if made.steps == m.steps else f"it was trained at {m.steps}"
    depth = "It is a table of layers" if m.weights.kind == "layer" else f"{weights} ({trained})"
    _, name = name_of_run(run.config)
    return (
        f"A causal language model ({inline(name)}) of {made.parameters:,} parameters, exported by "
        f"diffeqformer {version('diffeqformer')} as `{made.architecture}` in {made.dtype}. {depth}."
    )


def _use(made: Exported, adapter: bool) -> str:
    trust = ", trust_remote_code=True" if made.own_code else ""
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'folder = "."  # this one, or the name under which it was published',
        f"tokenizer = AutoTokenizer.from_pretrained(folder{trust})",
        f"model = AutoModelForCausalLM.from_pretrained(folder{trust})",
        'inputs = tokenizer("Once", return_tensors="pt")',
        "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40)[0]))",
    ]
    if adapter:
        lines[5:5] = ['model = PeftModel.from_pretrained(model, folder + "/adapter")']
        lines[0:0] = ["from peft import PeftModel"]
    return "\n".join(lines)


def _notes(run: Run, made: Exported) -> str:
    context = f"A text has at most {run.config.model.context:,} tokens, the prompt and what is generated together."
    if not made.own_code:
        return context
    return (
        "The model's class is the file `modeling_diffeqformer.py` of this folder, which `trust_remote_code=True` "
        f"allows Transformers to run; read it first. {context}"
    )


def _sizes(config: Config, made: Exported) -> list[tuple[str, str]]:
    m = config.model
    rows = [
        ("family", m.field.kind),
        ("weights as trained", m.weights.kind),
        ("scheme", m.scheme.kind),
        ("steps as trained", str(m.steps)),
        ("steps here", str(made.steps)),
        ("length of the depth interval", f"{m.interval:g}"),
        ("width", f"{m.width:,}"),
        ("heads", str(m.heads) + (f", of keys and values {m.kv_heads}" if m.kv_heads != m.heads else "")),
        ("context", f"{m.context:,}"),
        ("vocabulary", f"{m.vocabulary:,}"),
    ]
    if config.base.method is not None:
        rows.append(("fine-tuned", f"{config.base.method}, from {inline(config.base.system)}"))
    if m.lora:
        rows.append(("low-rank adapters", f"rank {m.lora.rank}, alpha {m.lora.alpha:g}"))
    return rows


def _results(run: Run, made: Exported) -> str:
    """What results.json says, in a table; the rest of the run may be newer or older than this library."""
    found = read_results(run.folder / RESULTS)
    try:
        assert found is not None
        (entry,) = found["models"]
        corpus, whole = found["corpus"], entry["validation"]
        rows = [
            ("text", inline(_text(run.config, corpus["name"]))),
            ("training tokens seen", f"{entry['tokens']:,}"),
            ("updates", f"{entry['updates']:,}"),
            ("validation tokens", f"{corpus['validation_tokens']:,}"),
            ("validation loss (nats)", _number(whole["loss"], 4)),
            ("perplexity", _number(whole["perplexity"], 2)),
            ("bits per byte", _number(whole["bits_per_byte"], 4)),
        ]
        steps, updates = entry["steps"], entry["updates"]
    except (AssertionError, KeyError, TypeError, ValueError):
        source = "an imported model" if run.origin == "imported" else "a run that is not finished"
        return f"None are known: this is {source}, at update {run.step:,}."
    notes = [f"Measured by diffeqformer on the whole validation split, in float32, at {steps} steps."]
    if steps != made.steps:
        notes.append(f"This export has {made.steps} steps, at which the model is another one: measure it before use.")
    if run.step != updates:
        notes.append(f"The weights here are those of update {run.step:,}, not of the last one.")
    return _table(rows) + "\n\n" + " ".join(notes)


def _text(config: Config, name: str) -> str:
    """What the text is called, without the folders that its files lie in."""
    if config.data.source != "files":
        return name
    return ", ".join(Path(pattern).name for pattern in config.data.train)


def _settings(config: Config) -> dict[str, Any]:
    settings = to_dict(config)
    for name in ("run", "base"):
        settings.pop(name, None)
    for name in ("train", "validation", "cache", "tokenizer"):
        value = settings["data"].pop(name, None)
        if name == "tokenizer" and value == "train":
            settings["data"][name] = value
    return settings


def _number(value: float | None, decimals: int) -> str:
    return "not finite" if value is None else f"{value:,.{decimals}f}"


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
