"""Sampling text with a key-value cache."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key

from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.embedding import known_ids
from diffeqformer.nn.keys import require_key
from diffeqformer.plain import shown

COLDEST = 1e-6
"""Temperatures below this count as 0: no two unequal float32 logits differ by less."""


def generate(
    model: Transformer,
    prompt: Int[Array, "batch position"],
    new_tokens: int,
    *,
    key: Key[Array, ""],
    steps: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Int[Array, "batch new"]:
    """Continue every prompt by `new_tokens` tokens.

    The model is populated once and its adapters are merged. The prompt is read in one pass, then one token at a time
    against the cache.

    **Arguments:** `prompt`, at least one token; `key`, split into one for each new token; `steps` as for the model;
    `temperature`, 0 for the most likely token; `top_k`, keep the k most likely; `top_p`, keep the smallest set of
    most likely tokens whose probability reaches p (nucleus sampling, Holtzman et al. 2020).

    **Returns:** the new tokens.

    **Raises:** `BadInput` for settings out of range, an empty prompt, a text longer than the context, or no key.
    """
    prompt, *_ = asked = require_sampling(model, prompt, new_tokens, temperature, top_k, top_p)
    return _generate(model.populate(steps).merge(), prompt, require_key(key), *asked[1:])


def require_sampling(
    model: Transformer, prompt: Any, new_tokens: int, temperature: float, top_k: int | None, top_p: float | None
) -> tuple[Array, int, float, int | None, float | None]:
    """Check the arguments for sampling text; computes nothing.

    **Returns:** the prompt as an array, and the other four as Python numbers.

    **Raises:** `BadInput` for settings or tokens out of range, an empty prompt, or a text longer than the context.
    """
    vocabulary, context = model.embedding.tokens.shape[0], model.config.context
    # As objects, since NumPy otherwise refuses rows of different lengths, for which `known_ids` has a message.
    if not (prompt if isinstance(prompt, Array) else np.asarray(prompt, object)).size:
        raise BadInput("the prompt is empty, but must have at least one token.")
    prompt = known_ids(prompt, vocabulary, 2)
    new_tokens = whole("the number of new tokens", new_tokens, 1)
    if prompt.shape[1] + new_tokens > context:
        raise BadInput(
            f"the prompt has {prompt.shape[1]} tokens and {new_tokens} new ones are asked for, "
            f"but together they must not exceed the model's context of {context}."
        )
    return prompt, new_tokens, *require_choice(vocabulary, temperature, top_k, top_p)


def require_choice(
    vocabulary: int, temperature: float, top_k: int | None, top_p: float | None
) -> tuple[float, int | None, float | None]:
    """Check the settings that decide how a token is chosen.

    **Returns:** `temperature`, `top_k` and `top_p` as Python numbers.

    **Raises:** `BadInput` for settings out of range.
    """
    top_k = None if top_k is None else whole("top-k", top_k)
    temperature, top_p = _number("temperature", temperature), None if top_p is None else _number("top-p", top_p)
    if not 0 <= temperature < float("inf"):
        raise BadInput(f"temperature is {temperature}, but must be 0 or a positive number.")
    if top_k is not None and not 1 <= top_k <= vocabulary:
        raise BadInput(f"top-k is {top_k}, but must be between 1 and the vocabulary's size, {vocabulary}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise BadInput(f"top-p is {top_p}, but must be above 0 and at most 1.")
    return temperature, top_k, top_p


def _number(name: str, value: Any) -> float:
    """Convert `value` to a float.

    **Raises:** `BadInput` if it is not a number.
    """
    try:
        return value.__float__()
    except (AttributeError, TypeError):
        raise BadInput(f"{name} is {shown(value)}, but must be a number.") from None


# Python numbers are constants of the compiled program: `choose` branches on them.
@eqx.filter_jit
def _generate(
    model: Transformer,
    prompt: Array,
    key: Array,
    new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> Array:
    batch, length = prompt.shape
    cache = model.empty_cache(batch, length + new_tokens)
    logits, cache = model.decode(prompt, cache, jnp.zeros((), jnp.int32))
    keys = jax.random.split(key, new_tokens)
    token = choose(logits[:, -1], keys[0], temperature, top_k, top_p)

    def one(carry: tuple, now: tuple) -> tuple[tuple, Array]:
        token, cache = carry
        position, key = now
        logits, cache = model.decode(token[:, None], cache, position)
        token = choose(logits[:, -1], key, temperature, top_k, top_p)
        return (token, cache), token

    positions = length + jnp.arange(new_tokens - 1, dtype=jnp.int32)
    _, tokens = jax.lax.scan(one, (token, cache), (positions, keys[1:]))
    return jnp.concatenate([token[:, None], tokens.T], axis=1)


def choose(
    logits: Float[Array, "*batch vocabulary"],
    key: Key[Array, ""],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Int[Array, "*batch"]:
    """Draw a token for each row after temperature, then top-k, then top-p; ties at a cutoff are kept."""
    if temperature < COLDEST:
        return logits.argmax(-1).astype(jnp.int32)
    return jax.random.categorical(key, _kept(logits, temperature, top_k, top_p), axis=-1).astype(jnp.int32)


def probabilities(
    logits: Float[Array, "*batch vocabulary"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Array, "*batch vocabulary"]:
    """Return the distributions that `choose` draws from; at temperature 0, all mass is on the most likely token."""
    if temperature < COLDEST:
        return jax.nn.one_hot(logits.argmax(-1), logits.shape[-1], dtype=logits.dtype)
    return jax.nn.softmax(_kept(logits, temperature, top_k, top_p), axis=-1)


def _kept(logits: Array, temperature: float, top_k: int | None, top_p: float | None) -> Array:
    """Divide logits by the temperature, and set those of tokens that are never drawn to minus infinity."""
    logits = (logits - logits.max(-1, keepdims=True)) / temperature  # at most 0: overflow can only give -inf
    if top_k is not None:
        least = jax.lax.top_k(logits, top_k)[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if top_p is not None:
        ordered = jnp.sort(logits, axis=-1, descending=True)
        likely = jax.nn.softmax(ordered, axis=-1)
        # By the probability of all tokens before each; the most likely one is kept even if `top_p` rounds to zero.
        kept = (likely.cumsum(-1) - likely < top_p).at[..., 0].set(True)
        least = jnp.where(kept, ordered, jnp.inf).min(-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits
