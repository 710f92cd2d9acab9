"""Streams: the windows of packed tokens, without packing; batch k from k, or from a place that was kept."""

import json
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest

from diffeqformer.config import DataConfig
from diffeqformer.data import encode
from diffeqformer.data.cache import cached_by_content, prepare
from diffeqformer.data.corpus import _texts
from diffeqformer.data.documents import Given
from diffeqformer.data.loader import document_windows, packed_windows
from diffeqformer.data.stream import Source, Stream
from diffeqformer.data.tokenizer import end_of_text, train_tokenizer
from diffeqformer.errors import BadInput, RunFailed

WORDS = ["the", "cat", "sees", "a", "river", "of", "stars\n", "and", "songs"]


def texts(seed: int, count: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(1, 40))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(texts(0, 50), 280)


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    """Documents are tokenised in several pieces, and read ahead."""
    monkeypatch.setattr(encode, "PIECE_CHARACTERS", 20)
    monkeypatch.setattr(encode, "BATCH_CHARACTERS", 300)


def source(parts: list[list[str]], opened: list[int] | None = None, name: str = "it") -> Source:
    def shard(number: int):
        if opened is not None:
            opened.append(number)
        return ((text,) for text in parts[number])

    return Source(name, [partial(shard, number) for number in range(len(parts))])


def packed(tokenizer, parts: list[list[str]]) -> np.ndarray:
    end = end_of_text(tokenizer)
    ids = [[*tokenizer.encode(text, add_special_tokens=False).ids, end] for part in parts for text in part]
    return np.array([token for document in ids for token in document])


PARTS = [texts(1, 7), texts(2, 1), [], texts(3, 12)]


@pytest.mark.parametrize("apart", [False, True])
def test_windows_are_those_of_packed_tokens_and_come_again(tokenizer, apart):
    tokens, end = packed(tokenizer, PARTS), end_of_text(tokenizer)
    windows = document_windows(tokens, 16, end) if apart else packed_windows(tokens, 16)
    stream = Stream([source(PARTS)], (), tokenizer, 16, 1, apart)
    for number in range(len(windows)):
        got = stream[number]
        first, last = windows.span(number)
        ids, counts = (got[0][0], got[1][0]) if apart else (got[0], np.ones(16, bool))
        np.testing.assert_array_equal(ids[: last - first], tokens[first:last])
        assert (ids[last - first :] == end).all()
        np.testing.assert_array_equal(counts, np.arange(16) < last - first - 1)
    if apart:  # after the last comes the first
        np.testing.assert_array_equal(stream[len(windows)][0], stream[0][0])
    else:
        again = np.concatenate([tokens, tokens])
        np.testing.assert_array_equal(stream[len(windows)][0], again[len(windows) * 16 :][:17])


@pytest.mark.parametrize("apart", [False, True])
def test_a_batch_is_found_from_its_number_and_from_a_place(tokenizer, apart):
    make = lambda opened=None: Stream(
        [source(PARTS, opened), source([texts(4, 30)])], (3.0, 1.0), tokenizer, 16, 4, apart, masked=True
    )
    stream, batches, memories = make(), [], []
    for k in range(30):
        memories.append(json.loads(json.dumps(stream.memory())))
        batches.append(stream[k])
    same = lambda a, b: all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert same(stream[3], batches[3]) and same(stream[29], batches[29]) and same(make()[17], batches[17])
    for k in range(30):
        opened: list[int] = []
        resumed = make(opened)
        resumed.remember(memories[k])
        assert same(resumed[k], batches[k])
        if k + 1 < 30:
            assert same(resumed[k + 1], batches[k + 1])
        assert opened and opened[0] == memories[k]["places"][0][0]  # no file before it is read
    spoiled = make()
    for nonsense in (None, {}, {"batch": 5, "places": [[0, 0]]}, {"batch": -1, "places": [[0, 0, 0]] * 2}):
        spoiled.remember(nonsense)
    assert same(spoiled[5], batches[5])
    with pytest.raises(IndexError, match="batch -1"):
        stream[-1]


@pytest.mark.parametrize("apart", [False, True])
def test_windows_of_prompts_alone_are_left_out(tokenizer, apart):
    """And come again from a place; a source of which nothing counts is named."""
    shard = lambda: iter([(Given("river " * 40), "songs "), (Given("cat "), "stars " * 3)])
    stream = lambda: Stream([Source("it", [shard])], (), tokenizer, 8, 2, apart, masked=True)
    found, whole = stream(), [stream()[k] for k in range(6)]
    for k in range(6):
        ids, counts = found[k]
        assert counts.any(axis=1).all()
        again = stream()
        again.remember(json.loads(json.dumps(found.memory())))
        after = again[k + 1]
        assert all(map(np.array_equal, (ids, counts), whole[k])) and all(map(np.array_equal, after, stream()[k + 1]))
    nothing = Source("it", [lambda: iter([(Given("river " * 40),)])])
    with pytest.raises(BadInput, match="it has no text whose prediction is learned"):
        Stream([nothing], (), tokenizer, 8, 2, apart, masked=True)[0]


