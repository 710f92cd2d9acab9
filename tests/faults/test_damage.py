"""Every file of a run, a cache, an export and an adapter, damaged in turn: it is named, or no number can tell.

The quick tests damage each file once, in one of the ways; the slow ones those of a whole run too, each file in every
way, and flip many single bits.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from diffeqformer.config import Config
from diffeqformer.data.cache import prepare
from diffeqformer.errors import DiffEqFormerError
from diffeqformer.interop.exporting import export
from diffeqformer.interop.huggingface import from_huggingface
from diffeqformer.interop.importing import import_huggingface
from diffeqformer.interop.peft import load_adapter
from diffeqformer.runs.finetune import finetune_config
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.trainer import train
from tests.cases import slow
from tests.faults.conftest import Lines
from tests.faults.small_run import config as config_of
from tests.runs.tiny_run import write_text

NOT_READ_FROM_A_RUN = {
    ".lock": "holds the number of the process that wrote last, for one message",
    "report.html": "is written from results.json, and never read",
    "imported.json": "says where a model came from; that it is imported stands in its manifest",
}
NOT_READ_BY_A_MODEL = {
    **NOT_READ_FROM_A_RUN,
    "data.json": "says which text belongs to the run; read where a text is",
    "metrics.jsonl": "is read where curves are",
    "special_tokens_map.json": "names tokens for chat templates; read, and refused if damaged, where a run is exported",
    "results.json": "is read where results are",
}
NOT_READ_FROM_AN_EXPORT = {
    *(f"{name}_diffeqformer.py" for name in ("configuration", "weights", "modeling")),
    *("README.md", "generation_config.json"),
}


class Place(NamedTuple):
    folder: Path
    config: Config
    tuned: Config
    """The config of a run of LoRA that starts from the run of `config`."""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    folder = tmp_path_factory.mktemp("damage")
    text = write_text(folder / "text.txt")
    config = config_of(8, str(folder / "run"), str(text), str(folder / "cache"))
    config = replace(config, trainer=replace(config.trainer, checkpoint_every=4, evaluate_every=4, log_every=4))
    train(config, Lines())
    base = load_run(folder / "run")
    tuned = finetune_config(base, str(folder / "tuned"), trainer=replace(config.trainer, updates=4))
    train(tuned, Lines(), base)
    export(load_run(folder / "tuned"), folder / "exported", adapter=True)
    import_huggingface(folder / "exported", folder / "imported")
    return Place(folder, config, tuned)


# ---------------------------------------------------------------------------------------------------------- the damage


def truncated(content: bytes, draw: random.Random) -> bytes:
    return content[: len(content) // 2]


def emptied(content: bytes, draw: random.Random) -> bytes:
    return b""


def zeroed(content: bytes, draw: random.Random) -> bytes:
    return bytes(len(content))


def flipped(content: bytes, draw: random.Random) -> bytes:
    where, changed = draw.randrange(len(content)), bytearray(content)
    changed[where] ^= 1 << draw.randrange(8)
    return bytes(changed)


KINDS = (truncated, emptied, zeroed, flipped)


@contextmanager
def damaged(path: Path, kind: Callable[..., bytes], draw: random.Random) -> Iterator[None]:
    """The file with damage, and its whole folder put back afterwards as it was."""
    top = path.parent
    content, before = path.read_bytes(), {file: file.read_bytes() for file in top.iterdir() if file.is_file()}
    path.write_bytes(kind(content, draw))
    try:
        yield
    finally:
        for file, was in before.items():
            file.write_bytes(was)


def files_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]


def digest(tree: Any) -> str:
    return blake2b(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))).hexdigest()


def outcome(call: Callable[[Lines], Any], name: str) -> Any:
    """What `call` returns; `None` if it refused, or went on, and named the file."""
    said = Lines()
    try:
        found = call(said)
    except DiffEqFormerError as error:
        assert name in str(error), f"{name} is not named: {error}"
        assert "\n" not in str(error)
        return None
    if said.lines:
        assert any(name in line for line in said.lines), f"{name} is not named: {said.lines}"
        return None
    return found


# ------------------------------------------------------------------------------------------------------ a run's model


def opened(folder: Path, said: Lines) -> str:
    run = load_run(folder, progress=said)
    return f"{digest(run.model)} {run.step} {run.tokenizer.to_str()} {run.config.model}"


def model_survives(folder: Path, whole: bool) -> int:
    """Damage every file of a run, in every way or each in another one, and open its model; returns how often."""
    draw, sound, count = random.Random(1), opened(folder, Lines()), 0
    for number, path in enumerate(files_of(folder)):
        kinds = KINDS if whole else (KINDS[number % len(KINDS)],)
        name = path.relative_to(folder).as_posix()
        shown = name.split("/", 2)[-1]  # a checkpoint's files are named from its folder on
        for kind in kinds:
            count += 1
            with damaged(path, kind, draw):
                found = outcome(lambda said: opened(folder, said), shown)
            if found is not None:
                assert found == sound, f"{kind.__name__} {name}: another model, in silence"
                harmless = NOT_READ_BY_A_MODEL.keys() | {"config.yaml"} if kind is flipped else NOT_READ_BY_A_MODEL
                older = name.startswith("checkpoints/") and not name.startswith(f"checkpoints/{latest(folder)}/model")
                assert name in harmless or older, f"{kind.__name__} {name} is not seen"
    assert opened(folder, Lines()) == sound
    return count


def latest(folder: Path) -> int:
    return max(int(entry.name) for entry in (folder / "checkpoints").iterdir())


@pytest.mark.slow  # `make test-faults` has it
@pytest.mark.parametrize("name", ["tuned", *slow("run", "imported")])
def test_a_damaged_run_gives_its_own_model_or_none(place, name):
    assert model_survives(place.folder / name, whole=False) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "tuned", "imported"])
def test_a_run_with_every_damage_gives_its_own_model_or_none(place, name):
    assert model_survives(place.folder / name, whole=True) > 40


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "tuned"])
def test_two_hundred_single_bits_of_a_run(place, name):
    draw, folder = random.Random(2), place.folder / name
    small = [path for path in files_of(folder) if path.parent == folder]
    sound = opened(folder, Lines())
    for _ in range(200):
        path = draw.choice(small if draw.random() < 0.7 else files_of(folder))
        shown = path.relative_to(folder).as_posix().split("/", 2)[-1]
        with damaged(path, flipped, draw):
            found = outcome(lambda said: opened(folder, said), shown)
        assert found in (None, sound), f"{path}: another model, in silence"


# ------------------------------------------------------------------------------------------- a run that is continued


@pytest.mark.slow  # `make test-faults` has it
def test_a_finished_run_with_damage_gives_its_own_results_or_none(place):
    """The same command again: it refuses, or measures again what was lost, and says so."""
    draw, folder = random.Random(3), place.folder / "run"
    whole = (folder / "metrics.jsonl").read_bytes()
    timing = ("seconds", "tokens_per_second")
    lasting = lambda entry: {name: value for name, value in entry.items() if name not in timing}
    results = lasting(train(place.config, Lines()).entry)
    for path in files_of(folder):
        if path.parent != folder:
            continue
        for kind in (truncated, flipped):
            said = Lines()
            with damaged(path, kind, draw):
                try:
                    assert lasting(train(place.config, said).entry) == results, f"{kind.__name__} {path.name}"
                    assert (folder / "metrics.jsonl").read_bytes() == whole
                except DiffEqFormerError as error:
                    assert path.name in str(error) and error.exit_code in (1, 2), f"{path.name} is not named: {error}"
                    continue
            told = any(path.name in line for line in said.lines)
            rewritten = path.name in {"config.yaml", "tokenizer.json", "data.json"}  # by what the run continues with
            assert told or rewritten or path.name in NOT_READ_FROM_A_RUN, f"{kind.__name__} {path.name}"


def test_a_base_with_damage_starts_no_other_run(place):
    for name in ("tokenizer.json", "config.yaml"):
        config = replace(place.tuned, run=str(place.folder / "new"))
        with damaged(place.folder / "run" / name, zeroed, random.Random(0)), pytest.raises(DiffEqFormerError) as error:
            train(config, Lines())
        assert f"{place.folder}/run/{name}" in str(error.value)
        assert not (place.folder / "new").exists()


# ------------------------------------------------------------------------------------------------------ a token cache


@pytest.mark.slow  # `make test-faults` has it
def test_a_damaged_token_cache_is_named_and_built_again(place):
    draw = random.Random(4)
    sound = prepare(place.config.data, Lines())
    tokens = sound.train.tobytes() + sound.validation.tobytes()
    for path in files_of(sound.folder):
        for kind in (*KINDS, flipped, flipped, flipped):
            said = Lines()
            path.write_bytes(kind(path.read_bytes(), draw))
            again = prepare(place.config.data, said)
            told = any(f"The token cache {sound.folder} is damaged ({path.name}" in line for line in said.lines)
            assert told, f"{kind.__name__} {path.name}: {said.lines}"
            assert again.train.tobytes() + again.validation.tobytes() == tokens
            assert (again.statistics, again.content) == (sound.statistics, sound.content)
            assert prepare(place.config.data, said) and len(said.lines) == 2  # with that of the corpus's one document


# --------------------------------------------------------------------------------------------- exports and adapters


@pytest.mark.slow
def test_a_damaged_export_is_named_or_the_same_model(place):
    draw, folder = random.Random(5), place.folder / "exported"
    sound = digest(from_huggingface(folder))
    for path in (path for path in files_of(folder) if path.parent == folder):
        for kind in (*KINDS, flipped, flipped, flipped):
            with damaged(path, kind, draw):
                found = outcome(lambda said: digest(from_huggingface(folder)), path.name)
            assert found in (None, sound), f"{kind.__name__} {path.name}: another model, in silence"
            read = path.name not in NOT_READ_FROM_AN_EXPORT and (path.name != "SHA256SUMS" or kind is zeroed)
            assert found is None or not read, f"{kind.__name__} {path.name} is not seen"


@pytest.mark.slow
def test_a_damaged_adapter_is_named_or_the_same_model(place):
    draw, folder = random.Random(6), place.folder / "exported" / "adapter"
    base = from_huggingface(place.folder / "exported")
    sound = digest(load_adapter(base, folder))
    for path in files_of(folder):
        for kind in (*KINDS, flipped, flipped, flipped):
            with damaged(path, kind, draw):
                found = outcome(lambda said: digest(load_adapter(base, folder)), path.name)
            assert found in (None, sound), f"{kind.__name__} {path.name}: another model, in silence"
            assert found is None or path.name == "SHA256SUMS", f"{kind.__name__} {path.name} is not seen"
