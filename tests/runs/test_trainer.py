"""Training as a whole: it learns, it resumes to the bit, and it ends badly in one sentence with nothing lost."""

import dataclasses
import errno
import json
import math
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer import config as configuration
from diffeqformer.config import EMAConfig, LayerConfig, LoRAConfig, ToleranceConfig, dump_yaml
from diffeqformer.data.loader import Loader
from diffeqformer.errors import BadInput, Damaged, Diverged, Interrupted, RunFailed
from diffeqformer.progress import Silent
from diffeqformer.runs import compare, recorder, signals, trainer
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.folder import RunFolder
from diffeqformer.runs.metrics import Metrics, read_metrics
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.results import results_of
from diffeqformer.runs.settings import difference, numeric
from diffeqformer.runs.trainer import train
from diffeqformer.store.lock import folder_lock
from diffeqformer.training import loop
from diffeqformer.training.recipe import Callback, Recipe
from tests.runs.tiny_run import changed


class Lines(Silent):
    """Keeps what is said."""

    def __init__(self):
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def lasting(folder: str | Path) -> list[dict]:
    """The metrics without those that tell of time."""
    return [record for record in read_metrics(Path(folder) / "metrics.jsonl") if record["kind"] != "timing"]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same_model(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def stop_after(monkeypatch, updates: int, number: int = signal.SIGTERM) -> None:
    """Send this process a signal when batch number `updates` is asked for."""

    class Stopping(Loader):
        def __getitem__(self, k: int):
            if k == updates:
                os.kill(os.getpid(), number)
            return super().__getitem__(k)

    monkeypatch.setattr(trainer, "Loader", Stopping)


def test_a_run_learns_and_leaves_what_a_run_folder_holds(config):
    result = train(config, Silent())
    folder = Path(config.run)
    assert {path.name for path in folder.iterdir()} == {
        ".lock", "config.yaml", "data.json", "tokenizer.json", "checkpoints", "metrics.jsonl", "results.json"
    }  # fmt: skip
    records = lasting(folder)
    updates = [record for record in records if record["kind"] == "update"]
    assert [record["step"] for record in updates] == list(range(1, 13))
    assert set(updates[0]) == {"kind", "step", "loss", "gradient_norm", "learning_rate"}
    assert updates[-1]["loss"] < updates[0]["loss"] - 0.5
    assert [record["step"] for record in records if record["kind"] == "validation"] == [5, 10, 12]
    document = json.loads((folder / "results.json").read_text())
    (entry,) = document["models"]
    assert entry == result.entry
    assert document["corpus"]["train_tokens"] == len(result.tokens.train)
    assert entry["validation"]["perplexity"] == pytest.approx(math.exp(entry["validation"]["loss"]))
    assert entry["tokens"] == 12 * 4 * 16 and entry["parameters"]["stored"] < entry["parameters"]["effective"]
    assert entry["curve"]["train"] == [[record["step"], record["loss"]] for record in updates]
    assert entry["config"]["model"]["vocabulary"] == 280
    assert configuration.read_yaml(folder / "config.yaml") == result.config
    assert Checkpoints(folder / "checkpoints").steps()[-1] == 12


def test_a_finished_run_returns_its_results_without_training(config, monkeypatch):
    first = train(config, Silent())
    for weights_only in (False, True):  # as a comparison leaves its runs
        if weights_only:
            compare._keep_weights_only(Path(config.run))
        before = snapshot(Path(config.run))
        assert weights_only != any("optimizer" in name for name in before)
        with monkeypatch.context() as patch:
            patch.setattr(loop, "make_update", None)
            again = train(config, Silent())
        assert again.entry == first.entry and same_model(again.model, first.model)
        assert snapshot(Path(config.run)) == before
    (Path(config.run) / "results.json").write_text("{")
    said = Lines()
    again = train(config, said)
    assert again.entry["validation"] == first.entry["validation"] and same_model(again.model, first.model)
    assert any("results.json" in line and line.endswith("It is written again.") for line in said.lines)


@pytest.mark.parametrize("damage", [False, True])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(config, monkeypatch, tmp_path, damage):
    config = changed(config, model__dropout=configuration.DropoutConfig(residual=0.1), trainer__accumulation=2)
    whole = train(changed(config, run=str(tmp_path / "whole")), Silent())
    for stop in (3, 10):
        with monkeypatch.context() as patch:
            stop_after(patch, stop)
            with pytest.raises(Interrupted):
                train(config, Silent())
    said = Lines()
    if damage:
        next((Path(config.run) / "checkpoints" / "11" / "optimizer").rglob("d/*")).write_bytes(b"")
    resumed = train(config, said)
    assert lasting(config.run) == lasting(tmp_path / "whole")
    assert same_model(resumed.model, whole.model)
    assert resumed.entry["validation"] == whole.entry["validation"]
    pattern = r"checkpoint at update 11 is damaged \(optimizer/.*: digest differs\); using the one at update 10\."
    told = [line for line in said.lines if "checkpoint" in line]
    assert len(told) == damage and all(re.fullmatch(pattern, line) for line in told)
    assert Checkpoints(Path(config.run) / "checkpoints").steps() == [10 if damage else 11, 12]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_is_answered_with_a_checkpoint_and_a_line(config, monkeypatch, heeded, number):
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    stop_after(monkeypatch, 6, number)
    said = Lines()
    with pytest.raises(Interrupted):
        train(config, said)
    assert said.lines[-1] == "stopped at update 7 of 12; saved; run the same command again to go on."
    assert Checkpoints(Path(config.run) / "checkpoints").steps()[-1] == 7
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert Interrupted.exit_code == 130


class Impatient(Callback):
    """Asks twice to end after some updates."""

    def __init__(self, updates: int, *numbers: int, pause: float = 0.0):
        self.updates, self.numbers, self.pause = updates, numbers, pause

    def before_update(self, step):
        for number in self.numbers if step == self.updates else ():
            os.kill(os.getpid(), number)
            time.sleep(self.pause)


@pytest.fixture
def heeded(monkeypatch):
    """Both signals as in a terminal: a shell's background jobs ignore Ctrl-C."""
    both = (signal.SIGINT, signal.SIGTERM)
    earlier = [signal.signal(number, signal.default_int_handler) for number in both]
    yield
    for number, handler in zip(both, earlier, strict=True):
        signal.signal(number, handler)


def test_a_second_ctrl_c_ends_at_once(config, monkeypatch, heeded):
    monkeypatch.setattr(signals, "BURST", 0.01)
    impatient = Impatient(6, signal.SIGINT, signal.SIGINT, pause=0.02)
    with pytest.raises(KeyboardInterrupt):
        train(config, Silent(), recipe=Recipe(callbacks=(impatient,)))
    assert Checkpoints(Path(config.run) / "checkpoints").steps() == [4, 5]


def test_two_signals_in_a_burst_are_one_request(config, heeded):
    """As of a supervisor that hands Ctrl-C on to a process that the terminal has told already."""
    with pytest.raises(Interrupted, match="stopped at update 7 of 12"):
        train(config, Silent(), recipe=Recipe(callbacks=(Impatient(6, signal.SIGINT, signal.SIGTERM, signal.SIGINT),)))
    assert Checkpoints(Path(config.run) / "checkpoints").steps()[-1] == 7


def test_a_signal_that_is_ignored_stays_so(config, heeded):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    train(config, Silent(), recipe=Recipe(callbacks=(Impatient(6, signal.SIGINT),)))
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_request_while_the_last_checkpoint_is_written_is_answered(config, heeded):
    class Late(Callback):
        def saved(self, step):
            if step == 12:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="stopped at update 12 of 12"):
        train(config, Silent(), recipe=Recipe(callbacks=(Late(),)))
    assert train(config, Silent()).entry["updates"] == 12


