import errno
import fcntl
import json
import os
import re
import shutil

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from diffeqformer.data import cache as module
from diffeqformer.data import encode
from diffeqformer.data.cache import prepare
from diffeqformer.data.corpus import open_corpus
from diffeqformer.data.tokenizer import end_of_text, train_tokenizer
from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.store.folders import remove_abandoned


def texts_of(config, progress):
    return [["".join(d) for d in part.read()] for part in open_corpus(config, progress).split()]


def decoded(cache, tokens):
    """Documents of a packed split."""
    end, text, found = end_of_text(cache.tokenizer), [], []
    for token in tokens.tolist():
        if token == end:
            found.append(cache.tokenizer.decode(text))
            text = []
        else:
            text.append(token)
    assert not text
    return found


@pytest.mark.parametrize(
    ("text", "lost"),
    [("the cat sat\n", 0), ("the dog sat\n", 3), ("日本", 2), ("The cat\n", 1), ("the  cat\n", 1)],
)
def test_what_a_tokenizer_loses_is_counted(text, lost):
    words = ["[UNK]", "the", "cat", "sat", " ", "\n"]
    own = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    own.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace("  ", " ")])
    own.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s"), "isolated")
    own.decoder = decoders.Fuse()
    counted = encode.LostText(own)
    counted.see(text, own.encode(text).ids)
    assert counted.share == pytest.approx(lost / len(text))
    every = train_tokenizer([text], 300)
    counted = encode.LostText(every)
    counted.see(text, [*every.encode(text).ids, end_of_text(every)])
    assert counted.share == 0


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def forbid_building(monkeypatch):
    monkeypatch.setattr(module, "_build", lambda *_: pytest.fail("the cache was built again"))


def test_every_document_is_packed_and_counted(files_config, progress):
    config = files_config()
    cache = prepare(config, progress)
    train, validation = texts_of(config, progress)
    assert decoded(cache, cache.train) == train and decoded(cache, cache.validation) == validation
    assert cache.train.dtype == np.dtype("<u2") and isinstance(cache.train, np.memmap)
    assert cache.validation_bytes == sum(len(t.encode()) for t in validation)
    assert cache.statistics == {
        "name": config.train[0],
        "vocabulary": 280,
        "train_documents": len(train),
        "train_bytes": sum(len(t.encode()) for t in train),
        "train_tokens": len(cache.train),
        "validation_documents": len(validation),
        "validation_bytes": cache.validation_bytes,
        "validation_tokens": len(cache.validation),
    }
    assert all(done == total for _, total, done in progress.stages)


def test_the_tokenizer_is_trained_on_the_training_split_only(files_config, progress):
    config = files_config(validation_fraction=0.5)
    train, validation = texts_of(config, progress)
    expected = train_tokenizer(train, 280).to_str()
    assert prepare(config, progress).tokenizer.to_str() == expected
    assert expected != train_tokenizer(train + validation, 280).to_str()


def test_a_tokenizer_that_stays_smaller_than_asked_for_is_told(files_config, progress):
    cache = prepare(files_config(tokenizer_vocabulary=5000), progress)
    assert progress.lines == [
        f"The training split is enough for a tokenizer of {cache.statistics['vocabulary']} entries only, not of 5000."
    ]


def test_long_documents_pack_as_whole_ones_do(tmp_path, files_config, progress, monkeypatch):
    path = tmp_path / "long.jsonl"
    text = "".join(f"line {i}" + "\n" * (i % 3) + "  x\n" for i in range(400))
    path.write_text("\n".join(json.dumps({"text": f"{k}\n{text}"}) for k in range(4)))
    whole = prepare(files_config(path), progress)
    monkeypatch.setattr(encode, "PIECE_CHARACTERS", 50)
    monkeypatch.setattr(encode, "BATCH_CHARACTERS", 120)
    cut = prepare(files_config(path, cache=str(tmp_path / "other")), progress)
    assert cut.folder.name == whole.folder.name and cut.folder != whole.folder
    assert np.array_equal(cut.train, whole.train) and np.array_equal(cut.validation, whole.validation)
    assert cut.statistics == whole.statistics and cut.tokenizer.to_str() == whole.tokenizer.to_str()


