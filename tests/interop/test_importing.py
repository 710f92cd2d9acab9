"""`diffeqformer import`: a run like any other, whole or not there, and every mistake one sentence."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from diffeqformer.data.tokenizer import end_of_text, train_tokenizer, vocabulary_size
from diffeqformer.data.tokenizer_files import load_tokenizer
from diffeqformer.errors import BadInput, RunFailed
from diffeqformer.interop.exporting import export
from diffeqformer.interop.importing import import_huggingface
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.lifting import write_derived
from diffeqformer.runs.opening import load_run
from tests.cases import slow, slow_but
from tests.interop.folders import CONFIGS, WORDS, golden, word_tokenizer, write
from tests.models import logits
from tests.tolerances import STATES

TENSORS = "model.safetensors"
of_one_family = pytest.mark.parametrize("kind", slow_but(["llama"], CONFIGS), indirect=True)
"""For what begins where a model of any family has become a run."""


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(" ".join(WORDS * 10))
    return path


@of_one_family
def test_the_run_is_one_like_any_other(call, kind, published, tmp_path, text):
    run = tmp_path / "runs" / "mine"
    called = call("import", published, "--to", run, "--json")
    assert called.status == 0, called.err
    document = json.loads(called.out)
    assert document["run"] == str(run) and document["model"]["weights"]["kind"] == "layer"
    assert {path.name for path in run.iterdir()} == {
        ".lock", "checkpoints", "config.yaml", "imported.json", "tokenizer.json"
    }  # fmt: skip
    assert [path.name for path in run.parent.iterdir()] == ["mine"]

    opened, given = load_run(run), golden(kind)
    assert opened.step == 0 and opened.config.model.vocabulary == 32
    assert np.abs(logits(opened.model, given.ids) - given.logits).max() <= STATES
    informed = call("info", run, "--json")
    assert informed.status == 0, informed.err
    counts = json.loads(informed.out)["models"]["this model"]["parameters"]
    assert counts["stored"] == document["parameters"] == sum(array.size for array in given.tensors.values())
    sampled = call("sample", run, "--prompt", "the cat", "--tokens", 5)
    assert sampled.status == 0 and sampled.out.startswith("the cat") and "loses" not in sampled.err


@of_one_family
def test_commands_take_the_run_with_a_text_or_say_that_it_has_none(call, published, tmp_path, text):
    run = tmp_path / "run"
    assert call("import", published, "--to", run).status == 0
    found = json.loads(call("eval", run, "--data", text, "--json").out)
    (row,) = found["evaluations"]
    assert row["tokens"] == 120 and math.isfinite(row["loss"])
    refused = call("eval", run)
    assert refused.status == 2 and "has no text of its own; name a text to evaluate on with --data." in refused.err
    assert call("analyze", "steps", run, "--texts", 2).err == refused.err
    assert call("analyze", "steps", run, "--texts", 2, "--data", text).status == 0
    sampled = call("sample", run, "--prompt", "the catfish", "--tokens", 5)
    assert "The tokenizer loses or changes 72.7 % of the characters of the prompt" in sampled.err
    assert "holds an imported model" in call("train", run / "config.yaml").err


def test_a_table_for_people_and_progress(call, published, tmp_path):
    called = call("import", published, "--to", tmp_path / "run")
    assert called.status == 0 and "parameters" in called.out and "Reading the tensors" in called.err


TEMPLATE = "{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}\u00e9{% endfor %}"


@pytest.mark.parametrize("kind", ["gpt2", "llama"], indirect=True)
@pytest.mark.parametrize("place", ["file", "settings", "several"])
def test_a_chat_template_comes_along(call, published, tmp_path, place):
    settings = {}
    if place == "file":
        (published / "chat_template.jinja").write_text(TEMPLATE)
    elif place == "settings":
        settings = {"chat_template": TEMPLATE}
    else:
        named = [{"name": "tool_use", "template": "another"}, {"name": "default", "template": TEMPLATE}]
        settings = {"chat_template": named}
    path = published / "tokenizer_config.json"
    settings |= json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(settings))
    called = call("import", published, "--to", tmp_path / "run")
    assert called.status == 0, called.err
    assert (tmp_path / "run" / "chat_template.jinja").read_text() == TEMPLATE


@pytest.mark.slow  # what leads to a template of its own is tested above
@pytest.mark.parametrize("kind", ["llama"], indirect=True)
def test_a_chat_template_goes_all_the_way(call, published, tmp_path, text):
    """Into what is lifted or fine-tuned from the run, and the folder that is exported again."""
    (published / "chat_template.jinja").write_text(TEMPLATE)
    runs = [tmp_path / name for name in ("run", "lifted", "tuned")]
    text.write_text("\n".join([" ".join(WORDS * 10)] * 4))
    words = ["--data", text, "--trainer.updates", 1, "--trainer.batch-size", 1, "--data.validation-fraction", 0.5]
    for one in (["import", published, "--to", runs[0]], ["lift", runs[0], "--to", runs[1]],
                ["finetune", runs[1], "--to", runs[2], "--method", "full", *words],
                ["export", runs[2], "--to", tmp_path / "made"]):  # fmt: skip
        called = call(*one)
        assert called.status == 0, called.err
    for folder in (*runs, tmp_path / "made"):
        assert (folder / "chat_template.jinja").read_text() == TEMPLATE


def test_special_tokens_go_all_the_way(published, tmp_path):
    """They are what templates name; generation still ends at all that end a text or a turn."""
    path = published / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    vocabulary = load_tokenizer(published).get_vocab(with_added_tokens=True)
    bos, eos, unk = sorted(vocabulary, key=vocabulary.__getitem__)[3:6]
    own = {"bos_token": bos, "eos_token": {"content": eos, "lstrip": False}, "unk_token": unk, "pad_token": "nowhere"}
    path.write_text(json.dumps(settings | own))
    run = import_huggingface(published, tmp_path / "run")
    write_derived(run, tmp_path / "derived", run.model)
    export(load_run(tmp_path / "derived"), tmp_path / "made")
    (tmp_path / "run" / "special_tokens_map.json").write_text("{}")
    with pytest.raises(BadInput, match="special_tokens_map.json' names no tokens of the run's tokenizer"):
        export(run, tmp_path / "damaged")
    read = lambda name: json.loads((tmp_path / "made" / name).read_text())
    end = run.tokenizer.id_to_token(end_of_text(run.tokenizer))
    names = {"bos_token": bos, "eos_token": eos, "unk_token": unk, "pad_token": end}
    assert not (tmp_path / "made" / "special_tokens_map.json").exists()  # Transformers would add "nowhere" by it
    assert {role: read("tokenizer_config.json")[role] for role in names} == names
    for role in ("bos_token", "eos_token", "pad_token"):
        assert read("config.json")[f"{role}_id"] == vocabulary[names[role]]
    assert read("generation_config.json")["eos_token_id"][:2] == [vocabulary[eos], vocabulary[end]]


@pytest.mark.parametrize("kind", ["llama"], indirect=True)
def test_text_ends_at_the_token_that_only_the_models_settings_name(published, tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens(["<over>", "<out>"])
    tokenizer.save(str(published / "tokenizer.json"))
    end, over, out = end_of_text(tokenizer), *map(tokenizer.token_to_id, ("<over>", "<out>"))
    settings = json.loads((published / "config.json").read_text())
    for name, declared, stops in (
        ("config.json", over, [over, end]),
        ("config.json", [end, tokenizer.token_to_id("cat"), 999, None], [end]),  # known, a word, nothing
        ("generation_config.json", [end, out, over], [out, over, end]),
        ("tokenizer_config.json", None, [over, out, end]),
    ):
        own = {"eos_token_id": declared} if declared else {"eos_token": "<over>"}
        (published / name).write_text(json.dumps((settings if name == "config.json" else {}) | own))
        run = import_huggingface(published, tmp_path / f"{name}-{declared}")
        write_derived(run, tmp_path / "derived" / run.folder.name, run.model)
        assert run.stops == load_run(tmp_path / "derived" / run.folder.name).stops == stops


def test_tokens_that_only_the_settings_declare_are_added(published, tmp_path):
    tokenizer, path = load_tokenizer(published), published / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    number = vocabulary_size(tokenizer)
    declare = lambda number: path.write_text(json.dumps(settings | {"added_tokens_decoder": {
        str(end_of_text(tokenizer)): {"content": tokenizer.id_to_token(end_of_text(tokenizer))},
        str(number): {"content": "<|turn|>", "special": True, "normalized": False},
    }}))  # fmt: skip
    declare(number)
    found = load_tokenizer(published)
    assert found.token_to_id("<|turn|>") == number and vocabulary_size(found) == number + 1
    assert end_of_text(found) == end_of_text(tokenizer)
    declare(number + 2)
    assert load_tokenizer(published).token_to_id("<|turn|>") is None


def test_special_tokens_beyond_the_embedding_stay_behind(call, published, tmp_path):
    """Many a model's folder has a token for padding that was added after training and has no embedding."""
    tokenizer = word_tokenizer()
    while (entries := vocabulary_size(tokenizer)) < 32:
        tokenizer.add_tokens([f"word{entries}"])
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(published / "tokenizer.json"))
    called = call("import", published, "--to", tmp_path / "run")
    assert called.status == 0, called.err
    assert "Left out of the tokenizer, beyond the 32 entries of the model's embedding: '<pad>'" in called.err
    opened = load_run(tmp_path / "run")
    assert vocabulary_size(opened.tokenizer) == 32 and opened.tokenizer.token_to_id("<pad>") is None
    assert opened.tokenizer.encode("the cat word31").ids == tokenizer.encode("the cat word31").ids

    for more in (["word33"], ["<|end_of_text|>"]):  # what a text may be made of, and what ends one
        other = Tokenizer.from_str(tokenizer.to_str())
        other.add_tokens(more) if more == ["word33"] else other.add_special_tokens(more)
        other.save(str(published / "tokenizer.json"))
        with pytest.raises(BadInput, match="has 34 entries, but the model's embedding only 32"):
            import_huggingface(published, tmp_path / "other")


