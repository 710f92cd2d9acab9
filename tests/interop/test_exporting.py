"""`diffeqformer export`: a folder for Transformers, whole or not there; without torch."""

import ast
import dataclasses
import json
import re
from importlib.resources import files
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from safetensors import safe_open
from safetensors.numpy import load_file
from tokenizers import processors

from diffeqformer.config import (
    BaseConfig,
    Config,
    KnotsConfig,
    LayerConfig,
    LlamaConfig,
    LoRAConfig,
    OptimizerConfig,
    ReversibleConfig,
    ToleranceConfig,
    dump_yaml,
    read_yaml,
    to_dict,
)
from diffeqformer.data.tokenizer_files import load_tokenizer
from diffeqformer.errors import BadInput
from diffeqformer.interop import exporting
from diffeqformer.interop.card import fenced, inline
from diffeqformer.interop.exporting import export
from diffeqformer.interop.families import FAMILIES
from diffeqformer.interop.huggingface import from_huggingface, places
from diffeqformer.interop.importing import import_huggingface
from diffeqformer.interop.peft import save_adapter
from diffeqformer.model.build import build
from diffeqformer.model.lift import left_out, of_rows
from diffeqformer.ode.schemes import SCHEMES, OneStep
from diffeqformer.runs.opening import load_run
from diffeqformer.sharding import by_path
from tests.cases import slow, slow_but
from tests.interop.folders import CONFIGS, golden, word_tokenizer, write
from tests.interop.runs import CONTINUOUS, EXPORTED, STOCK, run_of, save
from tests.models import TINY, logits, model_of, tokens
from tests.tolerances import STATES, roundoff

TENSORS = "model.safetensors"
CODE = {f"{name}_diffeqformer.py" for name in ("configuration", "weights", "modeling")}
ALWAYS = {
    *(TENSORS, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md"),
    "SHA256SUMS",
}


def read(folder: Path, name: str = "config.json") -> dict:
    return json.loads((folder / name).read_text())


@pytest.fixture
def saved(tmp_path):
    """The folder of a run that `load_run` opens."""

    return lambda kind: save(run_of(kind, tmp_path / "run"))


TABLES = (*STOCK, "macaron", "ode transformer")
STORED = ("vanilla", "llama 3", "neox", "ode transformer", "time, gpt", "one mlp, llama", "knots, llama 3 and qwen")
"""A table of each family, rows at nodes, and sources of each kind as they are stored; the others are slow."""


POPULATED = ("time, gpt", "one mlp, llama", "knots, gpt", "knots, llama 3 and qwen", "shared, gpt")
"""Each source of weights and each family; the others at 3 steps are slow."""


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        *slow_but(
            [(kind, None) for kind in STORED],
            [(kind, None) for kind in (*TABLES, *CONTINUOUS, "time, llama as released")],
        ),
        *slow_but([(kind, 3) for kind in POPULATED], [(kind, 3) for kind in CONTINUOUS]),
    ],
)
def test_what_is_exported_can_be_imported(kind, steps, tmp_path):
    """The same model, bit for bit, continuous or a table, and the same tokenizer."""
    run = run_of(kind)
    made = export(run, tmp_path / "made", steps=steps)
    assert made.continuous == (steps is None and kind not in TABLES)
    expected = run.model if made.continuous else run.model.populate(steps)
    opened = import_huggingface(tmp_path / "made", tmp_path / "run")
    whole = "GPT2LMHeadModel" if (kind, steps) == ("shared, gpt", 3) else "DiffEqFormerForCausalLM"  # steps of 1
    assert made.architecture == STOCK.get(kind, whole)
    found = by_path(opened.model)
    assert found.keys() == by_path(expected).keys()
    for name, array in by_path(expected).items():
        np.testing.assert_array_equal(found[name], array, name)
    m, before = opened.config.model, expected.config
    same = ("scheme", "steps", "interval", "first_step", "edges", "width", "heads", "kv_heads", "hidden_width")
    same += ("context", "vocabulary", "norm_epsilon", "dropout", "compute_dtype", "tolerance", "embedding_norm")
    same += ("spacing",)
    assert made.architecture in STOCK.values() or [getattr(m, n) for n in same] == [getattr(before, n) for n in same]
    assert m.weights == explicit(before)
    filled = {"kv_heads": before.kv_heads} if isinstance(before.field, LlamaConfig) else {}
    assert m.field == dataclasses.replace(before.field, **filled)
    assert opened.tokenizer.encode("the cat").ids == run.tokenizer.encode("the cat").ids


