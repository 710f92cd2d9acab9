import json
import random
import re
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from diffeqformer.data import tokenizer_files
from diffeqformer.data.beside import special_tokens
from diffeqformer.data.tokenizer import (
    adding_nothing,
    encode_all,
    end_of_text,
    ends_of_generation,
    leading,
    ordinary,
    pieces,
    reading_special_tokens,
    train_tokenizer,
    vocabulary_size,
)
from diffeqformer.data.tokenizer import encode as checked
from diffeqformer.data.tokenizer_files import load_tokenizer
from diffeqformer.errors import BadInput

TEXTS = ["def f(x):\n    return x + 1\n", "the quick brown fox doesn't jump\n\n\n  over 漢字 é\t\n"] * 20


@pytest.fixture(scope="module")
def trained():
    return train_tokenizer(TEXTS, 300)


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def refused(sentence, spec):
    with pytest.raises(BadInput, match=f"^{re.escape(sentence)}$"):
        load_tokenizer(spec)


def test_any_text_comes_back(trained):
    draw = random.Random(0)
    characters = [chr(c) for c in range(0x20000) if not 0xD800 <= c <= 0xDFFF]
    for text in [*TEXTS, "", " ", "\x00\r\n\ufffd<|endoftext|></s>", "".join(draw.sample(characters, 5000))]:
        assert trained.decode(encode(trained, text), skip_special_tokens=False) == text


def test_training_gives_the_entries_asked_for_and_the_same_each_time(trained):
    assert vocabulary_size(trained) == 300 == trained.get_vocab_size()
    assert trained.to_str() == train_tokenizer(iter(TEXTS), 300).to_str()
    assert len(encode(trained, TEXTS[0])) < len(TEXTS[0])
    assert end_of_text(trained) == trained.token_to_id("<|endoftext|>") == 0


def test_end_of_text_written_in_a_text_is_text(trained):
    assert end_of_text(trained) not in encode(trained, "a<|endoftext|>b")


def test_ids_with_holes_need_room_for_the_highest():
    assert vocabulary_size(Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))) == 8


def test_ordinary_entries_are_those_that_there_are():
    assert ordinary(Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))) == [0, 7]


