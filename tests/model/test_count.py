import dataclasses

import jax
import pytest

from diffeqformer.cli.parse import shipped_configs
from diffeqformer.config import LlamaConfig, ModelConfig, read_yaml
from diffeqformer.model.count import count, flops, parameters, smallest_useful_d_emb, vanilla_twin
from tests.cases import slow_but
from tests.models import COVERING, KINDS, model_of

# Millions of parameters that the authors' code has, by d_emb.
TWINS = {
    "small": {20: 188, 48: 387, 72: 557, 96: 727, 120: 897, 144: 1067},
    "medium": {20: 317, 48: 670, 72: 972, 96: 1275, 120: 1577, 144: 1879},
    "large": {20: 479, 48: 1030, 72: 1502, 96: 1975, 120: 2447, 144: 2919},
}
PRESETS = {f"diffeqformer-gpt-{size}": f"gpt-{size}" for size in TWINS} | {"diffeqformer-llama-1b": "llama-1b"}


def preset(name: str) -> ModelConfig:
    return read_yaml(shipped_configs()[name]).model


EXTREMES = [("small", 20), ("medium", 96), ("large", 144)]


@pytest.mark.parametrize(
    ("size", "d_emb"), slow_but(EXTREMES, [(size, d_emb) for size in TWINS for d_emb in TWINS[size]])
)
def test_twins_have_the_authors_number_of_parameters_to_the_million(size, d_emb):
    model = preset(f"diffeqformer-gpt-{size}")
    model = dataclasses.replace(model, weights=dataclasses.replace(model.weights, d_emb=d_emb))
    assert round(parameters(model).stored / 1e6) == TWINS[size][d_emb]


@pytest.mark.parametrize(
    ("size", "published"), [("small", 124_439_808), ("medium", 354_823_168), ("large", 774_030_080)]
)
def test_vanilla_presets_have_gpt2s_number_of_parameters(size, published):
    assert parameters(preset(f"gpt-{size}")) == (published, published)


def test_llama_1b_has_the_papers_number_of_parameters_to_the_million():
    """Of the 16 layers: query and output 2 x 2048^2, key and value 2 x 2048 x 1024, the gated block 3 x 2048 x 8192."""
    layer = 2 * 2048**2 + 2 * 2048 * 1024 + 3 * 2048 * 8192 + 2 * 2048
    stored = parameters(preset("llama-1b")).stored
    assert stored == 16 * layer + 2 * 50257 * 2048 + 2048
    assert round(stored / 1e6) == 1213


@pytest.mark.parametrize(("name", "vanilla"), PRESETS.items())
def test_a_populated_twin_is_as_big_as_the_vanilla_model(name, vanilla):
    twin = preset(name)
    assert parameters(twin).effective == parameters(vanilla_twin(twin)).stored == parameters(preset(vanilla)).stored


def test_quickstart_llama_is_about_as_big_as_quickstart_gpt():
    gpt, llama = (
        parameters(dataclasses.replace(preset(f"quickstart-{family}"), vocabulary=2048)).stored
        for family in ("gpt", "llama")
    )
    assert llama == pytest.approx(gpt, rel=0.02)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_counts_from_shapes_are_counts_of_arrays(config):
    model = model_of(config)
    assert parameters(config) == (count(model), count(model.populate()))


ONE_WAY = [kind for kind in KINDS if KINDS[kind].scheme.kind != "reversible"]


@pytest.mark.parametrize("kind", slow_but([*COVERING, "one mlp, strang"], ONE_WAY))
def test_counted_operations_are_near_the_compilers_own_count(kind):
    """XLA counts element-wise work too, and all of the attention matrix; matrix products dominate at this width.

    It leaves out the second state of a last reversible step, which nothing reads: of one step that is half the work.
    """
    config = dataclasses.replace(KINDS[kind], width=128, context=16, gradient="plain", steps=1)
    model = model_of(config)
    ids = jax.ShapeDtypeStruct((1, 16), "int32")
    cost = jax.jit(lambda m, i: m(i)).lower(model.populate(), ids).compile().cost_analysis()
    assert cost is not None
    assert cost["flops"] / 16 == pytest.approx(flops(config).inference_per_token, rel=0.15)


def test_attention_of_heads_that_are_wider_than_their_share_of_the_width():
    """`4 heads x head width` per visible position and step, of which half are visible."""
    narrow, wide = (
        dataclasses.replace(KINDS["vanilla"], field=LlamaConfig(head_width=head_width), context=99)
        for head_width in (8, 64)
    )
    more = flops(wide).inference_per_token - flops(narrow).inference_per_token
    matrices = 2 * narrow.width * 4 * narrow.heads * (64 - 8)  # query, key, value, output
    assert more == narrow.steps * (matrices + 4 * narrow.heads * (64 - 8) * 50)


def test_a_vanilla_twin_is_a_stock_model_of_its_sizes():
    assert not vanilla_twin(KINDS["knots, normalised"]).embedding_norm


def test_generating_weights_is_counted_for_time_dependent_weights_only():
    assert flops(KINDS["vanilla"]).generating_weights == 0
    assert flops(KINDS["shared"]).generating_weights == 0
    assert flops(KINDS["diffeqformer"]).generating_weights > 0


def test_advice_on_d_emb_is_the_rank_argument():
    assert smallest_useful_d_emb(preset("diffeqformer-gpt-large")) == 35