def test_a_model_like_qwen_2_with_another_tokenizer_has_a_class_of_its_own(tmp_path):
    """Transformers would split text as Qwen 2 does."""
    run = run_of("qwen 2")
    assert export(run, tmp_path / "stock").architecture == "Qwen2ForCausalLM"
    run = dataclasses.replace(run, tokenizer=word_tokenizer())
    assert export(run, tmp_path / "own").architecture == "DiffEqFormerForCausalLM"
    found = by_path(from_huggingface(tmp_path / "own"))
    for name, array in by_path(run.model).items():
        np.testing.assert_array_equal(found[name], array, name)
    adapted = run_of(dataclasses.replace(run.config.model, weights=LayerConfig(lora=LoRAConfig(rank=2))))
    with pytest.raises(BadInput, match="has query biases as Qwen 2, but not its tokenizer"):
        export(adapted, tmp_path / "apart", adapter=True)


@pytest.mark.parametrize(("kind", "stock"), [("vanilla", "GPT2LMHeadModel"), *slow(("llama 3", "LlamaForCausalLM"))])
def test_a_table_with_layers_left_out_is_a_stock_model_of_fewer_layers(kind, stock, tmp_path):
    run = run_of(kind)
    model = left_out(run.model, (2, 0, 1))
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, model=model.config), model=model)
    made = export(run, tmp_path / "made", steps=2)
    assert (made.architecture, made.steps) == (stock, 2)
    opened, ids = import_huggingface(tmp_path / "made", tmp_path / "run"), tokens()
    np.testing.assert_allclose(logits(opened.model, ids), logits(of_rows(run_of(kind).model, [0, 2]), ids), atol=STATES)


@pytest.mark.parametrize("steps", [None, 4])
def test_weights_that_know_the_length_of_the_step_are_exported_as_they_are_at_one_depth(steps, tmp_path):
    run = run_of("knots, normalised")
    config = dataclasses.replace(run.config.model, weights=KnotsConfig(3, average=True, rank=2))
    model = model_of(config)
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, model=config), model=model)
    made = export(run, tmp_path / "made", steps=steps)
    assert not made.continuous and made.steps == (steps or config.steps)
    opened, expected = import_huggingface(tmp_path / "made", tmp_path / "run"), by_path(model.populate(steps))
    for name, array in by_path(opened.model).items():
        np.testing.assert_array_equal(array, expected[name], name)


def explicit(m):
    """The section of weights, what it leaves to others filled in."""
    if m.time:
        return dataclasses.replace(m.weights, highest_frequency=m.time.fastest)
    return m.weights


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"weights": {"kind": "splines"}}, "weights is 'splines', but must be one of 'time', 'time-shared-mlp', 'kn"),
        ({"weights": {"kind": "own"}}, "weights is 'own', but must be one of 'time', 'time-shared-mlp', 'knots'"),
        ({"weights": {"kind": "layer", "lora": {}}}, "weights.lora is .*, but must be None"),
        ({"weights": {"kind": "knots", "knots": 2, "rank": 2}}, "weights.rank is 2, but must be None"),
        ({"weights": {"kind": "time", "d_emb": 7}}, "has shape .* but config.json asks for"),
        ({"nested_norm": True}, "nested_norm is True, but must be False"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1, but must be 2"),
        ({"reversible_base": "heun"}, "reversible_base is 'heun', but must be 'euler'"),
    ],
)
def test_settings_of_other_kinds_than_the_models_are_not_passed_over(settings, sentence, tmp_path):
    """Its class may read them: silently another model."""
    export(run_of("diffeqformer"), tmp_path / "made")
    (tmp_path / "made" / "SHA256SUMS").unlink()
    (tmp_path / "made" / "config.json").write_text(json.dumps(read(tmp_path / "made") | settings))
    with pytest.raises(BadInput, match=sentence):
        from_huggingface(tmp_path / "made")


