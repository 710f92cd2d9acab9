import gzip
import importlib.util
import json
import os
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import zstandard

from diffeqformer.config import DataConfig
from diffeqformer.data import corpus as corpus_module
from diffeqformer.data import decoding
from diffeqformer.data.corpus import hold_out, open_corpus
from diffeqformer.data.documents import find_files
from diffeqformer.errors import BadInput, RunFailed

TEXTS = ["one\ntwo é", 'three "quoted"\n', "four 漢字", "five\r\nsix", "seven"]


def documents(part):
    return ["".join(document) for document in part.read()]


def refused(sentence, config, progress):
    with pytest.raises(BadInput, match=f"^{re.escape(sentence)}$"):
        for part in open_corpus(config, progress).split():
            documents(part)


def all_texts(config, progress):
    train, validation = open_corpus(config, progress).split()
    assert train.documents == len(documents(train)) and validation.documents == len(documents(validation))
    assert train.size == sum(len(d.encode()) for d in documents(train))
    return documents(train) + documents(validation)


def write_lines(path, records):
    raw = "".join(json.dumps(r) + "\n" for r in records).encode()
    if path.suffix == ".gz":
        raw = gzip.compress(raw)
    if path.suffix == ".zst":  # two frames, as tools that append write them
        raw = zstandard.compress(raw[:20]) + zstandard.compress(raw[20:])
    path.write_bytes(raw)
    return path


def write_parquet(path, values, name="text"):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({name: values, "other": pa.array(range(len(values)))}), path)
    return path


# --- the split


def test_the_standard_library_is_split_by_file(progress):
    corpus = open_corpus(DataConfig(), progress)
    train, validation = corpus.split()
    held, kept = documents(validation), documents(train)
    assert corpus.name == f"Python {sys.version_info.major}.{sys.version_info.minor} standard library"
    assert len(kept) == train.documents > len(held) == validation.documents > 1
    assert sum(len(d.encode()) for d in held) == validation.size
    assert 0.05 <= validation.size / (validation.size + train.size) < 0.15
    with open(os.__file__, encoding="utf-8") as file:
        assert (file.read() in kept) != (file.read() in held)


def test_the_standard_library_leaves_tests_and_installed_packages_out(tmp_path):
    for name in ["b.py", "a/c.py", "a/data.txt", "site-packages/x.py", "a/test/x.py", "tests/x.py", "lib2to3/x.py"]:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x = 1\n")
    found = [f.path.relative_to(tmp_path).as_posix() for f in corpus_module._library_files(tmp_path)]
    assert found == ["a/c.py", "b.py"]


def test_parts_are_disjoint_exhaustive_and_in_order(tmp_path, files_config, progress):
    train, validation = open_corpus(files_config(), progress).split()
    whole = [path.read_text() for path in sorted((tmp_path / "corpus").iterdir())]
    kept, held = documents(train), documents(validation)
    assert sorted(kept + held) == sorted(whole)
    assert not set(kept) & set(held)
    assert kept == [d for d in whole if d in kept] and held == [d for d in whole if d in held]


def test_the_split_depends_on_its_seed_alone(files_config, progress):
    def held(seed):
        return documents(open_corpus(files_config(split_seed=seed), progress).split()[1])

    assert held(1) == held(1)
    assert len({tuple(held(seed)) for seed in range(8)}) > 1


@pytest.mark.parametrize("seed", range(5))
def test_hold_out_stops_at_the_fraction_of_bytes(seed):
    sizes = np.random.default_rng(seed).integers(1, 1000, 200)
    order = np.random.default_rng(seed).permutation(200)
    expected, held = set(), 0
    for i in order:
        if held >= 0.1 * sizes.sum():
            break
        expected.add(int(i))
        held += sizes[i]
    assert set(np.flatnonzero(hold_out(sizes, 0.1, seed)).tolist()) == expected


def test_hold_out_leaves_and_holds_at_least_one():
    assert hold_out(np.array([5, 5]), 0.99, 0).sum() == 1
    assert hold_out(np.array([5] * 100), 1e-9, 0).sum() == 1