def test_merges_are_never_left_out_at_random(trained, tmp_path):
    own = json.loads(trained.to_str())
    own["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(own))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.to_str() == trained.to_str()
    assert encode(tokenizer, TEXTS[0]) == encode(trained, TEXTS[0])


def test_text_without_tokens_is_named():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    for ids in (lambda: checked(tokenizer, "b"), lambda: encode_all(tokenizer, ["a", "b"])):
        with pytest.raises(BadInput, match=r"the tokenizer cannot encode 'b': WordLevel error: Missing \[UNK\]"):
            ids()
    assert encode_all(tokenizer, ["a", "a"]) == [[0], [0]]


def test_a_panic_of_the_library_is_a_sentence():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.FixedLength(0)
    with pytest.raises(BadInput, match="the tokenizer cannot encode 'a'"):
        checked(tokenizer, "a")
    with pytest.raises(BadInput, match="the tokenizer cannot encode 'b'"):
        encode_all(tokenizer, ["b"])


# --- pieces


def random_text(draw):
    parts = [
        "\n",
        "\n\n",
        " ",
        "\t",
        "\r\n",
        "\u00a0",
        "\u2028",
        "\x1c",
        "x",
        "ab",
        "don't",
        "'s",
        "12",
        "é漢",
        "++",
        "<|endoftext|>",
    ]
    return "".join(draw.choice(parts) for _ in range(draw.randrange(200)))


@pytest.mark.parametrize("seed", range(30))
def test_pieces_tokenise_as_the_whole(trained, seed):
    draw = random.Random(seed)
    text = random_text(draw)
    size = draw.randrange(1, 9)
    blocks = [text[i : i + size] for i in range(0, len(text), size)]
    cut = list(pieces(trained, blocks, draw.randrange(1, 20)))
    assert "".join(cut) == text
    assert [i for piece in cut for i in encode(trained, piece)] == encode(trained, text)


@pytest.mark.parametrize("block", [1, 2, 3, 1000])
def test_pieces_are_cut_at_every_safe_line_break_and_nowhere_else(trained, block):
    text = "a\nb\n\nc\n d \ne\nf\n"
    blocks = [text[i : i + block] for i in range(0, len(text), block)]
    assert list(pieces(trained, blocks, 1)) == ["a", "\nb\n", "\nc\n d ", "\ne", "\nf\n"]
    assert list(pieces(trained, blocks, 4)) == ["a\nb\n", "\nc\n d ", "\ne\nf\n"]


@pytest.mark.parametrize("token", [AddedToken("\nb"), AddedToken("b", lstrip=True), AddedToken("a", rstrip=True)])
def test_added_tokens_that_reach_over_line_breaks_are_not_cut(trained, token):
    tokenizer = Tokenizer.from_str(trained.to_str())
    tokenizer.add_tokens([token])
    text = "a\nb\na\nb\n" * 3
    cut = list(pieces(tokenizer, [text], 1))
    assert [i for piece in cut for i in encode(tokenizer, piece)] == encode(tokenizer, text)


@pytest.mark.parametrize("line", ["line\n", "line\r\n", "line \n", "line\n\n"])
def test_pieces_of_a_long_document_are_short(trained, line):
    sizes = [len(p) for p in pieces(trained, [line * 1000] * 10, 100)]
    assert len(sizes) > 400 and max(sizes) <= 110


def test_other_tokenizers_get_the_document_whole():
    for normalizer, pre in [
        (normalizers.Prepend("_"), None),
        (None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
        (None, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
    ]:
        tokenizer = Tokenizer(models.BPE())
        if normalizer:
            tokenizer.normalizer = normalizer
        if pre:
            tokenizer.pre_tokenizer = pre
        assert list(pieces(tokenizer, ["a\n", "b\n", "c"], 1)) == ["a\nb\nc"]


# --- loading


def test_every_layout_loads_the_same_tokenizer(trained, tmp_path):
    trained.save(str(tmp_path / "tokenizer.json"))
    state = json.loads(trained.to_str())["model"]
    specs = [tmp_path / "tokenizer.json", str(tmp_path)]
    for folder, vocabulary, merges in [("a", "vocab.json", "merges.txt"), ("b", "encoder.json", "vocab.bpe")]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / vocabulary).write_text(json.dumps(state["vocab"]))
        (tmp_path / folder / merges).write_text(
            "#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in state["merges"])
        )
        specs.append(tmp_path / folder)
    for spec in specs:
        loaded = load_tokenizer(spec)
        for text in [*TEXTS, "a<|endoftext|>b"]:
            assert encode(loaded, text) == encode(trained, text)
            assert loaded.decode(encode(loaded, text)) == text
        assert end_of_text(loaded) == 0 and vocabulary_size(loaded) == 300


def test_tokens_that_were_added_to_a_vocabulary_have_their_ids(trained, tmp_path):
    trained.model.save(str(tmp_path))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<bot>": 301, "<|endoftext|>": 0, "<user>": 300}))
    loaded = load_tokenizer(tmp_path)
    assert encode(loaded, "a<user>b<bot>") == [*encode(trained, "a"), 300, *encode(trained, "b"), 301]
    assert vocabulary_size(loaded) == 302 and end_of_text(loaded) == 0
    for content, sentence in (
        ('{"<user>": 400}', "'<user>' the id 400, but it would be 300 here"),
        ("[1]", "must have a"),
    ):
        (tmp_path / "added_tokens.json").write_text(content)
        with pytest.raises(BadInput, match=sentence):
            load_tokenizer(tmp_path)


def test_tokens_added_since_a_tokenizers_file_was_written_have_their_ids(trained, tmp_path):
    trained.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_end|>": 300}))
    loaded = load_tokenizer(tmp_path)
    assert encode(loaded, "a<|im_end|>b") == [*encode(trained, "a"), 300, *encode(trained, "b")]
    assert ends_of_generation(loaded) == [0, 300]


@pytest.mark.parametrize(
    "beside",
    [
        {"tokenizer_config.json": {"added_tokens_decoder": {"300": {"content": "<|im_end|>", "special": True}}}},
        {"special_tokens_map.json": {"pad_token": "<|im_end|>"}},
    ],
    ids=["declared special", "of a role"],
)
def test_added_tokens_that_are_special_are_not_found_in_text(beside, trained, tmp_path):
    trained.save(str(tmp_path / "tokenizer.json"))
    for name, content in ({"added_tokens.json": {"<|im_end|>": 300}} | beside).items():
        (tmp_path / name).write_text(json.dumps(content))
    loaded = load_tokenizer(tmp_path)
    assert encode(loaded, "a<|im_end|>b") == encode(trained, "a<|im_end|>b")
    assert loaded.token_to_id("<|im_end|>") == 300 and loaded.decode([300]) == ""


def test_the_map_of_special_tokens_counts_only_beside_settings_that_declare_none(tmp_path):
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<old>"}))
    for declared, end in (({}, "<old>"), ({"added_tokens_decoder": {}}, "<new>")):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<new>", **declared}))
        assert special_tokens(tmp_path)["eos_token"] == end


def test_a_vocabulary_that_another_class_cuts_text_for_is_refused(trained, tmp_path):
    trained.model.save(str(tmp_path))
    for kind in ("GPT2Tokenizer", "GPT2TokenizerFast"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
        assert encode(load_tokenizer(tmp_path), "a b") == encode(trained, "a b")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    with pytest.raises(BadInput, match="the vocabulary of a 'Qwen2Tokenizer', which does not cut text as GPT-2 does"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    for model_type in ("gpt2", "qwen2"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        with nullcontext() if model_type == "gpt2" else pytest.raises(BadInput, match="the vocabulary of a 'qwen2'"):
            assert encode(load_tokenizer(tmp_path), "a b") == encode(trained, "a b")


def test_gpt2s_vocabulary_with_a_space_or_a_token_before_the_text(trained, tmp_path):
    trained.model.save(str(tmp_path))
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    loaded = load_tokenizer(tmp_path)
    assert leading(loaded) == [0] and encode(loaded, "a b") == encode(trained, " a b")
    trained.save(str(tmp_path / "tokenizer.json"))
    assert encode(load_tokenizer(tmp_path), "a b") == encode(trained, " a b")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "Other"}))
    assert encode(load_tokenizer(tmp_path), "a b") == encode(trained, "a b")
    spaced = Tokenizer.from_str(trained.to_str())
    spaced.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    spaced.save(str(tmp_path / "tokenizer.json"))
    for kind, text in (("GPT2TokenizerFast", "a b"), ("GPTNeoXTokenizerFast", "a b"), ("Other", " a b")):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
        assert encode(load_tokenizer(tmp_path), "a b") == encode(trained, text)


def test_the_token_before_a_text_is_found_without_the_letter_a():
    entries = {"<s>": 0, "</s>": 1, "C": 2, "G": 3}
    tokenizer = Tokenizer(models.BPE(vocab=entries, merges=[]))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    assert leading(tokenizer) == [0]
    assert adding_nothing(tokenizer).encode("CG", add_special_tokens=True).ids == [2, 3]
    assert leading(Tokenizer(models.WordLevel({"</s>": 0}, unk_token="</s>"))) == []


def test_entries_that_settings_name_as_special_are_special(trained, tmp_path):
    """Though the tokenizer's own file does not say so."""
    found = json.loads(trained.to_str())
    for number, name in enumerate(("<|turn|>", "<|im_end|>", "<|more|>"), 300):
        found["model"]["vocab"][name] = number
    (tmp_path / "tokenizer.json").write_text(json.dumps(found))
    settings = {"eos_token": "<|im_end|>", "pad_token": "x", "additional_special_tokens": ["<|turn|>", "<|none|>", 3]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"extra_special_tokens": {"x": "<|more|>"}}))
    loaded = load_tokenizer(tmp_path)
    text = "<|turn|>a<|im_end|><|more|>"
    assert encode(reading_special_tokens(loaded), text) == [300, *encode(trained, "a"), 301, 302]
    assert loaded.decode(encode(loaded, "x!")) == "x!"  # what is text stays text, though some pad with it
    assert loaded.token_to_id("<|none|>") is None and encode(loaded, text) == encode(trained, text)


