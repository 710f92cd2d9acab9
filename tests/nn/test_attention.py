import dataclasses
import itertools
import re
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.model.loss import next_token_loss
from diffeqformer.nn import attention
from diffeqformer.nn.attention import attend, cudnn_lacks, split_heads
from tests.cases import slow
from tests.models import TINY, model_of, tokens


def by_hand(query, keys, values, mask):
    """One query head after another, in float64."""
    result, groups = np.zeros(query.shape), query.shape[2] // keys.shape[2]
    for head in range(query.shape[2]):
        q, k, v = query[:, :, head], keys[:, :, head // groups], values[:, :, head // groups]
        scores = np.where(mask, q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        result[:, :, head] = weights / weights.sum(-1, keepdims=True) @ v
    return result


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "masked"])
@pytest.mark.parametrize("path", ["float32", "float64", "dropping"])
def test_each_head_of_keys_and_values_serves_neighbouring_query_heads(kv_heads, masked, path):
    draw = np.random.default_rng(0).normal
    arrays = [draw(size=(2, 5, heads, 6)) for heads in (4, kv_heads, kv_heads)]
    mask = np.tril(np.ones((5, 5), bool))
    mask[3, 1] = not masked
    dropping = {"dropout_rate": 1e-9, "key": jax.random.key(0)} if path == "dropping" else {}
    with jax.enable_x64(True):
        ours = [jnp.asarray(x, "float64" if path == "float64" else "float32") for x in arrays]
        mixed = attend(*ours, mask=jnp.asarray(mask) if masked else None, **dropping)
    np.testing.assert_allclose(mixed, by_hand(*arrays, mask), rtol=0, atol=1e-13 if path == "float64" else 1e-5)