def test_sources_are_drawn_by_weight(tokenizer):
    sources = [source([["cat " * 30] * 5]), source([["river " * 30] * 5])]
    stream = Stream(sources, (3.0, 1.0), tokenizer, 8, 16)
    of_river = sum("river" in tokenizer.decode(row) for k in range(5) for row in stream[k])
    assert of_river == 20


def test_what_is_held_out_is_never_read_and_only_the_beginning_is_packed(tmp_path, progress):
    for name in "ab":
        lines = [json.dumps({"text": f"{name}{n} {text}"}) for n, text in enumerate(texts(ord(name), 40))]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    config = DataConfig(
        source="files", train=(f"{tmp_path}/*.jsonl",), tokenizer_vocabulary=280, cache=str(tmp_path / "cache"),
        stream=50, validation_fraction=0.2,
    )  # fmt: skip
    tokens = prepare(config, progress)
    (read,) = tokens.stream
    assert len(read.held) == tokens.statistics["validation_documents"] and max(read.held) < (1, 10)
    assert tokens.statistics["train_documents"] + len(read.held) == 50
    seen = ["".join(text).split()[0] for *_, text in read.documents()]
    held = {f"{'ab'[shard]}{number}" for shard, number in read.held}
    assert len(seen) == 80 - len(held) and not held & set(seen)
    validation = tokens.tokenizer.decode(tokens.validation)
    assert all(name in validation for name in held)
    again = prepare(config, progress)
    assert again.content == tokens.content and again.stream[0].held == read.held
    kept = cached_by_content(config, tokens.content, progress)  # where the text is gone
    assert kept is not None and kept.folder == tokens.folder and not kept.stream
    with (tmp_path / "b.jsonl").open("a") as file:  # after what was packed
        file.write('\n{"text": "more"}')
    assert prepare(config, progress).content != tokens.content
    own = prepare(replace(config, train=(f"{tmp_path}/a.jsonl",), validation=(f"{tmp_path}/b.jsonl",)), progress)
    assert not own.stream[0].held and own.statistics["validation_documents"] == 41


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"train": ("{0}/one.txt",)}, "data.train has a single document among the first 50, which is not split"),
        ({"train": ("{0}/none.jsonl",)}, "data.train has no text, but needs at least one document that is not empty."),
        ({"train": ("{0}/one.txt", "{0}/none.jsonl"), "weights": (1.0, 1.0), "validation": ("{0}/two.txt",)},
         "data.train '{0}/none.jsonl' has no text"),
    ],
)  # fmt: skip
def test_streams_that_cannot_be_used(tmp_path, progress, given, sentence):
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "two.txt").write_text("two")
    (tmp_path / "none.jsonl").write_text("")
    given = {
        name: tuple(v.format(tmp_path) if isinstance(v, str) else v for v in value) for name, value in given.items()
    }
    with pytest.raises(BadInput) as refused:
        prepare(DataConfig(source="files", stream=50, cache=str(tmp_path / "cache"), **given), progress)
    assert str(refused.value).startswith(sentence.format(tmp_path))


def test_a_dataset_by_its_name_is_streamed(tmp_path, hub, progress, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.address)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    rows = texts(5, 60)
    folder = tmp_path / "set/data"
    folder.mkdir(parents=True)
    for number in range(2):
        lines = [json.dumps({"text": text}) for text in rows[30 * number :][:30]]
        (folder / f"train-{number}.jsonl").write_text("\n".join(lines))
    hub.add("some/texts", tmp_path / "set")
    config = DataConfig(
        source="huggingface", dataset="some/texts", stream=20, tokenizer_vocabulary=280, cache=str(tmp_path / "cache")
    )
    tokens = prepare(config, progress)
    (read,) = tokens.stream
    assert [len(list(shard())) for shard in read.shards] == [30, 30]
    held = [rows[30 * shard + number] for shard, number in read.held]
    assert ["".join(text) for *_, text in read.documents()] == [text for text in rows if text not in held]
    assert tokens.statistics["train_documents"] == 20 - len(held)
    assert "".join(next(islice(read.documents(1, 3), 1))[2]) == rows[33]
    assert prepare(config, progress).content == tokens.content


def test_rows_that_break_off_are_told():
    def rows():
        yield {"text": "one"}
        raise OSError("the line is dead")

    read = _texts(rows(), DataConfig(), "some/texts")
    assert next(read) == ("one",)
    with pytest.raises(RunFailed, match=r"^dataset 'some/texts' broke off after row 1 \(the line is dead\); the same"):
        next(read)
