"""The one model class: an embedding, block weights as a function of depth, a field, a scheme, a final norm, a head."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from diffeqformer.config import MOST_STEPS, LoRAConfig, ModelConfig, TimeConfig, ToleranceConfig
from diffeqformer.errors import BadInput
from diffeqformer.nn.attention import KeyValueCache
from diffeqformer.nn.dropout import dropout
from diffeqformer.nn.embedding import Embedding
from diffeqformer.nn.linear import Norm, normalise, wide
from diffeqformer.ode.early_exit import EarlyExit, solve_until_settled
from diffeqformer.ode.field import BlockWeights, Window, field_of
from diffeqformer.ode.grid import Steps, with_first
from diffeqformer.ode.lora import merge, without_adapters
from diffeqformer.ode.schemes import Reversible, scheme_of
from diffeqformer.ode.solve import Solution, solve
from diffeqformer.ode.solvers import solve_adaptively
from diffeqformer.ode.weights import LayerWeights, WeightSource, written_out
from diffeqformer.sharding import BATCH, constrain


class Transformer(eqx.Module):
    """A causal language model whose layers are the steps of an ODE solver.

    `x(0) = embed(ids)`, `dx/dt = A_t(x) + M_t(x)`, `logits = unembed(norm(x(1)))` (paper section 4). Vanilla
    transformers, weight sharing and populated models are the same class with other weights and another scheme.
    """

    embedding: Embedding
    weights: WeightSource
    final_norm: Norm
    head: Float[Array, "vocabulary width"] | None
    """Unembedding; none if it is the embedding's transpose."""
    config: ModelConfig = eqx.field(static=True)

    def __call__(
        self,
        ids: Int[Array, "*batch position"],
        *,
        steps: Steps | EarlyExit | None = None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "*batch position vocabulary"]:
        """Logits of the next token at every position.

        **Arguments:** `ids`, tokens of shape (position,) or (batch, position), at most `config.context` of them;
        `steps`, the number of depth steps, the trained one if not given (or the times between unequal ones, or an
        `EarlyExit`); `key` for dropout, none outside training.

        **Returns:** float32 logits.

        **Raises:** `BadInput` if the text is longer than the context or the model cannot run at `steps`.
        """
        return self.unembed(self.hidden(ids, steps=steps, key=key))

    def hidden(
        self,
        ids: Int[Array, "*batch position"],
        *,
        steps: Steps | EarlyExit | None = None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "*batch position width"]:
        """The state at the end of depth, after the final norm: what `unembed` turns into logits."""
        x = self.integrate(jnp.atleast_2d(ids), steps=steps, key=key).state
        return self.normalise(x).reshape(*ids.shape, -1)

    def trajectory(
        self, ids: Int[Array, "batch position"], *, steps: int | None = None
    ) -> Float[Array, "state batch position width"]:
        """The state at depth 0 and after every step: steps + 1 states, before the final norm."""
        solution = self.integrate(ids, steps=steps, keep_states=True)
        assert solution.states is not None
        return jnp.concatenate([self.embed(ids)[None], solution.states])

    def populate(self, steps: int | None = None) -> "Transformer":
        """The same model with its weights written out for a grid of `steps` steps: an ordinary `steps`-layer model.

        Its output equals this model's at `steps` steps (paper section 6.2).
        """
        config, steps = self.config, self.depth(steps)
        if config.weights == "layer" and steps == config.steps and not config.adaptive:
            return self
        weights = written_out(self.weights, steps, scheme_of(config).nodes, config.first_step)
        config = dataclasses.replace(
            config,
            weights="layer",
            layer_rows="step" if weights.nodes is None else "node",
            steps=steps,
            horizon=config.horizon_at(steps),
            tolerance=ToleranceConfig(),
            time=TimeConfig(),
        )
        return Transformer(self.embedding, weights, self.final_norm, self.head, config)

    def merge(self) -> "Transformer":
        """The same model with its low-rank adapters added into the matrices; without adapters, the model itself."""
        return self._with_layers(merge)

    def without_adapters(self) -> "Transformer":
        """The same model with its low-rank adapters taken away; without adapters, the model itself."""
        return self._with_layers(without_adapters)

    def _with_layers(self, change: Callable[[BlockWeights], BlockWeights]) -> "Transformer":
        if not isinstance(self.weights, LayerWeights) or not self.config.adapted:
            return self
        weights = dataclasses.replace(self.weights, layers=change(self.weights.layers))
        config = dataclasses.replace(self.config, lora=LoRAConfig())
        return Transformer(self.embedding, weights, self.final_norm, self.head, config)

    def depth(self, steps: Any) -> int:
        """The number of steps to run: as asked for, or as trained.

        **Raises:** `BadInput` if it is not a positive whole number.
        """
        steps = self.config.steps if steps is None else steps
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise BadInput(f"steps is {steps!r}, but must be a whole number of at least 1.")
        if steps > MOST_STEPS:
            raise BadInput(f"steps is {steps}, but must be at most {MOST_STEPS}.")
        return steps

    def grid(self, steps: Any = None) -> Steps:
        """The grid of `steps` steps, as the config's `first_step` has it; the trained number if not given.

        **Raises:** `BadInput` as `depth`.
        """
        return with_first(self.depth(steps), self.config.first_step)

    def embed(
        self, ids: Int[Array, "batch position"], start: int | Int[Array, ""] = 0
    ) -> Float[Array, "batch position width"]:
        """The state at depth 0, in the precision of computation; `start` is the position of the first token."""
        if ids.shape[1] > self.config.context:
            raise BadInput(f"the text has {ids.shape[1]} tokens, but the model's context is {self.config.context}.")
        x = self.embedding(ids, jnp.arange(ids.shape[1]) + start)
        return constrain(x.astype(self._compute_dtype(x)), BATCH)

    def unembed(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch vocabulary"]:
        """Logits of normalised states, accumulated in float32 or better."""
        table = constrain(self.embedding.tokens if self.head is None else self.head, "tensor")
        return jnp.einsum("...d,vd->...v", x, table.astype(x.dtype), preferred_element_type=wide(x.dtype))

    def decode(
        self, ids: Int[Array, "batch position"], cache: KeyValueCache, start: Int[Array, ""]
    ) -> tuple[Float[Array, "batch position vocabulary"], KeyValueCache]:
        """Logits of the tokens `ids` that follow `start` cached ones, and the cache with them in it."""
        at = start + jnp.arange(ids.shape[1])
        mask = jnp.arange(cache.keys.shape[-2])[None, :] <= at[:, None]
        solution = self.integrate(ids, cache=cache, window=Window(start, mask))
        assert solution.cache is not None
        return self.unembed(self.normalise(solution.state)), solution.cache

    def empty_cache(self, batch: int, positions: int) -> KeyValueCache:
        """A key-value cache for `positions` positions: one slot a step and attention evaluation."""
        config = self.config
        slots = (config.steps, scheme_of(config).evaluations.attention)
        shape = (*slots, batch, config.kv_heads or config.heads, positions, config.width // config.heads)
        zeros = jnp.zeros(shape, self._compute_dtype(self.embedding.tokens))
        return KeyValueCache(zeros, zeros)

    def _compute_dtype(self, parameter: Array) -> Any:
        narrow = self.config.compute_dtype == "bfloat16"
        return jnp.bfloat16 if narrow else parameter.dtype

    def normalise(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        """The final norm."""
        return normalise(self.final_norm, x, self.config.norm_epsilon)

    def integrate(
        self,
        ids: Int[Array, "batch position"],
        *,
        steps: Steps | EarlyExit | None = None,
        key: Key[Array, ""] | None = None,
        keep_states: bool = False,
        cache: KeyValueCache | None = None,
        window: Window | None = None,
    ) -> Solution:
        """The flow from the embedding to the end of depth, before the final norm, and what it cost.

        **Arguments:** `ids`, `steps` and `key` as for the model itself; the others as for `solve`.
        """
        embedding_key, block_key = (None, None) if key is None else jax.random.split(key)
        x = self.embed(ids, 0 if window is None else window.start)
        x = dropout(x, self.config.dropout.embedding, embedding_key)
        return self.flow(x, steps=steps, key=block_key, keep_states=keep_states, cache=cache, window=window)

    def flow(
        self,
        x: Float[Array, "batch position width"],
        *,
        steps: Steps | EarlyExit | None = None,
        key: Key[Array, ""] | None = None,
        keep_states: bool = False,
        cache: KeyValueCache | None = None,
        window: Window | None = None,
    ) -> Solution:
        """The flow from any state at depth 0, such as a perturbed embedding, to the end of depth.

        With a tolerance in the config and no `steps` the solver chooses its own; else the grid is fixed. The
        arguments are those of `solve`.
        """
        config = self.config
        if config.adaptive and steps is None and cache is None:
            return solve_adaptively(field_of(config), self.weights, x, config, key=key, keep_states=keep_states)
        scheme, early_exit = scheme_of(config), steps if isinstance(steps, EarlyExit) else None
        steps = steps if isinstance(steps, Array) else self.grid(early_exit.steps if early_exit else steps)
        table = jax.tree.map(partial(jnp.asarray, dtype=x.dtype), self.weights.table(steps, scheme.nodes))
        if early_exit is not None:
            assert cache is None and not keep_states
            at = {"steps": steps, "threshold": early_exit.threshold, "horizon": config.interval}
            return solve_until_settled(field_of(config), scheme, table, x, normalise=self.normalise, **at)
        return solve(
            field_of(config),
            scheme,
            table,
            x,
            steps=steps,
            horizon=config.interval,
            gradient=config.gradient or ("reversible" if isinstance(scheme, Reversible) else "checkpointed"),
            checkpoints=config.checkpoints,
            keep_states=keep_states,
            key=key,
            cache=cache,
            window=window,
        )
