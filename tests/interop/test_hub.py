"""Models, runs and tokenizers by their names on the hub, and the way there; a hub on this machine answers."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from diffeqformer.config import LayerConfig, LoRAConfig
from diffeqformer.data.tokenizer_files import load_tokenizer
from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.interop.importing import RUN_FILES, import_huggingface
from diffeqformer.runs.opening import load_run
from diffeqformer.store.hub import Repository, Upload, fetch
from tests.hub import COMMIT
from tests.interop.folders import CONFIGS, golden, write
from tests.interop.runs import EXPORTED, run_of, save
from tests.models import logits
from tests.tolerances import STATES


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "published", CONFIGS["gpt2"], golden("gpt2").tensors)


def test_import_push_and_import_back_by_name(hub, model, call, tmp_path, monkeypatch):
    from huggingface_hub import constants

    (model / "pytorch_model.bin").write_bytes(b"a pickle")
    hub.add("some/model", model)
    called = call("import", "some/model", "--to", tmp_path / "run", "--json")
    assert called.status == 0, called.err
    given = golden("gpt2")
    run = load_run(tmp_path / "run")
    assert np.abs(logits(run.model, given.ids) - given.logits).max() <= STATES
    origin = json.loads((tmp_path / "run/imported.json").read_text())
    assert origin["hub"] == "some/model" and Path(origin["folder"]).name == COMMIT
    assert not any("pytorch_model.bin" in asked for asked in hub.asked)

    words = "export", tmp_path / "run", "--to", tmp_path / "export", "--push", "me/copy", "--private"
    refused = call(*words)
    assert refused.status == 2 and "nobody is signed in to the Hugging Face hub; `hf auth login` does." in refused.err
    assert not (tmp_path / "export").exists()
    (tmp_path / "token").write_text("hf_secret")
    called = call(*words)
    assert called.status == 0, called.err
    assert "from_pretrained('me/copy')" in called.out and hub.private == {"me/copy": True}
    sent = {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir()}
    assert hub.repositories["me/copy"] == sent

    back = import_huggingface("hf://me/copy@main", tmp_path / "back")
    assert np.array_equal(logits(back.model, given.ids), logits(run.model, given.ids))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # from the cache
    asked = len(hub.asked)
    assert load_tokenizer("me/copy").get_vocab() == run.tokenizer.get_vocab()
    import_huggingface("me/copy", tmp_path / "offline")
    assert len(hub.asked) == asked


def test_adapters_that_are_pushed_find_their_model_on_the_hub(hub, call, tmp_path):
    (tmp_path / "token").write_text("hf_secret")
    adapted = dataclasses.replace(EXPORTED["vanilla"], weights=LayerConfig(lora=LoRAConfig(rank=2)))
    run = save(run_of(adapted, tmp_path / "run"))
    called = call("export", run, "--to", tmp_path / "export", "--adapter", "--push", "copy")
    assert called.status == 0 and "from_pretrained('me/copy')" in called.out, called.err
    settings = json.loads(hub.repositories["me/copy"]["adapter/adapter_config.json"])
    assert settings["base_model_name_or_path"] == "me/copy"


def test_a_push_leaves_no_tensors_of_an_earlier_one(hub, model, tmp_path):
    """Transformers and `import` would read the one file, not the new several."""
    (tmp_path / "token").write_text("hf_secret")
    Upload("me/copy").send(model)
    hub.repositories["me/copy"]["notes.txt"] = b"of somebody"
    several = write(tmp_path / "several", CONFIGS["gpt2"], golden("gpt2").tensors, shards=2)
    Upload("me/copy").send(several)
    sent = {path.name: path.read_bytes() for path in several.iterdir()}
    assert hub.repositories["me/copy"] == {**sent, "notes.txt": b"of somebody"}


def test_a_run_by_name_is_a_run_again(hub, model, tmp_path):
    made = import_huggingface(model, tmp_path / "run")
    hub.add("me/run", tmp_path / "run")
    copy = import_huggingface("me/run", tmp_path / "copy")
    assert copy.folder == tmp_path / "copy" and copy.origin == "imported"
    ids = golden("gpt2").ids
    assert np.array_equal(logits(copy.model, ids), logits(made.model, ids))
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))


def test_what_is_not_there_is_one_sentence(hub, model, tmp_path, monkeypatch):
    from huggingface_hub import constants

    hub.add("some/model", model)
    begins = "'{}' is no file or folder here and cannot be fetched from the Hugging Face hub: {}"
    for name, why in {
        "some/other": "there is no such repository, or it is private; `hf auth login` signs in",
        "some/model@v9": "it has no such revision",
    }.items():
        with pytest.raises(BadInput) as refused:
            import_huggingface(name, tmp_path / "run")
        assert str(refused.value) == begins.format(name.split("@")[0], why) + "."
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match="it is not in the cache, and "):
        fetch(Repository("some/model"), RUN_FILES)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    with pytest.raises(BadInput, match="it is not in the cache, and the hub cannot be reached"):
        fetch(Repository("some/model"), RUN_FILES)
    (tmp_path / "token").write_text("hf_secret")
    with pytest.raises(BadInput, match="^--push is 'me/new', but the Hugging Face hub does not answer: "):
        Upload("me/new")
    for name in ("../up", "a/b/c", "me/new@main", ""):
        with pytest.raises(BadInput, match="but must be a repository's name on the hub, ORGANISATION/NAME"):
            Upload(name)
    assert not (tmp_path / "run").exists()


def test_files_that_do_not_arrive_are_told_with_what_is_safe(hub, model, tmp_path):
    (tmp_path / "token").write_text("hf_secret")
    upload = Upload("me/new")
    hub.answer = lambda *_: (403, {}, b"")
    with pytest.raises(RunFailed, match="the folder is whole: `hf upload me/new .*published` sends it again"):
        upload.send(model)


def test_what_is_here_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert Repository.named("gpt2") is None and Repository.named("hf://gpt2") == ("gpt2", None)
    assert Repository.named("org/name@v1.0") == ("org/name", "v1.0")
    for path in ("./gpt3", "/gpt3", "~/gpt3", "a/b/c", "a b", "", "..", "x" * 97):
        assert Repository.named(path) is None
