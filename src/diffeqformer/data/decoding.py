"""Decode text files, plain or compressed, block by block as UTF-8, and refuse what is not text."""

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from diffeqformer.errors import BadInput, RunFailed, reason
from diffeqformer.store.regular import open_to_read

BLOCK_BYTES = 1 << 20
_WINDOW, _FEW = 1 << 12, 64
"""Bytes that are searched together for what is not text; NULs that a part of a file may contain."""
LONGEST_LINE = 1 << 28
"""Most bytes of a line; a small compressed file can hold a line of any length."""
PRESSED_BYTES = 1 << 10
"""Compressed bytes that are expanded at a time; Zstandard makes at most 32 MB of them."""
MOST_EXPANSION, LEAST_EXPANDED = 500, 1 << 26
"""A file that expands to more than this many times its size, and to more than this many bytes, is not text."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class TextFile:
    """A file as it was when the corpus was opened: size in bytes, time of modification in nanoseconds."""

    path: Path
    size: int
    modified_ns: int

    @classmethod
    def at(cls, path: Path) -> "TextFile":
        """Record the size and modification time of the file at `path`."""
        stat = path.stat()
        return cls(path, stat.st_size, stat.st_mtime_ns)


class Decoder:
    """Decodes UTF-8 in one pass through one file, counting what had to be replaced."""

    def __init__(self, path: Path, strict: bool):
        self.path, self.strict, self.replaced = path, strict, 0

    def decode(self, raw: bytes, offset: int, place: str = "") -> str:
        """Decode bytes that begin at `offset` in the file.

        **Raises:** `BadInput` for what is not UTF-8 text, or has undecodable bytes where none are allowed.
        """
        if (found := _not_text(raw, offset)) is not None:
            raise BadInput(f"file {str(self.path)!r} {found}")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            if self.strict:
                self._refuse(f"undecodable bytes at {place}byte {offset + error.start}")
        text = raw.decode(errors="replace")
        # A U+FFFD in the file itself replaces nothing.
        self.replaced += text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")
        return text

    def without_surrogates(self, text: str, where: str) -> str:
        """Replace or refuse lone surrogates, which JSON can spell but UTF-8 text cannot hold."""
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
    """Return why a block of a file is not UTF-8 text, or `None` if nothing speaks against it.

    UTF-16 and UTF-32 are recognised by their byte order mark, or by NULs at only some positions modulo four; equally
    many NULs at all of them are what remains of a file that was not completely written.
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


def blocks_of(file: TextFile) -> Iterator[bytes]:
    """Iterate over the decompressed bytes of `file`, in blocks.

    **Raises:** `BadInput` if it cannot be read; `RunFailed` if it has changed.
    """
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
            require_unchanged(file, os.fstat(stream.fileno()))
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise BadInput(f"file {str(file.path)!r} cannot be read: {reason(error)}.") from error


def _bounded(blocks: Iterable[bytes], file: TextFile) -> Iterator[bytes]:
    """Pass blocks on as long as their total size is plausible for text."""
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


def whole_lines(blocks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """Regroup bytes into blocks that end at line ends, so that no character is cut in two.

    **Raises:** `BadInput` for a line that is too long.
    """
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


def require_unchanged(file: TextFile, stat: os.stat_result) -> None:
    """Check that a file is as it was when the corpus was opened.

    **Raises:** `RunFailed` if it has changed.
    """
    if (stat.st_size, stat.st_mtime_ns) != (file.size, file.modified_ns):
        raise RunFailed(f"file {str(file.path)!r} changed while it was read: run again when it is complete.")
