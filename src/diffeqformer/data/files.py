"""Documents out of files: plain text, JSON lines (plain, gzip or Zstandard), Parquet tables, and WikiText.

A document is read as an iterable of blocks of text, so that a file of any size passes through bounded memory.
"""

import glob
import gzip
import importlib.util
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from diffeqformer.errors import BadInput, Missing, RunFailed, reason
from diffeqformer.store.paths import path_of
from diffeqformer.store.regular import open_to_read

JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
OF_DOCUMENTS = (*JSON_LINES, ".parquet", ".raw")
"""Suffixes of files that hold many documents."""
SUFFIXES = (".txt", *OF_DOCUMENTS)
NEEDS_EXTRA = "install it with `pip install 'diffeqformer[hf]'`"
BLOCK_BYTES = 1 << 20
_WINDOW, _FEW = 1 << 12, 64
"""Bytes that are looked at together for what is no text; NULs that may stand in a part of a file."""
LONGEST_LINE = 1 << 28
"""Bytes; a small compressed file can hold a line of any length."""
PRESSED_BYTES = 1 << 10
"""Compressed bytes that are expanded at one time; Zstandard makes 32 MB of them at most."""
MOST_EXPANSION, LEAST_EXPANDED = 500, 1 << 26
"""A file that expands to more than so many times its size, and to more than so many bytes, holds no text."""
_TITLE = re.compile(r" = (?!=).*(?<!=) = ?\r?\n?")
_SURROGATE = re.compile("[\ud800-\udfff]")

TextDocument = Iterable[str]
"""Blocks of text that follow one another; they can be iterated once."""


class Given(str):
    """Text of a document that is read, but whose prediction is not learned."""


@dataclass(frozen=True)
class TextFile:
    """A file as it was when the corpus was opened: size in bytes, time of modification in nanoseconds."""

    path: Path
    size: int
    modified_ns: int

    @classmethod
    def at(cls, path: Path) -> "TextFile":
        """Look at the file at `path`."""
        stat = path.stat()
        return cls(path, stat.st_size, stat.st_mtime_ns)


def find_files(patterns: Sequence[str], setting: str) -> list[TextFile]:
    """The files that paths and globs name, each once, sorted by absolute path.

    **Arguments:** `patterns`, paths or globs (`**` crosses folders, `~` is the home folder); `setting`, the name of
    the config key that they come from, for messages.

    **Raises:** `Missing` for a file that is not there, a glob without a match; `BadInput` for a folder, or an unknown
    suffix.
    """
    found = set()
    for pattern in patterns:
        path = path_of(pattern)
        is_glob = not path.exists() and glob.has_magic(pattern)
        matches = glob.glob(str(path), recursive=True) if is_glob else [path]
        if not matches:
            raise Missing(f"{setting}: no file matches {pattern!r}; give a path or a glob of existing files.")
        for path in map(Path, matches):
            if path.is_dir() and not is_glob:
                raise BadInput(f"{setting}: {pattern!r} is a folder; name its files, for example '{path}/*.txt'.")
            if not path.is_dir():
                found.add(path.absolute())
    for path in found:
        if path.exists() and not path.is_file():
            raise BadInput(f"{setting}: file {str(path)!r} cannot be read: it is not a regular file.")
        if not path.is_file():
            raise Missing(f"{setting}: file {str(path)!r} does not exist.")
        if not path.name.lower().endswith(SUFFIXES):
            raise BadInput(f"{setting}: file {str(path)!r} has an unknown suffix; known are {', '.join(SUFFIXES)}.")
        if path.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
            raise BadInput(f"{setting}: file {str(path)!r} needs pyarrow to be read; {NEEDS_EXTRA}.")
    if not found:
        raise BadInput(f"{setting}: {', '.join(map(repr, patterns))} matches folders only; name files.")
    return [TextFile.at(path) for path in sorted(found)]


