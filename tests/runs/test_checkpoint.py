"""Checkpoints: what is written is read back, what is damaged is named, what was interrupted never counts."""

import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import Checkpointer

from diffeqformer.errors import BadInput, Damaged, RunFailed
from diffeqformer.runs import checkpoint
from diffeqformer.runs.background import Writer
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.store import files


class Moments(NamedTuple):
    count: jax.Array
    mu: dict


def items(seed: float = 0.0, size: int = 3) -> dict:
    model = {"weights": [jnp.full((2, size), 0.1 + seed), jnp.arange(4, dtype=jnp.bfloat16)], "static": None}
    return {"model": model, "optimizer": (Moments(jnp.int32(7), {"w": jnp.full(5, -seed)}), ())}


def same(a, b) -> bool:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def refuse_to_say(line: str) -> None:
    raise AssertionError(line)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_is_saved_is_read_back_to_the_bit(tmp_path):
    store = Checkpoints(tmp_path / "checkpoints")
    assert store.latest(items(), refuse_to_say) is None
    store.save(300, items(1.25), {"curve": [[1, 2.5]], "data": "f00"}, metric=3.5)
    restored = store.latest(items(), refuse_to_say)
    assert restored is not None and restored.step == 300
    assert restored.metadata == {"curve": [[1, 2.5]], "data": "f00"}
    assert same(restored.items, items(1.25)) and not same(restored.items, items(1.0))


def test_restores_from_shapes_alone_and_one_item_alone(tmp_path):
    store = Checkpoints(tmp_path)
    store.save(1, items(2.0), {})
    shutil.rmtree(tmp_path / "1" / "optimizer")  # a model opens although its optimizer's state is lost
    restored = store.latest({"model": jax.eval_shape(items)["model"]}, refuse_to_say)
    assert restored is not None and restored.items.keys() == {"model"}
    assert same(restored.items["model"], items(2.0)["model"])
    assert restored.items["model"]["weights"][0].devices() == {jax.devices()[0]}


