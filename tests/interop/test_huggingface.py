"""A model that is read from Hugging Face's files gives the logits that Transformers gave."""

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from diffeqformer.config import DropoutConfig, LayerConfig, SchemeConfig
from diffeqformer.interop.families import FAMILIES, kind_of
from diffeqformer.interop.huggingface import from_huggingface, places
from diffeqformer.model.loss import next_token_loss
from diffeqformer.sharding import by_path
from tests.interop.folders import CONFIGS, golden, write
from tests.models import logits
from tests.tolerances import STATES

PREFIX = {kind: family.prefix for kind, family in FAMILIES.items()}


def difference(model, kind: str) -> float:
    given = golden(kind)
    return float(np.abs(logits(model, given.ids) - given.logits).max())


def test_logits_equal_those_of_hugging_face(kind, published):
    model = from_huggingface(published)
    print(f"largest difference of a logit: {difference(model, kind):.1e}")
    assert difference(model, kind) <= STATES
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}
    assert model.config.weights == LayerConfig() and model.config.scheme == SchemeConfig("lie-trotter")
    assert model.config.horizon == "steps"


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64], ids=["bfloat16", "float16", "float64"])
def test_other_precisions_are_converted(kind, dtype, tmp_path):
    """The golden weights are exact in each."""
    model = from_huggingface(write(tmp_path / "other", CONFIGS[kind], golden(kind).tensors, dtype))
    assert difference(model, kind) <= STATES
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}


def test_bfloat16_is_read_to_the_last_bit(tmp_path):
    tensors = {name: np.random.default_rng(0).normal(size=a.shape) for name, a in golden("llama").tensors.items()}
    model = from_huggingface(write(tmp_path / "narrow", CONFIGS["llama"], tensors, ml_dtypes.bfloat16))
    expected = tensors["lm_head.weight"].astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(model.head, expected)


def test_several_files_with_an_index(kind, tmp_path):
    folder = write(tmp_path / "sharded", CONFIGS[kind], golden(kind).tensors, shards=3)
    assert not (folder / "model.safetensors").exists()
    assert difference(from_huggingface(folder), kind) <= STATES


def test_a_tensor_in_two_files_is_that_of_the_index(tmp_path):
    folder = write(tmp_path / "sharded", CONFIGS["gpt2"], golden("gpt2").tensors, shards=2)
    first, second = sorted(folder.glob("model-*.safetensors"))
    name, tensor = next(iter(load_file(first).items()))
    save_file(load_file(second) | {name: tensor}, second, {"format": "pt"})
    assert difference(from_huggingface(folder), "gpt2") <= STATES


def test_names_may_lack_the_prefix(kind, tmp_path):
    tensors = {name.removeprefix(PREFIX[kind]): array for name, array in golden(kind).tensors.items()}
    assert difference(from_huggingface(write(tmp_path / "bare", CONFIGS[kind], tensors)), kind) <= STATES


def test_masks_tables_and_a_tied_heads_copy_are_passed_over(tmp_path):
    given = golden("gpt2").tensors
    masks = {f"transformer.h.{i}.attn.bias": np.tril(np.ones((1, 1, 16, 16))) for i in range(2)}
    copy = {"lm_head.weight": given["transformer.wte.weight"], "transformer.h.0.attn.masked_bias": np.float32(-1e4)}
    assert difference(from_huggingface(write(tmp_path / "a", CONFIGS["gpt2"], given | masks | copy)), "gpt2") <= STATES
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2)}
    model = from_huggingface(write(tmp_path / "b", CONFIGS["llama"], golden("llama").tensors | table))
    assert difference(model, "llama") <= STATES


def test_an_untied_gpt2_and_a_tied_llama(tmp_path):
    given, head = golden("gpt2"), np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
    untied = CONFIGS["gpt2"] | {"tie_word_embeddings": False}
    model = from_huggingface(write(tmp_path / "untied", untied, given.tensors | {"lm_head.weight": head}))
    assert model.config.tied is False
    hidden = jax.jit(lambda model, ids: model.hidden(ids))
    np.testing.assert_allclose(logits(model, given.ids), np.asarray(hidden(model, given.ids)) @ head.T, atol=STATES)
    tied = CONFIGS["llama"] | {"tie_word_embeddings": True}
    tensors = {name: array for name, array in golden("llama").tensors.items() if name != "lm_head.weight"}
    model = from_huggingface(write(tmp_path / "tied", tied, tensors))
    assert model.config.tied is True and model.head is None
    expected = np.asarray(hidden(model, given.ids)) @ tensors["model.embed_tokens.weight"].T
    np.testing.assert_allclose(logits(model, given.ids), expected, atol=STATES)


@pytest.mark.parametrize("tied", ["gpt2", "llama"])
def test_a_tied_head_may_stand_for_the_embedding(tied, tmp_path):
    """`save_model` of safetensors keeps one of the two names."""
    tensors = golden(tied).tensors
    embedding = PREFIX[tied] + FAMILIES[tied].outside["embedding.tokens"]
    tensors["lm_head.weight"] = tensors.pop(embedding)
    model = from_huggingface(write(tmp_path / "tied", CONFIGS[tied] | {"tie_word_embeddings": True}, tensors))
    assert model.head is None
    np.testing.assert_array_equal(model.embedding.tokens, tensors["lm_head.weight"])


