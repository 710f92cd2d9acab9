"""Continuations are what follows the prompt, read by the model as it was trained to."""

import dataclasses
import json

import jax.numpy as jnp
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from diffeqformer.config import BaseConfig, Config, ModelConfig, TrainerConfig
from diffeqformer.data.beside import SPECIAL
from diffeqformer.data.tokenizer import encode, plain_text
from diffeqformer.errors import BadInput
from diffeqformer.runs import sampling
from diffeqformer.runs.sampling import continue_text
from diffeqformer.runs.trainer import samples_of
from tests.interop.runs import run_of
from tests.models import TINY, model_of

WORDS = ["</s>", "<s>", "\u2581a", "\u2581Pa", "\u2581b", "rt"]


@pytest.fixture
def tokenizer() -> Tokenizer:
    """As a Llama's: a text begins with a space that decoding takes away, and with a token of its own."""
    made = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="</s>"))
    made.add_special_tokens(["</s>", "<s>"])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def test_the_space_between_prompt_and_text_stays(tokenizer):
    assert tokenizer.decode([3]) == "Pa"
    drawn = jnp.asarray([[3, 4, 0, 2], [5, 3, 0, 0]])
    assert sampling._texts(tokenizer, "a", drawn, []) == [" Pa b", "rt Pa"]


def test_text_ends_where_a_turn_does(tokenizer):
    tokenizer.add_special_tokens(["<|im_end|>"])
    assert sampling._texts(tokenizer, "a", jnp.asarray([[3, 6, 4], [3, 4, 0]]), []) == [" Pa", " Pa b"]


def test_a_models_files_declare_where_text_begins_and_ends(tokenizer, tmp_path):
    run = dataclasses.replace(run_of("vanilla", tmp_path), tokenizer=tokenizer)
    imported = dataclasses.replace(run, origin="imported")
    assert (run.stops, run.before, imported.before) == ([0], 0, 1)
    tokenizer.post_processor = processors.Sequence([])
    assert (imported.start, imported.before) == ([], 0)
    (tmp_path / SPECIAL).write_text(json.dumps({"eos_token": "rt", "bos_token": "\u2581b"}))
    assert (run.stops, run.before, imported.before) == ([5, 0], 0, 4)
    (tmp_path / SPECIAL).write_text(json.dumps({"eos_token": "rt", "bos_token": "nothing"}))
    assert (run.stops, run.before, imported.before) == ([5, 0], 0, 5)
    drawn = jnp.asarray([[3, 4, 5, 2]])
    assert sampling._texts(tokenizer, "a", drawn, imported.stops) == [" Pa b"]


@pytest.mark.parametrize(
    ("base", "start"), [(BaseConfig(), []), (BaseConfig("base", imported=False), []), (BaseConfig("base"), [1])]
)
def test_prompts_during_training_begin_as_the_imported_models_texts(tokenizer, base, start):
    config = Config(base=base, model=ModelConfig(context=3), trainer=TrainerConfig(samples=("a b",)))
    if start:
        with pytest.raises(BadInput, match="'a b', of 2 tokens, but must have between 1 and 1"):
            samples_of(config, tokenizer)
        config = dataclasses.replace(config, model=ModelConfig(context=4))
    assert samples_of(config, tokenizer).start == start


def test_prompts_and_texts_during_training_have_the_special_tokens_of_the_imported_model(tokenizer, tmp_path):
    config = Config(base=BaseConfig("base"), model=ModelConfig(context=4), trainer=TrainerConfig(samples=("a b",)))
    (tmp_path / SPECIAL).write_text(json.dumps({"eos_token": "rt"}))
    samples = samples_of(config, plain_text(tokenizer), tmp_path)
    assert encode(samples.tokenizer, "<s>") == [1]
    assert sampling._texts(samples.tokenizer, "a", jnp.asarray([[3, 4, 5, 2]]), samples.stops) == [" Pa b"]


def test_a_start_stands_before_the_prompt_and_takes_room(tokenizer, monkeypatch):
    seen = []
    monkeypatch.setattr(sampling, "generate", lambda model, ids, new, **how: seen.append((ids, new)) or ids)
    model = model_of(TINY)
    continue_text(model, tokenizer, "a b", start=[1])
    continue_text(model, tokenizer, "a b")
    assert [(ids.tolist(), new) for ids, new in seen] == [([[1, 2, 4]], 9), ([[2, 4]], 10)]
    with pytest.raises(BadInput, match="the prompt has 12 tokens, which leaves no room"):
        continue_text(model, tokenizer, " ".join("a" * 11), start=[1])
