"""The updates of the large presets, and of the paper's models for a GPU, exported for CUDA and TPUs as they are run.

So a first run on a card is not the first look.
"""

import re
from functools import partial

import jax
import numpy as np
import pytest
from jax import export

from diffeqformer.config import Config, read_yaml, shipped_configs
from diffeqformer.model.build import Build, build
from diffeqformer.progress import Silent
from diffeqformer.studies.paper.models import GPU_MODELS
from diffeqformer.studies.paper.runs import Arguments, Runs
from diffeqformer.training.update import initial_state, make_update
from tests.cases import slow_but

SMALLEST = "diffeqformer-gpt-small"
LARGE = [name for name in shipped_configs() if read_yaml(shipped_configs()[name]).model.compute_dtype == "bfloat16"]
PRESETS = slow_but([SMALLEST], LARGE)
CUDNN = ("fmhaSoftmax", "fmhaSoftmaxBackward")


def exported(config: Config, platform: str, build: Build = build) -> str:
    """The update in StableHLO, on shapes alone: nothing of the model's size is allocated."""
    state = jax.eval_shape(partial(initial_state, config, build=build))
    ids = jax.ShapeDtypeStruct((config.trainer.batch_size, config.model.context + 1), np.int32)
    # JAX vouches for few custom calls over its versions, and not for these; what is exported here is not kept.
    unchecked = [export.DisabledSafetyCheck.custom_call(f"__cudnn${name}") for name in CUDNN]
    update = jax.jit(make_update(config), donate_argnums=0)
    with jax.numpy_dtype_promotion("standard"):  # JAX lowers the gradient of its own attention only so
        return export.export(update, platforms=(platform,), disabled_checks=unchecked)(state, ids).mlir_module()


def scores(config: Config, text: str) -> list[str]:
    """Arrays of the scores of attention, of blocks of queries against all positions."""
    rows = config.trainer.batch_size // config.trainer.accumulation
    return re.findall(rf"tensor<{rows}x{config.model.heads}x\d+x{config.model.context}x\w+>", text)


def require_cudnns_attention_alone(config: Config, text: str):
    """All of attention, forward and back, is cuDNN's and causal."""
    assert set(re.findall(r"@__cudnn\$(\w+)", text)) == set(CUDNN)
    assert set(re.findall(r'"mask_type": "(\w+)"', text.replace(r"\22", '"'))) == {"CAUSAL"}
    assert scores(config, text) == []


def test_the_large_presets_are_these():
    sizes = ("gpt-small", "gpt-medium", "gpt-large", "llama-1b")
    assert set(LARGE) == {*sizes, *(f"diffeqformer-{size}" for size in sizes)}


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_update_for_cuda_has_cudnns_attention(name, cudnn):
    config = read_yaml(shipped_configs()[name])
    require_cudnns_attention_alone(config, exported(config, "cuda"))


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_update_is_exported_for_tpus(name, cudnn):
    config = read_yaml(shipped_configs()[name])
    text = exported(config, "tpu")
    assert "@__cudnn" not in text and scores(config, text) != []


@pytest.mark.slow
@pytest.mark.parametrize("name", GPU_MODELS)
def test_the_papers_updates_for_a_gpu_have_cudnns_attention(name, cudnn):
    runs = Runs(Arguments(scale="gpu", data=("text.txt",)), GPU_MODELS, Silent())
    config = runs.config(name, 0, runs.rate(name))
    assert GPU_MODELS[name].batches is None  # else the update below is not the one that is run
    assert (config.trainer.batch_size, config.trainer.accumulation) == (64, 4)
    require_cudnns_attention_alone(config, exported(config, "cuda", GPU_MODELS[name].build or build))