@pytest.mark.parametrize(
    "settings",
    [{"chat_template": "\ud800"}, "x", *slow({"chat_template": [{"name": "tool_use", "template": "a"}]}, [])],
)
def test_what_is_no_chat_template_does_not_come_along(published, tmp_path, settings):
    (published / "tokenizer_config.json").write_text(json.dumps(settings))
    import_huggingface(published, tmp_path / "run")
    assert not (tmp_path / "run" / "chat_template.jinja").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer_config.json", b'{"chat_template": "x", "bos'), ("chat_template.jinja", b"\xff")],
)
def test_a_damaged_file_beside_the_tokenizer_is_refused(published, tmp_path, name, content):
    (published / name).write_bytes(content)
    with pytest.raises(BadInput, match=f"{name}' cannot be read"):
        import_huggingface(published, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_into_an_empty_folder(published, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    made = import_huggingface(published, tmp_path / "link")
    assert load_run(tmp_path / "link").config == made.config
    assert load_run(tmp_path / "empty").config.model == made.config.model


@of_one_family
def test_a_shorter_context_is_the_same_model_of_shorter_texts(call, kind, published, tmp_path):
    called = call("import", published, "--to", tmp_path / "run", "--context", 6)
    assert called.status == 0, called.err
    opened, ids = load_run(tmp_path / "run"), golden(kind).ids[:, :6]
    assert opened.config.model.context == 6
    whole = import_huggingface(published, tmp_path / "whole")
    np.testing.assert_array_equal(logits(opened.model, ids), logits(whole.model, ids))
    refused = call("import", published, "--to", tmp_path / "longer", "--context", 17)
    assert refused.status == 2 and "context is 17, but must be between 1 and 16, that of the model" in refused.err
    assert not (tmp_path / "longer").exists()


def test_gpt2s_own_tokenizer_files(tmp_path):
    given = golden("gpt2").tensors | {"transformer.wte.weight": np.ones((300, 16), np.float32)}
    folder = write(tmp_path / "published", CONFIGS["gpt2"] | {"vocab_size": 300}, given)
    (folder / "tokenizer.json").unlink()
    trained = train_tokenizer(["the cat sees the stars"] * 9, 270)
    trained.model.save(str(folder))
    assert {path.name for path in folder.iterdir()} == {"config.json", TENSORS, "vocab.json", "merges.txt"}
    run = import_huggingface(folder, tmp_path / "run")
    text = "the cat<|endoftext|> sees ü\n"
    assert load_run(run.folder).tokenizer.encode(text).ids == trained.encode(text).ids


def test_an_interrupted_import_leaves_nothing(call, published, tmp_path, monkeypatch):
    before = set(tmp_path.iterdir())

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", stopped)
    assert call("import", published, "--to", tmp_path / "run").status == 130
    assert set(tmp_path.iterdir()) == before


def test_a_failed_import_leaves_nothing(call, published, tmp_path, monkeypatch):
    before = set(tmp_path.iterdir())

    def full(*_):
        raise RunFailed("the disk is full.")

    monkeypatch.setattr(Checkpoints, "save", full)
    called = call("import", published, "--to", tmp_path / "run")
    assert (called.status, called.err.splitlines()[-1]) == (1, "diffeqformer: the disk is full.")
    assert set(tmp_path.iterdir()) == before


KILLED = """
import sys, time
from diffeqformer.interop import importing
from diffeqformer.runs import folder
class Slow(folder.Checkpoints):
    def save(self, *arguments):
        super().save(*arguments)
        print("saved", flush=True)
        time.sleep(60)
folder.Checkpoints = Slow
importing.import_huggingface(*sys.argv[1:])
"""


@pytest.mark.slow
def test_a_killed_import_leaves_no_run_and_the_next_one_goes_through(call, tmp_path):
    published, run = write(tmp_path / "published", CONFIGS["gpt2"], golden("gpt2").tensors), tmp_path / "run"
    words = [sys.executable, "-c", KILLED, str(published), str(run)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "saved\n"
        busy = call("import", published, "--to", run)
        process.kill()
    assert busy.status == 2 and f"is being written by process {process.pid}" in busy.err
    assert not run.exists() and (tmp_path / ".run.importing" / "checkpoints").is_dir()
    assert call("import", published, "--to", run).status == 0
    assert load_run(run).step == 0 and not (tmp_path / ".run.importing").exists()


def change(**settings):
    """A mistake in config.json."""

    def edit(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text()) | settings
        (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v != "absent"}))

    return edit


def tensors(**changed):
    """A mistake in the tensors; names have `__` for a dot, none removes one."""

    def edit(folder: Path) -> None:
        arrays = load_file(folder / TENSORS) | {name.replace("__", "."): array for name, array in changed.items()}
        save_file({name: array for name, array in arrays.items() if array is not None}, folder / TENSORS)

    return edit


def to_pickle(folder: Path) -> None:
    (folder / TENSORS).rename(folder / "pytorch_model.bin")


def sharded(index: object):
    """An index in the place of the one file, which is renamed."""

    def edit(folder: Path) -> None:
        (folder / TENSORS).rename(folder / "model-1.safetensors")
        (folder / f"{TENSORS}.index.json").write_text(json.dumps(index))

    return edit


def cut(folder: Path) -> None:
    (folder / TENSORS).write_bytes((folder / TENSORS).read_bytes()[:-8])


def sentencepiece(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")


def without_end(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("</s>", "<stop>"))


def panicking(**parts):
    """A tokenizer with parts at which the tokenizers library panics."""

    def edit(folder: Path) -> None:
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | parts))

    return edit


