"""Export of a run as a folder that Hugging Face's Transformers opens, written completely or not at all.

model.safetensors, config.json, generation_config.json     the model; several files and an index if it is large
*_diffeqformer.py                                          its class, unless it is a stock GPT-2 or Llama
tokenizer.json, tokenizer_config.json                      the tokenizer
chat_template.jinja                                        the chat template of an imported model, if it had one
README.md                                                  the model card
SHA256SUMS                                                 digests of the files
adapter/                                                   low-rank adapters in PEFT's format, if kept separate
"""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from diffeqformer.config import LayerConfig
from diffeqformer.data.beside import SPECIAL, chat_template, special_tokens
from diffeqformer.data.tokenizer import adding_nothing, end_of_text
from diffeqformer.errors import BadInput
from diffeqformer.interop.card import Exported, model_card
from diffeqformer.interop.families import OWN, is_continuous, kind_of
from diffeqformer.interop.huggingface import CONFIG, to_huggingface
from diffeqformer.interop.peft import save_adapter
from diffeqformer.interop.tensors import DTYPES, write_tensors
from diffeqformer.plain import Document
from diffeqformer.progress import Progress, Silent
from diffeqformer.runs.folder import TOKENIZER
from diffeqformer.runs.opening import Run
from diffeqformer.store.files import write_whole
from diffeqformer.store.folders import becoming, require_free, require_space, write_sums
from diffeqformer.store.paths import path_of

SHARD_BYTES = 5_000_000_000
MODULES = ("configuration", "weights", "modeling")
"""Files of our own class, without the ending `_diffeqformer.py`."""
AUTO = {
    "AutoConfig": "configuration_diffeqformer.DiffEqFormerConfig",
    "AutoModel": "modeling_diffeqformer.DiffEqFormerModel",
    "AutoModelForCausalLM": "modeling_diffeqformer.DiffEqFormerForCausalLM",
    "AutoModelForSequenceClassification": "modeling_diffeqformer.DiffEqFormerForSequenceClassification",
}
"""The class in these files that each of Transformers' Auto classes loads."""
ADAPTER = "adapter"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen 2's tokenizer splits text. Transformers 5 splits so for any model of this type, whatever its files say."""