def test_a_published_model_comes_back(tmp_path):
    """From Hugging Face's files here and back: the same tensors by the same names, the same settings."""
    for kind in CONFIGS:
        run = import_huggingface(write(tmp_path / kind, CONFIGS[kind], golden(kind).tensors), tmp_path / f"run-{kind}")
        export(run, tmp_path / f"back-{kind}")
        found = load_file(tmp_path / f"back-{kind}" / TENSORS)
        assert found.keys() == golden(kind).tensors.keys()
        for name, tensor in golden(kind).tensors.items():
            np.testing.assert_array_equal(found[name], tensor)
        settings = read(tmp_path / f"back-{kind}")
        given = {name: value for name, value in CONFIGS[kind].items() if value is not None}
        assert {name: settings[name] for name in given} == given


def test_files(tmp_path):
    export(run_of("diffeqformer"), tmp_path / "own")
    export(run_of("vanilla"), tmp_path / "stock")
    assert {path.name for path in (tmp_path / "own").iterdir()} == ALWAYS | CODE
    assert {path.name for path in (tmp_path / "stock").iterdir()} == ALWAYS
    assert {path.name for path in tmp_path.iterdir()} == {"own", "stock"}
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "own").iterdir()}
    assert modes[TENSORS] == modes["config.json"]

    own = read(tmp_path / "own")
    for auto, name in own["auto_map"].items():
        file, _, cls = name.partition(".")
        assert f"class {cls}(" in (tmp_path / "own" / f"{file}.py").read_text(), auto
    weights = {"d_emb": 6, "frequencies": 5, "highest_frequency": 1000.0, "lowest_frequency": 0.1, "kind": "time"}
    assert own["weights"] == weights
    assert (own["model_type"], own["horizon"], own["steps"], own["dtype"]) == ("diffeqformer", 1.0, 3, "float32")
    assert "auto_map" not in read(tmp_path / "stock")
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    assert read(tmp_path / "own", "generation_config.json") == {"max_length": 12, **ids}
    assert own | ids == own
    tokenizer = read(tmp_path / "own", "tokenizer_config.json")
    assert (tokenizer["eos_token"], tokenizer["bos_token"], tokenizer["model_max_length"]) == ("</s>", "</s>", 12)
    with safe_open(tmp_path / "own" / TENSORS, "numpy") as file:
        assert file.metadata() == {"format": "pt"}


def test_an_imported_models_first_token_stays_its_own(tmp_path):
    run = run_of("vanilla")
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, base=BaseConfig("runs/base")))
    run.tokenizer.post_processor = processors.TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 1)])
    for origin, first in (("trained", 0), ("imported", 1), ("fine-tuned", 1)):
        run = dataclasses.replace(run, origin=origin)
        export(run, tmp_path / origin)
        whole, alone = (
            load_tokenizer(tmp_path / origin).encode("a", add_special_tokens=own).ids for own in (True, False)
        )
        assert whole == [*run.start, *alone]
        own = read(tmp_path / origin, "generation_config.json")
        assert (own["bos_token_id"], own["eos_token_id"]) == (first, 0)
        assert read(tmp_path / origin, "tokenizer_config.json")["bos_token"] == ["</s>", "<unk>"][first]


def test_an_imported_model_without_a_token_that_begins_a_text_gets_none(tmp_path):
    run = dataclasses.replace(run_of("vanilla", tmp_path), origin="imported")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<unk>"}))
    export(run, tmp_path / "out")
    own = read(tmp_path / "out", "generation_config.json")
    assert (own["bos_token_id"], own["eos_token_id"], own["pad_token_id"]) == (None, [1, 0], 0)
    assert read(tmp_path / "out")["bos_token_id"] is None
    assert "bos_token" not in read(tmp_path / "out", "tokenizer_config.json")
    export(dataclasses.replace(run, origin="trained"), tmp_path / "trained")
    assert read(tmp_path / "trained", "generation_config.json")["bos_token_id"] == 0


def source(name: str) -> str:
    return (files("diffeqformer.interop") / "torch" / f"{name}_diffeqformer.py").read_text()


def test_the_modelling_files_need_nothing_of_this_library():
    nodes = [node for name in ("configuration", "weights", "modeling") for node in ast.walk(ast.parse(source(name)))]
    near = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level}
    far = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    far |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {f"{name}.py" for name in near} < CODE
    assert {name.partition(".")[0] for name in far} == {
        "collections",
        "copy",
        "itertools",
        "typing",
        "torch",
        "transformers",
    }


