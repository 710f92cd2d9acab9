import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffeqformer.nn.linear import AdaptedLinear, Adapter, Linear, Norm, normalise, products

X = 3.0 + np.random.default_rng(0).normal(size=(2, 5, 16))
SCALE, SHIFT = np.random.default_rng(1).normal(size=(2, 16))


def by_hand(x, shift):
    """LayerNorm with a shift, RMSNorm without, in float64."""
    if shift is None:
        return SCALE * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return SCALE * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) + shift


@pytest.mark.parametrize("shift", [None, SHIFT], ids=["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-13)])
def test_a_norm_is_a_layer_norm_with_a_shift_and_an_rms_norm_without(shift, dtype, tolerance):
    with jax.enable_x64(True):
        norm = Norm(jnp.asarray(SCALE, dtype), None if shift is None else jnp.asarray(shift, dtype))
        y = normalise(norm, jnp.asarray(X, dtype), 1e-5)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, by_hand(X, shift), rtol=0, atol=tolerance)


def test_an_rms_norm_with_a_shift_does_not_subtract_the_mean():
    with jax.enable_x64(True):
        y = normalise(Norm(jnp.asarray(SCALE), jnp.asarray(SHIFT)), jnp.asarray(X), 1e-5, centred=False)
    np.testing.assert_allclose(y, by_hand(X, None) + SHIFT, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shift", [None, SHIFT], ids=["RMSNorm", "LayerNorm"])
def test_sums_of_bfloat16_are_taken_in_float32(shift):
    """4096 squares added up in bfloat16 would stop growing at 256. The result is rounded once: by at most 2^-8."""
    x = jnp.tile(jnp.asarray(X[0], jnp.bfloat16), (1, 256))
    norm = Norm(jnp.ones(4096, jnp.bfloat16), None if shift is None else jnp.zeros(4096, jnp.bfloat16))
    exact = np.asarray(x, np.float64)
    exact = exact if shift is None else exact - exact.mean(-1, keepdims=True)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5)
    y = normalise(norm, x, 1e-5)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(jnp.float32), exact, rtol=2**-8, atol=1e-5)


def test_the_gradient_of_a_bias_is_summed_over_tokens_in_float32():
    """Small whole numbers, whose sums are exact in float32: only the result is rounded. In bfloat16, those above 256
    lose their last digits."""
    change = np.random.default_rng(3).integers(-2, 4, (1, 20_000, 16))
    linear = Linear(jnp.ones((2, 16), jnp.bfloat16), jnp.ones(16, jnp.bfloat16))
    y, pull = jax.vjp(lambda linear: linear(jnp.ones((1, 20_000, 2), jnp.bfloat16)), linear)
    assert y.dtype == jnp.bfloat16 and (y == 3).all()
    (found,), expected = pull(jnp.asarray(change, jnp.bfloat16)), jnp.asarray(change[0].sum(0), jnp.bfloat16)
    np.testing.assert_array_equal(found.bias, expected)
    np.testing.assert_array_equal(found.weight, jnp.stack([expected] * 2))


def loss_of_products(x, rows):
    found = products(x, rows)
    return (jnp.sin(jnp.arange(30, dtype=found.dtype)).reshape(found.shape) * found).sum()


def test_narrow_products_are_summed_in_float32_and_pull_back_narrow():
    """Against float64, of the same rounded factors: what is left are the roundings of the cotangent and of x's."""
    exact, rows = X, np.random.default_rng(2).normal(size=(3, 16))
    x, narrow_rows = jnp.asarray(exact, jnp.bfloat16), jnp.asarray(rows, jnp.float32)
    with jax.enable_x64(True):
        wide_x, wide_rows = x.astype("float64"), narrow_rows.astype("bfloat16").astype("float64")
        expected = products(wide_x, wide_rows), *jax.grad(loss_of_products, (0, 1))(wide_x, wide_rows)
        np.testing.assert_allclose(expected[0], np.asarray(wide_x) @ np.asarray(wide_rows).T, rtol=1e-13)
    found = products(x, narrow_rows), *jax.grad(loss_of_products, (0, 1))(x, narrow_rows)
    assert [leaf.dtype for leaf in found] == [jnp.float32, jnp.bfloat16, jnp.float32]
    sizes = 16 * np.abs(exact).max() * np.abs(rows).max(), 3 * np.abs(rows).max(), 10 * np.abs(exact).max()
    for mine, other, size, rounding in zip(found, expected, sizes, (2**-23, 2**-7, 2**-8), strict=True):
        np.testing.assert_allclose(
            np.asarray(mine, "float64"), other, rtol=0, atol=16 * 2**-23 * size + rounding * size
        )


def test_no_narrow_product_is_multiplied_in_float32():
    x, rows = jnp.asarray(X, jnp.bfloat16), jnp.zeros((3, 16), jnp.float32)
    program = jax.jit(jax.grad(loss_of_products, (0, 1))).trace(x, rows).lower(lowering_platforms=("cuda",)).as_text()
    factors = re.findall(r"dot_general.*?: \((tensor<\S+>), (tensor<\S+>)\)", program)
    assert len(factors) == 2 and all(factor.endswith("xbf16>") for pair in factors for factor in pair)


def test_an_adapter_is_merged_in_float32_whatever_the_device():
    """GPUs would multiply in TensorFloat-32, with 10 bits."""
    adapted = AdaptedLinear(Linear(jnp.ones((4, 6)), None), Adapter(jnp.ones((4, 2)), jnp.ones((2, 6)), 0.5, 0.0))
    np.testing.assert_array_equal(adapted.weight, jnp.full((4, 6), 2.0))
    assert "HIGHEST" in str(jax.make_jaxpr(lambda adapted: adapted.weight)(adapted))
