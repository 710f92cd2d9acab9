"""Read documents from files: plain text, JSON lines (plain, gzip or Zstandard), Parquet tables, and WikiText.

A document is read as an iterable of blocks of text, so that a file of any size passes through bounded memory.
"""

import glob
import importlib.util
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from diffeqformer.config import DataConfig
from diffeqformer.data.decoding import Decoder, TextFile, blocks_of, require_unchanged, whole_lines
from diffeqformer.errors import BadInput, Missing, reason
from diffeqformer.plain import shown
from diffeqformer.store.paths import path_of

JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
OF_DOCUMENTS = (*JSON_LINES, ".parquet", ".raw")
"""Suffixes of files that hold many documents."""
SUFFIXES = (".txt", ".md", ".rst", ".tex", ".py", *OF_DOCUMENTS)
"""Known suffixes; a file whose suffix is not in `OF_DOCUMENTS` is a single document."""
BOM = b"\xef\xbb\xbf"
"""The byte order mark that some editors write at the beginning of a file, even of an empty one."""
NEEDS_EXTRA = "install it with `pip install 'diffeqformer[hf]'`"
# Of an article, not of a section in it: ` = = Section = = `.
_TITLE = re.compile(r" = (?!=).*(?<!=) = ?\r?\n?")

TextDocument = Iterable[str]
"""Consecutive blocks of text, which can be iterated once."""


class Given(str):
    """Text that the model reads, but does not learn to predict."""


def bytes_of(document: TextDocument) -> int:
    """Return the size of a document's text in UTF-8."""
    return sum(len(block.encode()) for block in document)