def test_the_modelling_files_have_the_schemes_and_settings_that_are_exported():
    """What they read is read from their source, as torch is not there."""
    (table,) = re.findall(r"^SCHEMES = \{\n(.*?)^\}", source("configuration"), re.M | re.S)
    assert re.findall(r'^    "([\w-]+)": ', table, re.M) == [
        name for name, scheme in SCHEMES.items() if isinstance(scheme, OneStep) and not name.startswith("diffrax:")
    ]
    body = ast.parse(source("configuration")).body
    (config,) = (node for node in body if getattr(node, "name", "") == "DiffEqFormerConfig")
    (init,) = (node for node in config.body if getattr(node, "name", "") == "__init__")
    known = {argument.arg for argument in init.args.args}
    family = FAMILIES["diffeqformer"]
    assert family.values(run_of("ode transformer").model.config).keys() <= known


def test_every_name_of_the_table_is_used_once():
    """A row a node too: macaron has twice as many feed-forward rows."""
    for kind in ("macaron", "parallel llama, grouped queries, tied"):
        model = run_of(kind).model
        names = [part.theirs for parts in places(FAMILIES["diffeqformer"], model.config).values() for part in parts]
        assert len(names) == len(set(names))
    assert {"attention.2.output.weight", "feed_forward.2.up.weight"} <= set(names)
    names = [part.theirs for part in places(FAMILIES["diffeqformer"], EXPORTED["macaron"])[
        "weights.layers.feed_forward.up.weight"
    ]]  # fmt: skip
    assert names == [f"feed_forward.{row}.up.weight" for row in range(6)]


@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_precision(dtype, error, tmp_path):
    run = run_of("vanilla")
    export(run, tmp_path / "made", dtype=dtype)
    assert read(tmp_path / "made")["dtype"] == dtype
    ours, found = by_path(run.model), by_path(from_huggingface(tmp_path / "made"))
    assert {str(tensor.dtype) for tensor in load_file(tmp_path / "made" / TENSORS).values()} == {dtype}
    for name, array in ours.items():
        np.testing.assert_allclose(found[name], array, rtol=error, atol=1e-7)


@pytest.mark.parametrize("kind", ["time, gpt", "one mlp, llama"])
def test_time_networks_stay_in_float32(kind, tmp_path):
    export(run_of(kind), tmp_path / "made", dtype="bfloat16")
    for name, tensor in load_file(tmp_path / "made" / TENSORS).items():
        own = ".network." in name or ".shared." in name
        assert tensor.dtype == ("float32" if own else "bfloat16"), name


def test_several_files(tmp_path):
    run = run_of("diffeqformer")
    made = export(run, tmp_path / "made", steps=3, shard_bytes=10_000)
    parts = sorted((tmp_path / "made").glob("model-*.safetensors"))
    number = len(parts)
    assert number > 3 and [path.name for path in parts] == [
        f"model-{i:05}-of-{number:05}.safetensors" for i in range(1, number + 1)
    ]
    index = read(tmp_path / "made", f"{TENSORS}.index.json")
    assert index["metadata"]["total_size"] == 4 * made.parameters
    for path in parts:
        held = load_file(path)
        assert sum(tensor.nbytes for tensor in held.values()) <= 10_000
        assert {index["weight_map"][name] for name in held} == {path.name}
    for name, array in by_path(run.model.populate()).items():
        np.testing.assert_array_equal(by_path(from_huggingface(tmp_path / "made"))[name], array)


def test_adapters_are_merged_or_apart(tmp_path):
    lora = LoRAConfig(rank=3, alpha=6.0, dropout=0.1, targets=("attention.*", "gate"))
    config = dataclasses.replace(EXPORTED["vanilla llama, grouped queries"], weights=LayerConfig(lora=lora))
    run = run_of(config)
    export(run, tmp_path / "merged")
    export(run, tmp_path / "apart", adapter=True)
    merged, base = (load_file(tmp_path / name / TENSORS) for name in ("merged", "apart"))
    adapter = load_file(tmp_path / "apart" / "adapter" / "adapter_model.safetensors")
    settings = read(tmp_path / "apart" / "adapter", "adapter_config.json")
    targets = ["mlp.gate_proj", *(f"self_attn.{name}_proj" for name in "koqv")]
    assert settings["target_modules"] == targets and settings["fan_in_fan_out"] is False
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 3, 6.0)
    assert settings["base_model_name_or_path"] == str(tmp_path / "apart")
    changed = {name for name in merged if not np.array_equal(merged[name], base[name])}
    assert len(adapter) == 2 * len(changed) == 2 * 3 * len(targets)
    for name in changed:
        module = f"base_model.model.{name.removesuffix('.weight')}"
        b, a = adapter[f"{module}.lora_B.weight"], adapter[f"{module}.lora_A.weight"]
        near = roundoff(np.float32, 3 + 1, scale=np.abs(merged[name]).max())
        np.testing.assert_allclose(base[name] + 6.0 / 3 * b @ a, merged[name], atol=near)
    q, v = (adapter[f"base_model.model.model.layers.1.self_attn.{part}_proj.lora_A.weight"] for part in "qv")
    np.testing.assert_array_equal(q, v)