def test_a_file_of_ones_own_that_is_not_there_is_not_taken_for_the_runs(config, tmp_path):
    class Own(Callback):
        def after_update(self, now, measured):
            (tmp_path / "nowhere" / "notes").write_text("x")

    with pytest.raises(FileNotFoundError, match="nowhere"):
        train(config, Silent(), recipe=Recipe(callbacks=(Own(),)))


def test_trains_outside_the_main_thread(config):
    results = []
    thread = threading.Thread(target=lambda: results.append(train(changed(config, trainer__updates=2), Silent())))
    thread.start()
    thread.join()
    assert results[0].entry["updates"] == 2


def poison(monkeypatch, at: int, value: float, gradient: bool = False) -> None:
    """Make the loss (or the gradient) of update number `at` equal `value`."""
    original = loop.make_update

    def make_update(config, *own):
        update = original(config, *own)

        def poisoned(state, ids, steps):
            step = int(state.step)
            state, measured = update(state, ids, steps)
            if step + 1 == at:
                bad = jnp.float32(value)
                measured = measured._replace(gradient_norm=bad) if gradient else measured._replace(loss=bad)
                state = state._replace(model=jax.tree.map(lambda x: x * bad, state.model))
            return state, measured

        return poisoned

    monkeypatch.setattr(loop, "make_update", make_update)