def larger_tokenizer(folder: Path) -> None:
    tokenizer = word_tokenizer()
    tokenizer.add_tokens([f"word{i}" for i in range(30)])
    tokenizer.save(str(folder / "tokenizer.json"))


def rope(**settings):
    return change(rope_parameters={"rope_theta": 100.0} | settings)


ONES = np.ones((16, 16), np.float32)
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip
BAD = {
    "no config": ("gpt2", lambda folder: (folder / "config.json").unlink(), "config.json' cannot be read: No such"),
    "config is no JSON": ("gpt2", lambda folder: (folder / "config.json").write_text("{"), "cannot be read as JSON"),
    "config is a list": (
        "gpt2", lambda folder: (folder / "config.json").write_text("[]"), "config.json' is no table of settings",
    ),
    "another kind": ("gpt2", change(model_type="bloom"), "is 'bloom', but must be one of gpt2, gpt_neox, llama"),
    "kinds": ("gpt2", change(model_type=["gpt2"]), "is ['gpt2'], but must be one of gpt2, gpt_neox, llama"),
    "no kind": ("gpt2", change(model_type="absent"), "is None, but must be one of gpt2, gpt_neox, llama"),
    "no size": ("gpt2", change(n_embd="absent"), "config.json': n_embd is not given"),
    "size is text": ("llama", change(hidden_size="16"), "hidden_size is '16', but must be a whole number"),
    "odd heads": ("gpt2", change(n_head=3), "model.width is 16, but must be divisible by model.heads"),
    "odd key-value heads": ("llama", change(num_key_value_heads=3), "model.field.kv_heads is 3, but must divide"),
    "activation": ("gpt2", change(activation_function="relu"), "activation_function is 'relu', but must be one of"),
    "scaled": ("gpt2", change(scale_attn_by_inverse_layer_idx=True), "layer_idx is True, but must be False"),
    "not scaled": ("gpt2", change(scale_attn_weights=False), "scale_attn_weights is False, but must be True"),
    "reordered": ("gpt2", change(reorder_and_upcast_attn=True), "reorder_and_upcast_attn is True"),
    "cross-attention": ("gpt2", change(add_cross_attention=True), "add_cross_attention is True"),
    "quantised": ("llama", change(quantization_config={"bits": 4}), "quantised models cannot be imported"),
    "head_dim": ("llama", change(head_dim=8), "has shape (16, 16), but config.json asks for (32, 16)"),
    "odd head_dim": ("llama", change(head_dim=3), "model.field.head_width is 3, but must be even: rotary"),
    "window": ("llama", change(model_type="mistral", sliding_window="4"), "sliding_window is '4', but must be a whole"),
    "window of some layers": ("llama", change(use_sliding_window=True), "use_sliding_window is True, but"),
    "qwen's biases": ("llama", change(model_type="qwen2"), "has no tensor 'layers.0.self_attn.q_proj.bias', of which"),
    "attention bias": ("llama", change(attention_bias=True), "attention_bias is True, but must be False"),
    "mlp bias": ("llama", change(mlp_bias=True), "mlp_bias is True, but must be False"),
    "hidden_act": ("llama", change(hidden_act="gelu"), "hidden_act is 'gelu', but must be one of 'silu', 'swish'"),
    "llama3 rope": ("llama", rope(rope_type="llama3", factor=8.0), "low_freq_factor is not given, but must be for"),
    "rope that mixes nothing": ("llama", rope(rope_type="llama3", factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0,
        original_max_position_embeddings=8), "rope_scaling.low_freq_factor is 4.0, but must be below high_freq_factor"),
    "old rope": ("llama", change(rope_parameters=None, rope_scaling={"type": "linear", "factor": 2.0}),
        "rope_type is 'linear', but must be one of 'default', 'llama3'"),
    "theta is no number": ("llama", rope(rope_theta=float("nan")), "rope_theta is nan, but must be"),
    "part rotated": ("llama", rope(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5, but must be 1.0"),
    "part rotated, outside": ("llama", change(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5, but must"),
    "two ropes": ("llama", change(rope_scaling={"rope_type": "linear", "factor": 2.0}),
        "rope_parameters has rope_type 'default', but another place has 'linear'; keep one of them"),
    "two ropes, one of an older name": ("llama", change(rope_scaling={"type": "linear", "factor": 4.0}),
        "rope_parameters has rope_type 'default', but another place has 'linear'; keep one of them"),
    "two ropes of a gpt_neox": ("llama", change(model_type="gpt_neox", rope_scaling={"type": "linear", "factor": 4.0}),
        "rope_parameters has rope_type 'default', but another place has 'linear'; keep one of them"),
    "two lengths of training": ("llama", change(original_max_position_embeddings=64, rope_parameters=LLAMA3),
        "has original_max_position_embeddings 8, but another place has 64; keep one of them"),
    "waves where a gpt_neox reads none": ("llama", change(model_type="gpt_neox", rope_parameters=None, rope_theta=500),
        "rope_theta is 500, but a GPT-NeoX reads that of rope_parameters or rotary_emb_base, here 10000.0; keep one"),
    "waves of a gpt_neox, by two names": ("llama", change(model_type="gpt_neox", rotary_emb_base=500),
        "rope_theta is 100.0, but rotary_emb_base, its other name, 500; keep one of them"),
    "not causal": ("gpt2", change(is_causal=False), "is_causal is False, but must be True"),
    "heads by two names": ("gpt2", change(num_attention_heads=4),
        "n_head is 2, but num_attention_heads, its other name, 4; keep one of them"),
    "two lengths of waves": ("llama", change(rope_theta=50.0), "has rope_theta 100.0, but another place has 50.0"),
    "a rope for each kind of layers": ("llama", change(rope_parameters={"full_attention": {"rope_theta": 100.0}}),
        "rope_parameters has a table for 'full_attention', but must have one rotary embedding for all layers"),
    "rope is a word": ("llama", change(rope_scaling="linear"), "rope_scaling is 'linear', but must be a table"),
    "missing tensor": ("gpt2", tensors(transformer__h__1__ln_2__bias=None),
        "has no tensor 'h.1.ln_2.bias', of which config.json asks for shape (16,)"),
    "missing head": ("llama", tensors(lm_head__weight=None), "has no tensor 'lm_head.weight'"),
    "missing layer": ("llama", change(num_hidden_layers=3), "has no tensor 'layers.2.input_layernorm.weight'"),
    "surplus layer": ("gpt2", change(n_layer=1), "'h.1.attn.c_attn.bias' in '"),
    "surplus": ("llama", tensors(score__weight=ONES), "tensor 'score.weight' in '"),
    "twice": ("gpt2", tensors(ln_f__bias=ONES[0]), "tensor 'ln_f.bias' is there twice"),
    "misshapen": ("gpt2", tensors(transformer__h__0__attn__c_proj__weight=ONES[:8]),
        "has shape (8, 16), but config.json asks for (16, 16)"),
    "hidden of another width": ("gpt2", change(n_inner=32), "has shape (16, 64), but config.json asks for (16, 32)"),
    "whole numbers": ("llama", tensors(lm_head__weight=ONES.astype(np.int8)), "is stored as I8, but must be one of"),
    "not finite": ("gpt2", tensors(transformer__h__0__attn__c_proj__weight=np.nan * ONES), "that are not finite"),
    "not finite in float32": ("gpt2", tensors(transformer__h__0__attn__c_proj__weight=1e300 * ONES.astype(float)),
        "that are not finite in float32"),
    "tied, but not equal": ("gpt2", tensors(lm_head__weight=np.ones((32, 16), np.float32)),
        "in config.json, or by default, but tensor 'lm_head.weight' differs from 'wte.weight'; false is right"),
    "pickle": ("gpt2", to_pickle, "in 'pytorch_model.bin', a pickle, which could run any program and is never read"),
    "no tensors": ("gpt2", lambda folder: (folder / TENSORS).unlink(), "has neither model.safetensors nor"),
    "pointer": ("gpt2", lambda folder: (folder / TENSORS).write_text("version https://git-lfs.github.com/spec/v1\n"),
        "model.safetensors' is a Git LFS pointer, not the tensors; `git lfs pull` in its folder fetches them"),
    "cut off": ("llama", cut, "model.safetensors' cannot be read as safetensors"),
    "no shard": ("llama", sharded({"weight_map": {"a": "model-2.safetensors"}}), "model-2.safetensors' is missing"),
    "not in its shard": ("llama", sharded({"weight_map": {"a": "model-1.safetensors"}}), "has no tensor 'a', but"),
    "shard elsewhere": ("llama", sharded({"weight_map": {"a": "../model.safetensors"}}), "has no 'weight_map'"),
    "index without map": ("llama", sharded({}), "has no 'weight_map'"),
    "sentencepiece": ("llama", sentencepiece, "in tokenizer.model only, which is not read; AutoTokenizer"),
    "no tokenizer": ("gpt2", lambda folder: (folder / "tokenizer.json").unlink(), "holds neither tokenizer.json"),
    "tokenizer without end": ("gpt2", without_end, "has no token that ends a document"),
    "tokenizer that cannot decode": ("gpt2",
        panicking(decoder={"type": "Strip", "content": "a", "start": 0, "stop": 3}), "the tokenizer cannot decode the"),
    "tokenizer that cannot start a text": ("gpt2",
        panicking(post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
                                  "pair": [], "special_tokens": {}}), "the tokenizer cannot encode"),
    "tokenizer that cannot be made": ("gpt2",
        panicking(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "tokenizer.json' cannot be read: Precompiled"),
    "larger tokenizer": ("gpt2", larger_tokenizer, "has 44 entries, but the model's embedding only 32"),
}  # fmt: skip


@pytest.mark.filterwarnings("error::RuntimeWarning")  # which a person would see before the sentence
@pytest.mark.parametrize(("kind", "edit", "sentence"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_imported_is_refused_in_one_sentence(call, tmp_path, kind, edit, sentence):
    folder = write(tmp_path / "published", CONFIGS[kind], golden(kind).tensors)
    edit(folder)
    before = set(tmp_path.iterdir())
    called = call("import", folder, "--to", tmp_path / "run")
    assert called.status == 2 and called.out == ""
    assert sentence in called.err, called.err
    lines = [line for line in called.err.splitlines() if not line.startswith("Reading the tensors")]
    assert len(lines) == 1 and re.fullmatch(r"diffeqformer: .*\.", lines[0])
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere", "--to", "run"], "'nowhere' is no file or folder here and cannot be fetched from the"),
        (["published"], "needs --to"),
        (["published/config.json", "--to", "run"], "is a file; name the folder that it is in, 'published'."),
        (["published", "--to", "published"], "'published' exists and is not an empty folder; choose another one"),
        (["published", "--to", "file"], "'file' exists and is not an empty folder"),
        (["published", "--to", "file/run"], "cannot be "),
        (["published", "--to", "missing/../run"], "--to 'missing/../run' cannot be written: it leads through folders"),
        (["published", "--too", "run"], "unknown option --too: did you mean --to?"),
    ],
)
def test_bad_words(call, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "published", CONFIGS["gpt2"], golden("gpt2").tensors)
    (tmp_path / "file").write_text("")
    before = set(tmp_path.iterdir())
    called = call("import", *words)
    assert called.status == 2 and sentence in called.err and set(tmp_path.iterdir()) == before
