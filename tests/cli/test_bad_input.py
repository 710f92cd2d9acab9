"""Every mistake ends in exit 2 and one sentence that names it, and leaves nothing behind."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diffeqformer.runs.metrics import Metrics
from diffeqformer.training import loop
from tests.cli.conftest import write_config
from tests.runs.tiny_run import write_text

HERE = "{here}"
"""Stands for the test's own folder in a case's words."""
BAD_WORDS = {
    "no such verb": ("trian x", "unknown verb 'trian': did you mean 'train'?"),
    "no config": ("train", "needs a config"),
    "only an option": ("train --run x", "needs CONFIG"),
    "config missing": ("train none.yaml", "config file 'none.yaml' does not exist"),
    "no such shipped config": ("train quickstart-gtp", "did you mean 'quickstart-gpt'?"),
    "info: no such run": ("info runs/none", "config 'runs/none' is neither a file, a run folder nor the name of a"),
    "unknown flag": ("train quickstart-gpt --model.widht 64", "--model.widht: did you mean --model.width?"),
    "unknown flag, without its section": ("train quickstart-gpt --widht 64", "did you mean --model.width?"),
    "unknown flag, like none": ("train quickstart-gpt --optimizer.name adam", "--optimizer.name: see `diffeqformer tr"),
    "unknown flag, before": ("eval --stesp 3 run", "unknown option --stesp: did you mean --steps?"),
    "a record is a file": ("reproduce paper table-3 --record {here}", "is a folder, but must name a file"),
    "a page is a file": ("reproduce paper table-3 --markdown {here}", "is a folder, but must name a file"),
    "not served": ("explore runs/none --to x.html --port 80", "--port is 80, but with --to nothing is served"),
    "wrong type": ("train quickstart-gpt --model.width x", "--model.width is 'x', but must be a whole number"),
    "wrong type, may be none": ("sample x --prompt x --top-k y", "--top-k is 'y', but must be a whole number"),
    "wrong choice": (
        "train quickstart-gpt --model.weights tme",
        "--model.weights is 'tme', but must be one of 'time',",
    ),
    "no value": ("train quickstart-gpt --model.width", "--model.width needs a value"),
    "no value, text": ("sample x --prompt --steps 3", "--prompt needs a value; one that starts with a dash is written"),
    "too many words": ("train quickstart-gpt more", "nothing that 'more' could be"),
    "heads": ("train quickstart-gpt --model.width 63", "model.width is 63, but must be divisible by model.heads"),
    "heads, config behind": ("train --model.width 63 quickstart-gpt", "model.width is 63, but must be divisible"),
    "eval: a run as an option": ("eval --run somewhere", "takes RUN as a word of its own"),
    "eval: no run": ("eval", "needs RUN"),
    "eval: missing run": ("eval nowhere", "run folder 'nowhere' does not exist"),
    "eval: not a run": ("eval {here}", "is not a run: it has no config.yaml"),
    "eval: no steps": ("eval nowhere --steps 0", "--steps is '0', but must be whole numbers of at least 1"),
    "eval: odd steps": ("eval nowhere --steps 6,x", "--steps is '6,x'"),
    "eval: steps and a tolerance": (
        "eval nowhere --steps 6 --tolerance 1e-3",
        "--tolerance is 0.001, but --steps 6 asks for fixed steps; give one.",
    ),
    "eval: tolerance": ("eval nowhere --tolerance x", "--tolerance is 'x', but must be a number"),
    "eval: batch": ("eval nowhere --batch-size 0", "--batch-size is 0, but must be at least 1"),
    "eval: limit without tasks": ("eval nowhere --limit 5", "--limit is 5.0, but only --tasks reads it."),
    "eval: tasks and data": ("eval nowhere --tasks piqa --data x", "--data is x, but --tasks does not read it."),
    "eval: tasks, depths": ("eval nowhere --tasks piqa --steps 4,6", "--steps is '4,6', but --tasks takes one number."),
    "eval: limit": ("eval nowhere --tasks piqa --limit 1.5", "--limit is 1.5, but must be a whole number of items"),
    "eval: no task": ("eval nowhere --tasks ,", "--tasks is ',', but must name tasks, such as"),
    "eval: fewshot": ("eval nowhere --tasks piqa --num-fewshot -1", "--num-fewshot is -1, but must be at least 0."),
    "sample: no prompt": ("sample nowhere", "`diffeqformer sample` needs --prompt."),
    "sample: missing run": ("sample nowhere --prompt x", "run folder 'nowhere' does not exist"),
    "sample: count": ("sample nowhere --prompt x --count 0", "--count is 0, but must be at least 1"),
    "quickstart: no minutes": ("quickstart --minutes 0", "--minutes is 0.0, but must be a positive number"),
    "quickstart: nan minutes": ("quickstart --minutes nan", "--minutes is nan, but must be a positive number"),
    "quickstart: seed": ("quickstart --seed -1", "seed is -1, but must be at least 0"),
    "bench: rounds": ("bench train --rounds 3", "--rounds is 3, but must be at least 7"),
    "bench: rounds of schemes": ("bench schemes --rounds 6", "--rounds is 6, but must be at least 7"),
    "bench: rounds of generate": ("bench generate --rounds 6", "--rounds is 6, but must be at least 7"),
    "bench: drafts of nothing": ("bench drafts", "`bench drafts` needs a trained run: name its folder with --run."),
    "attribution: a text that is not read": (
        "analyze attribution nowhere --text the --data a.txt b.txt",
        "--data is a.txt b.txt, but only --faithfulness reads it.",
    ),
    "bench: deep drafts": (
        "bench drafts --run nowhere --steps 4 --draft-steps 2-4",
        "--draft-steps has 4, but must have fewer than the 4 steps that check drafts",
    ),
    "bench: drafts at two depths": (
        "bench drafts --run nowhere --steps 6,12",
        "--steps is '6,12', but `bench drafts` reads",
    ),
    "sample: nothing is drafted": (
        "sample nowhere --prompt x --draft-length 3",
        "--draft-length is 3, but without --draft-steps",
    ),
    "train: no range": (
        "train quickstart-elastic --depth.sample 9-4",
        "depth.sample is '9-4', but must be whole numbers of",
    ),
    "train: depths of a table": (
        "train quickstart-gpt --depth.sample 2 3",
        "depth.sample is (2, 3), but model.weights is 'layer': a table of layers has one depth",
    ),
    "train: jitter": ("train quickstart-elastic --depth.jitter 2", "depth.jitter is 2.0, but must be at most 1."),
    "train: first step": (
        "train quickstart-elastic --model.first-step 1",
        "model.first_step is 1.0, but must be above 0 and below 1.",
    ),
    "bench: no such thing": ("bench speed", "unknown benchmark 'speed': the benchmarks are train, finetune, generate,"),
    "bench: not of memory": ("bench memory --rounds 9", "unknown option --rounds: "),
    "bench: not of train": ("bench train --figure x.png", "unknown option --figure: "),
    "bench: figure": ("bench memory --figure x.pdf", "--figure is 'x.pdf', but must end with .png or .svg."),
    "bench: steps": ("bench memory --steps 0", "--steps is '0', but must be whole numbers of at least 1"),
    "bench: weights": ("bench memory --weights tied", "'tied', but must be one of "),
    "finetune: no run": ("finetune", "needs RUN"),
    "finetune: missing run": ("finetune nowhere --steps 4", "run folder 'nowhere' does not exist"),
    "finetune: method": ("finetune nowhere --method qlora", "--method is 'qlora', but must be one of 'lora', 'full',"),
    "finetune: rank without adapters": (
        "finetune nowhere --method full --rank 4",
        "--rank is 4, but --method full has no adapters; the others have.",
    ),
    "finetune: unknown option": ("finetune nowhere --trainer.update 3", "did you mean --trainer.updates?"),
    "reproduce: one text": ("reproduce adapt --texts a=stdlib", "--texts has 1 different names, but must have 2"),
    "reproduce: no name": ("reproduce adapt --texts a.txt b.txt", "--texts has 'a.txt', but must be NAME=FILES"),
    "reproduce: steps": (
        "reproduce adapt --texts a=stdlib b=b.txt --steps 4",
        "steps is 4, but must be a multiple of 6",
    ),
    "reproduce: unknown": ("reproduce depths", "unknown experiment 'depths': did you mean 'depth'?"),
    "reproduce: data": ("reproduce depth --data a.txt", "--data is given, but --task hops makes its own problems"),
    "reproduce: depth": ("reproduce depth --depths 3 0", "--depths has 0, but must be at least 1."),
    "train: scheme": ("train quickstart-gpt --model.scheme rk5", "model.scheme is 'rk5', but must be one of euler, "),
    "info: scheme": ("info quickstart-gpt --model.scheme rk5", "model.scheme is 'rk5', but must be one of euler, "),
    "scheme, its prefix left out": (
        "train quickstart-gpt --model.scheme Tsit5",
        "diffrax:Tsit5; did you mean 'diffrax:Tsit5'?",
    ),
    "horizon": (
        "train quickstart-gpt --model.horizon long",
        "--model.horizon is 'long', but must be one of 'unit', 'steps' or a number",
    ),
    "horizon of nothing": ("train quickstart-gpt --model.horizon 0", "model.horizon is 0.0, but must be a positive"),
    "gradient": (
        "train quickstart-gpt --model.gradient adjoint",
        "is 'adjoint', but must be one of 'None', 'checkpointed', 'plain', 'reversible', 'recursive'.",
    ),
    "gradient of another scheme": (
        "train quickstart-gpt --model.gradient reversible",
        "model.gradient is 'reversible', but model.scheme 'lie-trotter' cannot run back",
    ),
    "true or false": (
        "train quickstart-gpt --model.tied maybe",
        "--model.tied is 'maybe', but must be one of 'False', 'None', 'True'.",
    ),
    "heads of keys": (
        "train quickstart-llama --model.field.kv-heads 3",
        "model.field.kv_heads is 3, but must divide model.heads",
    ),
    "heads of keys, no number": (
        "train quickstart-llama --model.field.kv-heads x",
        "is 'x', but must be a whole number",
    ),
    "value of a flag": (
        "train quickstart-gpt --model.weights layerdrop --model.weights.nested true",
        "--model.weights.nested takes no value, but 'true' follows: give it alone, or --model.weights.no-nested.",
    ),
    "value of a flag's absence": (
        "finetune nowhere --no-train-embeddings False",
        "--no-train-embeddings takes no value, but 'False' follows: give it alone, or --train-embeddings.",
    ),
    "tolerance": (
        "train quickstart-gpt --model.tolerance.rtol x",
        "--model.tolerance.rtol is 'x', but must be a number",
    ),
    "tolerance of a table": (
        "train quickstart-gpt --model.scheme heun --model.tolerance.rtol 1e-3",
        "model.tolerance.rtol is given, but model.weights is 'layer'",
    ),
    "unread setting": (
        "train quickstart-gpt --model.scheme.coupling 0.9",
        "--model.scheme.coupling is given, but model.scheme 'lie-trotter' has no such setting; 'reversible' has.",
    ),
    "info: unknown config": ("info quickstart-gtp", "did you mean 'quickstart-gpt'?"),
}
BAD_FILES = {
    "broken": ("model: {width: 16", "is not YAML"),
    "unknown key": ("model: {weights: {d_embb: 4}}", "unknown key 'model.weights.d_embb': did you mean 'd_emb'?"),
    "wrong type": ("model: {width: wide}", "model.width is 'wide', but must be a whole number"),
    "a list": ("[1, 2]", "must be a table of settings"),
    "not a table": ("model: 3", "model is 3, but must be a table of settings"),
    "one text": ("data: {source: files, train: a.txt}", "data.train is 'a.txt', but must be a list"),
}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def refused(called, sentence: str) -> str:
    """Assert exit 2, one sentence, and nothing else but lines of progress; returns those."""
    assert called.status == 2, called.err
    assert called.out == "" and "Traceback" not in called.err
    *progress, line = called.err.splitlines()
    assert re.fullmatch(r"diffeqformer: .*[.?]", line) and sentence in line, line
    assert not [line for line in progress if line.startswith("diffeqformer: ")]
    return "\n".join(progress)


@pytest.mark.parametrize("words,sentence", BAD_WORDS.values(), ids=BAD_WORDS)
def test_bad_words(call, tmp_path, words, sentence):
    assert refused(call(*words.replace(HERE, str(tmp_path)).split()), sentence) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content,sentence", BAD_FILES.values(), ids=BAD_FILES)
def test_bad_config_files(call, tmp_path, content, sentence):
    path = tmp_path / "config.yml"
    path.write_text(content)
    for verb in ("train", "info"):
        assert refused(call(verb, path), sentence) == ""
    assert list(tmp_path.iterdir()) == [path]


def test_debug_shows_where(call):
    called = call("train", "none.yaml", "--debug")
    assert called.status == 2 and "Traceback" in called.err and "read_yaml" in called.err


@pytest.mark.parametrize(
    "name,content,sentence",
    [
        ("none.txt", None, "file '{here}/none.txt' does not exist"),
        ("*.jsonl", None, "no file matches '{here}/*.jsonl'"),
        ("empty.txt", b"", "has no text; give files with at least one document that is not empty"),
        ("latin.txt", b"caf\xe9 au lait\n" * 400, "has undecodable bytes at byte 3; data.strict refuses it"),
        ("wide.txt", "the cat\n".encode("utf-16"), "file '{here}/wide.txt' is UTF-16 or UTF-32; save it as UTF-8"),
        ("wide.jsonl", '{"text": "a"}\n'.encode("utf-32-le"), "wide.jsonl' is UTF-16 or UTF-32; save it as UTF-8"),
        (
            "late.txt",
            b"the cat\n" * 600 + ("the cat\n" * 900).encode("utf-16-le"),
            "is UTF-16 or UTF-32 from byte 4801 on; save it",
        ),
        (
            "nul.txt",
            b"the cat\n" * 100 + bytes(3000),
            "nul.txt' has a run of NUL bytes near byte 800, which no text has",
        ),
        ("nuls.txt", b"the cat\n" * 2000 + bytes(5000), "has a run of NUL bytes near byte 16000, which no text has"),
        ("text.pdf", b"%PDF", "has an unknown suffix; known are .txt"),
    ],
)
def test_bad_text(call, tmp_path, name, content, sentence):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    config = write_config(tmp_path / "tiny.yaml", "time", tmp_path / "run", tmp_path / name, tmp_path / "cache")
    before = snapshot(tmp_path)
    refused(call("train", config, "--data.strict"), sentence.replace(HERE, str(tmp_path)))
    assert snapshot(tmp_path) == before


def test_text_that_does_not_fit_the_model(call, tmp_path):
    """Only tokens can tell, and still nothing is left: no run, and no cache of what no model can use."""
    config = write_config(
        tmp_path / "tiny.yaml", "time", tmp_path / "run", write_text(tmp_path / "text.txt"), tmp_path / "cache"
    )
    short = ["--data.train", str(write_text(tmp_path / "short.txt", 3))]
    before = snapshot(tmp_path)
    refused(call("train", config, *short), "but a context of 16 needs at least 17")
    refused(call("train", config, "--model.vocabulary", 270), "model.vocabulary is 270, but must be at least 280")
    assert snapshot(tmp_path) == before


def test_undecodable_bytes_are_told_and_replaced(call, tmp_path):
    text = write_text(tmp_path / "text.txt")
    text.write_bytes(text.read_bytes() + b"caf\xe9\n")
    config = write_config(tmp_path / "tiny.yaml", "time", tmp_path / "run", text, tmp_path / "cache")
    called = call("train", config, "--trainer.updates", 1)
    assert called.status == 0
    assert called.err.count(f"{text}: 1 undecodable byte sequences were replaced by U+FFFD.") == 1


def test_a_run_of_another_config_is_refused(call, place):
    before = snapshot(place.folder)
    called = call("train", place.time, "--optimizer.learning-rate", 0.5)
    refused(called, "belongs to another config: optimizer.learning_rate is 0.01 there, but 0.5 here")
    assert snapshot(place.folder) == before


def test_a_folder_that_is_not_a_run_is_refused(call, place, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    refused(call("train", place.time, "--run", tmp_path), "exists and is not a run; choose another folder with --run")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


HOLD = """
import sys
from pathlib import Path
from diffeqformer.store.lock import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_another_process_writes_is_refused(call, place, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    command = [sys.executable, "-c", HOLD, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        before = snapshot(tmp_path)
        called = call("train", place.time, "--run", run)
        refused(called, f"run folder {str(run)!r} is being written by process {holder.pid}")
        assert snapshot(tmp_path) == before
        holder.kill()


def test_no_space_for_checkpoints_is_refused(call, place, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    refused(call("train", place.time, "--run", tmp_path / "run"), "but its disk has 1.00 kB left")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_fails_in_one_sentence(call, place, tmp_path, monkeypatch):
    def full(self, records):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Metrics, "write", full)
    called = call("train", place.time, "--run", tmp_path / "run")
    assert called.status == 1 and called.out == "" and "Traceback" not in called.err
    assert "could not be written (No space left on device); there is no checkpoint yet." in called.err.splitlines()[-1]


def test_a_loss_of_nan_names_the_step_and_the_last_good_checkpoint(call, place, tmp_path, monkeypatch):
    original = loop.make_update

    def make_update(config, *own):
        update = original(config, *own)

        def poisoned(state, ids, steps):
            state, measured = update(state, ids, steps)
            bad = int(state.step) == 6
            return state, measured._replace(loss=measured.loss * math.nan) if bad else measured

        return poisoned

    monkeypatch.setattr(loop, "make_update", make_update)
    called = call("train", place.time, "--run", tmp_path / "run")
    assert called.status == 1 and called.out == "" and "Traceback" not in called.err
    assert called.err.splitlines()[-1] == (
        "diffeqformer: the loss became nan at update 6; the last good checkpoint is at update 4."
    )


@pytest.mark.parametrize(
    "words,sentence",
    [
        (["eval", "layer", "--steps", "2,3"], "is a table of 2 layers and cannot run at 3 steps"),
        (["eval", "layer", "--scheme", "euler"], "for the scheme 'lie-trotter' and cannot run by 'euler'"),
        (["eval", "layer", "--tolerance", "1e-3"], "with --tolerance 0.001: model.tolerance.rtol is given, but"),
        (["eval", "layer", "--tolerance", "1e-3"], "a table of layers has no weights between its steps"),
        (["eval", "time", "--scheme", "rk5"], "model.scheme is 'rk5', but must be one of euler, "),
        (["eval", "time", "--scheme", "rk4", "--tolerance", "1e-3"], "'rk4' has no error estimate to choose steps by"),
        (["eval", "time", "--tolerance", "-1"], "--tolerance is -1.0, but must be a positive number"),
        (["sample", "layer", "--prompt", "the", "--scheme", "euler"], "cannot run by 'euler'"),
        (["sample", "layer", "--prompt", "the", "--scheme", "euler"], "with --scheme euler: this model is a table of"),
        (["sample", "time", "--prompt", "the", "--scheme", "rk5"], "model.scheme is 'rk5', but must be one of euler, "),
        (["eval", "time", "--data", "none.txt"], "file '{here}/none.txt' does not exist"),
        (["sample", "time", "--prompt", ""], "the prompt is empty"),
        (["sample", "time", "--prompt", "the cat sees stars. " * 20], "leaves no room in the context, 16"),
        (["sample", "time", "--prompt", "the", "--tokens", "99"], "must not exceed the model's context of 16"),
        (["sample", "time", "--prompt", "the", "--tokens", "0"], "--tokens is 0, but must be at least 1"),
        (["sample", "time", "--prompt", "the", "--top-k", "281"], "top-k is 281, but must be between 1 and"),
        (["sample", "time", "--prompt", "the", "--top-k", "0"], "--top-k is 0, but must be at least 1"),
        (["sample", "time", "--prompt", "the", "--top-p", "1.5"], "--top-p is 1.5, but must be at most 1"),
        (
            ["sample", "time", "--prompt", "the", "--temperature", "-1"],
            "--temperature is -1.0, but must be 0 or a positive number",
        ),
        (["sample", "time", "--prompt", "the", "--seed", "-1"], "seed is -1, but must be at least 0"),
        (["sample", "time", "--prompt", "the", "--steps", "0"], "--steps is 0, but must be at least 1"),
        (["sample", "layer", "--prompt", "the", "--steps", "3"], "cannot run at 3 steps"),
        (["sample", "layer", "--prompt", "the", "--steps", "1"], "cannot run at 1 step; only models"),
        (["finetune", "time", "--steps", "0"], "--steps is 0, but must be at least 1"),
        (["finetune", "layer", "--steps", "3"], "is a table of 2 layers and cannot run at 3 steps"),
        (["finetune", "layer", "--method", "continuous"], "method 'continuous' keeps weights that are functions of"),
        (["finetune", "time", "--rank", "0"], "--rank is 0, but must be at least 1"),
        (
            ["finetune", "time", "--rank", "99"],
            "model.weights.lora.rank is 99, but attention.query_key_value is 16 x 48: at",
        ),
        (
            ["finetune", "time", "--targets", "query"],
            "none of this model's linear maps: attention.query_key_value, ",
        ),
        (["finetune", "time", "--data", "none.txt"], "file '{here}/none.txt' does not exist"),
        (["finetune", "time", "--data.tokenizer", "gpt2"], "--data.tokenizer is 'gpt2', but the tokenizer of a"),
        (
            ["finetune", "time", "--optimizer.train-roles", "norm"],
            "optimizer.train_roles is norm, but what a fine-tuned",
        ),
    ],
)
def test_a_run_is_asked_for_what_it_cannot_do(call, place, tmp_path, words, sentence):
    before = snapshot(place.folder)
    verb, kind, *rest = words
    refused(call(verb, place.run(kind), *rest), sentence.replace(HERE, str(tmp_path)))
    assert list(tmp_path.iterdir()) == [] and snapshot(place.folder) == before


def test_settings_that_the_source_does_not_read_are_refused(call, tmp_path):
    before = snapshot(tmp_path)
    refused(
        call("train", "quickstart-gpt", "--data.train", "books.txt"),
        "data.train is given, but data.source 'stdlib' does not read it; set data.source to 'files'.",
    )
    assert snapshot(tmp_path) == before


def test_a_key_given_twice_is_refused(call, tmp_path):
    (tmp_path / "twice.yaml").write_text("model: {width: 64}\ntrainer: {updates: 5}\nmodel: {heads: 2}\n")
    refused(call("train", tmp_path / "twice.yaml"), "the key 'model' is given twice")


def test_evaluating_on_a_text_that_has_changed_is_refused(call, place, tmp_path):
    """The run's own text is read anew, and with it a tokenizer is trained anew: not the one the model knows."""
    text = write_text(tmp_path / "text.txt")
    config = write_config(tmp_path / "tiny.yaml", "time", tmp_path / "run", text, tmp_path / "cache")
    assert call("train", config).status == 0
    write_text(text, seed=1)
    called = call("eval", tmp_path / "run")
    refused(called, "has changed since the run began; name a text to evaluate on with --data.")
    assert call("eval", tmp_path / "run", "--data", text).status == 0


def test_a_comparison_in_the_folder_of_a_run_is_refused(call, place):
    before = snapshot(place.folder)
    refused(call("quickstart", "--run", place.run("time")), "holds a run of its own; choose another folder with --run")
    assert snapshot(place.folder) == before
