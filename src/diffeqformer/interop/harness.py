"""A run as a model of lm-evaluation-harness, under the name `diffeqformer`.

Importing this module registers it with the harness's own models. `python -m diffeqformer.interop.harness` is the
harness's own command, `lm_eval`, with this model available.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lm_eval.models  # noqa: F401  # pyright: ignore[reportMissingImports]
import numpy as np
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]

from diffeqformer.config.bounds import whole
from diffeqformer.data.tokenizer import decode, encode
from diffeqformer.errors import BadInput
from diffeqformer.interop.batches import AT_A_TIME, padded, read, token_scores, write
from diffeqformer.model.count import count
from diffeqformer.model.generate import require_choice
from diffeqformer.model.solving import with_scheme
from diffeqformer.model.transformer import Transformer
from diffeqformer.plain import Document, nearest, shown
from diffeqformer.progress import Progress, Silent
from diffeqformer.runs.opening import Run, Which, load_run
from diffeqformer.runs.sampling import started
from diffeqformer.store.digests import digest

os.environ.setdefault("DISABLE_MULTIPROC", "1")  # the harness's bootstrap would fork a process that has threads

BATCH_SIZE = 16
NEW_TOKENS = 256
"""New tokens for tasks that give no number, as in the harness's own classes."""
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names under which a task may give the number of new tokens."""
SETTINGS = (*LENGTHS, "until", "do_sample", "temperature", "top_k", "top_p", "num_beams")
"""Generation settings that are read."""


# The import of lm_eval.models above registers the harness's own models, which it does only while it knows none.
@register_model("diffeqformer")
class DiffEqFormerLM(TemplateLM):  # pyright: ignore[reportUntypedBaseClass]
    """A run's model at a fixed number of depth steps, with the interface of lm-evaluation-harness.

    Text is encoded as in training, without special tokens. If an imported model's tokenizer starts every text with a
    token, it is added, as in the harness's `hf` class. Requests are sorted by length and padded on the right, so that
    few shapes are compiled; rows do not see each other.

    **Arguments:** `run`, its folder, or a run opened by `load_run`; `steps`, the trained number if not given (an
    adaptive model also uses the fixed grid, since its own steps would depend on the batch); `scheme`, the name of
    another one; `checkpoint`, as for `load_run`; `batch_size`, sequences at one time, 16 for `auto`; `seed`, for tasks
    that sample; `progress`, for display. `device` and `max_batch_size` are ignored: the harness's command passes
    `cuda:0` by default, but JAX chooses the device (`JAX_PLATFORMS`).

    **Raises:** `BadInput` for options that the run does not support.
    """

    def __init__(
        self,
        run: str | Path | Run,
        steps: int | None = None,
        scheme: str | None = None,
        checkpoint: Which = "latest",
        batch_size: int | str | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        device: str | None = None,
        max_batch_size: int | None = None,
    ):
        super().__init__()
        self.batch_size = BATCH_SIZE if batch_size in (None, "auto") else _whole(batch_size)
        self.progress, self.seed = progress or Silent(), seed
        self.opened = run if isinstance(run, Run) else load_run(run, checkpoint, self.progress)
        model = self.opened.model if scheme is None else with_scheme(self.opened.model, scheme)
        self.model: Transformer = model.merge().populate(steps)
        self._ends, self._prompts, self._start = self.opened.stops, self.opened.prompts, self.opened.start

    # What the harness asks about a model.

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self._ends[0]

    @property
    def prefix_token_id(self) -> int:
        """The token placed before a text that has no context."""
        return self.opened.before

    @property
    def max_length(self) -> int:
        """Context length of the model, in tokens."""
        return self.model.config.context

    @property
    def max_gen_toks(self) -> int:
        """New tokens for tasks that give no number."""
        return NEW_TOKENS

    @property
    def tokenizer_name(self) -> str:
        """A name derived from the tokenizer's content, for the harness's cache of requests."""
        return "diffeqformer-" + digest(self.opened.tokenizer.to_str().encode())[:16]

    def get_model_info(self) -> Document:
        """Return the facts that the harness writes along with its results."""
        return {
            "model_num_parameters": count(self.model),
            "model_dtype": self.model.config.compute_dtype,
            "update": self.opened.step,
            "steps": self.model.config.steps,
            "scheme": self.model.config.scheme.kind,
        }

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Refuse chat templates: texts are evaluated as they are.

        **Raises:** `BadInput`, always.
        """
        raise BadInput(
            f"run {str(self.opened.folder)!r} is evaluated as a plain language model, without a chat template; leave "
            "it out."
        )

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the empty string, for no template; refuse if one is requested."""
        return self.apply_chat_template([]) if chat_template else ""

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Encode a text, with the token that starts every text if this model has one."""
        ids = encode(self._prompts, string)
        return ids if add_special_tokens is False else started(self._start, ids)

    # The three kinds of requests.

    def loglikelihood(self, requests: list, disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Compute `log p(continuation | context)` in nats, and whether greedy decoding would give the continuation."""
        for context, continuation in (request.args for request in requests):
            if not context:  # the harness would ask for the first token, of which there may be none
                _require_tokens(context, continuation, self.tok_encode(continuation, False))
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def loglikelihood_rolling(self, requests: list, disable_tqdm: bool = True) -> list[float]:
        """Compute `log p(text)` in nats; each token is predicted once, in pieces of the context's length."""
        texts = [request.args[0] for request in requests]
        scored = self._score([([self.prefix_token_id], self.tok_encode(text, False)) for text in texts])
        for text, (nats, _) in zip(texts, scored, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), nats)
        return [nats for nats, _ in scored]

    def generate_until(self, requests: list, disable_tqdm: bool = True) -> list[str]:
        """Continue each context up to the first stop string, the end-of-text token or the maximum of new tokens.

        **Raises:** `BadInput` for settings that cannot be carried out, before anything is generated.
        """
        prompts = [_Prompt(i, self.tok_encode(request.args[0]), request.args) for i, request in enumerate(requests)]
        vocabulary = self.model.embedding.tokens.shape[0]
        plans = [_plan(request.args[1], self.max_gen_toks, self.max_length, vocabulary) for request in requests]
        # Settings are constants of the compiled `write`, so requests are grouped by them.
        texts = [""] * len(requests)
        with self.progress.stage("Generating", len(requests)) as stage:
            for plan in dict.fromkeys(plans):
                chosen = [prompt for prompt, own in zip(prompts, plans, strict=True) if own == plan]
                for batch in _batches(chosen, lambda prompt: len(prompt.ids), self.batch_size):
                    for prompt, text in zip(batch, self._generate(batch, plan), strict=True):
                        texts[prompt.number] = text
                        self.cache_hook.add_partial("generate_until", prompt.arguments, text)
                    stage.advance(len(batch))
        return texts

    # How the requests are answered.

    def _loglikelihood_tokens(self, requests: list, **_: Any) -> list[tuple[float, bool]]:
        for (context, continuation), _, ids in requests:
            _require_tokens(context, continuation, ids)
        scored = self._score([(before or [self.prefix_token_id], ids) for _, before, ids in requests])
        for (request, _, _), answer in zip(requests, scored, strict=True):
            self.cache_hook.add_partial("loglikelihood", request, answer)
        return scored

    def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Compute each continuation's log-probability after its context, and whether it is the greedy continuation.

        A context that is too long loses its beginning. A continuation longer than the model's context is predicted in
        pieces of that length, each after one token of the text before it, the last after as many as fit.
        """
        pieces = [_Piece(i, *piece) for i, pair in enumerate(pairs) for piece in _windows(*pair, self.max_length)]
        nats, greedy = np.zeros(len(pairs)), np.ones(len(pairs), bool)
        with self.progress.stage("Scoring", len(pieces)) as stage:
            for batch in _batches(pieces, lambda piece: len(piece.inputs), self.batch_size):
                # Always a full batch, so that few shapes are compiled; the results of unused rows are ignored.
                shape = (self.batch_size, padded(len(batch[0].inputs), self.max_length))
                inputs, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
                for row, piece in enumerate(batch):
                    end = len(piece.inputs)
                    inputs[row, :end] = piece.inputs
                    targets[row, end - len(piece.targets) : end] = piece.targets
                scores, best = map(np.asarray, token_scores(self.model, jnp.asarray(inputs), jnp.asarray(targets)))
                for row, piece in enumerate(batch):
                    of_targets = slice(len(piece.inputs) - len(piece.targets), len(piece.inputs))
                    nats[piece.number] += scores[row, of_targets].sum(dtype=np.float64)
                    greedy[piece.number] &= best[row, of_targets].all()
                stage.advance(len(batch))
        return [(float(one), bool(other)) for one, other in zip(nats, greedy, strict=True)]

    def _generate(self, batch: list["_Prompt"], plan: "_Plan") -> list[str]:
        # As in the harness's own classes, a prompt that is too long loses its beginning.
        prompts = [(one.ids or [self.prefix_token_id])[-(self.max_length - plan.new_tokens) :] for one in batch]
        longest = padded(max(map(len, prompts)), self.max_length)
        ids, lengths = np.zeros((self.batch_size, longest), np.int32), np.ones(self.batch_size, np.int32)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)], lengths[row] = prompt, len(prompt)
        numbers = jnp.asarray([prompt.number for prompt in batch] + [0] * (self.batch_size - len(batch)))
        # Keys follow the request's number, so that a text does not depend on its batch.
        keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.key(self.seed), number))(numbers)
        # `write` always adds AT_A_TIME tokens, the last of which may not be needed.
        room = longest + -(-plan.new_tokens // AT_A_TIME) * AT_A_TIME
        state = read(self.model, jnp.asarray(ids), jnp.asarray(lengths), keys, room)
        drawn = np.zeros((self.batch_size, 0), np.int32)
        while True:
            state, more = write(self.model, state, plan.temperature, plan.top_k, plan.top_p)
            drawn = np.concatenate([drawn, np.asarray(more)], axis=1)[:, : plan.new_tokens]
            ended = [self._until(row, plan.until) for row in drawn[: len(prompts)]]
            if drawn.shape[1] == plan.new_tokens or all(whole for _, whole in ended):
                return [text for text, _ in ended]

    def _until(self, drawn: np.ndarray, stops: Sequence[str]) -> tuple[str, bool]:
        """Return the text before the first stop, and whether there was one."""
        tokenizer = self.opened.tokenizer
        added = tokenizer.get_added_tokens_decoder()
        # Decoding drops special tokens, so stops that are special tokens are looked for among the ids.
        special = [number for stop in stops if (number := tokenizer.token_to_id(stop)) in added]
        ends = np.flatnonzero(np.isin(drawn, [*self._ends, *special]))
        text = decode(tokenizer, drawn[: ends[0] if len(ends) else None].tolist())
        found = [place for place in map(text.find, stops) if place >= 0]
        return text[: min(found, default=None)], bool(found or len(ends))


class _Piece(NamedTuple):
    """A part of request `number`: inputs (position,), and the targets of the last inputs."""

    number: int
    inputs: list[int]
    targets: list[int]


class _Prompt(NamedTuple):
    number: int
    ids: list[int]
    arguments: tuple


class _Plan(NamedTuple):
    """How to generate."""

    new_tokens: int
    until: tuple[str, ...]
    temperature: float
    top_k: int | None
    top_p: float | None


def require_known(settings: Document) -> None:
    """Check the generation settings with which a user overrides a task's.

    **Raises:** `BadInput` for an unknown setting, naming the nearest known one, or for one without a value.
    """
    for name, value in settings.items():
        if name not in SETTINGS:
            advice = nearest(name, SETTINGS, f"there are {', '.join(SETTINGS)}.")
            raise BadInput(f"gen_kwargs has {shown(name)}, which is no setting of generation: {advice}")
        if value == "":
            raise BadInput(f"gen_kwargs has {name} without a value; write {name}=VALUE.")


def _plan(settings: Document, usual: int, context: int, vocabulary: int) -> _Plan:
    """Convert the harness's generation settings to ours.

    **Raises:** `BadInput` for new tokens that leave no room for a prompt, and for settings that are out of range or
    would be ignored.
    """
    if unread := next((name for name in settings if name not in SETTINGS), None):
        raise BadInput(f"the task's generation_kwargs have {unread}, but only {', '.join(SETTINGS)} are read here.")
    until = settings.get("until") or []
    name, given = next(((name, settings[name]) for name in LENGTHS if settings.get(name) is not None), ("", usual))
    new_tokens = whole(name, given)
    if not 1 <= new_tokens < context:
        raise BadInput(
            f"max_gen_toks is {new_tokens}, but must be at least 1 and below the model's context, {context}, "
            f"such as gen_kwargs max_gen_toks={max(1, min(32, context // 2))}."
        )
    if (beams := settings.get("num_beams") or 1) != 1:
        raise BadInput(f"num_beams is {beams}, but must be 1: text is drawn or greedy here, without a search by beams.")
    temperature = settings.get("temperature") or 0.0
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise BadInput(f"temperature is {shown(temperature)}, but must be a number.")
    if settings.get("do_sample") and not temperature > 0:
        raise BadInput("do_sample is True, but temperature is 0 or not given; give one above 0, or no do_sample.")
    temperature = float(temperature) if settings.get("do_sample", True) else 0.0
    top_k, top_p = settings.get("top_k") or None, settings.get("top_p")  # 0 is none, as in Transformers
    require_choice(vocabulary, temperature, top_k, top_p)
    stops = tuple(stop for stop in ([until] if isinstance(until, str) else until) if stop)
    return _Plan(new_tokens, stops, temperature, top_k, top_p)


def _require_tokens(context: str, continuation: str, ids: list[int]) -> None:
    if not ids:
        raise BadInput(
            f"the continuation {continuation!r} has no token of its own after {context[-40:]!r}, so it has no "
            "likelihood; the task must separate the two, by a space for instance."
        )


def _windows(context: list[int], continuation: list[int], room: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield inputs, at most `room` of them, and the continuation's tokens that the last inputs predict."""
    if len(continuation) <= room:
        if continuation:
            # Cut as in the harness's own classes: from the left, and without the last token, which is only predicted.
            yield (context + continuation)[-(room + 1) :][:-1], continuation
        return
    for window in get_rolling_token_windows(continuation, context[-1], room, 1):
        before, targets = make_disjoint_window(window)
        yield before + targets[:-1], targets


def _batches(items: Sequence[Any], length: Callable[[Any], int], size: int) -> Iterator[list[Any]]:
    """Yield batches, longest items first, so that lengths in a batch are similar and peak memory is needed first."""
    ordered = sorted(items, key=length, reverse=True)
    return (ordered[start : start + size] for start in range(0, len(ordered), size))


def _whole(batch_size: int | str | None) -> int:
    number = int(str(batch_size)) if str(batch_size).isdecimal() else 0
    if number < 1:
        raise BadInput(f"batch_size is {batch_size!r}, but must be a whole number of at least 1, or auto.")
    return number


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    cli_evaluate()