@pytest.mark.parametrize("block", [3, 1 << 20])
def test_each_article_of_wikitext_is_a_document(tmp_path, files_config, progress, monkeypatch, block):
    monkeypatch.setattr(decoding, "BLOCK_BYTES", block)
    articles = [f" \n = Title {i} = \n \n = = Part = = \n a = b = c . \n = unfinished \n" for i in range(20)]
    path = tmp_path / "wiki.test.raw"
    path.write_text("".join(articles))
    train, validation = open_corpus(files_config(path), progress).split()
    found = documents(train) + documents(validation)
    assert len(found) == train.documents + validation.documents == 20 and validation.documents >= 1
    assert all(text.count("Title") == 1 for text in found)
    assert sorted("".join(sorted(found, key=lambda text: int(text.split()[2])))) == sorted(path.read_text())


def test_articles_of_wikitext_with_windows_line_ends(tmp_path, files_config, progress):
    path = tmp_path / "wiki.test.raw"
    path.write_bytes(b" = One = \r\n a\r\n = Two = \r\n b\r\n")
    assert len(all_texts(files_config(path), progress)) == 2


def test_a_file_that_only_has_jsonl_in_its_name_is_plain_text(tmp_path, files_config, progress):
    """One document, as it is counted: not as many as it has lines, of which all but some would be left out."""
    lines = write_lines(tmp_path / "a.jsonl", [{"text": f"doc {i}"} for i in range(20)])
    renamed = lines.rename(tmp_path / "a.jsonl.txt")
    (tmp_path / "b.txt").write_text("b")
    texts = all_texts(files_config(renamed, tmp_path / "b.txt"), progress)
    assert sorted(texts) == sorted([renamed.read_text(), "b"])


def test_one_file_by_two_names_is_not_both_parts(tmp_path, files_config, progress):
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / "link.txt").symlink_to(tmp_path / "b.txt")
    config = replace(files_config(tmp_path / "b.txt"), validation=(str(tmp_path / "link.txt"),))
    with pytest.raises(BadInput, match="is in data.train and in data.validation; leave it in one of them"):
        open_corpus(config, progress)


def test_one_file_by_two_names_counts_once(tmp_path):
    (tmp_path / "b.txt").write_text("b\n" * 40)
    (tmp_path / "a.txt").symlink_to(tmp_path / "b.txt")
    (tmp_path / "here").symlink_to(tmp_path)
    found = find_files([str(tmp_path / "**" / "*.txt"), str(tmp_path / "b.txt")], "data.train")
    assert [file.path for file in found] == [tmp_path / "a.txt"]


def test_numbers_of_any_length_stand_beside_a_text(tmp_path, files_config, progress):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"text": "line {i}", "n": {"9" * 5000}}}\n' for i in range(9)))
    assert len(all_texts(files_config(path), progress)) == 9


def test_validation_files_are_used_as_given(tmp_path, files_config, progress):
    other = tmp_path / "held.txt"
    other.write_text("held out")
    train, validation = open_corpus(files_config(validation=(str(other),)), progress).split()
    assert train.documents == 10 and documents(validation) == ["held out"]


@pytest.mark.parametrize("block", [3, 1 << 20])
def test_the_tail_of_a_single_document_is_held_out_and_told(tmp_path, files_config, progress, monkeypatch, block):
    monkeypatch.setattr(decoding, "BLOCK_BYTES", block)
    path = tmp_path / "one.txt"
    path.write_text("".join(f"line {i} é\n" for i in range(100)))
    train, validation = open_corpus(files_config(path), progress).split()
    [head], [tail] = documents(train), documents(validation)
    assert head + tail == path.read_text()
    assert head.endswith("\n") and 0.2 <= len(tail) / len(head + tail) < 0.22
    assert train.size + validation.size == path.stat().st_size
    share = f"its last {len(tail)} of {len(head + tail)} characters"
    assert progress.lines == [f"The corpus is a single document: {share} are the validation part."]


@pytest.mark.parametrize(("text", "head"), [("a" * 50 + "\nb\nc", "a" * 50 + "\n"), ("a\n" + "b" * 50, "a\n")])
def test_a_single_document_is_cut_at_the_nearest_line(tmp_path, files_config, progress, text, head):
    path = tmp_path / "one.txt"
    path.write_text(text)
    train, validation = open_corpus(files_config(path), progress).split()
    assert documents(train) == [head] and documents(validation) == [text.removeprefix(head)]


@pytest.mark.parametrize("text", ["only a line", "only a line\n"])
def test_a_single_line_cannot_be_split(tmp_path, files_config, progress, text):
    (tmp_path / "one.txt").write_text(text)
    sentence = (
        "the corpus is a single document of a single line, which cannot be split: "
        "give a second document or data.validation."
    )
    refused(sentence, files_config(tmp_path / "one.txt"), progress)