class Reader:
    """Reads documents; undecodable bytes are replaced by U+FFFD and reported once per file, or refused.

    **Arguments:** `text_field`, the field of a JSON line or the column of a table that holds the text; `strict`,
    whether to refuse undecodable bytes; `say`, receives one line for each file that has such bytes; `completions`,
    whether JSON lines are prompts and completions, or messages.
    """

    def __init__(self, text_field: str, strict: bool, say: Callable[[str], None], completions: bool = False):
        self.text_field, self.strict, self._say, self.completions = text_field, strict, say, completions
        self._told: set[Path] = set()

    def documents(self, file: TextFile) -> Iterator[TextDocument]:
        """The documents of `file` in order, without empty ones; a plain text file is read only if it is iterated.

        **Raises:** `BadInput` for text that is not what the suffix says, naming file and line (or row);
        `RunFailed` if the file is not as it was when it was found.
        """
        name = file.path.name.lower()
        if name.endswith(".parquet"):
            yield from ((text,) for text in self._rows(file) if text)
        elif name.endswith(JSON_LINES):
            yield from (parts for parts in self._lines(file) if any(parts))
        elif name.endswith(".raw"):
            yield from ((article,) for article in self._articles(file))
        elif file.size:
            yield self._plain(file)

    def _plain(self, file: TextFile) -> Iterator[str]:
        decoder, offset = _Decoder(file.path, self.strict), 0
        for raw in _whole_lines(_blocks(file), f"file {str(file.path)!r}"):
            text = decoder.decode(raw, offset)
            yield text if offset else text.removeprefix("\ufeff")
            offset += len(raw)
        self._tell(decoder)

    def _articles(self, file: TextFile) -> Iterator[str]:
        """The articles of a WikiText file: each begins with a line ` = Title = `."""
        article: list[str] = []
        for block in self._plain(file):
            for line in io.StringIO(block):  # at "\n" alone, as WikiText has it
                if _TITLE.fullmatch(line) and "".join(article).strip():
                    yield "".join(article)
                    article = []
                article.append(line)
        if "".join(article).strip():
            yield "".join(article)

    def _lines(self, file: TextFile) -> Iterator[tuple[str, ...]]:
        decoder, offset, number = _Decoder(file.path, self.strict), 0, 0
        for raw in _whole_lines(_blocks(file), f"file {str(file.path)!r}"):
            if not raw.strip():  # a compressed file can hold empty lines without end
                number, offset = number + raw.count(b"\n"), offset + len(raw)
                continue
            for raw_line in io.BytesIO(raw):
                number += 1
                where = f"line {number} of {str(file.path)!r}"
                line = decoder.decode(raw_line, offset).removeprefix("" if offset else "\ufeff")
                offset += len(raw_line)
                if line.strip():
                    record = _parse(line, where)
                    parts = (
                        completions(record, where) if self.completions else (text_of(record, self.text_field, where),)
                    )
                    yield tuple(type(part)(decoder.without_surrogates(part, where)) for part in parts)
        self._tell(decoder)

    def _rows(self, file: TextFile) -> Iterator[str]:
        import pyarrow as pa
        from pyarrow import parquet

        decoder, number = _Decoder(file.path, self.strict), 0
        try:
            with parquet.ParquetFile(file.path) as table:
                require_field(table.schema_arrow.names, self.text_field, f"file {str(file.path)!r}")
                for batch in table.iter_batches(batch_size=256, columns=[self.text_field]):
                    column = batch.column(0)
                    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                        column = column.cast(pa.large_binary())  # as bytes, since a writer may have stored any
                    for value in column.to_pylist():
                        number += 1
                        where = f"row {number} of {str(file.path)!r}"
                        text = decoder.decode(value, 0, f"row {number}, ") if isinstance(value, bytes) else value
                        yield text_of({self.text_field: text}, self.text_field, where)
        except (OSError, pa.ArrowException) as error:
            raise BadInput(f"file {str(file.path)!r} cannot be read as a Parquet table: {reason(error)}.") from error
        _require_unchanged(file, os.stat(file.path))
        self._tell(decoder)

    def _tell(self, decoder: "_Decoder") -> None:
        if decoder.replaced and decoder.path not in self._told:
            self._told.add(decoder.path)
            self._say(f"{decoder.path}: {decoder.replaced} undecodable byte sequences were replaced by U+FFFD.")


def text_of(record: object, text_field: str, where: str) -> str:
    """The text of one JSON line or table row.

    **Raises:** `BadInput` naming `where`, if the record has no such field or if it is not text.
    """
    if not isinstance(record, dict):
        raise BadInput(f"{where} is a JSON {type(record).__name__}, but must be an object with field {text_field!r}.")
    require_field(record, text_field, where)
    value = record[text_field]
    if not isinstance(value, str):
        raise BadInput(f"field {text_field!r} in {where} is a {type(value).__name__}, but must be text.")
    return value


def completions(record: object, where: str) -> tuple[str, ...]:
    """A prompt and its completion, or the messages of a conversation, each under its role; what is given is `Given`.

    **Raises:** `BadInput` naming `where`, if the record is neither.
    """
    if isinstance(record, dict) and {"prompt", "completion"} <= record.keys():
        return Given(text_of(record, "prompt", where)), text_of(record, "completion", where)
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or not messages:
        what = "neither 'prompt' and 'completion' nor 'messages'"
        raise BadInput(f"{where} has {what}, which data.targets 'completions' is read from.")
    parts: list[str] = []
    for number, message in enumerate(messages, start=1):
        place = f"message {number} of {where}"
        role, content = text_of(message, "role", place), f"{text_of(message, 'content', place)}\n\n"
        parts += [Given(f"{role}:\n"), content if role == "assistant" else Given(content)]
    return tuple(parts)