SAVE_ON_FOUR_DEVICES = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp
from diffeqformer.runs.checkpoint import Checkpoints
assert len(jax.devices()) == 4
by_rows = jax.NamedSharding(jax.make_mesh((4,), ("rows",)), jax.P("rows"))
Checkpoints(Path(sys.argv[1])).save(1, {"model": jax.device_put(jnp.arange(8.0), by_rows)}, {})
"""


def test_a_checkpoint_of_four_devices_opens_on_one(tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-c", SAVE_ON_FOUR_DEVICES, str(tmp_path)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    restored = Checkpoints(tmp_path).latest({"model": jax.ShapeDtypeStruct((8,), jnp.float32)}, refuse_to_say)
    assert restored is not None and same(restored.items["model"], jnp.arange(8.0))
    assert restored.items["model"].devices() == {jax.devices()[0]}


def test_keeps_the_last_and_the_best(tmp_path):
    store = Checkpoints(tmp_path, keep_last=2, keep_best=1)
    for step, metric in [(1, 5.0), (2, 3.0), (3, None), (4, 4.0), (5, None), (6, 3.0)]:
        store.save(step, {"model": jnp.full(3, float(step))}, {}, metric)
    assert store.steps() == [2, 5, 6]
    best = store.best({"model": jnp.zeros(3)})
    assert best is not None and best.step == 2 and best.items["model"][0] == 2.0
    none = Checkpoints(tmp_path / "other", keep_last=1, keep_best=0)
    for step in (1, 2):
        none.save(step, {"model": jnp.zeros(3)}, {}, 1.0 * step)
    assert none.steps() == [2]


def test_a_damaged_manifest_takes_the_place_of_no_sound_best(tmp_path):
    store = Checkpoints(tmp_path, keep_last=4, keep_best=1)
    for step, metric in enumerate([5.0, 1.0, 4.0, 4.5], 1):
        store.save(step, {"model": jnp.zeros(3)}, {}, metric)
    truncate(tmp_path / "1" / "manifest.json")
    Checkpoints(tmp_path, keep_last=1, keep_best=1)._rotate()
    assert store.steps() == [1, 2, 4]  # what cannot be read, the best, the last


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_damage_to_any_file_is_named_and_the_checkpoint_before_is_used(tmp_path, damage):
    store = Checkpoints(tmp_path / "checkpoints")
    store.save(200, items(2.0), {})
    store.save(300, items(3.0), {})
    newest = tmp_path / "checkpoints" / "300"
    sound = tmp_path / "sound"
    shutil.copytree(newest, sound)
    names = [path.relative_to(newest).as_posix() for path in files_of(newest)]
    assert {name.split("/")[0] for name in names} == {"manifest.json", "model", "optimizer"}
    for name in [name for name in names if (newest / name).stat().st_size]:
        said: list[str] = []
        damage(newest / name)
        restored = store.latest(items(), said.append)
        assert restored is not None and restored.step == 200 and same(restored.items, items(2.0)), name
        (line,) = said
        pattern = rf"checkpoint at update 300 is damaged \({re.escape(name)}.*\); using the one at update 200\."
        assert re.fullmatch(pattern, line), line
        shutil.rmtree(newest)
        shutil.copytree(sound, newest)
    restored = store.latest(items(), refuse_to_say)
    assert restored is not None and restored.step == 300


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("reader", ["file_digest", "read_sealed"])
def test_a_checkpoint_that_cannot_be_read_now_is_not_damaged(tmp_path, monkeypatch, reader, number):
    """It may be sound: an older one in its place would lose updates, and then the checkpoint."""
    store = Checkpoints(tmp_path)
    for step in (1, 2):
        store.save(step, items(), {})
    usual = getattr(checkpoint, reader)

    def refused(path):
        if "2" in path.parts:
            raise OSError(number, os.strerror(number), str(path))
        return usual(path)

    if reader == "file_digest":
        monkeypatch.setattr(checkpoint, reader, refused)
    else:
        monkeypatch.setattr(files, "read_small", lambda path, most: refused(path))
    with pytest.raises(RunFailed, match=rf"file '.*/2/.*' cannot be read: {os.strerror(number)}\.") as refusal:
        store.latest(items(), refuse_to_say)
    assert not isinstance(refusal.value, Damaged) and store.steps() == [1, 2]


def test_an_altered_metric_is_damage(tmp_path):
    store = Checkpoints(tmp_path)
    store.save(1, items(), {}, metric=2.0)
    path = tmp_path / "1" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["metric"] = 1.0
    path.write_text(json.dumps(manifest))
    with pytest.raises(RunFailed, match=r"damaged \(manifest.json is damaged, or was edited: it does not match"):
        store.latest(items(), refuse_to_say)


def test_a_sealed_manifest_of_something_else_is_damage(tmp_path):
    """A stranger can seal anything."""
    store, path = Checkpoints(tmp_path), tmp_path / "1" / "manifest.json"
    store.save(1, items(), {}, metric=2.0)
    manifest = files.read_sealed(path)
    for entry in (
        *({name: other} for name in ("metadata", "arrays", "files") for other in (None, [])),
        {"arrays": {"model": "x"}},
        {"metadata": {"own": ["x"]}},
        {"metric": "x"},
    ):
        files.write_sealed(path, manifest | entry)
        assert store.metadata() == (0, {})
        for read in (store.latest, store.best):
            with pytest.raises(RunFailed, match=r"is damaged \(manifest.json does not describe a checkpoint\)"):
                read(items())


def test_no_sound_checkpoint_is_a_failure_not_a_fresh_start(tmp_path):
    store = Checkpoints(tmp_path)
    for step in (1, 2):
        store.save(step, items(), {})
        flip(next(tmp_path.glob(f"{step}/model/manifest.ocdbt")))
    said: list[str] = []
    with pytest.raises(RunFailed) as failure:
        store.latest(items(), said.append)
    assert str(failure.value) == (
        f"checkpoint at update 1 is damaged (model/manifest.ocdbt: digest differs), "
        f"and no other in {str(tmp_path)!r} is sound."
    )
    assert said == [
        "checkpoint at update 2 is damaged (model/manifest.ocdbt: digest differs); using the one at update 1."
    ]


class Killed(BaseException):
    """Stands for the process's end: nothing that it interrupts may tidy up after it."""