def test_nothing_held_out_is_refused(files_config, progress):
    sentence = "data.validation_fraction is 0.0, but must be above 0 when nothing else is validation."
    refused(sentence, files_config(validation_fraction=0.0), progress)


# --- formats


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_a_json_line_is_a_document(tmp_path, files_config, progress, suffix):
    path = write_lines(tmp_path / f"x{suffix}", [{"id": i, "text": t} for i, t in enumerate([*TEXTS, ""])])
    assert sorted(all_texts(files_config(path), progress)) == sorted(TEXTS)


def test_json_lines_may_be_blank_and_end_without_a_line_break(tmp_path, files_config, progress):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\n  \n{"text": "b"}')
    assert sorted(all_texts(files_config(path), progress)) == ["a", "b"]


def test_json_lines_are_whole_whatever_the_block_size(tmp_path, files_config, progress, monkeypatch):
    monkeypatch.setattr(decoding, "BLOCK_BYTES", 7)
    path = write_lines(tmp_path / "x.jsonl.zst", [{"text": t} for t in TEXTS])
    assert sorted(all_texts(files_config(path), progress)) == sorted(TEXTS)


def test_a_table_row_is_a_document(tmp_path, files_config, progress):
    path = write_parquet(tmp_path / "x.parquet", TEXTS, "content")
    assert sorted(all_texts(files_config(path, text_field="content"), progress)) == sorted(TEXTS)


def test_text_files_keep_their_line_ends_and_lose_a_byte_order_mark(tmp_path, files_config, progress):
    (tmp_path / "a.txt").write_bytes("\ufeffa\r\n\ufeffé".encode())
    (tmp_path / "b.txt").write_bytes(b"b")
    (tmp_path / "empty.txt").write_bytes(b"")
    train, validation = open_corpus(files_config(f"{tmp_path}/?.txt", tmp_path / "empty.txt"), progress).split()
    assert sorted(documents(train) + documents(validation)) == ["a\r\n\ufeffé", "b"]


def test_globs_cross_folders_and_name_a_file_once(tmp_path, files_config, progress):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("deep/er/a.txt", "b.txt", "[c].txt"):
        (tmp_path / name).write_text(name)
    config = files_config(f"{tmp_path}/**/*.txt", tmp_path / "b.txt", tmp_path / "[c].txt")
    assert sorted(all_texts(config, progress)) == ["[c].txt", "b.txt", "deep/er/a.txt"]


# --- undecodable bytes


@pytest.mark.parametrize("block", [4, 1 << 20])
def test_undecodable_bytes_are_replaced_counted_and_told_once(tmp_path, files_config, progress, monkeypatch, block):
    monkeypatch.setattr(decoding, "BLOCK_BYTES", block)
    path, other = tmp_path / "bad.txt", tmp_path / "good.txt"
    path.write_bytes("é is fine, \ufffd too\n".encode() + b"a\xff\xfeb\n\xe6\xbc")
    other.write_text("good")
    train, validation = open_corpus(files_config(path, other), progress).split()
    for _ in range(2):
        texts = documents(train) + documents(validation)
        assert sorted(texts) == ["good", "é is fine, \ufffd too\na\ufffd\ufffdb\n\ufffd"]
    assert progress.lines == [f"{path}: 3 undecodable byte sequences were replaced by U+FFFD."]


@pytest.mark.parametrize("stored", ["string", "dictionary"])
def test_undecodable_bytes_in_json_and_tables_are_replaced(tmp_path, files_config, progress, stored):
    import pyarrow as pa

    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text": "a\xff"}\n{"text": "b\\ud800"}\n')
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xffc"], pa.binary()).buffers())
    values = text.dictionary_encode() if stored == "dictionary" else text
    table = write_parquet(tmp_path / "bad.parquet", values)
    assert sorted(all_texts(files_config(path, table), progress)) == ["a\ufffd", "b\ufffd", "\ufffdc"]
    assert progress.lines == [
        f"{path}: 2 undecodable byte sequences were replaced by U+FFFD.",
        f"{table}: 1 undecodable byte sequences were replaced by U+FFFD.",
    ]


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("x.txt", b"abc\nde\xff", "undecodable bytes at byte 6"),
        ("x.jsonl", b'{"text": "a"}\n{"text": "\xff"}', "undecodable bytes at byte 24"),
        ("x.jsonl", b'{"text": "a"}\n{"text": "\\udfff"}', "a lone surrogate in line 2 of {path!r}"),
    ],
)
def test_strict_refuses_undecodable_bytes(tmp_path, files_config, progress, name, content, place):
    path = tmp_path / name
    path.write_bytes(content)
    what = place.format(path=str(path))
    sentence = f"file {str(path)!r} has {what}; data.strict refuses it: save it as UTF-8, or allow replacement."
    refused(sentence, files_config(path, strict=True), progress)


