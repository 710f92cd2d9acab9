"""The harness's three requests, beside what the model's own logits give by hand."""

# ruff: noqa: E402 - imports stand behind the check that lm_eval is there

import dataclasses
import json
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import processors

from diffeqformer.config import ModelConfig
from diffeqformer.data.tokenizer import train_tokenizer
from diffeqformer.errors import BadInput
from diffeqformer.model.generate import generate
from diffeqformer.model.loss import loss_sum
from tests.interop.folders import WORDS, word_tokenizer
from tests.interop.runs import run_of
from tests.models import KINDS, TINY, logits
from tests.tolerances import nats

pytestmark = pytest.mark.harness
pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from diffeqformer.interop.harness import DiffEqFormerLM

VOCABULARY = len(WORDS) + 2
CONTEXT = 12
SMALL = dataclasses.replace(KINDS["vanilla"], vocabulary=VOCABULARY)


@pytest.fixture(scope="module", autouse=True)
def compiled(compile_once):
    """The same small models, again and again."""


def small_run(model: ModelConfig = SMALL, **others):
    return dataclasses.replace(run_of(model), **others)


def asked(kind: str, *arguments: tuple) -> list[Instance]:
    return [Instance(kind, {}, arguments_, i) for i, arguments_ in enumerate(arguments)]


def words(number: int, seed: int = 0) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, number))


def log_probabilities(run, ids: list[int]) -> np.ndarray:
    """Of every next token, in float64; the model runs on 12 tokens so that it is compiled once."""
    padded = jnp.asarray([ids + [0] * (CONTEXT - len(ids))])
    z = np.asarray(logits(run.model, padded), np.float64)[0, : len(ids)]
    return z - np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True)) - z.max(-1, keepdims=True)


def by_hand(run, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    ids = (context + continuation)[-CONTEXT - 1 :]
    found = log_probabilities(run, ids[:-1])[-len(continuation) :]
    greedy = found.argmax(-1).tolist() == continuation
    return float(found[np.arange(len(continuation)), continuation].sum()), greedy


def greedy_words(run, context: list[int], number: int) -> list[int]:
    ids = list(context)
    for _ in range(number):
        ids.append(int(log_probabilities(run, ids[-CONTEXT:])[-1].argmax()))
    return ids[len(context) :]


@pytest.mark.parametrize("kind", ["diffeqformer", "vanilla llama, grouped queries"])
def test_loglikelihood_is_the_sum_of_log_probabilities(kind):
    """Whatever the batch, with contexts of 1 to 20 tokens, the longest cut on the left, and without a context."""
    run = small_run(dataclasses.replace(KINDS[kind], vocabulary=VOCABULARY))
    ids = lambda text: run.tokenizer.encode(text).ids
    pairs = [(words(n, n), f" {words(1 + n % 4, n + 50)}") for n in (1, 2, 5, 8, 9, 11, 12, 13, 20)]
    likely = {text: greedy_words(run, ids(text), 2) for text in (words(3, n) for n in range(30))}
    context, drawn = next(
        (text, drawn) for text, drawn in likely.items() if min(drawn) > 1
    )  # words that can be written
    pairs += [(context, f" {run.tokenizer.decode(drawn)}"), ("", "the cat"), ("", "songs")]
    expected = [by_hand(run, ids(context) or [0], ids(continuation)) for context, continuation in pairs]
    assert expected[9][1] and not all(greedy for _, greedy in expected)
    for batch_size in (1, 5, 16):
        found = DiffEqFormerLM(run, batch_size=batch_size).loglikelihood(asked("loglikelihood", *pairs))
        np.testing.assert_allclose([one for one, _ in found], [one for one, _ in expected], atol=nats(4))
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]


def test_greedy_only_if_every_token_is_the_most_likely():
    run = small_run()
    context = run.tokenizer.encode("a dog likes").ids
    first, second = greedy_words(run, context, 2)
    other = next(i for i in range(2, VOCABULARY) if i != second)
    model = DiffEqFormerLM(run)
    score = lambda ids: model._loglikelihood_tokens([(("", "x"), context, ids)])[0][1]
    assert score([first]) and score([first, second]) and not score([first, other])