@pytest.mark.parametrize("positions", [150, *slow(127, 258)])  # 2, 1 and 4 blocks
def test_causal_attention_by_blocks_is_that_of_the_whole(positions, monkeypatch):
    """Forward and back, without the scores above the diagonal, and blind to what comes later to the last bit."""
    own, pull = parts("float32", positions=positions), jnp.cos(jnp.arange(2 * positions * 4 * 16, dtype=jnp.float32))
    both = lambda *own: jax.vjp(attend, *own)[1](pull.reshape(2, positions, 4, 16))
    np.testing.assert_allclose(attend(*own), by_hand(*own, np.tril(np.ones((positions, positions), bool))), atol=1e-5)
    later = attend(*(part.at[:, 100:].add(1.0) for part in own))
    np.testing.assert_array_equal(attend(*own)[:, :100], later[:, :100])
    blocks, wide = both(*own), rf"\b{positions},{positions}\b"
    assert bool(re.search(wide, str(jax.make_jaxpr(both)(*own)))) == (positions < 128)
    monkeypatch.setattr(attention, "BLOCKS", 1)
    for one, other in zip(blocks, both(*own), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_blocks_drop_other_weights_and_as_many_as_asked():
    same, values = jnp.zeros((1, 256, 1, 256)), jnp.eye(256)[None, :, None]
    weights = attend(same, same, values, dropout_rate=0.25, key=jax.random.key(1))[0, :, 0]
    kept = np.asarray(weights)[np.tril_indices(256)] > 0
    assert abs(kept.mean() - 0.75) < 5 * (0.75 * 0.25 / len(kept)) ** 0.5
    quarters = np.asarray(weights[:, :64] > 0).reshape(4, 64, 64)[1:]
    assert all((one != other).any() for one, other in itertools.pairwise(quarters))


def test_the_querys_heads_come_first_then_the_keys_then_the_values():
    heads = jnp.repeat(jnp.arange(8.0), 3)[None, None]
    query, keys, values = split_heads(heads, 4, 3)
    assert query[0, 0, :, 0].tolist() == [0, 1, 2, 3]
    assert keys[0, 0, :, 0].tolist() == [4, 5]
    assert values[0, 0, :, 0].tolist() == [6, 7]


def calls(function, *arguments, platform="cuda") -> list[str]:
    """cuDNN's calls in what is lowered for a platform."""
    with jax.numpy_dtype_promotion("standard"):  # JAX lowers the gradient of its own attention only so
        lowered = jax.jit(partial(function)).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    return re.findall(r"@__cudnn\$(\w+)", lowered)


def parts(dtype, width: int = 16, kv_heads: int = 2, positions: int = 6):
    draw = np.random.default_rng(0).normal
    return [jnp.asarray(draw(size=(2, positions, heads, width)), dtype) for heads in (4, kv_heads, kv_heads)]


def test_in_16_bits_cuda_gets_cudnns_attention_and_others_xlas(cudnn):
    slope = jax.grad(lambda *own: attend(*own).astype(jnp.float32).sum(), argnums=(0, 1, 2))
    for dtype in ("bfloat16", "float16"):
        assert calls(attend, *parts(dtype)) == ["fmhaSoftmax"]
        assert calls(slope, *parts(dtype)) == ["fmhaSoftmax", "fmhaSoftmaxBackward"]
    assert calls(attend, *parts("bfloat16"), platform="cpu") == calls(slope, *parts("bfloat16"), platform="cpu") == []


def test_where_cudnn_does_not_hold_cuda_gets_xlas(cudnn):
    """Its types, widths of a head and lengths, a mask of one's own, dropout; and where it is not installed."""
    own, key = parts("bfloat16"), jax.random.key(0)
    mask = jnp.ones((6, 6), bool)
    assert calls(attend, *parts("float32")) == calls(attend, *parts("bfloat16", width=12)) == []
    assert calls(attend, *parts("bfloat16", width=512)) == calls(attend, *parts("bfloat16", positions=5)) == []
    assert calls(lambda *own: attend(*own, mask=mask), *own) == []
    assert calls(lambda *own: attend(*own, dropout_rate=0.1, key=key), *own) == []
    assert calls(lambda *own: attend(*own, dropout_rate=0.1), *own) == ["fmhaSoftmax"]


def test_what_cudnn_lacks_is_said_by_the_setting():
    assert cudnn_lacks("bfloat16", 0.0, []) == cudnn_lacks("bfloat16", 0.0, [8.0, 10.3]) == ""
    assert cudnn_lacks("bfloat16", 0.1, [9.0]) == "model.dropout.attention is 0.1; cuDNN's flash attention needs 0"
    assert cudnn_lacks("float32", 0.0, []) == "model.compute_dtype is float32; cuDNN's flash attention needs bfloat16"
    old = "the compute capability is 7.5; cuDNN's flash attention needs 8"
    assert cudnn_lacks("bfloat16", 0.0, [9.0, 7.5]) == old


def test_without_cudnn_cuda_gets_xlas(no_cudnn):
    assert calls(attend, *parts("bfloat16")) == []


def test_old_devices_get_xlas(cudnn, monkeypatch):
    for capability, found in (("7.5", []), ("8.0", ["fmhaSoftmax"]), ("10.3", ["fmhaSoftmax"])):
        devices = [SimpleNamespace(compute_capability=capability)]
        monkeypatch.setattr(jax, "local_devices", lambda backend, devices=devices: devices)
        assert calls(attend, *parts("bfloat16")) == found


def test_the_choice_changes_no_number_on_a_cpu(cudnn, monkeypatch):
    chosen = attend(*parts("bfloat16"))
    monkeypatch.undo()
    np.testing.assert_array_equal(chosen, attend(*parts("bfloat16")))


def test_a_training_step_for_cuda_keeps_no_scores(cudnn):
    """Neither forward nor back is there an array of (position, position)."""
    config = dataclasses.replace(TINY, compute_dtype="bfloat16", context=48, width=32)
    gradient, ids = jax.grad(next_token_loss), tokens(positions=49)
    text = jax.jit(gradient).trace(model_of(config), ids).lower(lowering_platforms=("cuda",)).as_text()
    assert {"fmhaSoftmax", "fmhaSoftmaxBackward"} == set(re.findall(r"@__cudnn\$(\w+)", text))
    assert not re.search(r"x48x48x", text)