# ----- The model card


def write_results(folder: Path, corpus: str, config: Config | None = None, bits: float | None = 1.5) -> None:
    """What training leaves behind, as far as a card reads it; of a run that is not written, its config, too."""
    if config is not None:
        (folder / "config.yaml").write_text(dump_yaml(config))
    measured = {"loss": 3.25, "perplexity": None, "bits_per_byte": bits}
    settings = to_dict(read_yaml(folder / "config.yaml"))
    entry = {"validation": measured, "tokens": 4000, "updates": 3, "steps": 3, "config": settings}
    text = {"name": corpus, "validation_tokens": 500}
    (folder / "results.json").write_text(json.dumps({"models": [entry], "corpus": text}))


def test_the_card_of_a_finished_run(call, saved, tmp_path):
    run = saved("diffeqformer")
    write_results(run, "some text")
    called = call("export", run, "--to", tmp_path / "made", "--steps", 5)
    assert called.status == 0, called.err
    _, front, body = (tmp_path / "made" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "transformers"
    assert "| validation loss (nats) | 3.2500 |\n| perplexity | not finite |\n| bits per byte | 1.5000 |" in body
    assert "at 3 steps. This export has 5 steps, at which the model is another one" in body
    assert "populated here for 5 steps (it was trained at 3)" in body
    assert "learning_rate: 0.001" in body and "trust_remote_code=True" in body
    assert str(run.parent) not in body and "cache" not in body
    assert read(tmp_path / "made")["steps"] == 5


def test_the_card_of_a_run_without_bits_per_byte(saved, tmp_path):
    run = saved("diffeqformer")
    write_results(run, "pointer", bits=None)
    export(load_run(run), tmp_path / "made")
    assert "| perplexity | not finite |\n| bits per byte | – |" in (tmp_path / "made" / "README.md").read_text()


def test_the_card_of_a_continuous_model(tmp_path):
    export(run_of("knots, gpt"), tmp_path / "made")
    card = (tmp_path / "made" / "README.md").read_text()
    assert "Its weights are interpolated between knots in depth, so it runs at any number of steps" in card
    assert "(3 if none is given, as it was trained)" in card and "steps here" not in card
    assert "from_pretrained(folder, trust_remote_code=True, steps=" in card


def test_the_card_of_an_unfinished_run(tmp_path):
    export(run_of("vanilla"), tmp_path / "made")
    card = (tmp_path / "made" / "README.md").read_text()
    assert "None are known: this is a run that is not finished, at update 3." in card
    assert "It is a table of layers" in card and "trust_remote_code" not in card


def test_a_card_says_how_the_run_came_to_its_weights_and_what_was_measured(tmp_path):
    lifted = dataclasses.replace(run_of("knots, gpt"), origin="lifted")
    export(lifted, tmp_path / "lifted")
    card = (tmp_path / "lifted" / "README.md").read_text()
    assert "(3 if none is given, as it was lifted)" in card and "trained as" not in card
    assert "None are known: this is a model that was lifted, and not trained since." in card
    run = run_of("knots, gpt", tmp_path / "run")
    model = dataclasses.replace(run.config.model, compute_dtype="bfloat16", tolerance=ToleranceConfig(rtol=0.01))
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, model=model))
    run.folder.mkdir()
    write_results(run.folder, "some text", run.config)
    export(run, tmp_path / "adaptive")
    card = (tmp_path / "adaptive" / "README.md").read_text()
    assert "in bfloat16, by adaptive steps (rtol 0.01). This export has 3 steps, at which" in card
    assert "(3 if none is given, it was trained by adaptive steps)" in card and "trained | adaptive |" in card


