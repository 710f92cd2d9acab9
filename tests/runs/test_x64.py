"""With `jax_enable_x64` on, a run is what it is without: trained, continued, sampled from, analysed, exported.

`make test-x64` switches it on for the whole process.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.config import TimeConfig
from diffeqformer.errors import Interrupted
from diffeqformer.interop.exporting import export
from diffeqformer.interop.huggingface import from_huggingface
from diffeqformer.model.generate import generate
from diffeqformer.model.speculate import speculate
from diffeqformer.progress import Silent
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.trainer import train
from diffeqformer.studies import spectra
from diffeqformer.training.optimizer import RULES
from diffeqformer.training.update import initial_state
from tests.runs.test_trainer import lasting, same_model, stop_after
from tests.runs.tiny_run import changed
from tests.tolerances import GRADIENT, LOSS

pytestmark = pytest.mark.skipif(not jax.config.jax_enable_x64, reason="needs JAX_ENABLE_X64=1: make test-x64")


def test_a_run_lives(config, monkeypatch, tmp_path):
    config = changed(config, model__weights=TimeConfig(4, 4), trainer__updates=6, trainer__accumulation=2)
    whole = train(changed(config, run=str(tmp_path / "whole")), Silent())
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Interrupted):
            train(config, Silent())
    assert same_model(train(config, Silent()).model, whole.model)

    run = load_run(config.run)
    assert {leaf.dtype for leaf in jax.tree.leaves(run.model)} == {jnp.dtype(jnp.float32)}
    for rule in RULES:  # a run continued without it finds the same types
        state = initial_state(changed(run.config, optimizer__rule=rule, optimizer__spike=4.0))
        assert jnp.float64 not in {leaf.dtype for leaf in jax.tree.leaves(state)}
    prompt = jnp.asarray([run.tokenizer.encode("the cat").ids], jnp.int32)
    greedy = {"key": jax.random.key(0), "temperature": 0.0}
    text = generate(run.model, prompt, 4, **greedy)
    assert text.dtype == jnp.int32
    np.testing.assert_array_equal(speculate(run.model, run.model.populate(1), prompt, 4, **greedy).tokens, text)
    assert spectra.study(spectra.Arguments(run=config.run, times=2), Silent()).findings
    export(run, tmp_path / "made")
    assert same_model(from_huggingface(tmp_path / "made"), run.model)

    with jax.enable_x64(False):
        train(changed(config, run=str(tmp_path / "usual")), Silent())
        assert same_model(load_run(config.run).model, run.model)
    for with_x64, without in zip(lasting(config.run), lasting(Path(tmp_path / "usual")), strict=True):
        np.testing.assert_allclose(with_x64["loss"], without["loss"], rtol=LOSS)
        if "gradient_norm" in without:
            np.testing.assert_allclose(with_x64["gradient_norm"], without["gradient_norm"], rtol=GRADIENT)