@pytest.mark.parametrize(
    ("at", "value", "gradient", "sentence"),
    [
        (7, math.nan, False, "the loss became nan at update 7; the last good checkpoint is at update 5."),
        (8, math.inf, True, "the gradient's norm became inf at update 8; the last good checkpoint is at update 5."),
        (2, math.nan, False, "the loss became nan at update 2; there is no checkpoint yet."),
    ],
)
def test_a_loss_that_is_not_finite_stops_the_run_and_is_never_saved(config, monkeypatch, at, value, gradient, sentence):
    poison(monkeypatch, at, value, gradient)
    with pytest.raises(RunFailed) as failure:
        train(config, Silent())
    assert str(failure.value) == sentence
    assert Checkpoints(Path(config.run) / "checkpoints").steps() == ([4, 5] if at > 5 else [])
    losses = [record["step"] for record in lasting(config.run) if record["kind"] == "update"]
    assert losses == list(range(1, at))


def test_weights_that_are_not_finite_are_never_saved_though_the_loss_is(config, monkeypatch):
    original = loop.make_update

    def make_update(config, *own):
        update = original(config, *own)

        def overflow(state, ids, steps):
            state, measured = update(state, ids, steps)
            broken = jax.tree.map(lambda x: x * jnp.float32(math.inf), state.model)
            return (state._replace(model=broken) if int(state.step) == 4 else state), measured

        return overflow

    monkeypatch.setattr(loop, "make_update", make_update)
    with pytest.raises(RunFailed, match="the model's weights are no longer finite at update 4; there is no checkpoint"):
        train(config, Silent())
    assert not Checkpoints(Path(config.run) / "checkpoints").steps()


def test_a_loss_that_is_not_finite_at_the_end_alone_is_a_divergence(config, monkeypatch):
    evaluate = trainer.evaluate
    spoilt = lambda *given, **named: dataclasses.replace(evaluate(*given, **named), loss=math.nan)
    monkeypatch.setattr(trainer, "evaluate", spoilt)
    said = "the validation loss is nan after the last update; the last good checkpoint is at update 12."
    for _ in range(2):  # once more when it is started again
        with pytest.raises(Diverged, match=said):
            train(config, Silent())
    assert Diverged.exit_code == RunFailed.exit_code == 1


def test_a_learning_rate_far_too_high_ends_in_a_sentence(config):
    with pytest.raises(RunFailed, match=r"at update \d+; "):
        train(changed(config, optimizer__learning_rate=1e30), Silent())


def test_the_best_checkpoint_is_kept_beside_the_last(config, monkeypatch):
    original, losses = recorder.evaluate, iter([5.0, 3.0, 4.0, 3.5])

    def evaluate(*arguments, name="", **named):
        found = original(*arguments, **named)
        return found if name else dataclasses.replace(found, loss=next(losses))

    monkeypatch.setattr(recorder, "evaluate", evaluate)
    train(changed(config, trainer__keep_last=1, trainer__evaluate_every=3), Silent())
    assert Checkpoints(Path(config.run) / "checkpoints").steps() == [6, 12]
    assert load_run(config.run, "best").step == 6 and load_run(config.run).step == 12


def test_a_folder_below_one_whose_name_is_no_text_is_refused(config, tmp_path, monkeypatch):
    here = tmp_path / os.fsdecode(b"caf\xe9")
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(BadInput, match="run folder .* has a name that is not UTF-8"):
        train(changed(config, run="run"), Silent())
    assert not [*here.iterdir()]


def test_minutes_alone_make_checkpoints(config):
    minutes = changed(config, trainer__checkpoint_every=0, trainer__checkpoint_minutes=1e-9, trainer__keep_last=20)
    train(minutes, Silent())
    assert Checkpoints(Path(config.run) / "checkpoints").steps() == list(range(1, 13))