def test_a_card_names_every_depth_that_a_model_was_trained_at(tmp_path):
    run = run_of("knots, gpt")
    depth = dataclasses.replace(run.config.depth, sample="1-3", always=(6,))
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, depth=depth))
    export(run, tmp_path / "any")
    card = (tmp_path / "any" / "README.md").read_text()
    assert "(3 if none is given, it was trained at 1 to 3 and 6)" in card
    assert "| steps as trained | 1 to 3 and 6 |" in card
    export(run, tmp_path / "one", 1)
    card = (tmp_path / "one" / "README.md").read_text()
    assert "populated here for 1 step (it was trained at 1 to 3 and 6)" in card


@pytest.mark.parametrize(("kind", "told"), [("levels", True), ("vanilla", False), ("diffeqformer", False)])
def test_a_model_of_any_depth_that_is_exported_at_one_is_told(kind, told, call, saved, tmp_path):
    called = call("export", saved(kind), "--to", tmp_path / "made")
    assert called.status == 0 and ("takes other numbers of steps, too; what is exported has 3" in called.out) is told
    assert (tmp_path / "made" / "config.json").is_file()


EVIL = "</script><img src=x onerror=alert(1)> [a](http://b) `c` | d\n# e\x00"


def test_nothing_in_a_card_is_markup(tmp_path):
    """Names that somebody else may have chosen: of the folder, the text, the dataset."""
    run = run_of("vanilla", tmp_path / "run")
    data = dataclasses.replace(run.config.data, source="huggingface", dataset="```\n# x\n" + EVIL.strip("\x00"))
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, data=data))
    run.folder.mkdir()
    write_results(run.folder, EVIL, run.config)
    export(run, tmp_path / "a [b](c) <i>")
    card = (tmp_path / "a [b](c) <i>" / "README.md").read_text()
    text = re.sub(r"^(`{3,})\w+\n.*?^\1$", "", card.split("---\n", 2)[2], flags=re.M | re.S)
    assert "x onerror" in text and "# x" not in text
    for mark in ("<", "[", "`c", "| d", "# e"):
        assert not re.search(r"(?<!\\)" + re.escape(mark), text), mark
    assert r"a \[b\]\(c\) \<i\>" in text


