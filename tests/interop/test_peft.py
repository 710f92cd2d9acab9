"""Adapters of PEFT are read back; those of another kind, or for another model, are refused by name."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from diffeqformer.cli import main
from diffeqformer.config import LoRAConfig
from diffeqformer.errors import BadInput
from diffeqformer.interop.exporting import export
from diffeqformer.interop.huggingface import from_huggingface
from diffeqformer.interop.peft import load_adapter
from diffeqformer.runs.opening import load_run
from tests.cases import slow
from tests.interop.runs import EXPORTED, run_of
from tests.models import logits, tokens
from tests.tolerances import roundoff

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
KINDS = ["vanilla", "vanilla llama, grouped queries", "neox", "macaron"]


def adapted(kind, targets=("*",)):
    lora = LoRAConfig(rank=3, alpha=6.0, dropout=0.1, targets=targets)
    weights = dataclasses.replace(EXPORTED[kind].weights, lora=lora)
    return run_of(dataclasses.replace(EXPORTED[kind], weights=weights))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An exported Llama with its adapters beside it."""
    folder = tmp_path_factory.mktemp("exported") / "made"
    export(adapted("vanilla llama, grouped queries"), folder, adapter=True)
    return folder


@pytest.fixture
def changed(exported, tmp_path):
    """The adapter with other settings or other tensors."""

    def write(settings=None, tensors=lambda found: found):
        folder = tmp_path / "adapter"
        folder.mkdir()
        values = json.loads((exported / "adapter" / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(values | (settings or {})))
        save_file(tensors(load_file(exported / "adapter" / WEIGHTS)), folder / WEIGHTS)
        return folder

    return write


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        *((kind, ("*",)) for kind in KINDS),
        (KINDS[1], ("attention.output", "up")),
        *slow(*((kind, ("attention.output", "up")) for kind in KINDS if kind != KINDS[1])),
    ],
)
def test_what_is_exported_is_read_back_to_the_bit(kind, targets, tmp_path):
    run, ids = adapted(kind, targets), tokens()
    export(run, tmp_path / "made", adapter=True)
    base = from_huggingface(tmp_path / "made")
    model = load_adapter(base, tmp_path / "made" / "adapter")
    assert (model.config.lora.rank, model.config.lora.alpha, model.config.lora.dropout) == (3, 6.0, 0.1)
    np.testing.assert_array_equal(np.asarray(logits(model, ids)), np.asarray(logits(run.model, ids)))
    assert np.abs(np.asarray(logits(base, ids)) - np.asarray(logits(run.model, ids))).max() > 0.1