def test_saved_truncation_padding_and_added_tokens_are_off(trained, tmp_path):
    other = Tokenizer.from_str(trained.to_str())
    other.enable_truncation(3)
    other.enable_padding(length=50)
    other.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    other.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert [e.ids for e in loaded.encode_batch(TEXTS, add_special_tokens=False)] == [encode(trained, t) for t in TEXTS]


@pytest.mark.parametrize("name", ["<|endoftext|>", "</s>", "<|end_of_text|>"])
def test_end_of_text_has_several_names(name):
    assert end_of_text(Tokenizer(models.WordLevel({"a": 0, name: 1}, unk_token="a"))) == 1


def test_generated_text_ends_with_a_document_or_a_turn():
    words = {name: k for k, name in enumerate(("a", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>"))}
    assert ends_of_generation(Tokenizer(models.WordLevel(words, unk_token="a"))) == [3, 2, 1]


@pytest.mark.parametrize(
    ("single", "before"), [("<s> $A", [2]), ("$A </s>", []), ("<s> $A </s>", [2]), ("$A", []), (None, [])]
)
def test_special_tokens_before_a_text_are_told_from_those_after_it(single, before):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "</s>": 1, "<s>": 2}, unk_token="a"))
    tokenizer.add_special_tokens(["</s>", "<s>"])
    if single:
        special = [("<s>", 2), ("</s>", 1)]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    assert leading(tokenizer) == before
    assert adding_nothing(tokenizer).encode("a").ids == [0]