@pytest.mark.parametrize(
    ("section", "name", "found"),
    [
        ("optimizer__average", "optimizer.average", EMAConfig(decay=0.9)),
        ("model__tolerance", "model.tolerance", ToleranceConfig(1e-3)),
    ],
)
def test_a_section_that_is_taken_away_is_another_config(config, section, name, found):
    """An average in place of the parameters, or fixed steps in place of adaptive ones, would go on in silence."""
    folder = Path(config.run)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_yaml(changed(config, **{section: found})))
    with pytest.raises(BadInput, match=rf"belongs to another config: {name}\.\w+ is .* there, but {name} is not given"):
        RunFolder(config).require_own()
    RunFolder(changed(config, **{section: found})).require_own()


def test_the_results_of_another_run_are_not_taken_for_its_own(config):
    first, other = changed(config, trainer__updates=2), changed(config, run=f"{config.run}-other", trainer__updates=2)
    other = changed(other, trainer__seed=7)
    own, theirs = train(first, Silent()), train(other, Silent())
    assert own.entry["validation"] != theirs.entry["validation"]
    shutil.copy(Path(other.run) / "results.json", Path(first.run) / "results.json")
    with pytest.raises(
        Damaged, match=r"results.json' is another run's: trainer.seed is 7 there, but 0 in this run; the"
    ):
        results_of(Path(first.run))
    assert train(first, Silent()).entry["validation"] == own.entry["validation"]
    assert results_of(Path(first.run))["models"][0]["validation"] == own.entry["validation"]
    for content in ('{"models": []}', "{}", '{"models": [3]}'):
        (Path(first.run) / "results.json").write_text(content)
        with pytest.raises(Damaged, match="holds no results of a run"):
            results_of(Path(first.run))


def test_a_folder_in_the_place_of_a_file_is_named(config):
    config = changed(config, trainer__updates=2)
    train(config, Silent())
    data = Path(config.run) / "data.json"
    data.unlink()
    data.mkdir()
    with pytest.raises(BadInput, match=r"cannot be written: '[^']*data.json': Is a directory"):
        train(changed(config, trainer__log_every=2), Silent())


def test_another_config_is_refused_by_its_first_difference(config):
    train(changed(config, trainer__updates=2), Silent())
    before = snapshot(Path(config.run))
    other = changed(config, trainer__updates=2, optimizer__learning_rate=0.5, trainer__seed=1)
    with pytest.raises(BadInput) as refusal:
        train(other, Silent())
    assert str(refusal.value) == (
        f"run folder {config.run!r} belongs to another config: optimizer.learning_rate is 0.01 there, but 0.5 here; "
        "choose another folder with --run (or --to, where the command has that)."
    )
    assert snapshot(Path(config.run)) == before


@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ("layerdrop", "model.weights.order"),
        ("levels", "model.weights.levels"),
        (LayerConfig(lora=LoRAConfig()), "model.weights.lora.targets"),
    ],
)
def test_a_setting_that_is_newer_than_the_run_had_its_default(config, weights, name):
    config = changed(config, model__weights=weights)
    settings = numeric(config)
    assert difference(config, settings, {other: settings[other] for other in settings.keys() - {name}}) is None


def test_settings_that_change_no_number_may_change_but_not_those_of_jax(config, monkeypatch):
    stop_after(monkeypatch, 4)
    with pytest.raises(Interrupted):
        train(config, Silent())
    monkeypatch.undo()
    before = snapshot(Path(config.run))
    sentence = f"jax_enable_x64 of JAX is True, but run folder '{config.run}' was trained with False, on which"
    with jax.enable_x64(True), pytest.raises(BadInput, match=re.escape(sentence)):
        train(config, Silent())
    with jax.threefry_partitionable(False), pytest.raises(BadInput, match="jax_threefry_partitionable of JAX is False"):
        train(config, Silent())
    assert snapshot(Path(config.run)) == before
    again = changed(config, trainer__log_every=1, trainer__checkpoint_every=2, trainer__keep_last=3)
    train(again, Silent())
    assert configuration.read_yaml(Path(config.run) / "config.yaml").trainer == again.trainer
    assert Checkpoints(Path(config.run) / "checkpoints").steps() == [8, 10, 12]


def test_changed_text_is_refused_but_the_same_text_elsewhere_is_not(config, text, tmp_path):
    short = changed(config, trainer__updates=2)
    copy = tmp_path / "text.txt"
    copy.write_text(text.read_text())
    short = changed(short, data__train=(str(copy),))
    train(short, Silent())
    os.utime(copy, (1, 1))
    train(short, Silent())
    copy.write_text(text.read_text() + "more\n")
    with pytest.raises(BadInput, match=r"the text or the tokenizer of run folder .* has changed since the run began"):
        train(short, Silent())


