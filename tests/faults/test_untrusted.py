"""What a stranger's run, cache, config or text can make us read and write."""

import json
import os
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from diffeqformer.cli import main
from diffeqformer.config import Config, DataConfig, dump_yaml, read_yaml
from diffeqformer.data import documents
from diffeqformer.data.corpus import open_corpus
from diffeqformer.data.tokenizer import train_tokenizer
from diffeqformer.data.tokenizer_files import load_tokenizer
from diffeqformer.errors import BadInput, Damaged, RunFailed
from diffeqformer.interop.exporting import export
from diffeqformer.interop.importing import import_huggingface
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.distributed import join
from diffeqformer.runs.folder import _is_there, origin_of
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.trainer import train
from diffeqformer.store import files as store
from diffeqformer.store.files import read_sealed, write_whole
from diffeqformer.store.folders import becoming
from diffeqformer.store.lock import folder_lock
from tests.cases import slow, slow_but
from tests.faults.conftest import Lines
from tests.faults.small_run import config as config_of
from tests.runs.tiny_run import write_text


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Config:
    """The config of a run with checkpoints at updates 4 and 8."""
    folder = tmp_path_factory.mktemp("untrusted")
    text = write_text(folder / "text.txt")
    config = config_of(8, str(folder / "run"), str(text), str(folder / "cache"))
    config = replace(config, trainer=replace(config.trainer, checkpoint_every=4, evaluate_every=4, log_every=4))
    train(config, Lines())
    return config


@pytest.fixture
def config(trained, tmp_path) -> Config:
    """The same of a copy that may be harmed."""
    shutil.copytree(trained.run, tmp_path / "run")
    return replace(trained, run=str(tmp_path / "run"))


def harmed(run: str, step: int) -> None:
    """Damage the model of one checkpoint."""
    largest = max((Path(run) / "checkpoints" / str(step) / "model").rglob("*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(bytes(largest.stat().st_size))


# --------------------------------------------------------------------------------------------------- what a run is


def test_what_a_run_is_stands_in_its_manifest(trained, tmp_path, capsys):
    """A deleted file made an imported run one that was measured on the standard library's text, in silence."""
    assert origin_of(Path(trained.run)) == load_run(trained.run).origin == "trained"
    export(load_run(trained.run), tmp_path / "out", steps=2)
    import_huggingface(tmp_path / "out", tmp_path / "imported")
    (tmp_path / "imported" / "imported.json").unlink()
    assert load_run(tmp_path / "imported").origin == "imported"
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "imported")]) == 2
    assert "holds an imported model, which has no text of its own" in capsys.readouterr().err
    (Path(trained.run) / "imported.json").write_text("{}")
    assert load_run(trained.run).origin == "trained"  # nor does a file's presence make it one
    (Path(trained.run) / "imported.json").unlink()


def test_a_deleted_config_is_written_again_from_what_the_checkpoint_remembers(config, tmp_path, capsys):
    path = Path(config.run) / "config.yaml"
    before = replace(read_yaml(path), run=config.run)
    path.unlink()
    with pytest.raises(BadInput, match=r"has no config.yaml; `diffeqformer train` with the run's config writes it aga"):
        load_run(config.run)
    other = replace(config, optimizer=replace(config.optimizer, learning_rate=0.5))
    with pytest.raises(BadInput, match=r"belongs to another config: optimizer.learning_rate is 0\.01 there"):
        train(other, Lines())
    assert not path.exists()
    train(config, Lines())
    assert read_yaml(path) == before


# ------------------------------------------------------------------------------------------------------------- links


@pytest.fixture
def victim(tmp_path) -> Path:
    """A file outside of every run, which nothing may change."""
    path = tmp_path / "outside" / "victim"
    path.parent.mkdir()
    path.write_text("mine")
    return path


@pytest.mark.parametrize(
    "name",
    [
        ".lock",
        "config.yaml",
        "metrics.jsonl",
        "results.json",
        "profile",
        "checkpoints/9",
        ".config.yaml.1.tmp",
        "tensorboard",
    ],
)
def test_no_link_in_a_run_folder_is_written_through(config, victim, name):
    path = Path(config.run) / name
    if path.is_file():
        path.unlink()
    path.symlink_to(victim.parent if "." not in name else victim)
    with pytest.raises(BadInput, match="is a link, and none is written through"):
        train(replace(config, trainer=replace(config.trainer, keep_last=3)), Lines())
    assert victim.read_text() == "mine" and [*victim.parent.iterdir()] == [victim] and path.is_symlink()