def test_a_large_vocabulary_is_packed_in_four_bytes(tmp_path, files_config, progress):
    vocabulary = {"a": 0, "<|endoftext|>": 1, "b": 70000}
    Tokenizer(models.WordLevel(vocabulary, unk_token="b")).save(str(tmp_path / "tokenizer.json"))
    for name in ("x.txt", "y.txt"):
        (tmp_path / name).write_text("b")
    cache = prepare(files_config(f"{tmp_path}/?.txt", tokenizer=str(tmp_path)), progress)
    assert cache.train.dtype == np.dtype("<u4") and cache.train.tolist() == [70000, 1]
    assert cache.statistics["vocabulary"] == 70001


def test_a_sound_cache_is_reused(files_config, progress, monkeypatch):
    first = prepare(files_config(), progress)
    forbid_building(monkeypatch)
    second = prepare(files_config(), progress)
    assert first.folder == second.folder and np.array_equal(first.train, second.train)
    assert second.tokenizer.to_str() == first.tokenizer.to_str() and second.statistics == first.statistics
    assert progress.lines == []


def test_the_fingerprint_follows_corpus_tokenizer_and_version(tmp_path, files_config, progress, monkeypatch):
    def of(**settings):
        return prepare(files_config(**settings), progress).folder.name

    prepare(files_config(), progress).tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = [of(), of(tokenizer_vocabulary=281), of(split_seed=1), of(tokenizer=str(tmp_path))]
    monkeypatch.setattr(module, "PACKING_VERSION", module.PACKING_VERSION + 1)
    found.append(of())
    assert len(set(found)) == 5


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        ("train.bin", flip, "train.bin does not match its digest"),
        ("tokenizer.json", flip, "tokenizer.json does not match its digest"),
        ("validation.bin", lambda p: os.truncate(p, 4), "validation.bin has 4 bytes instead of {size}"),
        ("validation.bin", os.remove, "validation.bin is missing"),
        ("meta.json", os.remove, "meta.json is missing or not what was written"),
        ("meta.json", lambda p: os.truncate(p, 9), "meta.json is missing or not what was written"),
        (
            "meta.json",
            lambda p: p.write_text('{"dtype": "<u2", "files": {}, "statistics": {}}'),
            "meta.json is missing",
        ),
    ],
)
def test_a_damaged_cache_is_named_and_built_again(files_config, progress, name, damage, told):
    first = prepare(files_config(), progress)
    train = np.array(first.train)
    told = told.format(size=(first.folder / name).stat().st_size)
    damage(first.folder / name)
    second = prepare(files_config(), progress)
    assert np.array_equal(second.train, train) and len(second.validation)
    assert len(progress.lines) == 1
    assert progress.lines[0].startswith(f"The token cache {first.folder} is damaged ({told}")
    assert names(first.folder.parent) == [first.folder.name]
    prepare(files_config(), progress)
    assert len(progress.lines) == 1


@pytest.mark.parametrize("sound", [True, False])
def test_losing_a_race_uses_the_other_processs_cache(tmp_path, files_config, progress, monkeypatch, sound):
    other = prepare(files_config(cache=str(tmp_path / "other")), progress)
    if not sound:
        flip(other.folder / "train.bin")
    build, marked = module._build, tmp_path / "cache" / other.folder.name / "theirs"

    def build_while_another_finishes(folder, *rest):
        build(folder, *rest)
        shutil.copytree(other.folder, folder.parent / other.folder.name)
        marked.write_text("")

    monkeypatch.setattr(module, "_build", build_while_another_finishes)
    cache = prepare(files_config(), progress)
    assert marked.exists() == sound
    assert len(cache.train) and names(tmp_path / "cache") == [other.folder.name]


def test_losing_a_race_at_the_rename_uses_the_other_processs_cache(tmp_path, files_config, progress, monkeypatch):
    other = prepare(files_config(cache=str(tmp_path / "other")), progress)
    rename = os.rename

    def rename_too_late(source, target):
        shutil.copytree(other.folder, target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_too_late)
    cache = prepare(files_config(), progress)
    assert np.array_equal(cache.train, other.train) and names(tmp_path / "cache") == [other.folder.name]