def require_field(fields: Iterable[str], text_field: str, where: str) -> None:
    """Accept `fields` if the one that holds the text is among them.

    **Raises:** `BadInput` naming `where` and the fields that there are.
    """
    names = list(fields)
    if text_field not in names:
        known = ", ".join(map(repr, names)) or "none"
        raise BadInput(f"{where} has no field {text_field!r}, but {known}; name the right one as data.text_field.")


class _Decoder:
    """UTF-8 of one pass through one file, counting what had to be replaced."""

    def __init__(self, path: Path, strict: bool):
        self.path, self.strict, self.replaced = path, strict, 0

    def decode(self, raw: bytes, offset: int, place: str = "") -> str:
        if (found := _not_text(raw, offset)) is not None:
            raise BadInput(f"file {str(self.path)!r} {found}")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            if self.strict:
                self._refuse(f"undecodable bytes at {place}byte {offset + error.start}")
        text = raw.decode(errors="replace")
        self.replaced += text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")
        return text

    def without_surrogates(self, text: str, where: str) -> str:
        """JSON may spell half of a surrogate pair, which no UTF-8 text can hold."""
        try:
            text.encode()
        except UnicodeEncodeError:
            if self.strict:
                self._refuse(f"a lone surrogate in {where}")
            text, count = _SURROGATE.subn("\ufffd", text)
            self.replaced += count
        return text

    def _refuse(self, what: str) -> None:
        raise BadInput(
            f"file {str(self.path)!r} has {what}; data.strict refuses it: save it as UTF-8, or allow replacement."
        ) from None


def _not_text(raw: bytes, offset: int) -> str | None:
    """What a block of a file has that UTF-8 text has not; `None` if nothing.

    Text of two or four bytes a character is known by its mark, or by NULs that stand at some places of four alone; as
    many NULs at all of them are what is left of a file that was not written to its end.
    """
    marked = not offset and raw.startswith((b"\xff\xfe", b"\xfe\xff"))
    for start in () if marked or not raw.count(0) else range(0, len(raw), _WINDOW):
        window = raw[start : start + _WINDOW]
        if window.count(0) > max(len(window) // 4, _FEW if len(raw) > len(window) or offset else 0):
            places, first = [window[place::4].count(0) for place in range(4)], offset + start + window.index(0)
            if 4 * min(places) >= max(places):
                return f"has a run of NUL bytes near byte {first}, which no text has; remove them."
            return f"is UTF-16 or UTF-32{f' from byte {first} on' if first > 8 else ''}; save it as UTF-8."
    return "is UTF-16 or UTF-32; save it as UTF-8." if marked else None


def _parse(line: str, where: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is not valid JSON: {reason(error)}.") from None


def _blocks(file: TextFile) -> Iterator[bytes]:
    """The decompressed bytes of `file`, in blocks."""
    name = file.path.name.lower()
    try:
        with open_to_read(file.path) as stream:
            if name.endswith(".gz"):
                with gzip.open(stream) as unzipped:
                    yield from _bounded(iter(lambda: unzipped.read(BLOCK_BYTES), b""), file)
            elif name.endswith(".zst"):
                yield from _bounded(_zstandard_blocks(stream), file)
            else:
                yield from iter(lambda: stream.read(BLOCK_BYTES), b"")
            _require_unchanged(file, os.fstat(stream.fileno()))
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise BadInput(f"file {str(file.path)!r} cannot be read: {reason(error)}.") from error


def _bounded(blocks: Iterable[bytes], file: TextFile) -> Iterator[bytes]:
    """The same blocks, as long as they can be text."""
    length = 0
    for block in blocks:
        length += len(block)
        if length > max(LEAST_EXPANDED, MOST_EXPANSION * file.size):
            raise BadInput(
                f"file {str(file.path)!r} expands to more than {MOST_EXPANSION} times its {file.size:,} bytes, which "
                "no text does."
            )
        yield block


def _zstandard_blocks(stream: BinaryIO) -> Iterator[bytes]:
    # Frame by frame, because zstandard's own stream reader takes a truncated file for a short one.
    frame = None
    while block := stream.read(PRESSED_BYTES):
        while block:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(block)
            block, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError("the compressed file ends before its end-of-stream marker was reached")


def _whole_lines(blocks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """The same bytes in blocks that end at a line's end, so that no character is cut in two."""
    rest: list[bytes] = []
    length = 0
    for block in blocks:
        end = block.rfind(b"\n") + 1
        length = len(block) - end if end else length + len(block)
        if length > LONGEST_LINE:
            raise BadInput(f"{where} has a line of more than {LONGEST_LINE:,} bytes, which cannot be read at one time.")
        if end:
            yield b"".join((*rest, block[:end]))
            rest = []
        if end < len(block):
            rest.append(block[end:])
    if rest:
        yield b"".join(rest)


def _require_unchanged(file: TextFile, stat: os.stat_result) -> None:
    if (stat.st_size, stat.st_mtime_ns) != (file.size, file.modified_ns):
        raise RunFailed(f"file {str(file.path)!r} changed while it was read: run again when it is complete.")