def test_the_lock_itself_follows_no_link(tmp_path, victim):
    (tmp_path / ".lock").symlink_to(victim)
    with pytest.raises(BadInput, match=r"\.lock' is a link"), folder_lock(tmp_path):
        pass
    assert victim.read_text() == "mine"


def test_a_folder_that_is_being_made_is_no_link(tmp_path, victim):
    (tmp_path / ".run.importing").symlink_to(victim.parent)
    with pytest.raises(BadInput, match="is a link"), becoming(tmp_path / "run", "run folder", "importing"):
        pass
    assert victim.read_text() == "mine"


def test_temporary_names_cannot_be_guessed(tmp_path, victim, monkeypatch):
    names = []
    replaced = os.replace
    monkeypatch.setattr(store.os, "replace", lambda old, new: names.append(Path(old).name) or replaced(old, new))
    (tmp_path / f".a.{os.getpid()}.tmp").symlink_to(victim)  # as they were once called
    for _ in range(2):
        write_whole(tmp_path / "a", "text")
    assert victim.read_text() == "mine" and len(set(names)) == 2
    monkeypatch.setattr(store.secrets, "token_hex", lambda count: "guessed")
    (tmp_path / ".a.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "a", "other")
    assert victim.read_text() == "mine" and (tmp_path / "a").read_text() == "text"


# ------------------------------------------------------------------------------------------- regular files of some size


def planted(path: Path, what: str) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path) if what == "fifo" else path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("what", ["fifo", "device"])
def test_only_regular_files_are_opened(tmp_path, what):
    """Opening a FIFO waits for ever; `/dev/zero` has no end."""
    path = planted(tmp_path / "a.yaml", what)
    with pytest.raises(BadInput, match="cannot be read: it is not a regular file"):
        read_yaml(path)
    with pytest.raises(Damaged, match="cannot be read: it is not a regular file"):
        read_sealed(path)
    for name in ("tokenizer.json", "vocab.json"):
        folder = tmp_path / name
        folder.mkdir()
        planted(folder / name, what)
        (folder / "merges.txt").write_text("")
        with pytest.raises(BadInput):
            load_tokenizer(folder)
    planted(tmp_path / "a.txt", what)
    with pytest.raises(BadInput, match="cannot be read: it is not a regular file"):
        open_corpus(DataConfig(source="files", train=(str(tmp_path / "a.txt"),)), Lines())


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "tokenizer.json",
        "checkpoints/8/manifest.json",
        "checkpoints/8/model/_METADATA",
        "checkpoints/8/model/planted",
    ],
)
@pytest.mark.parametrize("what", ["fifo", "device"])
def test_a_run_with_a_fifo_or_a_device_is_refused(config, name, what):
    planted(Path(config.run) / name, what)
    with pytest.raises((BadInput, RunFailed), match=name.split("/", 2)[-1]):
        load_run(config.run)


def test_the_runs_own_command_does_not_wait_at_a_fifo(tmp_path):
    """It compares what describes the run with what is there, and writes it anew."""
    planted(tmp_path / "config.yaml", "fifo")
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(1)
    try:
        assert not _is_there(tmp_path / "config.yaml", "text")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    write_whole(tmp_path / "config.yaml", "text")
    assert _is_there(tmp_path / "config.yaml", "text") and not _is_there(tmp_path / "config.yaml", "tex")


def test_documents_and_tokenizers_have_a_largest_size(tmp_path, monkeypatch):
    for name in ("a.json", "tokenizer.json", "a.yaml"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)  # takes no room on the disk
    for read in (
        lambda: read_sealed(tmp_path / "a.json"),
        lambda: load_tokenizer(tmp_path / "tokenizer.json"),
        lambda: read_yaml(tmp_path / "a.yaml"),
    ):
        with pytest.raises((BadInput, Damaged), match="it has more than"):
            read()