@pytest.mark.parametrize("moment", ["mkdir", "orbax", "digest", "manifest", "commit"])
def test_a_write_killed_at_any_stage_leaves_the_checkpoint_before(tmp_path, monkeypatch, moment):
    store = Checkpoints(tmp_path / "checkpoints")
    store.save(1, items(1.0), {})

    def kill(*arguments, **named):
        raise Killed

    where = {
        "mkdir": (checkpoint, "write_arrays"),
        "orbax": (Checkpointer, "save"),
        "digest": (checkpoint, "_digest_of_new"),
        "manifest": (checkpoint, "write_sealed"),
        "commit": (checkpoint.os, "rename"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*where[moment], kill)
        with pytest.raises(Killed):
            store.save(2, items(2.0), {})
    assert (tmp_path / "checkpoints" / "writing-2").is_dir() and store.steps() == [1]
    restored = store.latest(items(), refuse_to_say)
    assert restored is not None and restored.step == 1
    store.save(2, items(2.0), {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]


def test_a_removal_killed_half_way_leaves_nothing_that_looks_like_a_checkpoint(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path, keep_last=1, keep_best=0)
    store.save(1, items(), {})

    def kill(*arguments, **named):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", kill)
        with pytest.raises(Killed):
            store.save(2, items(), {})
    assert store.steps() == [2] and (tmp_path / "removing-1").is_dir()
    store.clean()
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


@pytest.mark.parametrize(("call", "which", "left"), [("rename", 0, 1.0), ("rename", 1, 1.0), ("rmtree", 0, 2.0)])
def test_a_checkpoint_that_is_written_again_is_there_whenever_that_is_killed(tmp_path, monkeypatch, call, which, left):
    """A finished model whose optimiser's state is dropped has no other."""
    store = Checkpoints(tmp_path, keep_last=1, keep_best=0)
    store.save(1, items(1.0), {})
    module, calls = {"rename": os, "rmtree": shutil}[call], []
    whole = getattr(module, call)

    def kill(path, *others, **named):
        calls.extend([path] if Path(path).parent == tmp_path else ())  # Orbax renames what is its own
        if len(calls) > which:
            raise Killed
        return whole(path, *others, **named)

    with monkeypatch.context() as patch:
        patch.setattr(module, call, kill)
        with pytest.raises(Killed):
            store.save(1, items(2.0), {})
    for clean in (lambda: None, store.clean):  # what only reads cleans nothing
        clean()
        restored = store.latest(items(), refuse_to_say)
        assert restored is not None and restored.step == 1 and same(restored.items, items(left))
        assert store.steps() == [1] and store.metadata() == (1, {})
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_a_full_disk_names_the_folder_and_what_is_safe(tmp_path, caplog):
    store = Checkpoints(tmp_path / "checkpoints")
    big = {"model": jax.random.normal(jax.random.key(0), (100_000,))}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for step, safe in [(1, "there is no earlier one"), (5, "the last good one is at update 3")]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(RunFailed) as failure:
                store.save(step, big, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert f"checkpoint at update {step} could not be written in {str(store.folder)!r} (" in str(failure.value)
        assert str(failure.value).endswith(f"; {safe}.")
        assert not list(store.folder.glob("writing-*"))
        store.save(3, big, {})
        restored = store.latest(big, refuse_to_say)
        assert restored is not None and restored.step == 3 and same(restored.items, big)
    assert not caplog.records  # one sentence, and no traceback of Orbax's beside it


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"model": items(size=4)["model"]}, "array model/weights.0 is float32[2,3] there, but float32[2,4] here."),
        ({"model": {"weights": jnp.zeros(2)}}, "array model/weights is absent there, but float32[2] here."),
        ({"head": jnp.zeros(2)}, "has no 'head', but this run needs one."),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, other, sentence):
    store = Checkpoints(tmp_path)
    store.save(1, items(), {})
    with pytest.raises(BadInput) as refusal:
        store.latest(other, refuse_to_say)
    assert str(refusal.value).endswith(sentence)


def test_clean_removes_what_lies_after_the_update_resumed_from(tmp_path):
    store = Checkpoints(tmp_path, keep_last=3)
    for step in (1, 2, 3):
        store.save(step, items(), {})
    store.clean(after=1)
    assert store.steps() == [1]