# --- bad input


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("no.txt", "data.train: file '{path}/no.txt' does not exist."),
        ("*.jsonl", "data.train: no file matches '{path}/*.jsonl'; give a path or a glob of existing files."),
        (
            "x.pdf",
            "data.train: file '{path}/x.pdf' has an unknown suffix; "
            "known are .txt, .md, .rst, .tex, .py, .jsonl, .jsonl.gz, .jsonl.zst, .parquet, .raw.",
        ),
        ("sub", "data.train: '{path}/sub' is a folder; name its files, for example '{path}/sub/*.txt'."),
        ("s*b", "data.train: '{path}/s*b' matches folders only; name files."),
        (
            "empty.txt",
            "the corpus ({path}/empty.txt) has no text; give files with at least one document that is not empty.",
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path, files_config, progress, pattern, sentence):
    (tmp_path / "sub").mkdir()
    (tmp_path / "x.pdf").write_text("x")
    (tmp_path / "empty.txt").write_text("")
    refused(sentence.format(path=tmp_path), files_config(tmp_path / pattern), progress)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "{bad",
            "{where} is not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1).",
        ),
        ("[1]", "{where} is [1], but must be an object with field 'text'."),
        (
            '{"body": "x"}',
            "{where} has no field 'text', but 'body'; name the right one as data.text_field (`eval`: --text-field).",
        ),
        ('{"text": 5}', "field 'text' in {where} is 5, but must be text."),
        ('{"text": null}', "field 'text' in {where} is None, but must be text."),
        (f'{{"text": "x", "n": {"[" * 10**5}', "{where} is nested too deeply to be read."),
    ],
)
def test_json_lines_that_cannot_be_used(tmp_path, files_config, progress, line, sentence):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "fine"}\n\n' + line + "\n")
    refused(sentence.format(where=f"line 3 of {str(path)!r}"), files_config(path), progress)


def test_tables_that_cannot_be_used(tmp_path, files_config, progress):
    path = tmp_path / "x.parquet"
    write_parquet(path, ["a"], "body")
    known = "'body', 'other'; name the right one as data.text_field (`eval`: --text-field)."
    sentence = f"file {str(path)!r} has no field 'text', but {known}"
    refused(sentence, files_config(path), progress)
    sentence = f"field 'other' in row 1 of {str(path)!r} is 0, but must be text."
    refused(sentence, files_config(path, text_field="other"), progress)
    write_parquet(path, ["a", None])
    refused(f"field 'text' in row 2 of {str(path)!r} is None, but must be text.", files_config(path), progress)
    path.write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(BadInput, match=f"^file {str(path)!r} cannot be read as a Parquet table: .*\\.$"):
        open_corpus(files_config(path), progress).split()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_truncated_compressed_files_are_refused(tmp_path, files_config, progress, suffix):
    path = write_lines(tmp_path / f"x.jsonl{suffix}", [{"text": t} for t in TEXTS])
    path.write_bytes(path.read_bytes()[:-6])
    sentence = (
        f"file {str(path)!r} cannot be read: the compressed file ends before its end-of-stream marker was reached."
    )
    with pytest.raises(BadInput, match=re.escape(sentence) if suffix == ".zst" else "cannot be read: Compressed file"):
        open_corpus(files_config(path), progress).split()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_files_that_are_not_compressed_are_refused(tmp_path, files_config, progress, suffix):
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_text('{"text": "plain"}')
    with pytest.raises(BadInput, match=f"^file {str(path)!r} cannot be read: .*\\.$"):
        open_corpus(files_config(path), progress).split()


def test_a_file_of_both_splits_is_refused(tmp_path, files_config, progress):
    path = tmp_path / "corpus" / "3.txt"
    sentence = f"file {str(path)!r} is in data.train and in data.validation; leave it in one of them."
    refused(sentence, files_config(validation=(str(path),)), progress)


