"""Two hundred malformed configs, a hundred malformed inputs: exit 2, one sentence, nothing written, bounded memory.

The quick tests take a part of the configs and texts, the slow ones all.
"""

import gzip
import json
import random
import re
import resource
import struct
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
import zstandard

from diffeqformer.cli import main
from diffeqformer.config import Config, shipped_configs
from diffeqformer.config.strict import hints_of, kinds_of
from diffeqformer.data import decoding
from tests.cases import slow
from tests.runs.tiny_run import write_text

MORE_MEMORY = 300 << 20
"""Bytes that all of a test's cases together may add to the memory of this process."""


class Refusal:
    """Calls the command in this process, and checks how it refuses."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]):
        self.folder, self.capsys, self.count = folder, capsys, 0

    def __call__(self, about: str, *words: object) -> None:
        before = self.snapshot()
        status = main([str(word) for word in words])
        out, err = self.capsys.readouterr()
        *progress, line = err.splitlines() or [""]
        assert status == 2, f"{about}: exit {status}: {err[-600:]}"
        assert re.fullmatch(r"diffeqformer: .{10,1200}[.?]", line), f"{about}: {line[:600]}"
        assert "Traceback" not in err and not any(one.startswith("diffeqformer: ") for one in progress), about
        assert out == "" and self.snapshot() == before, f"{about}: something was written"
        self.count += 1

    def snapshot(self) -> dict[str, tuple[int, int]]:
        found = {str(path): path.stat() for path in self.folder.rglob("*")}
        return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


@pytest.fixture
def refused(tmp_path, capsys, monkeypatch) -> Iterator[Refusal]:
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield Refusal(tmp_path, capsys)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MORE_MEMORY


# ------------------------------------------------------------------------------------------------------------ configs


def sections(hint: Any) -> tuple[Any, ...]:
    """The sections that a setting is one of; none for a plain one."""
    return tuple(one for one in (hint, *get_args(hint)) if is_dataclass(one))


def settings(cls: Any = Config, prefix: str = "") -> dict[str, Any]:
    """The dotted names of all settings, of every kind of section, and their types."""
    found: dict[str, Any] = {}
    for name, hint in hints_of(cls).items():
        found |= {} if sections(hint) else {prefix + name: hint}
        for section in sections(hint):
            found |= settings(section, f"{prefix}{name}.")
    return found


def nested(name: str, text: str, choices: tuple[Any, ...] = (Config,)) -> str:
    """`model.weights.d_emb: TEXT` as YAML in one line, into which any text can be put; with the kinds that it needs."""
    here, _, rest = name.partition(".")
    cls = next((one for one in choices if here in hints_of(one)), choices[0])
    kind = f"kind: {kinds_of(cls)[0]}, " if kinds_of(cls) and here != "kind" else ""
    inner = f"{{{nested(rest, text, sections(hints_of(cls).get(here)) or (Config,))}}}" if rest else text
    return f"{kind}{here}: {inner}"


def accepts(hint: Any, kind: type) -> bool:
    return hint is kind or kind in get_args(hint)


WRONG = [
    "[1, {a: 2}]",
    "{a: 1}",
    "!!binary aGVsbG8=",
    "!!timestamp 2001-01-01",
    "!!set {a, b}",
    "[[1], [2]]",
    "!!omap [a: 1]",
    "!!int 1:30",
]
TOO_SMALL = ["-1", "-9223372036854775808", "-170141183460469231731687303715884105728"]
TOO_LARGE = [
    "9223372036854775807",
    "340282366920938463463374607431768211456",
    "0x" + "f" * 6000,
    "9" * 6000,
    "1" + "0" * 400,
]
NOT_FINITE = [".nan", ".inf", "-.inf", "1e999", "-1e400"]
ANY_WHOLE_NUMBER = {
    "base.update",
    "data.split_seed",
    "mesh.data",
    "mesh.fsdp",
    "mesh.tensor",
    "trainer.keep_best",
    "trainer.keep_last",
}
"""Of which the very large, or the negative, is no mistake by itself."""
SYNTAX = [
    "model: {width: 16",
    "model: [1, 2",
    "\tmodel: 1",
    "model:\n  width: 1\n width: 2",
    "'model",
    '"model: \\q"',
    "model: }",
    "- a\nmodel: 1",
    "model: width: 1",
    "*a",
    "a: *b",
    "%YAML 9.9\n---\n",
    "--- 1\n--- 2\n",
    "model: @x",
    "model: `x`",
    "? [a]\n: 1",
    "? {a: 1}\n: 2",
    "!!int x",
    "model: !!int ''",
    "model: {width: !!bool x}",
    "model: {width: !!timestamp x}",
    "run: !!python/object/apply:os.system [touch bad]",
    "run: !!python/name:os.system",
    "run: !<tag:yaml.org,2002:python/object/new:os.system> [touch bad]",
    "run: !unknown x",
    "\x00",
    "run: \x07",
    "run: \x85\x9f",
]
BOMBS = [
    # a billion laughs: as a value, as a list of texts, as a key, by merges, around a ring
    "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10) if i else 'lol'}]\n" for i in range(12)) + "model: *a11\n",
    "x: &x0 [a, b]\n" + "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 20)),
    "model: {width: " + "".join(f"[&a{i} " for i in range(30)) + "]" * 30 + "}",
    "? " + "".join(f"[&a{i} " for i in range(30)) + "]" * 30 + "\n: 1",
    "m0: &m0 {a: 1}\n" + "".join(f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 10)}]}}\n" for i in range(1, 12)),
    "model: {<<: {width: 16}}",
    "&r [*r]",
    "model: &r {weights: *r}",
    "data: {train: &r [*r]}",
    "model: &r {width: *r}",
    "depth: {sample: 1-999999999}",
    "depth: {sample: '1-99999999999999999999999'}",
    "depth: {sample: [99999999]}",
    "depth: {sample: " + "9" * 5000 + "-" + "9" * 5001 + "}",
    "model: {weights: {frequencies: 4000000000}}",
]
DEEP = ["[" * n for n in (2000, 100_000)] + ["{a: " * n + "1" + "}" * n for n in (300, 2000, 50_000)] + ["- " * 3000]
TWICE = [
    "model: {width: 16, width: 16}",
    "model: {}\nmodel: {}",
    "run: a\n'run': b",
    "data: {train: [], train: []}",
    "1: 2\n1: 3",
]
BYTES = [
    b"run: caf\xe9",
    b"\xff\xfe\x00",
    b"run: \xed\xa0\x80",
    b"\x80" * 100,
    b"run: a\xc3",
    bytes(range(256)),
    b"\xc0\x80",
    b"{" + b"\xf5" * 9,
]


def is_yaml(content: bytes) -> bool:
    """Whether YAML itself has nothing against a file."""
    try:
        yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError):
        return False
    return True


def malformed(draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """What is wrong, and a config file with it."""
    known = settings()
    for name, hint in known.items():
        if hint is not str and not accepts(hint, str):
            yield f"type {name}", nested(name, draw.choice([*WRONG, "some text"])).encode()
        else:
            yield f"type {name}", nested(name, draw.choice(WRONG)).encode()
        if accepts(hint, int):
            yield f"range {name}", nested(name, draw.choice(TOO_LARGE[1:])).encode()
        if accepts(hint, float):
            yield f"range {name}", nested(name, draw.choice(NOT_FINITE)).encode()
    for name in draw.sample([n for n in known if accepts(known[n], int) and n not in ANY_WHOLE_NUMBER], 12):
        yield f"small {name}", nested(name, draw.choice(TOO_SMALL)).encode()
        yield f"large {name}", nested(name, TOO_LARGE[0]).encode()
    for name in draw.sample(list(known), 15):
        where = draw.randrange(len(name.rpartition(".")[2]))
        last = name.rpartition(".")[2]
        yield (
            f"key {name}",
            nested(name[: -len(last)] + last[:where] + draw.choice("xyzé_9") + last[where:], "1").encode(),
        )
    for key in [
        "1",
        "null",
        "true",
        "2001-01-01",
        "1.5",
        "''",
        "x" * 100_000,
        "0x" + "f" * 5000,
        "model.width",
        "\U0001f600",
        "~",
    ]:
        yield f"key {key[:9]}", f"{key}: 1\n".encode()
        yield f"key model.{key[:9]}", f"model: {{? {key} : 1}}\n".encode()
    for section in ("model", "data", "trainer", "optimizer", "model.weights", "depth", "base"):
        yield (
            f"no table {section}",
            nested(section, draw.choice(["1", "text", "[a]", "null", "2001-01-01", ".nan"])).encode(),
        )
    for group, texts in {"syntax": SYNTAX, "bomb": BOMBS, "deep": DEEP, "twice": TWICE}.items():
        for number, text in enumerate(texts):
            yield f"{group} {number}", text.encode()
    for number, content in enumerate(BYTES):
        yield f"bytes {number}", content
    shipped = list(shipped_configs().values())
    for number in range(10):
        whole = draw.choice(shipped).read_bytes()
        where = draw.randrange(len(whole) // 2, len(whole))
        cut = whole[:where] + draw.choice([b"\n{", b"\n]", b": :", b"\x00", b"\n\t- x", b"\xff"])
        if not is_yaml(cut):  # within a comment, or at the end of a word, some of these are part of a good file
            yield f"cut {number}", cut
    yield "huge", b"run: a\n" + b"# " + b"x" * (3 << 20)
    yield "huge keys", b"".join(b"k%d: 1\n" % i for i in range(20_000))


@pytest.mark.parametrize("every", [4, *slow(1)])
def test_malformed_configs_are_refused(refused, tmp_path, every):
    path = tmp_path / "config.yaml"
    for about, content in islice(malformed(random.Random(8)), None, None, every):
        path.write_bytes(content)
        refused(about, "train", path)
    assert refused.count >= 200 / every


# ------------------------------------------------------------------------------------------------------------- inputs

TINY = """
run: {here}/run
model: {{steps: 2, width: 16, heads: 2, context: 16, weights: {{d_emb: 4, frequencies: 3}}}}
data: {{source: files, train: [{here}/{name}], tokenizer_vocabulary: 280, strict: true, cache: {here}/cache{more}}}
trainer: {{updates: 1, batch_size: 4, evaluate_batches: 1}}
"""
LINES = [
    b"{",
    b"[]",
    b"1",
    b'"text"',
    b"null",
    b"{}",
    b'{"text": 1}',
    b'{"text": null}',
    b'{"text": ["a"]}',
    b'{"Text": "a"}',
    b'{"text": "a"} {"text": "b"}',
    b'{"text": "a",}',
    b"{'text': 'a'}",
    b'{"text": "\\ud800"}',
    b'{"text": "a\\q"}',
    b'{"text": "a\tb"}',
    b'{"text": ' + b"9" * 6000 + b"}",
    b"[" * 100_000,
    b'{"text": ' * 50_000,
    b'{"text": "a\xe9"}',
    b"\x00",
    b'{"text": NaN}',
    b'{"text": tru}',
    b'\xef\xbb\xbf{"a": 1}',
    b"\xff\xfe{\x00}\x00",
    b'{"text": "' + b"a" * 5000,
]


def good_lines(count: int = 60) -> bytes:
    return b"".join(json.dumps({"text": f"the cat sees {i} stars."}).encode() + b"\n" for i in range(count))


def malformed_texts(draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """A file's name, and what is in it."""
    for line in LINES:
        whole = good_lines(draw.randrange(1, 40)) + line + b"\n" + good_lines(draw.randrange(3))
        yield "a.jsonl", whole
        if draw.random() < 0.3:
            yield "a.jsonl.gz", gzip.compress(whole)
            yield "a.jsonl.zst", zstandard.compress(whole)
    for _ in range(8):
        yield "a.txt", b"the cat.\n" * 99 + draw.randbytes(draw.randrange(20, 200)) + b"\xff"
        for name, press in (("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstandard.compress)):
            whole = press(good_lines())
            yield name, whole[: draw.randrange(1, len(whole) - 1)]
    whole = gzip.compress(good_lines())
    for _ in range(6):  # gzip has a checksum; past its header every bit counts
        changed = bytearray(whole)
        changed[draw.randrange(10, len(whole))] ^= 1 << draw.randrange(8)
        yield "a.jsonl.gz", bytes(changed)
    for name in ("a.txt", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.raw"):
        yield name, b""
    for name, content in {
        "a.txt": b"a",
        "b.txt": b"one line only",
        "a.raw": b" = T = \n",
        "a.jsonl": b"\n\n \n",
        "a.pdf": b"%PDF",
    }.items():
        yield name, content
    table = parquet({"text": [f"the cat sees {i} stars." for i in range(50)]})
    yield from (("a.parquet", table[: draw.randrange(1, len(table) - 1)]) for _ in range(4))
    yield from (("a.parquet", b"PAR1" + draw.randbytes(n) + b"PAR1") for n in (0, 9, 4000))
    yield from (
        ("a.parquet", parquet(columns)) for columns in ({"text": [1, 2]}, {"text": [None, "a"]}, {"a": ["b"]}, {})
    )


def parquet(columns: dict[str, list]) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    out = pyarrow.BufferOutputStream()
    writer.write_table(pyarrow.table(columns), out)
    return out.getvalue().to_pybytes()


@pytest.mark.parametrize("every", [3, *slow(1)])
def test_malformed_texts_are_refused(refused, tmp_path, every):
    for name, content in islice(malformed_texts(random.Random(9)), None, None, every):
        (tmp_path / name).write_bytes(content)
        (tmp_path / "c.yaml").write_text(TINY.format(here=tmp_path, name=name, more=""))
        refused(f"{name} {content[:60]!r}", "train", "c.yaml")
        (tmp_path / name).unlink()
    assert refused.count >= 70 / every


@pytest.mark.parametrize("press", [bytes, gzip.compress, zstandard.compress])
def test_a_line_without_end_is_refused_in_bounded_memory(
    refused, tmp_path, monkeypatch, press: Callable[[bytes], bytes]
):
    """A few kilobytes of gzip can hold a line of gigabytes; here the bound is small, so that the test is too."""
    monkeypatch.setattr(decoding, "LONGEST_LINE", 4 << 20)
    name = {"bytes": "a.jsonl", "compress": "a.jsonl"}[press.__name__]
    name += {gzip.compress: ".gz", zstandard.compress: ".zst"}.get(press, "")
    (tmp_path / name).write_bytes(press(good_lines() + b"a" * (40 << 20)))
    (tmp_path / "c.yaml").write_text(TINY.format(here=tmp_path, name=name, more=""))
    refused(name, "train", "c.yaml")


def malformed_tokenizers(draw: random.Random, whole: str) -> Iterator[bytes]:
    yield from (b"", b"{}", b"[]", b"null", b"1", b"{" * 50_000, b"\x00" * 99, b"\xff\xfe", b'{"model": {}}', b'"a"')
    yield from (whole.encode()[: draw.randrange(1, len(whole) - 9)] for _ in range(4))
    known = json.loads(whole)
    for change in (
        {"model": {"type": "None"}},
        {"model": {**known["model"], "vocab": []}},
        {"model": {**known["model"], "merges": [["a"]]}},
        {"model": {**known["model"], "merges": [["zz", "yy"]]}},
        {"model": {**known["model"], "vocab": {"a": -1}}},
        {"model": {**known["model"], "vocab": {"a": 2**40}}},
        {"added_tokens": 3},
        {"pre_tokenizer": {"type": "Nothing"}},
        {"normalizer": 1},
        {"added_tokens": [], "model": {**known["model"], "vocab": {"a": 0}, "merges": []}},
    ):
        yield json.dumps({**known, **change}).encode()


def test_malformed_tokenizers_are_refused(refused, tmp_path):
    from diffeqformer.data.tokenizer import train_tokenizer

    write_text(tmp_path / "text.txt")
    (tmp_path / "c.yaml").write_text(
        TINY.format(here=tmp_path, name="text.txt", more=f", tokenizer: {tmp_path}/t.json")
    )
    for content in malformed_tokenizers(random.Random(10), train_tokenizer(["the cat sees the stars"], 270).to_str()):
        (tmp_path / "t.json").write_bytes(content)
        refused(f"tokenizer {content[:60]!r}", "train", "c.yaml")
    assert refused.count >= 20


def malformed_models(draw: random.Random, config: dict[str, Any], tensors: bytes) -> Iterator[tuple[str, bytes]]:
    """A file of a Hugging Face folder, and what is in it."""
    length = struct.unpack("<Q", tensors[:8])[0]
    header, body = json.loads(tensors[8 : 8 + length]), tensors[8 + length :]
    name = next(name for name in header if name != "__metadata__")

    def packed(header: Any) -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + body

    for count in (0, 2**62, 2**64 - 1, length - 1, length + 1, 99):
        yield "model.safetensors", struct.pack("<Q", count) + tensors[8:]
    yield from (("model.safetensors", tensors[: draw.randrange(len(tensors))]) for _ in range(4))
    for change in (
        {"dtype": "I64"},
        {"dtype": "F99"},
        {"shape": [-1, 2]},
        {"shape": [2**40, 2**40]},
        {"data_offsets": [0, 2**60]},
        {"data_offsets": [9, 3]},
        {"shape": "many"},
        {"shape": []},
    ):
        yield "model.safetensors", packed({**header, name: {**header[name], **change}})
    yield from (
        ("model.safetensors", content) for content in (b"", b"{}", b"\x80\x04\x95pickle", packed([]), packed({}))
    )
    yield from (
        ("config.json", content) for content in (b"", b"[]", b"{", b"null", b"[" * 90_000, b"\xff", b"\x00" * 50)
    )
    for key in ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size"):
        for value in draw.sample([-1, 0, 1.5, "x", None, [1], {"a": 1}, 2**40, 10**30, True], 3):
            yield "config.json", json.dumps({**config, key: value}).encode()
    for key, value in {"model_type": ["gpt2"], "layer_norm_epsilon": "x", "activation_function": 7}.items():
        yield "config.json", json.dumps({**config, key: value}).encode()


def test_malformed_models_are_refused(refused, tmp_path):
    from diffeqformer.interop.exporting import export
    from tests.interop.runs import run_of

    there = tmp_path / "model"
    export(run_of("vanilla"), there)
    (there / "SHA256SUMS").unlink()  # as published models are
    config, tensors = json.loads((there / "config.json").read_text()), (there / "model.safetensors").read_bytes()
    for name, content in malformed_models(random.Random(11), config, tensors):
        before = (there / name).read_bytes()
        (there / name).write_bytes(content)
        refused(f"{name} {content[:90]!r}", "import", there, "--to", tmp_path / "run")
        (there / name).write_bytes(before)
    assert refused.count >= 45