def test_nothing_is_pickled(tmp_path):
    Checkpoints(tmp_path).save(1, items(), {})
    for path in files_of(tmp_path):
        assert not path.read_bytes().startswith((b"\x80\x03", b"\x80\x04", b"\x80\x05"))


class Held(Checkpoints):
    """Saves when it may."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.may_save = threading.Event()

    def save(self, *arguments, **named) -> None:
        assert self.may_save.wait(60)
        super().save(*arguments, **named)


def test_what_is_saved_in_the_background_is_the_state_of_that_moment(tmp_path):
    store = Held(tmp_path)
    update = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2 + 1, tree), donate_argnums=0)
    expected, state = items(1.0), items(1.0)
    with Writer(store) as writer:
        writer.save(1, state, {}, None)
        for _ in range(3):
            state = update(state)  # into the same memory
        writer.require_sound()  # nothing has failed, and nobody waits
        assert store.steps() == []
        store.may_save.set()
        writer.save(2, state, {}, None)
        assert 1 in store.steps()  # the one before is written
    assert store.steps() == [1, 2]
    for step, tree in [(2, state), (1, expected)]:
        restored = store.latest(items(), refuse_to_say)
        assert restored is not None and restored.step == step and same(restored.items, tree)
        shutil.rmtree(tmp_path / str(step))


def test_what_the_system_says_is_found_in_a_librarys_words():
    long = f"OUT_OF_RANGE: {'Error writing at a place ' * 20}: Failed to write: File too large [os_error_code='27']"
    full = "RESOURCE_EXHAUSTED: No space left on device at a place"
    told = {long: "File too large", full: "No space left on device", "a value is wrong.": "a value is wrong"}
    for words, said in told.items():
        assert checkpoint._reason(ValueError(words)) == said


def test_a_failure_in_the_background_is_told_by_the_next_question(tmp_path, monkeypatch):
    store = Held(tmp_path)
    store.may_save.set()
    store.save(1, items(), {})

    def full(*arguments) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_sealed", full)
    told = r"the checkpoint at update 2 could not be written in .* \(No space left on device\); the last good one is"
    with pytest.raises(RunFailed, match=told), Writer(store) as writer:
        writer.save(2, items(), {}, None)
        writer.settle()
        writer.require_sound()
    with pytest.raises(RunFailed, match=told), Writer(store) as writer:
        writer.save(2, items(), {}, None)
    with pytest.raises(ZeroDivisionError), Writer(store) as writer:  # what went wrong first is what is told
        writer.save(2, items(), {}, None)
        _ = 1 / 0
    assert store.steps() == [1] and [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("name", ["[x]", "a*", "b?", "a\\b", "c d"])
def test_a_folder_may_have_any_name(tmp_path, name):
    """Orbax reads brackets, stars and backslashes of a path as something else."""
    (tmp_path / "a*b").mkdir()
    found = Checkpoints(tmp_path / name / "checkpoints")
    found.save(1, items(), {"a": 1})
    restored = found.latest(items(1.0))
    assert same(restored.items, items()) and restored.metadata == {"a": 1}
    assert {entry.name for entry in tmp_path.iterdir()} == {"a*b", name}


def test_what_could_not_be_read_again_is_no_checkpoint(tmp_path, monkeypatch):
    write = checkpoint.write_arrays

    def without_index(folder, items):
        write(folder, items)
        (folder / "model" / checkpoint.INDEX).unlink()

    monkeypatch.setattr(checkpoint, "write_arrays", without_index)
    with pytest.raises(RunFailed, match=r"could not be written .*model/manifest.ocdbt is missing"):
        Checkpoints(tmp_path).save(1, items(), {})
    assert Checkpoints(tmp_path).steps() == []


def test_an_interruption_while_arrays_are_read_is_no_failure(tmp_path, monkeypatch):
    """Orbax makes an error of its own of whatever comes then."""

    async def interrupted(**_):
        raise KeyboardInterrupt

    store = Checkpoints(tmp_path / "checkpoints")
    store.save(1, items(), {})
    monkeypatch.setattr("orbax.checkpoint._src.serialization.serialization._read_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.latest(items(), refuse_to_say)