def export(
    run: Run,
    to: str | Path,
    steps: int | None = None,
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
    adapter: bool = False,
    progress: Progress | None = None,
    base: str | None = None,
) -> Exported:
    """Write a run's model as a folder for `AutoModelForCausalLM` and `AutoTokenizer`.

    If the weights depend on depth alone (`time`, `time-shared-mlp`, `knots`, `shared`) and `steps` is not given, they
    stay so, and the model runs at any number of steps. Any other model is populated, as a table of layers. A vanilla
    table becomes a stock class, such as `GPT2LMHeadModel` or `LlamaForCausalLM`; any other model, and one like Qwen 2
    with another tokenizer, comes with its class and loads with `trust_remote_code=True`.

    **Arguments:** `run`, as `load_run` opens it; `to`, the folder, which must be empty or not exist; `steps`, the
    number of depth steps to populate the model at; `dtype`, of the tensors, one of float32, bfloat16, float16 (time
    networks stay float32); `shard_bytes`, the maximum size of a tensor file; `adapter`, whether low-rank adapters are
    saved to `to/adapter` in PEFT's format, next to the model without them, instead of being merged into the matrices;
    `base`, the name by which the adapters find that model, if not `to`, such as its repository on the hub.

    **Returns:** a description of the exported folder.

    **Raises:** `BadInput` for anything that makes the export impossible; nothing has been written then.
    """
    if not isinstance(run, Run):
        raise BadInput(
            f"run is {type(run).__name__}, but must be a run as load_run opens it, whose tokenizer goes with its model."
        )
    progress, to = progress or Silent(), path_of(to)
    if dtype not in DTYPES:
        raise BadInput(f"dtype is {dtype!r}, but must be one of {', '.join(DTYPES)}.")
    if shard_bytes < 1:
        raise BadInput(f"the size of a file of tensors is {shard_bytes} bytes, but must be at least 1.")
    if adapter and not run.model.config.lora:
        raise BadInput(f"run {str(run.folder)!r} has no low-rank adapters; `diffeqformer finetune` makes such runs.")
    if adapter and not isinstance(weights := run.model.config.weights, LayerConfig):
        raise BadInput(
            f"run {str(run.folder)!r} has low-rank adapters beside weights of kind {weights.kind!r}, for which PEFT's "
            "format has no place; without --adapter they are merged."
        )
    require_free(to)
    model = run.model.without_adapters() if adapter else run.model.merge()
    continuous = steps is None and is_continuous(model.config)
    model = model if continuous else model.populate(steps)
    own = kind_of(model.config) == "qwen2" and not _splits_as_qwen2(run.tokenizer)
    if own and adapter:
        raise BadInput(
            f"run {str(run.folder)!r} has query biases as Qwen 2, but not its tokenizer, which Transformers would use; "
            "it needs a class of its own, from which adapters cannot be read back; without --adapter they are merged."
        )
    settings, tensors = to_huggingface(model, own)
    special, ids, stops = _special(run)
    tokenizer = run.tokenizer if run.from_imported else adding_nothing(run.tokenizer)
    own_code, (architecture,) = settings["model_type"] == OWN, settings["architectures"]
    if own_code:
        settings["auto_map"] = AUTO
    parameters = sum(tensor.size for tensor in tensors.values())
    made = Exported(to, architecture, own_code, continuous, model.config.steps, parameters, dtype)
    with becoming(to, "folder", "exporting") as aside:
        require_space(aside, parameters * np.dtype(DTYPES[dtype]).itemsize, "the model")
        write_tensors(aside, tensors, dtype, shard_bytes, progress)
        _write_json(aside / CONFIG, {**settings, "dtype": dtype, **ids})
        # Not `max_new_tokens`, which would override a `max_length` that a caller gives.
        _write_json(aside / "generation_config.json", {"max_length": model.config.context, **ids, **stops})
        for name, text in {TOKENIZER: tokenizer.to_str(pretty=True), **chat_template(run.folder)}.items():
            write_whole(aside / name, text)
        # Cleaning up would take spaces before punctuation out of decoded text.
        reading = {"model_max_length": model.config.context, "clean_up_tokenization_spaces": False}
        about = {"tokenizer_class": "PreTrainedTokenizerFast", **special, "padding_side": "left", **reading}
        _write_json(aside / "tokenizer_config.json", about)  # padded on the left for generation
        if own_code:
            for name in (f"{module}_diffeqformer.py" for module in MODULES):
                write_whole(aside / name, (files("diffeqformer.interop") / "torch" / name).read_bytes())
        if adapter:
            save_adapter(run.model, aside / ADAPTER, base=base or str(to))
        write_whole(aside / "README.md", model_card(run, made, adapter))
        write_sums(aside)
    return made


def _splits_as_qwen2(tokenizer: Tokenizer) -> bool:
    found = json.loads(tokenizer.to_str())
    parts = (found["pre_tokenizer"] or {}).get("pretokenizers", [])
    patterns = [part.get("pattern", {}).get("Regex", part["type"]) for part in parts]
    return patterns == [QWEN2, "ByteLevel"] and found["normalizer"] == {"type": "NFC"}


def _special(run: Run) -> tuple[dict[str, str], dict[str, int | None], dict[str, list[int]]]:
    """Return the special tokens' names, their ids, and the ids that stop generation, if there are several.

    An imported model keeps its own special tokens, and may have none that begins a text. Otherwise the end-of-text
    token also begins every text, and serves as padding.

    **Raises:** `BadInput` if the run's record of them is damaged.
    """
    ends, entries = run.stops, run.tokenizer.get_vocab(with_added_tokens=True)
    named = {number: name for name, number in entries.items()}
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), named[end_of_text(run.tokenizer)])
    if run.start:
        special["bos_token"] = named[run.start[0]]
    kept = special_tokens(run.folder)
    if (run.folder / SPECIAL).is_file() and not (kept and entries.keys() >= {*kept.values()}):
        raise BadInput(f"file {str(run.folder / SPECIAL)!r} names no tokens of the run's tokenizer; it is damaged.")
    special |= kept
    if run.from_imported and "eos_token" in kept and "bos_token" not in kept and not run.start:
        del special["bos_token"]  # as for Qwen, which has none
    roles = ("bos_token", "eos_token", "pad_token")
    ids = {f"{role}_id": entries[special[role]] if role in special else None for role in roles}
    several = list(dict.fromkeys((entries[special["eos_token"]], *ends)))
    return special, ids, {"eos_token_id": several} if len(several) > 1 else {}


def _write_json(path: Path, values: Document) -> None:
    write_whole(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