def test_tables_without_pyarrow_name_the_extra(tmp_path, files_config, progress, monkeypatch):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    sentence = (
        f"data.train: file {str(path)!r} needs pyarrow to be read; install it with `pip install 'diffeqformer[hf]'`."
    )
    refused(sentence, files_config(path), progress)


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path, files_config, progress):
    corpus = open_corpus(files_config(), progress)
    train, _ = corpus.split()
    for path in (tmp_path / "corpus").iterdir():
        path.write_text("longer" * 1000)
    with pytest.raises(RunFailed, match="changed while it was read: run again when it is complete"):
        documents(train)


# --- the fingerprint


def test_the_fingerprint_follows_files_and_settings(tmp_path, files_config, progress):
    def of(**settings):
        return open_corpus(files_config(**settings), progress).fingerprint

    first = of()
    assert of() == first
    assert of(tokenizer_vocabulary=400) == first  # the corpus is the same
    changed = [of(split_seed=1), of(validation_fraction=0.3), of(text_field="x"), of(strict=True)]
    third = tmp_path / "corpus" / "3.txt"
    os.utime(third, ns=(1, 1))
    assert of() == first  # the text is the same
    third.write_bytes(third.read_bytes().swapcase())
    os.utime(third, ns=(1, 1))  # of equal size and time
    changed.append(of())
    (tmp_path / "corpus" / "new.txt").write_text("new")
    changed.append(of())
    assert len({first, *changed}) == 7


# --- Hugging Face datasets


@pytest.fixture
def hub(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    return datasets


def test_a_folder_of_tables_is_split_by_rows_as_the_paper_splits(tmp_path, hub, progress):
    rows = [f"row {i}" for i in range(40)]
    (tmp_path / "set").mkdir()
    write_parquet(tmp_path / "set" / "train.parquet", rows)
    config = DataConfig(source="huggingface", dataset=str(tmp_path / "set"), validation_fraction=0.1)
    train, validation = open_corpus(config, progress).split()
    expected = hub.Dataset.from_dict({"text": rows}).train_test_split(test_size=0.1, seed=2357, shuffle=True)
    assert documents(train) == expected["train"]["text"] and documents(validation) == expected["test"]["text"]
    assert (train.documents, validation.documents) == (36, 4)
    assert open_corpus(config, progress).fingerprint == open_corpus(config, progress).fingerprint


@pytest.mark.parametrize("split", ["validation", "valid", "dev", "test"])
def test_a_datasets_own_split_is_used(tmp_path, hub, progress, split):
    parts = {"train": hub.Dataset.from_dict({"body": ["a", "", "b"]}), split: hub.Dataset.from_dict({"body": ["c"]})}
    hub.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    config = DataConfig(source="huggingface", dataset=str(tmp_path / "saved"), text_field="body")
    train, validation = open_corpus(config, progress).split()
    assert documents(train) == ["a", "b"] and documents(validation) == ["c"]


def test_a_dataset_of_one_row_gives_its_tail(tmp_path, hub, progress):
    hub.Dataset.from_dict({"text": ["a\n" * 90 + "b\n" * 10]}).save_to_disk(tmp_path / "saved")
    config = DataConfig(source="huggingface", dataset=str(tmp_path / "saved"), validation_fraction=0.1)
    train, validation = open_corpus(config, progress).split()
    assert documents(train) == ["a\n" * 90] and documents(validation) == ["b\n" * 10]


def test_rows_that_cannot_be_read_to_their_end(tmp_path, hub, progress, monkeypatch):
    path = str(tmp_path / "saved")
    parts = {"train": hub.Dataset.from_dict({"text": ["a", "", "b"]}), "test": hub.Dataset.from_dict({"text": ["c"]})}
    hub.DatasetDict(parts).save_to_disk(path)
    train, _ = open_corpus(DataConfig(source="huggingface", dataset=path), progress).split()

    def broken(self, batch_size):
        yield {"text": ["a", ""]}
        raise ValueError("Invalid flatbuffers message.")

    monkeypatch.setattr(hub.Dataset, "iter", broken)
    found = train.read()
    assert next(found) == ("a",)
    with pytest.raises(RunFailed) as failure:
        next(found)
    why = "(Invalid flatbuffers message); the same command reads it again from its beginning."
    assert str(failure.value) == f"dataset {path!r} broke off after row 2 {why}"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            {"train": {"x": ["a"]}},
            "dataset {path!r} has no field 'text', but 'x'; name the right one as data.text_field (`eval`: "
            "--text-field).",
        ),
        ({"dev": {"text": ["a"]}}, "dataset {path!r} has no split 'train', but 'dev'."),
        (
            {"train": {"text": ["a"]}, "test": {"text": ["b", None]}},
            "field 'text' in row 2 of dataset {path!r} is None, but must be text.",
        ),
    ],
)
def test_datasets_that_cannot_be_used(tmp_path, hub, progress, parts, sentence):
    path = str(tmp_path / "saved")
    hub.DatasetDict({name: hub.Dataset.from_dict(rows) for name, rows in parts.items()}).save_to_disk(path)
    refused(sentence.format(path=path), DataConfig(source="huggingface", dataset=path), progress)


