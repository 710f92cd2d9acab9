"""Import of a Hugging Face folder as a run folder, which is written completely or not at all."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from diffeqformer.config import Config, DataConfig, OptimizerConfig
from diffeqformer.data.beside import GENERATION, SPECIAL, TEMPLATE, beside_tokenizer
from diffeqformer.data.tokenizer import decode, end_of_text, leading, vocabulary_size, without_special
from diffeqformer.data.tokenizer_files import load_tokenizer
from diffeqformer.errors import BadInput
from diffeqformer.interop.huggingface import CONFIG, Published, open_huggingface
from diffeqformer.interop.peft import load_adapter
from diffeqformer.interop.tensors import INDEX
from diffeqformer.model.count import parameters
from diffeqformer.model.transformer import Transformer
from diffeqformer.plain import shown
from diffeqformer.progress import Progress, Silent
from diffeqformer.runs import folder as run_folder
from diffeqformer.runs.opening import Run, load_run
from diffeqformer.store.folders import SUMS, becoming, require_free, require_space
from diffeqformer.store.hub import TOKENIZER_FILES, Repository, fetch
from diffeqformer.store.paths import path_of

SENTENCEPIECE = "tokenizer.model"
MODEL_FILES = (CONFIG, GENERATION, SUMS, SENTENCEPIECE, "model*.safetensors", INDEX, run_folder.CONFIG)
"""Files fetched from the hub; the last one marks a repository as a run."""
RUN_FILES = (
    run_folder.CONFIG, run_folder.TOKENIZER, TEMPLATE, SPECIAL, run_folder.DATA, run_folder.IMPORTED,
    run_folder.METRICS, run_folder.RESULTS, f"{run_folder.CHECKPOINTS}/*",
)  # fmt: skip
LEARNING_RATE = 1e-4
"""Learning rate that fine-tuning starts from, as the model's own is unknown: cautious at GPT-2's size."""


def import_huggingface(
    folder: str | Path,
    run: str | Path,
    progress: Progress | None = None,
    adapter: str | Path | None = None,
    context: int | None = None,
) -> Run:
    """Make a run from the model and the tokenizer in a Hugging Face folder; `load_run` opens it later.

    **Arguments:** `folder`, as for `from_huggingface`, with a tokenizer that `load_tokenizer` can load; or the name of
    such a repository on the hub, or of a run there, which is copied; `run`, the new run's folder, which must be empty
    or not exist; `adapter`, a folder of PEFT's low-rank adapters to add to the model; `context`, the maximum sequence
    length in tokens, at most the model's own.

    **Returns:** the run, at update 0 unless a run was copied.

    **Raises:** `BadInput` for anything that makes the import impossible; nothing has been written then.
    """
    progress, run = progress or Silent(), path_of(run)
    require_free(run)
    repository = Repository.named(folder)
    if repository is not None:
        folder = fetch(repository, (*MODEL_FILES, *TOKENIZER_FILES))
        if (folder / run_folder.CONFIG).is_file() and not (folder / CONFIG).is_file():
            for name, given in (("adapter", adapter), ("context", context)):
                if given is not None:
                    raise BadInput(f"{name} is {given!r}, but {repository.name} is a run, which is copied as it is.")
            return _copied(fetch(repository, RUN_FILES), run)
    published = open_huggingface(folder)
    tokenizer, own = _tokenizer_of(published, progress), published.config.context
    if context is not None and not 1 <= context <= own:
        raise BadInput(f"context is {context}, but must be between 1 and {own}, that of the model.")
    data = DataConfig(tokenizer=str(run / run_folder.TOKENIZER))
    with becoming(run, "run folder", "importing", keep_lock=True) as aside:
        require_space(aside, 4 * parameters(published.config).stored, "the run")
        model = published.read(progress)
        model = model if adapter is None else load_adapter(model, adapter)
        model = model if context is None else _with_context(model, context)
        config = Config(run=str(run), model=model.config, data=data, optimizer=OptimizerConfig(LEARNING_RATE))
        with progress.stage("Writing the run", 1) as stage:
            origin = {"folder": str(published.folder), "model_type": published.model_type}
            origin |= {} if adapter is None else {"adapter": str(adapter)}
            origin |= {"hub": repository.name} if repository else {}
            more = {run_folder.IMPORTED: json.dumps(origin, indent=1) + "\n"}
            run_folder.write_model(
                aside, config, tokenizer, model, None, more | beside_tokenizer(published.folder, tokenizer)
            )
            stage.advance(1)
    return Run(run, config, tokenizer, model, 0, "imported")


def _with_context(model: Transformer, context: int) -> Transformer:
    """Return the model with a shorter context, and its learned positions cut to match."""
    own, positions = model.embedding, model.embedding.positions
    embedding = replace(own, positions=None if positions is None else positions[:context])
    return model.replace(embedding=embedding, config=replace(model.config, context=context))


def _copied(folder: Path, run: Path) -> Run:
    """Copy a run from the hub's cache, where files are links, as regular files."""
    with becoming(run, "run folder", "importing", keep_lock=True) as aside:
        require_space(aside, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()), "the run")
        shutil.copytree(folder, aside, dirs_exist_ok=True)
        load_run(aside)
    return load_run(run)


def _tokenizer_of(published: Published, progress: Progress) -> Tokenizer:
    """Load the tokenizer from the model's folder, check that it fits, and drop special tokens that have no embedding,
    such as one for padding that was never trained."""
    folder = published.folder
    if (folder / SENTENCEPIECE).is_file() and not (folder / run_folder.TOKENIZER).is_file():
        raise BadInput(
            f"folder {str(folder)!r} has its tokenizer in {SENTENCEPIECE} only, which is not read; AutoTokenizer"
            f".from_pretrained(FOLDER).save_pretrained(FOLDER) of Transformers writes {run_folder.TOKENIZER}."
        )
    tokenizer = load_tokenizer(folder)
    end_of_text(tokenizer)
    # Called for their checks: what uses the run would fail otherwise, after its work.
    decode(tokenizer, [*tokenizer.get_vocab().values()])
    leading(tokenizer)
    entries, vocabulary = vocabulary_size(tokenizer), published.config.vocabulary or 0
    tokenizer, left = without_special(tokenizer, vocabulary)
    if vocabulary_size(tokenizer) > vocabulary:
        raise BadInput(
            f"the tokenizer in {str(folder)!r} has {entries} entries, but the model's embedding only {vocabulary}; "
            "put the tokenizer there that the model was trained with."
        )
    if left:
        names = ", ".join(shown(name) for name in left)
        progress.say(f"Left out of the tokenizer, beyond the {vocabulary:,} entries of the model's embedding: {names}")
    return tokenizer
