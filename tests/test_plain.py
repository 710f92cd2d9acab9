"""Text from elsewhere, as any terminal or page may show it."""

import numpy as np
import pytest

from diffeqformer.plain import brief, clean, is_utf8, shown, version_of


@pytest.mark.parametrize(
    ("raw", "visible"),
    [
        ("tab\tline\n", "tab\tline\n"),
        ("\x00\r\x1b\x7f", "␀␍␛␡"),
        ("\x85\u202e\u2066\ud800\ufffe\U0001ffff", "\ufffd" * 6),
        ("naïve 漢字 🙂 a\u0301", "naïve 漢字 🙂 a\u0301"),
    ],
)
def test_clean(raw, visible):
    assert clean(raw) == visible


@pytest.mark.parametrize("text", ["caf\udce9", "a\0b", "\ud800"])
def test_what_no_file_can_hold_is_no_text(text):
    assert not is_utf8(text) and is_utf8(clean(text).replace("\0", ""))


def test_what_is_long_is_cut():
    assert shown("a") == "'a'" and len(shown("a" * 10**6)) <= 100 and "thousands of digits" in shown(10**5000)


def test_words_without_end_are_cut_in_the_middle():
    assert brief(f"a {'x' * 5000}y b") == f"a {'x' * 200}…{'x' * 199}y b"
    assert brief("a " * 5000) == "a " * 5000


def test_a_source_that_is_not_installed_has_no_version():
    """Such as a clone on Python's path alone: a run there must not end for it."""
    assert version_of("numpy") == np.__version__
    assert version_of("a-package-that-nobody-has") == "not installed"