@pytest.mark.parametrize("stop", ["write_whole", "_pack", "file_digest", "sync_folder"])
def test_an_interrupted_build_leaves_nothing(tmp_path, files_config, progress, monkeypatch, stop):
    def interrupt(*_):
        raise KeyboardInterrupt

    (tmp_path / "mine").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(module, stop, interrupt)
        for cache in ("mine", "new/cache"):
            with pytest.raises(KeyboardInterrupt):
                prepare(files_config(cache=str(tmp_path / cache)), progress)
    assert names(tmp_path / "mine") == [] and (tmp_path / "mine").exists() and not (tmp_path / "new").exists()
    assert len(prepare(files_config(), progress).train)


def test_what_a_killed_process_left_is_removed_and_what_lives_is_kept(tmp_path, files_config, progress):
    root = tmp_path / "cache"
    dead, living = root / ".0.1.building", root / ".0.2.building"
    for folder in (dead, living):
        folder.mkdir(parents=True)
        (folder / "train.bin").write_text("half")
    lock = os.open(living, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    cache = prepare(files_config(), progress)
    assert names(root) == [living.name, cache.folder.name] and names(living) == ["train.bin"]
    os.close(lock)


def test_a_folder_that_is_being_built_is_locked(files_config, progress, monkeypatch):
    build, seen = module._build, []

    def build_beside_another(folder, *rest):
        remove_abandoned(folder.parent)
        seen.append(folder)
        build(folder, *rest)

    monkeypatch.setattr(module, "_build", build_beside_another)
    assert len(prepare(files_config(), progress).train) and len(seen) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("after", [0, 2])
def test_a_full_disk_is_named_and_nothing_is_left(tmp_path, files_config, progress, monkeypatch, number, after):
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > after:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    sentence = (
        f"the disk that holds the token cache '{tmp_path}/cache' is full: "
        "nothing was kept; free some space or set data.cache to a folder on another disk."
    )
    with pytest.raises(RunFailed, match=f"^{re.escape(sentence)}$"):
        prepare(files_config(), progress)
    assert names(tmp_path / "cache") == []


def test_a_cache_folder_that_cannot_be_used_is_refused(tmp_path, files_config, progress):
    (tmp_path / "file").write_text("")
    sentence = f"data.cache is '{tmp_path}/file', but that folder cannot be used: "
    with pytest.raises(BadInput, match=f"^{re.escape(sentence)}"):
        prepare(files_config(cache=str(tmp_path / "file")), progress)


def test_a_disk_that_reads_back_something_else_is_named(files_config, progress, monkeypatch):
    install = module.install

    def install_and_spoil(building, folder, is_sound):
        install(building, folder, is_sound)
        flip(folder / "train.bin")

    monkeypatch.setattr(module, "install", install_and_spoil)
    with pytest.raises(RunFailed, match=r"reads back damaged \(train.bin does not match its digest\)"):
        prepare(files_config(), progress)


def test_a_split_without_text_is_refused(tmp_path, files_config, progress):
    (tmp_path / "bom.txt").write_bytes("\ufeff".encode())
    config = files_config(validation=(str(tmp_path / "bom.txt"),))
    sentence = (
        f"data.validation ({tmp_path / 'bom.txt'}) has no text; give files with at least one document that is not "
        "empty."
    )
    with pytest.raises(BadInput, match=f"^{re.escape(sentence)}$"):
        prepare(config, progress)
    assert names(tmp_path / "cache") == []


@pytest.mark.parametrize(
    "settings", [{"tokenizer": "./missing"}, {"tokenizer": "no-end"}, {"train": "missing.txt"}, {"train": "bad.jsonl"}]
)
def test_bad_input_writes_nothing(tmp_path, files_config, progress, settings, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save("no-end")
    (tmp_path / "bad.jsonl").write_text("{")
    train = [settings["train"]] if "train" in settings else []
    with pytest.raises(BadInput):
        prepare(files_config(*train, tokenizer=settings.get("tokenizer", "train")), progress)
    assert not (tmp_path / "cache").exists()


def test_tokens_without_a_temporary_folder_are_no_matter_of_standard_output(
    tmp_path, files_config, progress, monkeypatch
):
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "file").write_text("")
    tokenizer = prepare(files_config(), progress).tokenizer
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(
        RunFailed, match=r"^tokens cannot be written to a temporary folder: .*; name another one with TMPDIR\.$"
    ):
        module.tokens_of((str(tmp_path / "a.txt"),), files_config(), tokenizer, progress)
