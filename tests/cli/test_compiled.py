"""Compiled programs are kept for the next command."""

import os
import subprocess
import sys

import jax
import pytest

from diffeqformer.cli import module_of
from diffeqformer.cli.compiled import KEPT, keep_compiled_programs

NAME = "JAX_COMPILATION_CACHE_DIR"


@pytest.fixture
def surroundings(monkeypatch, tmp_path):
    """An environment for one test: the user's folder for caches is the test's."""
    with monkeypatch.context() as patch:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMP", "JAX_PERS"))}
        patch.setattr(os, "environ", kept | {"XDG_CACHE_HOME": str(tmp_path / "caches")})
        yield os.environ


def test_jax_is_told_a_folder_of_the_users_own(surroundings, tmp_path):
    assert all(map(module_of, KEPT))
    keep_compiled_programs("train")
    assert NAME not in surroundings
    keep_compiled_programs("sample")
    folder = tmp_path / "caches/diffeqformer"
    assert surroundings[NAME].startswith(f"{folder}/compiled-") and os.stat(surroundings[NAME]).st_mode & 0o77 == 0
    for name in (name for name in surroundings if name.startswith(("JAX_COMP", "JAX_PERS"))):
        assert hasattr(jax.config, name.lower())  # else JAX would not read it


@pytest.mark.parametrize("own", ["", "/elsewhere"])
def test_a_folder_of_ones_own_is_respected(surroundings, own):
    surroundings[NAME] = own
    keep_compiled_programs("sample")
    assert surroundings[NAME] == own


def test_without_a_place_nothing_is_kept(surroundings, tmp_path):
    (tmp_path / "caches").write_text("a file")
    keep_compiled_programs("sample")
    assert NAME not in surroundings


@pytest.mark.slow
def test_the_second_command_compiles_nothing(surroundings, place, tmp_path):
    words = ["-m", "diffeqformer", "sample", str(place.run("time")), "--prompt", "the", "--tokens", "4", "--seed", "1"]
    surroundings["JAX_LOG_COMPILES"] = "1"

    def once() -> tuple[str, int, int]:
        done = subprocess.run(
            [sys.executable, *words], env={**surroundings}, capture_output=True, text=True, check=True
        )
        assert "Error" not in done.stderr
        return done.stdout, *(done.stderr.count(said) for said in ("Finished XLA compilation", "cache hit for"))

    text, programs, found = once()
    assert programs > 0 == found
    assert once() == (text, programs, programs)
    (damaged,) = (tmp_path / "caches").rglob("*_generate*-cache")
    damaged.write_bytes(damaged.read_bytes()[:1000])
    assert once() == (text, programs, programs - 1)  # compiled again, without a word