def test_steps_and_scheme():
    run = small_run(dataclasses.replace(TINY, vocabulary=VOCABULARY))
    ids = run.tokenizer.encode("the cat sees a dog").ids
    (request,) = asked("loglikelihood", ("the cat sees", " a dog"))
    found = DiffEqFormerLM(run, steps=5).loglikelihood([request])[0][0]
    z = jax.nn.log_softmax(logits(run.model, jnp.asarray([ids]), steps=5)[0])
    assert found == pytest.approx(float(z[2, ids[3]] + z[3, ids[4]]), abs=nats(2))
    assert DiffEqFormerLM(run, scheme="heun").loglikelihood([request])[0][0] != pytest.approx(found, abs=1e-3)
    with pytest.raises(BadInput, match="steps is 0"):
        DiffEqFormerLM(run, steps=0)


def test_a_space_belongs_to_the_word_behind_it():
    """Wherever the task has put it: a byte-level tokenizer has " sees" as one piece."""
    text = "the cat sees a dog. the dog sees a cat. " * 20
    tokenizer = train_tokenizer([text], 280)
    run = small_run(dataclasses.replace(SMALL, vocabulary=280), tokenizer=tokenizer)
    model = DiffEqFormerLM(run)
    in_front, behind = model.loglikelihood(asked("loglikelihood", ("the cat", " sees a"), ("the cat ", "sees a")))
    context, whole = tokenizer.encode("the cat").ids, tokenizer.encode("the cat sees a").ids
    assert whole[: len(context)] == context
    assert in_front == behind
    assert in_front[0] == pytest.approx(by_hand(run, context, whole[len(context) :])[0], abs=nats(2))
    with pytest.raises(BadInput, match="the continuation '' has no token of its own after 'the cat'"):
        model.loglikelihood(asked("loglikelihood", ("the cat", "")))
    with pytest.raises(BadInput, match="the continuation '' has no token of its own after '', so it has no likelihood"):
        model.loglikelihood(asked("loglikelihood", ("", "")))


def test_rolling_is_the_loss_of_every_token():
    run = small_run()
    short, long = words(CONTEXT, 3), words(31, 4)
    found = DiffEqFormerLM(run, batch_size=2).loglikelihood_rolling(
        asked("loglikelihood_rolling", (short,), (long,), ("",))
    )
    ids = jnp.asarray([[0, *run.tokenizer.encode(short).ids]])
    assert found[0] == pytest.approx(-float(jax.jit(loss_sum)(run.model, ids).nats), abs=nats(CONTEXT))
    ids, expected = run.tokenizer.encode(long).ids, 0.0
    expected += by_hand(run, [0], ids[:12])[0]  # one token of context, which is end of text
    expected += by_hand(run, ids[11:12], ids[12:24])[0]
    expected += by_hand(run, ids[18:24], ids[24:])[0]  # a whole context for the rest
    assert found[1] == pytest.approx(expected, abs=nats(31))
    assert found[2] == 0


def test_a_continuation_longer_than_the_context_is_scored_in_pieces():
    run = small_run()
    context, continuation = words(3, 1), words(20, 2)
    before, ids = (run.tokenizer.encode(text).ids for text in (context, continuation))
    expected = by_hand(run, before[-1:], ids[:12])[0] + by_hand(run, ids[7:12], ids[12:])[0]
    found = DiffEqFormerLM(run).loglikelihood(asked("loglikelihood", (context, f" {continuation}")))
    assert found[0][0] == pytest.approx(expected, abs=nats(20))


@pytest.mark.parametrize("kind", ["diffeqformer", "vanilla llama, grouped queries"])
def test_generation_is_our_own_greedy_sampling(kind):
    """Prompts of several lengths in one batch, the longest cut on the left."""
    run = small_run(dataclasses.replace(KINDS[kind], vocabulary=VOCABULARY))
    prompts = [words(n, n) for n in (1, 3, 7, 8, 20)] + [""]
    plan = {"until": ["."], "max_gen_toks": 4}
    found = DiffEqFormerLM(run, batch_size=4).generate_until(asked("generate_until", *((p, plan) for p in prompts)))
    for prompt, text in zip(prompts, found, strict=True):
        ids = run.tokenizer.encode(prompt).ids[-8:] or [0]
        drawn = generate(run.model, jnp.asarray([ids]), 4, key=jax.random.key(0), temperature=0.0)[0].tolist()
        assert text == run.tokenizer.decode(drawn[: drawn.index(0) if 0 in drawn else None]), prompt


