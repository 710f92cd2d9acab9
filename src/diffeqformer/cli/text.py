"""The text that a run's model is evaluated on."""

from collections.abc import Sequence

import numpy as np

from diffeqformer.errors import BadInput
from diffeqformer.progress import Progress
from diffeqformer.runs.opening import Run


def evaluation_text(
    run: Run, data: Sequence[str], progress: Progress, advice: str = "name a text to evaluate on with --data"
) -> tuple[np.ndarray, int]:
    """The tokens of some files by the run's tokenizer; without files, of the run's own validation split.

    **Arguments:** `data`, paths or globs; `advice`, what else could be done if the run has no such split.

    **Returns:** tokens (tokens,), and the UTF-8 bytes of the text.

    **Raises:** `BadInput` for files that cannot be used, an imported model without files, or a run whose text has
    changed since.
    """
    from diffeqformer.data.cache import prepare, tokens_of
    from diffeqformer.data.tokenizer import load_tokenizer
    from diffeqformer.runs.folder import IMPORTED, TOKENIZER, require_same_text

    if data:
        return tokens_of(data, run.config.data, load_tokenizer(run.folder / TOKENIZER), progress)
    if (run.folder / IMPORTED).is_file():
        raise BadInput(
            f"run folder {str(run.folder)!r} holds an imported model, which has no text of its own; {advice}."
        )
    cached = prepare(run.config.data, progress, lambda tokens: require_same_text(run.folder, tokens, advice))
    return cached.validation, cached.validation_bytes
