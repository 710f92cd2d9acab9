"""The large presets' updates, lowered for CUDA and TPU, so that a first run on a card is not the first look."""

import dataclasses
import re
from functools import lru_cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import read_yaml, shipped_configs
from diffeqformer.training.update import _program, initial_state

PRESETS = ("diffeqformer-gpt-small", "diffeqformer-gpt-medium", "diffeqformer-llama-1b")


@lru_cache
def traced(name: str):
    """The update of a preset, traced on shapes, and its model; without dropout in attention, which cuDNN has not."""
    config = read_yaml(shipped_configs()[name])
    model = dataclasses.replace(config.model, dropout=dataclasses.replace(config.model.dropout, attention=0.0))
    trainer = dataclasses.replace(config.trainer, batch_size=2, accumulation=1)
    config = dataclasses.replace(config, model=model, trainer=trainer)
    state = jax.eval_shape(lambda: initial_state(config))
    ids = jax.ShapeDtypeStruct((2, model.context + 1), np.int32)
    now = jax.ShapeDtypeStruct((), jnp.float32), None
    return _program(config, None).trace(state, ids, now, None, None), model


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_the_update_is_lowered_for_cuda_with_cudnns_attention(name, monkeypatch):
    found = SimpleNamespace(cudnn_get_version=lambda: 91000)
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.cuda_versions", found)
    update, model = traced(name)
    text = update.lower(lowering_platforms=("cuda",)).as_text()
    assert {"fmhaSoftmax", "fmhaSoftmaxBackward"} == set(re.findall(r"@__cudnn\$(\w+)", text))
    assert f"2x{model.heads}x{model.context}x{model.context}x" not in text  # no scores are kept


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_the_update_is_lowered_for_tpus(name):
    with jax.numpy_dtype_promotion("standard"):  # JAX lowers the gradient of its own attention only so
        text = traced(name)[0].lower(lowering_platforms=("tpu",)).as_text()
    assert "@__cudnn" not in text
    assert "bf16" in text