@pytest.mark.parametrize(
    "dataset, shown",
    [
        ("/data/clients/letters", "letters"),
        ("~/clients/letters/", "letters"),
        ("../clients/letters", "letters"),
        ("data/clients/letters", "letters"),
        ("clients/here", "here"),
        ("clients/letters", "clients/letters"),
        ("wikitext", "wikitext"),
    ],
)
def test_a_datasets_folder_is_not_published(dataset, shown, tmp_path, monkeypatch):
    """A name of the hub has at most two parts, and whole it is what the reader looks for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clients" / "here").mkdir(parents=True)
    run = run_of("vanilla", tmp_path / "run")
    data = dataclasses.replace(run.config.data, source="huggingface", dataset=dataset, dataset_name="en")
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, data=data))
    run.folder.mkdir()
    write_results(run.folder, f"{dataset} (en), a stream whose beginning is counted", run.config)
    export(run, tmp_path / "made")
    card = (tmp_path / "made" / "README.md").read_text()
    assert f"\n| text | {shown} (en), a stream whose beginning is counted |\n" in card
    assert f"\n  dataset: {shown}\n" in card
    assert shown == dataset or dataset not in card


def test_inline_and_fenced():
    assert inline("Python 3.11 standard library") == "Python 3.11 standard library"
    assert inline("a\n| b\u202e") == r"a \| b"
    assert fenced("``` \n", "yaml") == "````yaml\n``` \n````".replace(" \n````", "\n````")


# ----- The command


def test_the_command(call, saved, tmp_path):
    run = saved("vanilla")
    called = call("export", run, "--to", tmp_path / "made", "--dtype", "bfloat16", "--json")
    assert called.status == 0, called.err
    document = json.loads(called.out)
    assert (document["architecture"], document["trust_remote_code"]) == ("GPT2LMHeadModel", False)
    assert (document["steps"], document["dtype"], document["update"]) == (3, "bfloat16", 3)
    assert document["continuous"] is False
    assert document["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(run_of("vanilla").model))
    shown = call("export", run, "--to", tmp_path / "other")
    assert shown.status == 0 and f"from_pretrained('{tmp_path / 'other'}')" in shown.out
    assert "Writing the tensors" in shown.err


BAD = {
    "no target": (["run"], "needs --to"),
    "taken": (["run", "--to", "run"], "'run' exists and is not an empty folder; choose another one with --to."),
    "a file": (["run", "--to", "file"], "'file' exists and is not an empty folder"),
    "inside a file": (["run", "--to", "file/made"], "cannot be written: "),
    "no run": (["nowhere", "--to", "made"], "run folder 'nowhere' does not exist"),
    "no best": (["run", "--to", "made", "--checkpoint", "best"], "has no evaluated checkpoint yet"),
    "another depth": (["run", "--to", "made", "--steps", "4"], "is a table of 3 layers and cannot run at 4 steps"),
    "no steps": (["run", "--to", "made", "--steps", "0"], "--steps is 0, but must be at least 1"),
    "precision": (["run", "--to", "made", "--dtype", "int8"], "--dtype is 'int8', but must be one of"),
    "no adapters": (["run", "--to", "made", "--adapter"], "has no low-rank adapters"),
    "no size": (["run", "--to", "made", "--shard-mb", "0"], "--shard-mb is 0, but must be at least 1"),
}


@pytest.mark.parametrize(("words", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_words(call, saved, tmp_path, monkeypatch, words, sentence):
    saved("vanilla")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    before = set(tmp_path.rglob("*"))
    called = call("export", *words)
    assert called.status == 2 and called.out == "" and sentence in called.err, called.err
    assert set(tmp_path.rglob("*")) == before


def without_end(run):
    tokenizer = word_tokenizer().from_str(word_tokenizer().to_str().replace("</s>", "<stop>"))
    return dataclasses.replace(run, tokenizer=tokenizer)


def with_model(**settings):
    return lambda run: run_of(dataclasses.replace(TINY, **settings))


def with_own_field():
    return build(TINY, jax.random.key(0), field=run_of("diffeqformer").model.field)


def huge(run):
    model = jax.tree.map(lambda leaf: leaf * 1e6, run.model)
    return dataclasses.replace(run, model=model)


REFUSED = {
    "scheme": (with_model(scheme="diffrax:Tsit5"), {}, "model.scheme is 'diffrax:Tsit5', but a model can be exported"),
    "base": (with_model(scheme=ReversibleConfig("diffrax:Ralston")), {},
        "model.scheme.base is 'diffrax:Ralston', but"),
    "field": (lambda _: dataclasses.replace(run_of("diffeqformer"), model=with_own_field()), {},
        "model.field is your own, diffeqformer.ode.field.TransformerField, but only models of gpt or llama can be"),
    "dtype": (lambda run: run, {"dtype": "int8"}, "dtype is 'int8', but must be one of float32, bfloat16, float16"),
    "shards": (lambda run: run, {"shard_bytes": 0}, "is 0 bytes, but must be at least 1"),
    "adapter": (lambda run: run, {"adapter": True}, "'runs/tiny' has no low-rank adapters"),
    "tokenizer": (without_end, {}, "the tokenizer has no token that ends a document"),
    "float16": (huge, {"dtype": "float16"}, "not finite in float16; bfloat16 and float32 reach further."),
}  # fmt: skip


@pytest.mark.parametrize(("change", "settings", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_exported_is_refused_in_one_sentence(tmp_path, change, settings, sentence):
    run = change(run_of("vanilla"))
    with pytest.raises(BadInput, match=re.escape(sentence)) as error:
        export(run, tmp_path / "made", **settings)
    assert re.fullmatch(r"[^\n]*\.", str(error.value))
    assert list(tmp_path.iterdir()) == []


def test_no_adapters_to_save(tmp_path):
    with pytest.raises(BadInput, match="no low-rank adapters"):
        save_adapter(run_of("vanilla").model, tmp_path / "adapter", "base")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_export_leaves_nothing(tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "model_card", stopped)
    with pytest.raises(KeyboardInterrupt):
        export(run_of("vanilla"), tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_frozen_settings_are_not_read(tmp_path):
    """What only training reads does not make a stock model another one."""
    run = run_of(dataclasses.replace(EXPORTED["vanilla"], compute_dtype="bfloat16", gradient="plain"))
    optimizer = OptimizerConfig(learning_rate=1.0)
    run = dataclasses.replace(run, config=dataclasses.replace(run.config, optimizer=optimizer))
    assert export(run, tmp_path / "made").architecture == "GPT2LMHeadModel"