def test_generation_stops():
    """At the first of the stop strings, and at the end of text."""
    run = small_run()
    likely = {
        prompt: greedy_words(run, run.tokenizer.encode(prompt).ids, 6) for prompt in (words(2, n) for n in range(30))
    }
    prompt, drawn = next((p, drawn) for p, drawn in likely.items() if min(drawn) > 1 and len(set(drawn)) > 2)
    text = run.tokenizer.decode(drawn)
    parts = text.split()
    stop = next(part for part in parts if part != parts[0])
    model = DiffEqFormerLM(run)
    answer = lambda model, **plan: model.generate_until(asked("generate_until", (prompt, plan)))[0]
    assert answer(model, max_new_tokens=6) == text
    assert answer(model, until=stop, max_gen_toks=6) == text[: text.index(stop)]
    assert answer(model, until=["no such", stop, parts[-1]], max_gen_toks=6) == text[: text.index(stop)]
    model._ends = [run.tokenizer.token_to_id(stop)]
    assert answer(model, max_gen_toks=6) == text[: text.index(stop)].rstrip()


def test_a_sample_does_not_depend_on_the_batch():
    prompts = [words(n, n) for n in (2, 6, 4)]
    plan = {"until": [], "max_gen_toks": 5, "do_sample": True, "temperature": 2.0, "top_k": 9}
    answer = lambda size, seed: DiffEqFormerLM(small_run(), batch_size=size, seed=seed).generate_until(
        asked("generate_until", *((prompt, plan) for prompt in prompts))
    )
    assert answer(1, 0) == answer(4, 0) != answer(4, 1)


def test_an_imported_tokenizer_that_starts_every_text_does_so_here(tmp_path):
    """As the `hf` class has it; a run that was trained here has seen no such token."""
    tokenizer = word_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 1)])
    run = small_run(folder=tmp_path, tokenizer=tokenizer)
    (request,) = asked("loglikelihood", ("the cat", " sees"))
    the, cat, sees = (tokenizer.token_to_id(word) for word in ("the", "cat", "sees"))
    trained = DiffEqFormerLM(run).loglikelihood([request])[0][0]
    imported = DiffEqFormerLM(dataclasses.replace(run, origin="imported"))
    assert trained == pytest.approx(by_hand(run, [the, cat], [sees])[0], abs=nats(2))
    assert imported.loglikelihood([request])[0][0] == pytest.approx(by_hand(run, [1, the, cat], [sees])[0], abs=nats(2))
    assert imported.loglikelihood_rolling(asked("loglikelihood_rolling", ("the cat",)))[0] == pytest.approx(
        by_hand(run, [1], [the, cat])[0], abs=nats(2)
    )


def test_a_text_that_begins_with_the_token_that_starts_all_has_it_once(tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens(["<s>"])
    start = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    imported = DiffEqFormerLM(dataclasses.replace(small_run(folder=tmp_path, tokenizer=tokenizer), origin="imported"))
    the, cat = (tokenizer.token_to_id(word) for word in ("the", "cat"))
    assert imported.tok_encode("<s> the cat") == imported.tok_encode("the cat") == [start, the, cat]


def test_a_stop_that_is_a_special_token_ends_a_text():
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens(["<stop>"])
    the, stop, cat = (tokenizer.token_to_id(word) for word in ("the", "<stop>", "cat"))
    model = DiffEqFormerLM(small_run(tokenizer=tokenizer))
    assert model._until(np.array([the, stop, cat]), ["<stop>"]) == ("the", True)
    assert model._until(np.array([the, stop, cat]), ["nowhere"]) == ("the cat", False)


def test_after_nothing_a_text_follows_the_end_of_another():
    """Spaces of a context belong to the continuation, so that one of spaces alone leaves none."""
    run = small_run()
    the, cat = (run.tokenizer.token_to_id(word) for word in ("the", "cat"))
    found = DiffEqFormerLM(run).loglikelihood(asked("loglikelihood", (" ", "the"), (" ", "the cat")))
    end = DiffEqFormerLM(run).prefix_token_id
    assert [nats for nats, _ in found] == pytest.approx(
        [by_hand(run, [end], ids)[0] for ids in ([the], [the, cat])], abs=nats(2)
    )


def test_before_nothing_stands_what_an_imported_models_files_declare(tmp_path):
    """As in the `hf` class: the token that begins a text, or else the one that ends it."""
    run, first = small_run(folder=tmp_path), asked("loglikelihood", ("", "the"))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "cat", "bos_token": "sees"}))
    the, cat, sees = (run.tokenizer.token_to_id(word) for word in ("the", "cat", "sees"))
    imported = dataclasses.replace(run, origin="imported")
    assert DiffEqFormerLM(imported).loglikelihood(first)[0][0] == pytest.approx(
        by_hand(run, [sees], [the])[0], abs=nats(2)
    )
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "cat"}))
    assert DiffEqFormerLM(imported).prefix_token_id == DiffEqFormerLM(imported).eot_token_id == cat
    assert DiffEqFormerLM(run).prefix_token_id == 0