def test_a_special_token_is_text_unless_it_is_asked_for(trained):
    asked = reading_special_tokens(trained)
    assert encode(asked, "a<|endoftext|>b") == [*encode(trained, "a"), end_of_text(trained), *encode(trained, "b")]
    assert end_of_text(trained) not in encode(trained, "a<|endoftext|>b")


def test_a_tokenizer_without_end_of_text_is_refused():
    sentence = (
        "the tokenizer has no token that ends a document; "
        "it needs one of <|endoftext|>, <|end_of_text|>, </s>, <eos>, [EOS], <｜end▁of▁sentence｜>."
    )
    with pytest.raises(BadInput, match=f"^{re.escape(sentence)}$"):
        end_of_text(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))


def test_paths_that_are_no_tokenizer(tmp_path):
    missing = str(tmp_path / "no.json")
    refused(f"tokenizer {missing!r} does not exist; give a file, a folder, a hub name or 'train'.", missing)
    sentence = (
        f"tokenizer folder {str(tmp_path)!r} holds neither tokenizer.json, nor vocab.json and merges.txt, "
        "nor encoder.json and vocab.bpe."
    )
    refused(sentence, tmp_path)
    (tmp_path / "vocab.json").write_text("{")
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(BadInput, match=f"^tokenizer folder {str(tmp_path)!r} cannot be read: .*\\.$"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    with pytest.raises(BadInput, match="cannot be read: it is a Git LFS pointer; `git lfs pull` fetches the file"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match=f"^tokenizer file '{tmp_path}/tokenizer.json' cannot be read: .*\\.$"):
        load_tokenizer(tmp_path)


def test_memory_that_runs_out_is_not_the_files_fault(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(tokenizer_files, "read_small", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        load_tokenizer(tmp_path)


def test_a_hub_name_that_cannot_be_fetched_is_refused():
    refused(
        "'someone/something' is no file or folder here and cannot be fetched from the Hugging Face hub: "
        "it is not in the cache, and the hub cannot be reached.",
        "someone/something",
    )
