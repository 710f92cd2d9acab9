"""Mixtures of sources, and instruction data of which completions alone count."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from diffeqformer.config import Config, DataConfig, validate
from diffeqformer.data.cache import prepare
from diffeqformer.data.loader import Loader
from diffeqformer.errors import BadInput
from diffeqformer.studies.inputs import evaluation_text


@pytest.fixture
def two(tmp_path, files_config):
    """A config with two sources of ten documents each; the second's have three times the text."""
    for name, words in (("a", "alpha "), ("b", "beta beta beta ")):
        for number in range(10):
            (tmp_path / f"{name}{number}.txt").write_text(words * 40 + f"{number}.\n")

    def make(**settings):
        return files_config(f"{tmp_path}/a*.txt", f"{tmp_path}/b*.txt", **settings)

    return make


def test_a_mixture_packs_its_sources_one_after_the_other_and_draws_them_by_weight(two, progress):
    tokens = prepare(two(weights=(3.0, 1.0)), progress)
    first, second = tokens.statistics["train_sources"]
    assert first + second == len(tokens.train) and first < second
    texts = [tokens.tokenizer.decode(part.tolist()) for part in np.split(tokens.train, [first])]
    assert "beta" not in texts[0] and "alpha" not in texts[1]
    loader = Loader(tokens.train, 8, 4, 0, mixture=[(first, 3.0), (second, 1.0)])
    text = [[tokens.tokenizer.decode(row.tolist()) for row in loader[k]] for k in range(50)]
    of_first = sum("al" in row or "pha" in row for batch in text for row in batch)
    assert abs(of_first - 150) <= 1
    assert np.array_equal(loader[37], Loader(tokens.train, 8, 4, 0, mixture=[(first, 3.0), (second, 1.0)])[37])
    assert not np.array_equal(loader[37], Loader(tokens.train, 8, 4, 1, mixture=[(first, 3.0), (second, 1.0)])[37])


def test_weights_alone_do_not_pack_again(two, progress):
    one, other = (prepare(two(weights=weights), progress) for weights in ((3.0, 1.0), (1.0, 1.0)))
    assert one.folder.name == other.folder.name != prepare(two(), progress).folder.name


def test_masks_go_with_their_tokens_in_a_mixture():
    tokens, mixture = np.arange(1000, dtype="<u2"), [(600, 1.0), (400, 2.0)]
    ids, mask = Loader(tokens, 7, 4, 3, tokens % 3 == 0, mixture)[11]
    assert np.array_equal(mask, ids[:, 1:] % 3 == 0)


def test_a_source_shorter_than_a_window_is_named():
    with pytest.raises(BadInput, match="source 2 of the mixture has 5 tokens, but a context of 7 needs at least 8"):
        Loader(np.arange(100, dtype="<u2"), 7, 1, 0, mixture=[(95, 1.0), (5, 1.0)])


def test_sources_of_a_single_document_need_a_validation_part(two, tmp_path, progress):
    config = DataConfig(**{**vars(two(weights=(1.0, 1.0))), "train": (f"{tmp_path}/a0.txt", f"{tmp_path}/b0.txt")})
    with pytest.raises(BadInput, match="each source of data.train is a single document, which is not split; give data"):
        prepare(config, progress)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"weights": (1.0,)}, r"data.weights is \[1.0\], but must have as many numbers as data.train has paths, 2."),
        ({"weights": (1.0, -1.0)}, "data.weights has -1.0, but must be a positive number"),
        ({"weights": (1e308, 1e308)}, "data.weights is .*, but must have a finite sum"),
    ],
)
def test_weights_that_do_not_fit_are_refused(two, settings, sentence):
    with pytest.raises(BadInput, match=sentence):
        validate(Config(data=two(**settings)))


def test_weights_and_targets_are_for_files():
    for data in (DataConfig(weights=(1.0,)), DataConfig(targets="completions")):
        with pytest.raises(BadInput, match=r"data\.(weights|targets).* is given, but data.source 'stdlib' does not"):
            validate(Config(data=data))


def test_a_file_in_two_sources_is_refused(two, tmp_path, progress):
    config = two(weights=(1.0, 1.0))
    with pytest.raises(BadInput, match=r"a0.txt' is in two of data.train"):
        prepare(DataConfig(**{**vars(config), "train": (f"{tmp_path}/a*.txt", f"{tmp_path}/*0.txt")}), progress)


