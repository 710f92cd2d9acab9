"""Analyses of a long text by a model of the size of GPT-2 small fit into 8 GiB, as the compiler plans them."""

import jax
import jax.numpy as jnp
import pytest

from diffeqformer.analysis import attribution, end_to_end, faithfulness, lyapunov
from diffeqformer.model.build import build
from diffeqformer.studies.bench.bench_lyapunov import GPT_SMALL

POSITIONS, OUTPUTS, LIMIT = 1024, 32, 8 * 2**30


def plans(config, positions):
    """Bytes of each program by name: its arguments, the model among them, and what it needs besides."""
    shape = jax.ShapeDtypeStruct
    model = jax.eval_shape(lambda key: build(config, key).populate(), jax.random.key(0))
    ids, one = shape((positions,), jnp.int32), shape((), jnp.int32)
    outputs, state = shape((OUTPUTS,), jnp.int32), shape((positions, config.width), jnp.float32)
    tangents, probes = shape((config.width, 4), jnp.float32), shape((16, config.width), jnp.float32)
    batch = shape((1, *state.shape), jnp.float32)
    together = max(1, attribution.BATCH_NUMBERS // (positions * config.width))
    texts = max(1, faithfulness.ATTENTION_NUMBERS // (config.heads * positions**2))
    programs = {
        "pairwise": lyapunov.pairwise_growth.lower(model, ids, one, ids, tangents),
        "end-to-end": end_to_end._pulled.lower(model, batch, one, probes),
        "attention": attribution._attention.lower(model, ids, outputs),
        "gradients": attribution._slopes.lower(model, state, state, outputs, outputs),
        "occlusion": attribution._occluded.lower(model, state, state, shape((together,), jnp.int32), outputs, outputs),
        "faithfulness": faithfulness._last.lower(model, shape((texts, positions), jnp.int32)),
    }
    memory = {name: program.compile().memory_analysis() for name, program in programs.items()}
    return {
        name: m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes for name, m in memory.items()
    }


@pytest.mark.slow
def test_a_long_text_and_a_model_of_gpt_2_smalls_size():
    for name, planned in plans(GPT_SMALL, POSITIONS).items():
        print(f"{name}: {planned / 2**30:.2f} GiB")
        assert planned < LIMIT, name