def bad_inputs(config, tmp_path):
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "thesis.tex").write_text("precious")
    (tmp_path / "file").write_text("")
    (tmp_path / "tiny.txt").write_text("a\n" * 8)
    packed = changed(config, data__cache=str(tmp_path / "cache"))
    return {
        "does not exist": changed(config, data__train=("missing.txt",)),
        "model.width is 15, but must be divisible": changed(config, model__width=15),
        "model.vocabulary is 270, but must be at least 280": changed(config, model__vocabulary=270),
        f"folder {str(stranger)!r} exists and is not a run": changed(config, run=str(stranger)),
        "/missing/../run' cannot be written": changed(config, run=f"{tmp_path}/missing/../run"),
        "cannot be opened: Not a directory": changed(config, run=str(tmp_path / "file")),
        "a context of 16 needs at least 17": changed(config, data__train=(str(tmp_path / "tiny.txt"),)),
        "trainer.samples has '', of 0 tokens": changed(packed, trainer__samples=("the cat", "")),
        "optimizer.train_roles is time, but": changed(packed, optimizer__train_roles=("time",)),
        "optimizer.rule is 'muon', but none": changed(
            packed, optimizer__rule="muon", optimizer__rule_roles=("norm", "adapter")
        ),
    }


def test_bad_input_leaves_nothing_behind(config, tmp_path):
    cases = bad_inputs(config, tmp_path)
    before = snapshot(tmp_path)
    for sentence, bad in cases.items():
        with pytest.raises(BadInput) as refusal:
            train(bad, Silent())
        assert sentence in str(refusal.value)
        assert snapshot(tmp_path) == before and not Path(config.run).exists()


def test_too_little_room_for_the_checkpoints_is_refused_at_the_start(config, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 100_000))
    with pytest.raises(BadInput, match=r"needs \d+\.\d\d kB for checkpoints, but its disk has 100\.00 kB left"):
        train(config, Silent())
    assert not Path(config.run).exists()


def test_a_finished_run_needs_no_room(config, monkeypatch):
    result = train(config, Silent())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 0))
    for module in ("runs.folder", "store.files"):
        monkeypatch.setattr(f"diffeqformer.{module}.write_whole", _full)
    assert train(config, Silent()).entry["validation"] == result.entry["validation"]


def _full(path, content):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_that_is_being_written_is_refused(config):
    Path(config.run).mkdir()
    with folder_lock(Path(config.run)), pytest.raises(BadInput, match=f"is being written by process {os.getpid()}"):
        train(config, Silent())
    assert [path.name for path in Path(config.run).iterdir()] == [".lock"]


def test_room_is_counted_while_another_process_rotates_checkpoints_away(config, monkeypatch):
    folder, scan = RunFolder(config), os.scandir
    (folder.checkpoints.folder / "4").mkdir(parents=True)
    (folder.checkpoints.folder / "file").symlink_to("removed")  # listed, and not there when it is asked for its size

    def scan_too_late(path):
        if Path(path).name == "4":
            raise FileNotFoundError
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_too_late)
    folder._require_space(1)


def test_a_full_disk_ends_in_a_sentence(config, monkeypatch):
    def full(self, records):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Metrics, "write", full)
    with pytest.raises(RunFailed) as failure:
        train(config, Silent())
    assert str(failure.value) == (
        f"run folder {config.run!r} could not be written (No space left on device); there is no checkpoint yet."
    )


def test_opening_a_run(config, tmp_path):
    result = train(config, Silent())
    run = load_run(config.run)
    assert run.step == 12 and run.config == result.config and same_model(run.model, result.model)
    assert run.tokenizer.decode(run.tokenizer.encode("the cat sees stars.").ids) == "the cat sees stars."
    ids = jnp.asarray([run.tokenizer.encode("the cat").ids])
    np.testing.assert_array_equal(run.model(ids), result.model(ids))


def test_opening_what_is_not_a_run(config, tmp_path):
    with pytest.raises(BadInput, match="does not exist; `diffeqformer train` makes one"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"is not a run: it has no config\.yaml"):
        load_run(tmp_path)
    train(changed(config, trainer__updates=1), Silent())
    with pytest.raises(BadInput, match="it holds runs, such as " + re.escape(repr(config.run))):
        load_run(Path(config.run).parent)
    checkpoints = Path(config.run) / "checkpoints"
    checkpoints.rename(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="has no checkpoint yet; train it first, or longer"):
        load_run(config.run)