def of_lines(tmp_path, files_config, records, **settings):
    (tmp_path / "turns.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return files_config(f"{tmp_path}/turns.jsonl", targets="completions", **settings)


def said_and_counted(tokens):
    """What counts as a target, and all, as text."""
    decode = lambda ids: tokens.tokenizer.decode(ids.tolist(), skip_special_tokens=False)
    return decode(tokens.train[tokens.train_mask]), decode(tokens.train)


def test_of_prompts_and_completions_the_completions_count(tmp_path, files_config, progress):
    records = [{"prompt": f"What is {n}?", "completion": f" It is {n}."} for n in range(40)]
    config = of_lines(tmp_path, files_config, records)
    tokens = prepare(config, progress)
    counted, whole = said_and_counted(tokens)
    turns = counted.split("<|endoftext|>")[:-1]  # which counts too: a completion learns to end
    assert len(turns) == tokens.statistics["train_documents"] and all(turn.startswith(" It is ") for turn in turns)
    assert "What" not in counted and whole.count("What is ") == len(turns)
    assert tokens.validation_bytes is None and tokens.statistics["train_targets"] == tokens.train_mask.sum()
    run = SimpleNamespace(config=Config(data=config), folder=tokens.folder)
    ids, size, mask = evaluation_text(run, config.train, progress)  # of eval's --data as well
    both = tokens.train.size + tokens.validation.size, tokens.train_mask.sum() + tokens.validation_mask.sum()
    assert (ids.size, mask.sum()) == both and mask.shape == ids.shape and size is None
    (tmp_path / "plain.txt").write_text("It is.\n")
    _, size, mask = evaluation_text(run, (str(tmp_path / "plain.txt"),), progress)
    assert size == 7 and mask is None


def test_of_messages_what_the_assistant_says_counts(tmp_path, files_config, progress):
    messages = lambda n: [
        {"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"Here: {n}"},
        {"role": "user", "content": "Again."}, {"role": "assistant", "content": f"There: {n}"},
    ]  # fmt: skip
    tokens = prepare(of_lines(tmp_path, files_config, [{"messages": messages(n)} for n in range(20)]), progress)
    counted, whole = said_and_counted(tokens)
    first = whole.split("<|endoftext|>")[0]
    number = first.split()[2].strip(".")
    assert (
        first
        == f"user:\nSay {number}.\n\nassistant:\nHere: {number}\n\nuser:\nAgain.\n\nassistant:\nThere: {number}\n\n"
    )
    assert counted.startswith(f"Here: {number}\n\nThere: {number}\n\n<|endoftext|>Here: ")


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"text": "hello"}, "line 1 of .* has neither 'prompt' and 'completion' nor 'messages'"),
        ([1], "line 1 of .* has neither"),
        ({"messages": ["hello"]}, "message 1 of line 1 of .* is 'hello', but must be an object"),
        ({"messages": [{"role": "user"}]}, "message 1 of line 1 of .* has no field 'content'"),
        ({"prompt": 3, "completion": "x"}, "field 'prompt' in line 1 of .* is 3, but must be text"),
        ({"prompt": "a", "completion": "b"}, "is a single conversation, which is not split; give data.validation"),
    ],
)
def test_lines_that_are_no_conversation_are_named(tmp_path, files_config, progress, record, sentence):
    with pytest.raises(BadInput, match=sentence):
        prepare(of_lines(tmp_path, files_config, [record]), progress)


def test_completions_need_json_lines(tmp_path, files_config, progress):
    (tmp_path / "plain.txt").write_text("hello\n")
    with pytest.raises(BadInput, match=r"plain.txt' is no .jsonl, which data.targets 'completions' is read from"):
        prepare(files_config(f"{tmp_path}/plain.txt", targets="completions"), progress)


def test_conversations_without_a_completion_are_refused(tmp_path, files_config, progress):
    records = [{"prompt": f"What is {n}?", "completion": ""} for n in range(40)]
    config = of_lines(tmp_path, files_config, records)
    tokens = prepare(config, progress)
    assert said_and_counted(tokens)[0].replace("<|endoftext|>", "") == ""  # that a text ends is learned


@pytest.mark.parametrize("mixture", [[], [(8, 1.0), (16, 1.0)]])
def test_documents_kept_apart_have_windows_of_their_own(mixture):
    tokens = np.array([5, 6, 7, 8, 9, 0, 0, 0, 11, 12, 13, 0, 21, 22, 23, 24, 25, 26, 27, 28, 29, 0, 0, 0], "<u2")
    loader = Loader(tokens, 4, 2, 0, mixture=mixture, end=0)
    batches = [loader[k] for k in range(3 * len(loader))]  # a mixture does not read its sources equally often
    ids, mask = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    assert ids.shape == (6 * len(loader), 5) and mask.shape == (6 * len(loader), 4) and loader.masks
    found = {tuple(row[: 1 + counts.sum()].tolist()) for row, counts in zip(ids, mask, strict=True)}
    windows = {(5, 6, 7, 8, 9), (9, 0), (11, 12, 13, 0), (21, 22, 23, 24, 25), (25, 26, 27, 28, 29), (29, 0)}
    assert found == windows and not any((~counts[: counts.sum()]).any() for counts in mask)
    assert np.array_equal(Loader(tokens, 4, 2, 0, mixture=mixture, end=0)[7][0], loader[7][0])


def test_masks_hold_within_documents_too():
    tokens = np.array([5, 6, 7, 0, 8, 9, 0], "<u2")
    ids, mask = Loader(tokens, 4, 2, 0, tokens % 2 == 1, end=0)[0]
    rows = {tuple(row.tolist()): counts.tolist() for row, counts in zip(ids, mask, strict=True)}
    assert rows == {(5, 6, 7, 0, 0): [False, True, False, False], (8, 9, 0, 0, 0): [True, False, False, False]}


def test_documents_that_are_all_empty_are_refused():
    with pytest.raises(BadInput, match="the training split has 9 tokens, but no document of two"):
        Loader(np.zeros(9, "<u2"), 4, 2, 0, end=0)
