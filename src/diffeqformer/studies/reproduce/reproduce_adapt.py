"""`reproduce adapt`: the paper's figure 5 at small scale: pretrain on one text, fine-tune on another, at other depths.

Both systems are pretrained on each of two texts. DiffEqFormer, pretrained at N steps, is populated at each of the
depths and fine-tuned on the other text by LoRA and in full; so is the deeper vanilla GPT, at its only depth. The models
pretrained on that other text show what training from scratch reaches. All share one tokenizer. The learning rate of
fine-tuning is searched for each system, method and direction, at the depth of pretraining, with the first seed.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from diffeqformer.config import Config, DataConfig, read_shipped, with_values
from diffeqformer.config.bounds import INT32, MOST_STEPS, UINT32, require_once, setting
from diffeqformer.data.documents import find_files
from diffeqformer.errors import BadInput
from diffeqformer.plain import Document, Values
from diffeqformer.progress import Progress
from diffeqformer.studies.inputs import Folder, Seeds, folder_for
from diffeqformer.studies.reproduce.experiments import (
    rate_for,
    rates_of,
    require_own,
    searches,
    train_all,
    with_length,
)
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from diffeqformer.runs.opening import Run

Method = Literal["lora", "full"]
Texts = Mapping[str, DataConfig]
"""The two texts by name."""
LEARNING_RATES: Mapping[Method, float] = {"lora": 5e-3, "full": 1.5e-3}
"""Learning rates at which the search begins, by method of fine-tuning, the same for both systems."""


@dataclass(frozen=True)
class Arguments:
    """Figure 5 of the paper at small scale; runs that are finished are kept when it is started again.

    Pretrain DiffEqFormer and a deeper vanilla GPT on each of two texts, fine-tune them on the other, by LoRA and in
    full, DiffEqFormer at several depths; compare with training from scratch.

    Example: diffeqformer reproduce adapt --texts code=stdlib wikitext='wikitext-2-raw/*.raw'
    """

    texts: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=FILES")]
    """Two texts: a name, and a file or glob, or `stdlib` for the source of Python's standard library. The tokenizer is
    trained on the first."""
    to: Folder = "runs/adapt"
    """Folder of all runs and of the page."""
    seeds: Seeds = setting((0,), least=0, most=UINT32)
    """Everything is trained once with each."""
    steps: int = setting(6, least=1, most=MOST_STEPS * 3 // 4)
    """Depth at which DiffEqFormer is pretrained, a multiple of 6."""
    pretraining: int = setting(1000, least=1, most=INT32)
    """Updates of pretraining, and of training from scratch."""
    finetuning: int = setting(250, least=1, most=INT32)
    """Updates of fine-tuning."""
    cache: str = DataConfig.cache
    """Folder of packed tokens."""

    @property
    def depths(self) -> tuple[int, ...]:
        """N/2, 2N/3, N and 4N/3, as 9, 12, 18 and 24 in the paper."""
        return self.steps // 2, 2 * self.steps // 3, self.steps, 4 * self.steps // 3


def study(arguments: Arguments, progress: Progress) -> Result:
    """Train what is missing, and compare over all seeds.

    **Raises:** `BadInput` for invalid texts or steps; whatever training raises.
    """
    require_once("--seeds", arguments.seeds)
    if arguments.steps < 6 or arguments.steps % 6:
        raise BadInput(f"steps is {arguments.steps}, but must be a multiple of 6, so that a half and two thirds exist.")
    texts = dict(_text(word, arguments.cache) for word in arguments.texts)
    if len(texts) != 2:
        raise BadInput(f"--texts has {len(texts)} different names, but must have 2, such as code=stdlib notes=n.txt.")
    from diffeqformer.studies.reproduce.reproduce_adapt_figures import result_of

    folder = folder_for("adapt", arguments.to)
    require_own(
        config for seed in arguments.seeds for config, _ in _pretrained(arguments, texts, seed, folder / f"seed-{seed}")
    )
    found: list[Document] = []
    for seed in arguments.seeds:
        rates = rates_of(found[0]) if found else {}
        found.append(reproduce(arguments, texts, seed, folder / f"seed-{seed}", progress, rates))
    return result_of(records(found), [_about(arguments, found[0])], folder, searches(found[0]))


def reproduce(
    arguments: Arguments, texts: Texts, seed: int, folder: Path, progress: Progress, rates: Mapping[str, float]
) -> Document:
    """Train all runs of one seed, as `train_all` does.

    **Arguments:** `seed`, of weights and batches; `rates`, as from `rates_of` of another seed: what is not in it is
    searched.
    """
    planned = len(texts) * (2 + len(LEARNING_RATES) * (len(arguments.depths) + 1))
    runs = _runs(arguments, texts, seed, folder, progress, rates)
    return train_all("Adaptive fine-tuning", runs, planned, folder, progress)


def _pretrained(arguments: Arguments, texts: Texts, seed: int, folder: Path) -> Iterator[tuple[Config, Document]]:
    """Yield the config of each run of pretraining, and its role."""
    from diffeqformer.runs.folder import TOKENIZER

    tokenizer = "train"  # on the training part of the first text, by the first run
    for text, data in texts.items():
        # DiffEqFormer, and the vanilla GPT of the greatest depth, by folder name.
        for system, steps in (("diffeqformer", arguments.steps), ("gpt", arguments.depths[-1])):
            run = folder / text / system
            config = with_length(read_shipped(f"quickstart-{system}"), arguments.pretraining, seed)
            config = with_values(config, {"model.steps": steps})
            role = {"text": text, "system": system, "source": None}
            yield replace(config, run=str(run), data=replace(data, tokenizer=tokenizer)), role
            if tokenizer == "train":
                tokenizer = str(run / TOKENIZER)


def _runs(
    arguments: Arguments, texts: Texts, seed: int, folder: Path, progress: Progress, rates: Mapping[str, float]
) -> Iterator[tuple[Config, Document]]:
    """Yield the config of each run, and its role; those of fine-tuning open the pretrained runs, trained by then."""
    from diffeqformer.runs.opening import load_run

    yield from _pretrained(arguments, texts, seed, folder)
    for source, text in permutations(texts):
        for system in ("diffeqformer", "gpt"):
            base = load_run(folder / source / system, progress=progress)
            trained = base.config.model.steps
            depths = arguments.depths if base.config.model.time else (trained,)
            for method, start in LEARNING_RATES.items():
                tuned = f"{source}-to-{text}/{system}-{method}"
                length = with_length(base.config, arguments.finetuning, seed).trainer
                settings = {"method": method, "data": texts[text], "trainer": length}
                config = partial(_tuned, base, folder / tuned, settings)
                rate, tried = rate_for(tuned, start, partial(config, trained), rates, progress)
                for steps in depths:
                    role = {"text": text, "system": system, "source": source, "searched": tuned}
                    yield config(steps, rate), role | (tried if steps == trained else {})


def _tuned(base: "Run", folder: Path, settings: Mapping[str, Any], steps: int, rate: float) -> Config:
    """Return the config of one fine-tuned run."""
    from diffeqformer.runs.finetune import finetune_config

    run, optimizer = folder / f"steps-{steps}" / f"rate-{rate:.3g}", base.config.optimizer
    return finetune_config(base, str(run), steps=steps, optimizer=replace(optimizer, learning_rate=rate), **settings)


def records(found: Sequence[Values]) -> list[Document]:
    """Convert the documents of `reproduce`, one per seed, to the rows that figures and tables are made of.

    **Returns:** for each fine-tuned run, and for each model trained from scratch, a row of `reproduce_adapt_figures`.
    """
    rows = []
    for one in found:
        for entry in one["models"]:
            source, text = entry["role"]["source"], entry["role"]["text"]
            # One from scratch is compared with those that come to its text from the other.
            for other in [source] if source else [name for name in one["corpus"] if name != text]:
                rows.append({"direction": f"{other} → {text}", **_row(entry)})
    return rows


def _row(entry: Values) -> Document:
    base, steps, curve = entry["config"]["base"], entry["steps"], entry["curve"]["validation"]
    first = curve[0][1]
    name = base["system"] if base["run"] else f"{entry['name']} {steps}"
    return {
        "method": base["method"] or "scratch",
        # `DiffEqFormer 6 → 4`; without an arrow where the depth is the base's
        "system": name if name.endswith(f" {steps}") else f"{name} → {steps}",
        "steps": steps,
        "seed": entry["config"]["trainer"]["seed"],
        "curve": curve,
        "final": entry["validation"],
        # `math.exp` raises beyond 709, where a depth that was never trained may begin.
        "before": {"loss": first, "perplexity": math.exp(first) if first < 709 else None} if base["run"] else None,
        "parameters": entry["parameters"],
    }


def _about(arguments: Arguments, found: Values) -> str:
    """Describe in one paragraph what was trained on what."""
    from diffeqformer.runs.finetune import RANK

    texts = ", ".join(
        f"{name} ({text['train_tokens']:,} training and {text['validation_tokens']:,} validation tokens)"
        for name, text in found["corpus"].items()
    )
    m, t = found["models"][0]["config"]["model"], found["models"][0]["config"]["trainer"]
    return (
        f"Texts: {texts}; one tokenizer with {m['vocabulary']:,} entries. Width {m['width']}, {m['heads']} heads, "
        f"context {m['context']}, {t['batch_size']} sequences per update. Pretraining, and training from scratch: "
        f"{arguments.pretraining:,} updates. Fine-tuning: {arguments.finetuning:,} updates, at the best peak learning "
        f"rate from a search at the pretraining depth (last table). LoRA has rank {RANK} and adapts all linear maps; "
        "the embeddings are trained too."
    )


def _text(word: str, cache: str) -> tuple[str, DataConfig]:
    name, equals, source = word.partition("=")
    if not (equals and source and re.fullmatch(r"[A-Za-z0-9_.-]+", name)) or name.startswith("."):
        raise BadInput(f"--texts has {word!r}, but must be NAME=FILES, the name of letters and digits.")
    if source != "stdlib":
        find_files([source], "--texts")
    own: dict[str, Any] = {} if source == "stdlib" else {"source": "files", "train": (source,)}
    return name, DataConfig(**own, cache=cache)
