"""Self-speculative decoding: a shallow reading of a model drafts, a deep one checks."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from diffeqformer.config.bounds import whole
from diffeqformer.errors import BadInput
from diffeqformer.model.generate import COLDEST, probabilities, require_sampling
from diffeqformer.model.transformer import Transformer
from diffeqformer.nn.attention import KeyValueCache
from diffeqformer.nn.keys import require_key


class Speculation(NamedTuple):
    """New tokens, and how often the drafts were right."""

    tokens: Int[Array, "batch new"]
    rounds: Int[Array, " batch"]
    """Deep readings per row, without the prompt's; plain decoding takes one per token."""
    drafted: Int[Array, " batch"]
    accepted: Int[Array, " batch"]
    """Number of drafted tokens that were accepted."""

    @property
    def acceptance(self) -> float:
        """Fraction of drafted tokens that were accepted, from 0 to 1."""
        return float(self.accepted.sum() / jnp.maximum(1, self.drafted.sum()))

    @property
    def tokens_per_verification(self) -> float:
        """Mean number of tokens per deep reading, without the first token, which comes from reading the prompt."""
        return float((self.tokens.size - len(self.rounds)) / jnp.maximum(1, self.rounds.sum()))


def speculate(
    model: Transformer,
    draft: Transformer,
    prompt: Int[Array, "batch position"],
    new_tokens: int,
    *,
    key: Key[Array, ""],
    draft_length: int = 4,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Speculation:
    """Continue every prompt as `generate` does with `model`, but let a cheaper one draft: `model.populate(few steps)`.

    Each round drafts `draft_length` tokens d_1, d_2, ... one after the other from the draft's distributions q_i, then
    reads all of them at once with the model, which gives p_i. Token d_i is accepted with probability
    `min(1, p_i(d_i) / q_i(d_i))`. The first rejected token is replaced by a draw from `max(p_i - q_i, 0)`, normalised;
    after a fully accepted draft, one more token is drawn from p. Each token thus has exactly the distribution p. At
    temperature 0 the text is that of `generate`, up to rounding of nearly equal logits.

    **Arguments:** `model` and `draft`, each run at the steps of its config; `draft_length`, tokens per round; the
    others as for `generate`.

    **Returns:** a `Speculation`.

    **Raises:** `BadInput` as `generate` does, if the draft's vocabulary or context differs from the model's, or if
    `draft_length` is below 1.

    Source: Leviathan et al. 2023, arXiv:2211.17192; drafts by layers of the model itself: Zhang et al. 2024,
    arXiv:2309.08168.
    """
    key, asked = require_key(key), require_sampling(model, prompt, new_tokens, temperature, top_k, top_p)
    prompt, new_tokens, temperature, top_k, top_p = asked
    for name in ("vocabulary", "context"):
        own, its = getattr(model.config, name), getattr(draft.config, name)
        if own != its:
            raise BadInput(f"the draft has model.{name} {its}, but the model that checks it has {own}.")
    draft_length = min(whole("the draft's length", draft_length, 1), new_tokens)
    deep, shallow = model.populate().merge(), draft.populate().merge()
    return Speculation(*_speculate(deep, shallow, prompt, key, new_tokens, draft_length, temperature, top_k, top_p))


class _Round(NamedTuple):
    """State of one row between two rounds."""

    tokens: Int[Array, " position"]
    """The prompt and the text so far, followed by free positions."""
    known: Int[Array, ""]
    """Number of decided tokens; the deep cache holds all but the last of them, the draft's all but the last two."""
    deep: KeyValueCache
    draft: KeyValueCache
    key: Key[Array, ""]
    rounds: Int[Array, ""]
    accepted: Int[Array, ""]


@eqx.filter_jit
def _speculate(
    model: Transformer,
    shallow: Transformer,
    prompt: Array,
    key: Array,
    new_tokens: int,
    draft_length: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> tuple[Array, Array, Array, Array]:
    length = prompt.shape[1]
    room = length + new_tokens + draft_length  # the last round may draft beyond the end
    greedy = temperature < COLDEST  # then logits serve as weights, and nothing is drawn
    distribution = lambda logits: logits if greedy else probabilities(logits, temperature, top_k, top_p)

    def draw(key: Array, weights: Float[Array, " vocabulary"]) -> Array:
        drawn = weights.argmax(-1) if greedy else jax.random.categorical(key, jnp.log(weights))
        return drawn.astype(prompt.dtype)

    def verdict(key: Array, tokens: Array, q: Array, p: Array) -> tuple[Array, Float[Array, " vocabulary"]]:
        """Return how many drafted tokens are accepted, and the weights for choosing the token after them."""
        at = lambda weights: jnp.take_along_axis(weights[:draft_length], tokens[:, None], axis=-1)[:, 0]
        if greedy:
            right = p[:draft_length].argmax(-1).astype(tokens.dtype) == tokens
        else:
            right = jax.random.uniform(key, (draft_length,), q.dtype) * at(q) < at(p)
        # The product is 0 from the first rejection on.
        accepted = jnp.cumprod(right.astype(jnp.int32)).sum(dtype=jnp.int32)
        if greedy:
            return accepted, p[accepted]
        missing = p[accepted] - jnp.where(accepted < draft_length, q[jnp.minimum(accepted, draft_length - 1)], 0.0)
        missing = jnp.maximum(missing, 0.0)
        return accepted, jnp.where(missing.sum() > 0, missing, p[accepted])  # else p = q up to rounding

    def drafted(now: _Round, key: Array) -> tuple[Array, Array, KeyValueCache]:
        """Draft tokens; return them, their distributions, and the updated draft cache."""
        first, *others = jax.random.split(key, draft_length)
        # After a fully accepted draft, the cache lacks the last drafted token, which the draft model never read.
        last_two = jax.lax.dynamic_slice(now.tokens, (now.known - 2,), (2,))
        logits, cache = shallow.decode(last_two[None], now.draft, now.known - 2)
        weights = distribution(logits[0, -1])
        token = draw(first, weights)

        def one(carry: tuple, at: tuple) -> tuple[tuple, tuple]:
            (token, cache), (position, key) = carry, at
            logits, cache = shallow.decode(token[None, None], cache, position)
            weights = distribution(logits[0, -1])
            token = draw(key, weights)
            return (token, cache), (token, weights)

        if not others:
            return token[None], weights[None], cache
        positions = now.known + jnp.arange(draft_length - 1, dtype=jnp.int32)
        (_, cache), (tokens, rest) = jax.lax.scan(one, (token, cache), (positions, jnp.stack(others)))
        return jnp.concatenate([token[None], tokens]), jnp.concatenate([weights[None], rest]), cache

    def a_round(now: _Round) -> _Round:
        key, draft_key, accept_key, last_key = jax.random.split(now.key, 4)
        tokens, q, draft_cache = drafted(now, draft_key)
        # The last decided token is not in the deep cache yet; reading it gives the logits for the first drafted one.
        read = jnp.concatenate([now.tokens[now.known - 1][None], tokens])
        logits, deep_cache = model.decode(read[None], now.deep, now.known - 1)
        accepted, after = verdict(accept_key, tokens, q, distribution(logits[0]))
        last = draw(last_key, after).astype(tokens.dtype)
        # Rejected tokens stay beyond `known`, here and in the caches, until the next round overwrites them.
        written = jax.lax.dynamic_update_slice(now.tokens, tokens, (now.known,))
        return _Round(
            written.at[now.known + accepted].set(last),
            now.known + accepted + 1,
            deep_cache,
            draft_cache,
            key,
            now.rounds + 1,
            now.accepted + accepted,
        )

    def row(prompt: Array, key: Array) -> tuple[Array, Array, Array]:
        first_key, key = jax.random.split(key)
        start = jnp.zeros((), jnp.int32)
        logits, deep = model.decode(prompt[None], model.empty_cache(1, room), start)
        _, draft = shallow.decode(prompt[None], shallow.empty_cache(1, room), start)
        tokens = jnp.zeros(room, prompt.dtype).at[:length].set(prompt)
        tokens = tokens.at[length].set(draw(first_key, distribution(logits[0, -1])))
        now = _Round(tokens, jnp.asarray(length + 1, jnp.int32), deep, draft, key, start, start)
        end = jax.lax.while_loop(lambda now: now.known < length + new_tokens, a_round, now)
        return end.tokens[length : length + new_tokens], end.rounds, end.accepted

    keys = jax.random.split(key, prompt.shape[0])
    one = lambda: [part[None] for part in row(prompt[0], keys[0])]  # writing to batched caches is slower
    tokens, rounds, accepted = one() if len(prompt) == 1 else jax.vmap(row)(prompt, keys)
    return tokens, rounds, rounds * draft_length, accepted