def test_import_makes_a_run_with_adapters(exported, tmp_path, capsys):
    words = ["import", exported, "--adapter", exported / "adapter", "--to", tmp_path / "run", "--json"]
    assert main([str(word) for word in words]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["weights"]["lora"]["rank"] == 3
    run = load_run(tmp_path / "run")
    expected = logits(adapted("vanilla llama, grouped queries").model, tokens())
    np.testing.assert_array_equal(np.asarray(logits(run.model, tokens())), np.asarray(expected))
    assert json.loads((tmp_path / "run" / "imported.json").read_text())["adapter"] == str(exported / "adapter")


def test_modules_with_an_own_a_each_stand_side_by_side(exported, changed):
    """PEFT's usual targets: query and value, not key, each with an A of its own, and not in every layer."""
    kept = re.compile(r"layers\.[01]\.self_attn\.[qv]_proj")
    draw = np.random.default_rng(0)
    random = lambda found: {
        name: draw.normal(size=tensor.shape).astype(np.float32) for name, tensor in found.items() if kept.search(name)
    }
    folder = changed({"lora_alpha": 3.0}, random)
    base, tensors = from_huggingface(exported), load_file(folder / WEIGHTS)
    model = load_adapter(base, folder)
    assert model.config.lora.rank == 6 and model.config.lora.targets == ("attention.query_key_value",)
    before, after = (m.weights.layers.attention.query_key_value.weight for m in (base, model))
    width, kv_width = base.config.width, (before.shape[-1] - base.config.width) // 2
    for layer in range(base.config.steps):
        expected = np.array(before[layer])
        for part, start, size in (("q", 0, width), ("v", width + kv_width, kv_width)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}_proj.lora_"
            if f"{name}A.weight" in tensors:
                product = tensors[f"{name}B.weight"] @ tensors[f"{name}A.weight"]  # scaled by 3 / 3
                expected[:, start : start + size] += product.T
        np.testing.assert_allclose(
            after[layer], expected, atol=roundoff(np.float32, 2 + 1, scale=np.abs(expected).max())
        )
    assert base.config.steps > 2  # so that a layer was without


NAME = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"


def of_rank_8(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Factors of rank 8, another A for each module."""
    draw = np.random.default_rng(0)
    shape = lambda name, old: (8, old[1]) if ".lora_A." in name else (old[0], 8)
    return {name: draw.normal(size=shape(name, one.shape)).astype(np.float32) for name, one in found.items()}


REFUSED = {
    "another kind": ({"peft_type": "IA3"}, None, "peft_type is 'IA3', but must be 'LORA' for an adapter that can be"),
    "biases": ({"bias": "all"}, None, "bias is 'all', but must be 'none'"),
    "DoRA": ({"use_dora": True}, None, "use_dora is True, but must be empty or false"),
    "ranks": ({"rank_pattern": {"q_proj": 4}}, None, "rank_pattern is {'q_proj': 4}, but must be empty or false"),
    "saved": ({"modules_to_save": ["head"]}, None, "modules_to_save is ['head'], but must be empty or false"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_16"}, None, "with which PEFT changes the base model too"),
    "KaSA": ({"kasa_config": {"beta": 1}}, None, "kasa_config is {'beta': 1}, but must be empty or false"),
    "aLoRA": ({"alora_invocation_tokens": [1, 2]}, None, "alora_invocation_tokens is [1, 2], but must be empty or"),
    "layers": ({"layer_replication": [[0, 2]]}, None, "layer_replication is [[0, 2]], but must be empty or false"),
    "rank": ({"r": 0}, None, "r is 0, but must be at least 1."),
    "rank, text": ({"r": "x"}, None, "r is 'x', but must be a whole number."),
    "another rank": ({"r": 4}, None, "has shape (3, 16), but this model and r in adapter_config.json ask for (4, 16)."),
    "ranks together": ({"r": 8}, of_rank_8, "need rank 24 together (r is 8), but a matrix has 16 at most; merge"),
    "half": ({}, lambda t: {k: v for k, v in t.items() if k != NAME}, f"has no tensor {NAME!r}, but the other half"),
    "more": ({}, lambda t: t | {"x.lora_A.weight": np.ones(2, np.float32)}, "tensor 'x.lora_A.weight' in"),
    "nothing": ({}, lambda t: {}, "has no adapter of this model's linear maps."),
    "not finite": ({}, lambda t: t | {NAME: t[NAME] * np.inf}, "has numbers that are not finite in float32."),
}


@pytest.mark.parametrize(("settings", "tensors", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_read_is_refused_in_one_sentence(exported, changed, settings, tensors, sentence):
    folder = changed(settings, tensors or (lambda found: found))
    with pytest.raises(BadInput, match=re.escape(sentence)) as error:
        load_adapter(from_huggingface(exported), folder)
    assert re.fullmatch(r"[^\n]*\.", str(error.value))


def test_ways_to_begin_that_leave_the_base_as_it_is_are_read(exported, changed):
    model = load_adapter(from_huggingface(exported), changed({"init_lora_weights": "eva"}))
    same = load_adapter(from_huggingface(exported), exported / "adapter")
    jax.tree.map(np.testing.assert_array_equal, model.weights, same.weights)


def test_where_no_adapter_can_be(exported, tmp_path):
    base = from_huggingface(exported)
    with pytest.raises(BadInput, match="adapter folder 'nowhere' does not exist"):
        load_adapter(base, "nowhere")
    for model in (run_of("diffeqformer").model, load_adapter(base, exported / "adapter")):
        with pytest.raises(BadInput, match="can only be put beside a table of layers that has none"):
            load_adapter(model, exported / "adapter")
    knots = dataclasses.replace(EXPORTED["knots, llama"].weights, lora=LoRAConfig(2))
    with pytest.raises(BadInput, match="beside weights of kind 'knots', for which PEFT's format has no place"):
        export(run_of(dataclasses.replace(EXPORTED["knots, llama"], weights=knots)), tmp_path / "made", adapter=True)
    assert not (tmp_path / "made").exists()
    (tmp_path / CONFIG).write_text("{}")
    with pytest.raises(BadInput, match="has no adapter_model.safetensors"):
        load_adapter(base, tmp_path)
    with pytest.raises(BadInput, match="is a file; name the folder that it is in"):
        load_adapter(base, tmp_path / CONFIG)
    (tmp_path / "adapter_model.bin").write_bytes(b"a pickle")
    with pytest.raises(BadInput, match="in 'adapter_model.bin', a pickle, .*PeftModel.* of PEFT converts them"):
        load_adapter(base, tmp_path)
    assert main(["import", str(exported), "--adapter", "nowhere", "--to", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()