MODELS = """
import warnings
warnings.simplefilter("error", RuntimeWarning)  # JAX's about os.fork()
from diffeqformer.interop.harness import DiffEqFormerLM
from lm_eval.api.metrics import bootstrap_stderr
from lm_eval.api.registry import MODEL_REGISTRY, get_model
import jax, numpy
from lm_eval.models import MODEL_MAPPING
assert get_model("diffeqformer") is DiffEqFormerLM
assert MODEL_MAPPING.keys() <= set(MODEL_REGISTRY.keys())
jax.block_until_ready(jax.numpy.ones(2) + 1)
bootstrap_stderr(numpy.mean, [0.0, 1.0, 1.0], iters=10)
print(get_model("dummy").__name__)
"""


def test_the_harnesss_own_models_stay_registered():
    """In a fresh process, where nothing has registered them before; and no process that runs JAX is forked."""
    done = subprocess.run([sys.executable, "-c", MODELS], check=False, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "DummyLM", done.stderr
    assert "fork" not in done.stderr


def test_what_it_is_and_what_it_refuses():
    run = small_run()
    model = DiffEqFormerLM(run)
    assert get_model("diffeqformer") is DiffEqFormerLM
    assert (model.rank, model.world_size, model.max_length, model.eot_token_id) == (0, 1, CONTEXT, 0)
    assert model.tokenizer_name == DiffEqFormerLM(small_run(), steps=3).tokenizer_name
    other = small_run(tokenizer=train_tokenizer(["a b"], 260))
    assert model.tokenizer_name != DiffEqFormerLM(other).tokenizer_name
    ask = partial(asked, "generate_until")
    for call, message in [
        (lambda: model.apply_chat_template([]), "without a chat template"),
        (lambda: model.chat_template(True), "without a chat template"),
        (lambda: DiffEqFormerLM(run, batch_size=0), "batch_size is 0, but must be"),
        (lambda: DiffEqFormerLM(run, batch_size="auto:4"), "batch_size is 'auto:4', but must be"),
        (lambda: model.generate_until(ask(("the", {}))), "max_gen_toks is 256, but must be .* context, 12"),
        *(
            (lambda settings=settings: model.generate_until(ask(("the", {"max_gen_toks": 4, **settings}))), message)
            for settings, message in (
                ({"temperature": -1.0}, "temperature is -1.0, but must be 0 or a positive number"),
                ({"temperature": 1.0, "top_k": 10**6}, "top-k is 1000000, but must be between 1 and"),
                ({"temperature": 1.0, "top_p": 0.0}, "top-p is 0.0, but must be above 0"),
                ({"num_beams": 4}, "num_beams is 4, but must be 1"),
                ({"do_sample": True}, "do_sample is True, but temperature is 0 or not given"),
                ({"repetition_penalty": 1.2}, "the task's generation_kwargs have repetition_penalty, but only"),
            )
        ),
    ]:
        with pytest.raises(BadInput, match=message):
            call()
    assert model.chat_template() == ""