def test_llamas_matrices_are_transposed_and_joined(tmp_path):
    given = golden("llama").tensors
    layers = from_huggingface(write(tmp_path / "llama", CONFIGS["llama"], given)).weights.layers
    matrix = lambda name: given[f"model.layers.1.{name}_proj.weight"].T
    joined = np.concatenate([matrix(f"self_attn.{part}") for part in "qkv"], axis=1)
    assert joined.shape == (16, 16 + 8 + 8)
    np.testing.assert_array_equal(layers.attention.query_key_value.weight[1], joined)
    np.testing.assert_array_equal(layers.feed_forward.gate.weight[1], matrix("mlp.gate"))
    np.testing.assert_array_equal(layers.feed_forward.down.weight[1], matrix("mlp.down"))


def test_the_table_of_names_leads_back(kind, published):
    """Every tensor of theirs is found again in our arrays, and every number of ours is one of theirs."""
    model = from_huggingface(published)
    arrays, left = by_path(model), golden(kind).tensors
    left = {name.removeprefix(PREFIX[kind]): array for name, array in left.items()}
    assert sum(array.size for array in left.values()) == sum(leaf.size for leaf in jax.tree.leaves(model))
    for path, parts in places(FAMILIES[kind], model.config).items():
        for part in parts:
            ours = np.asarray(arrays[path])[part.at]
            np.testing.assert_array_equal(ours.T if part.transposed else ours, left.pop(part.theirs))
    assert not left


def test_the_model_can_be_trained_further(kind, published):
    model = from_huggingface(published)
    gradient = eqx.filter_jit(eqx.filter_grad(next_token_loss))(model, golden(kind).ids)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


def test_settings_of_gpt2():
    own = {"n_inner": 24, "layer_norm_epsilon": 1e-6, "attn_pdrop": 0.2, "embd_pdrop": None}  # null is the default
    config = FAMILIES["gpt2"].config(CONFIGS["gpt2"] | own)
    assert (config.field.kind, config.steps, config.width, config.heads, config.context) == ("gpt", 2, 16, 2, 16)
    assert (config.hidden, config.norm_epsilon, config.tied) == (24, 1e-6, True)
    assert config.dropout == DropoutConfig(embedding=0.1, attention=0.2, residual=0.0)
    assert FAMILIES["gpt2"].config(CONFIGS["gpt2"]).hidden == 64
    aliases = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    aliases |= {"n_positions": "max_position_embeddings"}
    renamed = {aliases.get(name, name): value for name, value in CONFIGS["gpt2"].items()}
    assert FAMILIES["gpt2"].config(renamed) == FAMILIES["gpt2"].config(CONFIGS["gpt2"])


@pytest.mark.parametrize(("activation", "exact"), [("gelu", True), ("gelu_fast", False), (None, False)])
def test_a_gpt2_may_have_the_exact_gelu(activation, exact):
    config = FAMILIES["gpt2"].config(CONFIGS["gpt2"] | {"activation_function": activation})
    assert config.field.exact_gelu == exact and kind_of(config) == "gpt2"
    assert FAMILIES["gpt2"].config(FAMILIES["gpt2"].values(config)).field.exact_gelu == exact


@pytest.mark.parametrize(
    ("rope", "theta"),
    [
        ({}, 10000.0),
        ({"rope_theta": 500000.0}, 500000.0),
        ({"rope_theta": 5e5, "rope_scaling": None}, 500000.0),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "default"}}, 500000.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 300}}, 300.0),
    ],
)
def test_settings_of_llama(rope, theta):
    config = FAMILIES["llama"].config({k: v for k, v in CONFIGS["llama"].items() if k != "rope_parameters"} | rope)
    assert (config.field.kind, config.steps, config.width, config.heads, config.context) == ("llama", 2, 16, 4, 16)
    assert (config.kv_heads, config.hidden, config.norm_epsilon, config.tied) == (2, 24, 1e-5, False)
    assert config.field.rope_theta == theta and not config.field.nested_norm


@pytest.mark.parametrize(
    ("outside", "inside", "expected"),
    [({}, {}, 16), ({"original_max_position_embeddings": 4}, {}, 4), ({}, {"original_max_position_embeddings": 4}, 4)],
    ids=["nowhere", "outside", "inside"],
)
def test_the_length_that_a_llama_3_was_trained_at(outside, inside, expected):
    """Where Transformers 5 finds it; else that of the positions."""
    rope = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | inside
    config = FAMILIES["llama"].config(CONFIGS["llama"] | outside | {"rope_parameters": rope})
    assert config.field.rope_scaling.original_context == expected


def test_llama_without_key_value_heads_has_as_many_as_heads():
    assert FAMILIES["llama"].config(CONFIGS["llama"] | {"num_key_value_heads": None, "head_dim": None}).kv_heads == 4