def find_files(patterns: Sequence[str], setting: str) -> list[TextFile]:
    """Find the files that paths and globs name, each once, sorted by absolute path.

    **Arguments:** `patterns`, paths or globs (`**` crosses folders, `~` is the home folder); `setting`, the name of
    the config key that they come from, for messages.

    **Raises:** `Missing` for a file that is not there, a glob without a match; `BadInput` for a folder, or an unknown
    suffix.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        path = path_of(pattern)
        # A file's name may contain brackets.
        is_glob = not path.exists() and glob.has_magic(pattern)
        matches = glob.glob(str(path), recursive=True) if is_glob else [path]
        if not matches:
            raise Missing(f"{setting}: no file matches {pattern!r}; give a path or a glob of existing files.")
        for path in map(Path, matches):
            if path.is_dir() and not is_glob:
                raise BadInput(f"{setting}: {pattern!r} is a folder; name its files, for example '{path}/*.txt'.")
            if not path.is_dir():
                here, itself = path.absolute(), os.path.realpath(path)  # a file counts once, however many links name it
                found[itself] = min(here, found.get(itself, here))
    for path in found.values():
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
    return [TextFile.at(path) for path in sorted(found.values())]


class Reader:
    """Reads documents; undecodable bytes are replaced by U+FFFD and reported once per file, or refused.

    **Arguments:** `config`, for `text_field`, `strict` and, for JSON lines, `targets`; `say`, called with one line for
    each file that has such bytes.
    """

    def __init__(self, config: DataConfig, say: Callable[[str], None]):
        self.text_field, self.strict, self._say = config.text_field, config.strict, say
        self.completions = config.targets == "completions"
        self._told: set[Path] = set()

    def documents(self, file: TextFile) -> Iterator[TextDocument]:
        """Iterate over the documents of `file` in order, without empty ones; plain text is only read when iterated.

        **Raises:** `BadInput` for content that does not match the suffix, naming file and line (or row);
        `RunFailed` if the file has changed since it was found.
        """
        name = file.path.name.lower()
        if name.endswith(".parquet"):
            yield from ((text,) for text in self._rows(file) if text)
        elif name.endswith(JSON_LINES):
            yield from (parts for parts in self._lines(file) if any(parts))
        elif name.endswith(".raw"):
            yield from ((article,) for article in self._articles(file))
        elif file.size > len(BOM) or any(self._plain(file)):
            yield self._plain(file)

    def _plain(self, file: TextFile) -> Iterator[str]:
        decoder, offset = Decoder(file.path, self.strict), 0
        for raw in whole_lines(blocks_of(file), f"file {str(file.path)!r}"):
            text = decoder.decode(raw, offset)
            yield text if offset else text.removeprefix("\ufeff")
            offset += len(raw)
        self._tell(decoder)

    def _articles(self, file: TextFile) -> Iterator[str]:
        """The articles of a WikiText file: each begins with a line ` = Title = `."""
        article: list[str] = []
        for block in self._plain(file):
            for line in io.StringIO(block):  # splits at "\n" only, as WikiText does
                if _TITLE.fullmatch(line) and "".join(article).strip():
                    yield "".join(article)
                    article = []
                article.append(line)
        if "".join(article).strip():
            yield "".join(article)

    def _lines(self, file: TextFile) -> Iterator[tuple[str, ...]]:
        decoder, offset, number = Decoder(file.path, self.strict), 0, 0
        for raw in whole_lines(blocks_of(file), f"file {str(file.path)!r}"):
            if not raw.strip():  # a compressed file can hold any number of empty lines
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

        decoder, number = Decoder(file.path, self.strict), 0
        try:
            with parquet.ParquetFile(file.path) as table:
                require_field(table.schema_arrow.names, self.text_field, f"file {str(file.path)!r}")
                for batch in table.iter_batches(batch_size=256, columns=[self.text_field]):
                    column = batch.column(0)
                    if pa.types.is_dictionary(column.type):  # such as a categorical of pandas
                        column = column.dictionary_decode()
                    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                        column = column.cast(pa.large_binary())  # as bytes, since a writer may have stored any bytes
                    for value in column.to_pylist():
                        number += 1
                        where = f"row {number} of {str(file.path)!r}"
                        text = decoder.decode(value, 0, f"row {number}, ") if isinstance(value, bytes) else value
                        yield text_of({self.text_field: text}, self.text_field, where)
        except (OSError, pa.ArrowException) as error:
            raise BadInput(f"file {str(file.path)!r} cannot be read as a Parquet table: {reason(error)}.") from error
        require_unchanged(file, os.stat(file.path))
        self._tell(decoder)

    def _tell(self, decoder: Decoder) -> None:
        if decoder.replaced and decoder.path not in self._told:
            self._told.add(decoder.path)
            self._say(f"{decoder.path}: {decoder.replaced} undecodable byte sequences were replaced by U+FFFD.")


def text_of(record: object, text_field: str, where: str) -> str:
    """Return the text of one JSON line or table row.

    **Raises:** `BadInput` naming `where`, if the record has no such field or if it is not text.
    """
    if not isinstance(record, dict):
        raise BadInput(f"{where} is {shown(record)}, but must be an object with field {text_field!r}.")
    require_field(record, text_field, where)
    value = record[text_field]
    if not isinstance(value, str):
        raise BadInput(f"field {text_field!r} in {where} is {shown(value)}, but must be text.")
    return value


def completions(record: object, where: str) -> tuple[str, ...]:
    """Split a record into prompt and completion, or messages, each under its role; what is not learned is `Given`.

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
    """Check that the field that holds the text is among `fields`.

    **Raises:** `BadInput` naming `where` and the existing fields.
    """
    names = list(fields)
    if text_field not in names:
        known = ", ".join(map(repr, names)) or "none"
        raise BadInput(
            f"{where} has no field {text_field!r}, but {known}; name the right one as data.text_field (`eval`: "
            "--text-field)."
        )


def _parse(line: str, where: str) -> object:
    try:
        # Only text is read, and Python refuses integers of more than 4,300 digits.
        return json.loads(line, parse_int=lambda digits: int(digits[:20]))
    except RecursionError:
        raise BadInput(f"{where} is nested too deeply to be read.") from None
    except ValueError as error:
        raise BadInput(f"{where} is not valid JSON: {reason(error)}.") from None