def test_a_tokenizer_with_an_id_of_billions_is_refused_before_it_is_built(tmp_path):
    whole = json.loads(train_tokenizer(["the cat sees the stars"], 270).to_str())
    for name in ("vocab", "added"):
        if name == "vocab":
            changed = {**whole, "model": {**whole["model"], "vocab": {**whole["model"]["vocab"], "zz": 4_000_000_000}}}
        else:
            changed = {**whole, "added_tokens": [{**whole["added_tokens"][0], "id": 4_000_000_000}]}
        (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
        with pytest.raises(BadInput, match=r"it has the id 4000000000, but no model has more than 16,777,216 entr"):
            load_tokenizer(tmp_path)
    fine = {**whole, "model": {**whole["model"], "vocab": {**whole["model"]["vocab"], '": 4000000000': 270}}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(fine))
    assert load_tokenizer(tmp_path).token_to_id('": 4000000000') == 270


@pytest.mark.slow
@pytest.mark.parametrize("line", [b"\n", *slow(b'{"text": "' + b"a" * 4000 + b'"}\n')], ids=["empty", "text"])
def test_a_small_file_that_expands_without_end_is_refused_at_once(tmp_path, line):
    """82 kB of newlines took 2.8 GB and 40 s."""
    bomb, press = tmp_path / "a.jsonl.zst", zstandard.ZstdCompressor(level=19).compressobj()
    with bomb.open("wb") as file:
        for _ in range(768):
            file.write(press.compress(line * ((1 << 20) // len(line))))
        file.write(press.flush())
    assert bomb.stat().st_size < 200_000
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = DataConfig(source="files", train=(str(bomb),), cache=str(tmp_path / "cache"))
    with pytest.raises(BadInput, match="expands to more than 500 times its"):
        for document in documents.Reader(DataConfig(strict=True), Lines().say).documents(documents.TextFile.at(bomb)):
            list(document)
    with pytest.raises(BadInput, match="expands to more than 500 times its"):
        open_corpus(config, Lines()).split()
    assert time.monotonic() - began < 60
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 400 << 20


# ------------------------------------------------------------------------------------------------ what is read as what


def test_scalars_are_those_of_yaml_1_2(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("model: {steps: 040, width: 0x20, heads: 0o4}\ndata: {text_field: 1:30, dataset: no}\n")
    config = read_yaml(path)
    assert (config.model.steps, config.model.width, config.model.heads) == (40, 32, 4)
    assert (config.data.text_field, config.data.dataset) == ("1:30", "no")
    for text in ("model: {steps: 1:30}", "model: {steps: 1_0}", "model: {steps: !!int 0b1}", "data: {strict: yes}"):
        path.write_text(text)
        with pytest.raises(BadInput):
            read_yaml(path)
    for word in ("040", "1:30", "1e3", "0o17", "yes", "~", "", "null", "<<", "=", ".5", "2001-01-01", "-"):
        written = replace(config, data=replace(config.data, text_field=word))
        path.write_text(dump_yaml(written))
        assert read_yaml(path) == written


@pytest.mark.parametrize("words", [["--data"], ["--data", "--steps", "2"]])
def test_an_option_with_nothing_after_it_is_not_its_absence(trained, capsys, words):
    assert main(["eval", trained.run, *words]) == 2
    assert capsys.readouterr().err.endswith("diffeqformer: --data needs a value.\n")


def test_a_distribution_of_depths_that_overflows_is_refused(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("depth: {sample: [4, 6], weights: [1.0e+308, 1.0e+308]}\n")
    assert main(["train", str(tmp_path / "a.yaml")]) == 2
    assert "depth.weights is (1e+308, 1e+308), but must have a finite sum." in capsys.readouterr().err


def test_a_text_that_was_replaced_at_equal_size_and_time_is_another(config, tmp_path):
    text = write_text(tmp_path / "own.txt")
    data = replace(config.data, train=(str(text),))
    before, stat = open_corpus(data, Lines()).fingerprint, text.stat()
    text.write_text(text.read_text().replace("cat", "tac"))
    os.utime(text, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (text.stat().st_size, text.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert open_corpus(data, Lines()).fingerprint != before


def test_a_saved_dataset_that_was_replaced_is_another(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = DataConfig(source="huggingface", dataset=str(tmp_path / "set"))
    for text in ("cat", "dog"):
        datasets.Dataset.from_dict({"text": [text] * 40}).save_to_disk(str(tmp_path / text))
    prints = []
    for text in ("cat", "dog"):
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        shutil.copytree(tmp_path / text, tmp_path / "set")
        shutil.copy(tmp_path / "cat" / "state.json", tmp_path / "set")  # which has the dataset's own fingerprint
        prints.append(open_corpus(data, Lines()).fingerprint)
    assert prints[0] != prints[1]


def test_one_process_needs_no_coordinator():
    with pytest.raises(BadInput, match=r"--distributed\.processes is 1, but several are joined"):
        join("localhost:1234", 1, 0)


# ------------------------------------------------------------------------------------------------- an older checkpoint


COMMANDS = {
    "eval": "eval {run}",
    "sample": "sample {run} --prompt the --tokens 2",
    "export": "export {run} --to {here}/out",
    "finetune": "finetune {run} --to {here}/out --trainer.updates 1 --trainer.evaluate-batches 1",
    "spectra": "analyze spectra {run} --times 2 --ranks 4 --to {here}/out",
    "induction": "analyze induction {run} --sequences 2 --length 4 --repeats 2 --to {here}/out",
    "lyapunov": "analyze lyapunov {run} --text the --to {here}/out",
    "attribution": "analyze attribution {run} --text the --to {here}/out",
    "clusters": "analyze clusters {run} --texts 1 --to {here}/out",
    "steps": "analyze steps {run} --texts 1 --to {here}/out",
    "compression": "analyze compression {run} --texts 2 --to {here}/out",
    "depth": "analyze depth {run} --steps 2 --to {here}/out",
}
"""What opens a run's model."""


def read_in(document: dict, name: str) -> dict:
    """The part of a command's JSON document that says which update was read."""
    return document["base"] if name == "finetune" else document["models"][0] if name == "spectra" else document


@pytest.mark.parametrize("name", slow_but(["eval"], COMMANDS))
def test_an_older_state_is_read_only_if_asked_for(config, tmp_path, capsys, name):
    harmed(config.run, 8)
    words = COMMANDS[name].format(run=config.run, here=tmp_path).split()
    assert main(words) == 1
    told = capsys.readouterr().err
    assert "checkpoint at update 8 is damaged (model/" in told and "--checkpoint sound" in told
    assert not (tmp_path / "out").exists()
    assert main([*words, "--checkpoint", "sound", "--json"]) == 0
    found = capsys.readouterr()
    read = read_in(json.loads(found.out), name)
    assert read["update"] == 4 and read["passed_over"].startswith("checkpoint at update 8 is damaged (model/")
    assert "using the one at update 4" in found.err


def test_no_state_is_read_if_none_is_sound(config):
    for step in (4, 8):
        harmed(config.run, step)
    with pytest.raises(RunFailed, match="no other in .* is sound"):
        load_run(config.run, "sound")


def test_a_run_whose_text_is_gone_is_evaluated_on_the_tokens_of_its_cache(config, tmp_path, capsys):
    assert main(["eval", config.run, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)["evaluations"][0]["loss"]
    text = Path(config.data.train[0])
    aside = text.rename(tmp_path / "aside.txt")
    try:
        assert main(["eval", config.run, "--json"]) == 0
        found = capsys.readouterr()
        assert json.loads(found.out)["evaluations"][0]["loss"] == before
        assert "does not exist. The run's own tokens are read from the cache, " in found.err
        (packed,) = Path(config.data.cache).glob("[!.]*/validation.bin")
        whole = packed.read_bytes()
        packed.write_bytes(bytes(len(whole)))
        assert main(["eval", config.run]) == 2
        assert capsys.readouterr().err.endswith(f"data.train: file {str(text)!r} does not exist.\n")
        packed.write_bytes(whole)
    finally:
        aside.rename(text)


def test_training_goes_back_one_and_says_so(config):
    whole = load_run(config.run)
    harmed(config.run, 8)
    said = Lines()
    assert train(config, said).folder == Path(config.run)
    assert any(
        "checkpoint at update 8 is damaged" in line and "using the one at update 4" in line for line in said.lines
    )
    again = load_run(config.run)
    assert again.step == whole.step == 8 and again.passed_over == ""


def test_the_best_is_not_known_while_a_manifest_is_damaged(config):
    (Path(config.run) / "checkpoints" / "4" / "manifest.json").write_text("{")
    with pytest.raises(RunFailed, match="checkpoint at update 4 is damaged"):
        load_run(config.run, "best")
    assert load_run(config.run).step == 8 and Checkpoints(Path(config.run) / "checkpoints").steps() == [4, 8]