def test_a_fraction_that_leaves_no_row_for_training_is_refused(tmp_path, hub, progress):
    hub.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(tmp_path / "saved")
    config = DataConfig(source="huggingface", dataset=str(tmp_path / "saved"), validation_fraction=0.6)
    sentence = "data.validation_fraction is 0.6, which leaves none of the 2 rows of dataset {!r} for training; give a "
    refused(f"{sentence.format(config.dataset)}smaller one.", config, progress)


def test_a_dataset_with_an_empty_split_is_refused(hub, progress, monkeypatch):
    splits = {"train": hub.Dataset.from_dict({"text": ["a"]}), "test": hub.Dataset.from_dict({"text": []})}
    monkeypatch.setattr(hub, "load_dataset", lambda *_: hub.DatasetDict(splits))
    sentence = "dataset 'x (y)' has an empty split, but needs rows for training and for validation."
    refused(sentence, DataConfig(source="huggingface", dataset="x", dataset_name="y"), progress)


def test_a_dataset_that_does_not_load_is_named(tmp_path, hub, progress):
    with pytest.raises(BadInput, match=r"^dataset '.*nowhere' cannot be loaded: .*\.$"):
        open_corpus(DataConfig(source="huggingface", dataset=str(tmp_path / "nowhere")), progress)


def test_the_cause_of_a_dataset_that_does_not_load_is_told(tmp_path, hub, progress):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(BadInput, match=r"cannot be loaded: .*(?i:parquet).*\.$"):
        open_corpus(DataConfig(source="huggingface", dataset=str(tmp_path / "set")), progress)


def test_datasets_without_the_extra_name_it(progress, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    sentence = "data.source 'huggingface' needs the package datasets; install it with `pip install 'diffeqformer[hf]'`."
    refused(sentence, DataConfig(source="huggingface", dataset="x"), progress)


def test_hold_out_does_not_make_validation_of_the_one_long_document():
    for seed in range(20):
        assert hold_out(np.array([10_000_000, 1000, 2000]), 0.05, seed).tolist()[0] is False
        assert hold_out(np.array([10_000, 9_000]), 0.05, seed).tolist() == [False, True]


def test_hold_out_holds_more_than_a_few_short_documents():
    for seed in range(20):
        assert hold_out(np.array([90_000, 80_000, 40, 70_000]), 0.05, seed)[[0, 1, 3]].tolist() == [False, False, True]
        assert hold_out(np.array([40, 70_000]), 0.05, seed).tolist() == [True, False]  # else 40 bytes are left


def test_a_validation_part_of_a_few_bytes_is_told(tmp_path, files_config, progress):
    (tmp_path / "a.txt").write_text("one\ntwo\n" * 5000)
    (tmp_path / "b.txt").write_text("three\nfour\n")
    _, validation = open_corpus(files_config(tmp_path / "*.txt"), progress).split()
    assert documents(validation) == ["three\nfour\n"]
    assert [line[:54] for line in progress.lines] == ["The validation part has 11 of 40,011 bytes only: the o"]
    open_corpus(files_config(), progress).split()
    assert len(progress.lines) == 1


def test_a_byte_order_mark_alone_is_no_document(tmp_path, files_config, progress):
    (tmp_path / "a.txt").write_text("one\ntwo\n" * 50)
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbf")
    (tmp_path / "c.txt").write_text("é")
    train, validation = open_corpus(files_config(tmp_path / "*.txt"), progress).split()
    assert sorted(documents(train) + documents(validation)) == ["one\ntwo\n" * 50, "é"]
