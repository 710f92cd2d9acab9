"""The one model class: an embedding, block weights as a function of depth, a field, a scheme, a final norm, a head."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Key

from diffeqformer.config import LayerConfig, ModelConfig, OwnConfig, with_steps
from diffeqformer.errors import BadInput
from diffeqformer.nn.attention import KeyValueCache
from diffeqformer.nn.dropout import dropout
from diffeqformer.nn.embedding import Embedding, known_ids
from diffeqformer.nn.keys import require_key
from diffeqformer.nn.linear import Norm, as_bits, normalise, products, unit_rms
from diffeqformer.ode.adaptive import solve_adaptively
from diffeqformer.ode.adjoints import Adjoint, Checkpointed, Reconstructing
from diffeqformer.ode.early_exit import EarlyExit, solve_until_settled
from diffeqformer.ode.field import BlockWeights, Field, TransformerField, Window, require_sizes
from diffeqformer.ode.grid import Grid, Steps
from diffeqformer.ode.lora import merge, without_adapters
from diffeqformer.ode.schemes import Residual, Reversible, Scheme
from diffeqformer.ode.solve import Observer, Solution, States, solve
from diffeqformer.ode.weights import AdaptableWeights, LayerDropWeights, LayerWeights, SharedWeights, populated
from diffeqformer.ode.weights.modulated import norm_of_length
from diffeqformer.ode.weights.source import WeightSource
from diffeqformer.sharding import BATCH, constrain


class Transformer(eqx.Module):
    """A causal language model whose layers are the steps of an ODE solver.

    `x(0) = embed(ids)`, `dx/dt = A_t(x) + M_t(x)`, `logits = unembed(norm(x(1)))` (paper section 4). Vanilla
    transformers, weight sharing and populated models are the same class with other weights and another scheme.
    """

    embedding: Embedding
    weights: WeightSource
    field: Field = eqx.field(static=True)
    scheme: Scheme = eqx.field(static=True)
    final_norm: Norm
    head: Float[Array, "vocabulary width"] | None
    """Unembedding matrix; `None` if it is the embedding's transpose."""
    config: ModelConfig = eqx.field(static=True)
    """Sizes, settings, and how the model is written to disk. The objects above define weights, field and scheme."""
    norm_changes: Norm | None = None
    """Changes of the final norm with the length of steps; `None` if it is the same at any number of steps."""
    probe: Float[Array, "*depth"] | None = None
    """A zero whose derivative is the relative error of the states, where these are reconstructed (`Reconstructing`)."""

    def __check_init__(self) -> None:
        require_sizes(self.field, self.config)

    def __call__(
        self,
        ids: Int[Array, "*batch position"],
        *,
        steps: Steps | EarlyExit | None = None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "*batch position vocabulary"]:
        """Compute the logits of the next token at every position.

        **Arguments:** `ids`, tokens of shape (position,) or (batch, position), at most `config.context` of them;
        `steps`, the number of depth steps, the trained number if not given (or the edges of unequal steps, a `Grid`, or
        an `EarlyExit`); `key` for dropout, `None` outside training.

        **Returns:** float32 logits.

        **Raises:** `BadInput` if `ids` are not tokens of the vocabulary, if the text is longer than the context, or if
        the model cannot run at `steps`.
        """
        return self.unembed(self.hidden(ids, steps=steps, key=key))

    def hidden(
        self,
        ids: Int[Array, "*batch position"],
        *,
        steps: Steps | EarlyExit | None = None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "*batch position width"]:
        """Compute the state at the end of depth, after the final norm: what `unembed` turns into logits.

        **Raises:** `BadInput` for ids that are not of the vocabulary, or `steps` that the model cannot take.
        """
        ids = known_ids(ids, self.embedding.tokens.shape[0], 1, 2)
        x = self.integrate(jnp.atleast_2d(ids), steps=steps, key=key).state
        return self.normalise(x, steps).reshape(*ids.shape, -1)

    def hidden_at_each(
        self, ids: Int[Array, "batch position"], numbers: Sequence[int], *, key: Key[Array, ""] | None = None
    ) -> list[Float[Array, "batch position width"]]:
        """Compute `hidden` at each of several numbers of steps in one pass, for a model with `early_exits`.

        **Arguments:** `numbers`, at least one; `key` for dropout, whose masks are the same for all.

        **Raises:** `BadInput` if the model has no `early_exits`, or if `numbers` is empty.
        """
        if not self.early_exits or not len(numbers):
            why = "none is named" if self.early_exits else "its first steps are not the model of fewer (early_exits)"
            raise BadInput(f"this model is asked for several numbers of steps from one pass, but {why}.")
        numbers = [self.grid(steps).steps for steps in numbers]
        weights, deepest = self.weights, max(numbers)
        if not (isinstance(weights, LayerDropWeights) and weights.landings):
            kept = self.integrate(ids, steps=deepest, key=key, observer=States()).kept
            return [self.normalise(kept[steps - 1], steps) for steps in numbers]
        embedding_key, shared_key, landing_key = (None,) * 3 if key is None else jax.random.split(key, 3)
        x = dropout(self.embed(ids), self.config.dropout.embedding, embedding_key)
        shared, own, states = self.replace(weights=weights.shared), weights.landings, [x]
        if deepest > own:
            states += [*shared.flow(x, steps=deepest - own, key=shared_key, observer=States()).kept]
        found = []
        for steps in numbers:
            landing, before = self.replace(weights=weights.landing(steps)), states[max(steps - own, 0)]
            end = landing.flow(before, steps=min(steps, own), key=landing_key).state
            found.append(self.normalise(end, steps))
        return found

    def trajectory(
        self, ids: Int[Array, "batch position"], *, steps: Steps | None = None
    ) -> Float[Array, "state batch position width"]:
        """Compute the steps + 1 states at depth 0 and after every step, before the final norm. Raises as `hidden`."""
        found = self.integrate(ids, steps=steps, observer=States())
        return jnp.concatenate([self.embed(ids)[None], found.kept])

    def populate(self, steps: Steps | None = None) -> "Transformer":
        """Populate the weights for a grid of `steps` steps, giving an ordinary `steps`-layer model.

        Its output equals this model's at `steps` steps (paper section 6.2). **Raises:** `BadInput` if it cannot.
        """
        grid, section = self.grid(steps), self.config.weights
        if isinstance(self.weights, LayerWeights) and isinstance(section, LayerConfig) and grid == self.grid():
            return self
        weights = populated(self.weights, grid, self.scheme.nodes)
        config = with_steps(self.config, grid.steps)
        # The grid that `first_step` alone describes; any other unequal grid is stored as edges.
        usual = Grid.of(grid.steps, config.first_step)
        config = dataclasses.replace(
            config,
            weights=LayerConfig(rows="step" if weights.nodes is None else "node"),
            modulation=None,
            final_norm_halvings=None,
            tolerance=None,
            first_step=config.first_step if grid == usual else None,
            spacing="equal",
            edges=() if grid in (usual, Grid(grid.steps)) else tuple(grid.edges.tolist()),
        )
        field = self.field
        if not isinstance(self.config.field, OwnConfig) and isinstance(field, TransformerField):
            field = dataclasses.replace(field, output_std=config.field.build(config).output_std)  # of the new horizon
        return self.with_norm_of(grid).replace(weights=weights, field=field, config=config)

    @property
    def continuous(self) -> bool:
        """Whether weights are functions of depth, so that the model runs on any grid, rather than a table of layers."""
        return not isinstance(self.weights, LayerWeights | LayerDropWeights)

    @property
    def early_exits(self) -> bool:
        """Whether N steps are the first N of any larger number, so that one pass reads all depths.

        True for layers of which N steps use the first N, and for shared weights, with the scheme `residual`, whose
        steps do not depend on their number.
        """
        weights = self.weights
        # Exactly these classes: a user's subclass may do something else.
        same = weights.early_exits if type(weights) is LayerDropWeights else type(weights) is SharedWeights
        return same and type(self.scheme) is Residual and self.config.early_exits

    def replace(self, **changes: Any) -> "Transformer":
        """Return the model with the named parts replaced.

        **Raises:** `BadInput` if field and config have other sizes than each other.
        """
        return dataclasses.replace(self, **changes)

    def exact(self) -> "Transformer":
        """Return the model, computing in the precision of its parameters."""
        return self.replace(config=dataclasses.replace(self.config, compute_dtype="float32"))

    def with_norm_of(self, steps: Steps) -> "Transformer":
        """Return the model with the final norm of a reading at `steps`, whatever number of steps it runs."""
        config = dataclasses.replace(self.config, final_norm_halvings=None)
        return self.replace(final_norm=self.norm_at(steps), norm_changes=None, config=config)

    def merge(self) -> "Transformer":
        """Add the low-rank adapters into the matrices; without adapters, return the model itself."""
        return self._with_rows(merge)

    def without_adapters(self) -> "Transformer":
        """Remove the low-rank adapters; without adapters, return the model itself."""
        return self._with_rows(without_adapters)

    def _with_rows(self, change: Callable[[BlockWeights], BlockWeights]) -> "Transformer":
        if not isinstance(self.weights, AdaptableWeights) or self.config.lora is None:
            return self
        config = dataclasses.replace(self.config, weights=dataclasses.replace(self.config.weights, lora=None))
        return self.replace(weights=self.weights.changed(change), config=config)

    def grid(self, steps: Steps | None = None) -> Grid:
        """Return the grid of `steps`: a number, spaced as the config says; the edges of unequal steps; or the training
        grid if not given.

        **Raises:** `BadInput` if `steps` does not describe a grid.
        """
        if isinstance(steps, EarlyExit):
            raise BadInput(f"steps is {steps}, but what is asked for here takes all steps of a grid.")
        return Grid.of_config(self.config, steps)

    def table(self, grid: Grid) -> BlockWeights:
        """Return the weights of all steps of a grid, with leading axes (step, node), in the precision of computation.

        For callers that take steps one by one; in a forward pass, `solve` casts the weights.
        """
        table = self.weights.table(grid, self.scheme.nodes)
        return jax.tree.map(partial(jnp.asarray, dtype=self._compute_dtype), table)

    def embed(
        self, ids: Int[Array, "batch position"], start: int | Int[Array, ""] = 0
    ) -> Float[Array, "batch position width"]:
        """Compute the state at depth 0; `start` is the position of the first token.

        **Raises:** `BadInput` if `ids` are not tokens of the vocabulary or too many for the context.

        States have the precision of the parameters at any depth, whatever the precision of computation: in bfloat16,
        the error of a sum of many small steps would grow with their number.
        """
        ids = known_ids(ids, self.embedding.tokens.shape[0], 2)
        if ids.shape[1] > self.config.context:
            raise BadInput(f"the text has {ids.shape[1]} tokens, but the model's context is {self.config.context}.")
        x = self.embedding(ids, jnp.arange(ids.shape[1], dtype=jnp.int32) + jnp.asarray(start, jnp.int32))
        if self.config.embedding_norm:
            x = unit_rms(x, self.config.norm_epsilon)
        return constrain(x, BATCH)

    def unembed(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch vocabulary"]:
        """Compute logits of normalised states: products in the precision of computation, sums in float32 or better."""
        table, x = self.embedding.tokens if self.head is None else self.head, x.astype(self._compute_dtype)
        return products(x, constrain(table, "tensor"))

    def decode(
        self, ids: Int[Array, "batch position"], cache: KeyValueCache, start: Int[Array, ""]
    ) -> tuple[Float[Array, "batch position vocabulary"], KeyValueCache]:
        """Compute the logits of the tokens `ids`, which follow `start` cached ones, and add them to the cache."""
        at = jnp.asarray(start, jnp.int32) + jnp.arange(ids.shape[1], dtype=jnp.int32)
        mask = jnp.arange(cache.keys.shape[-2], dtype=jnp.int32)[None, :] <= at[:, None]
        solution = self.integrate(ids, cache=cache, window=Window(start, mask))
        assert solution.cache is not None
        return self.unembed(self.normalise(solution.state)), solution.cache

    def empty_cache(self, batch: int, positions: int) -> KeyValueCache:
        """Make a key-value cache for `positions` positions, with one slot per step and attention evaluation."""
        heads, head_width = self.field.key_value_heads
        shape = (self.config.steps, self.scheme.evaluations.attention, batch, heads, positions, head_width)
        zeros = as_bits(jnp.zeros(shape, self._compute_dtype))
        return KeyValueCache(zeros, zeros)

    @property
    def _compute_dtype(self) -> DTypeLike:
        """Precision of activations inside the field and the head, and of the weights that they are multiplied with."""
        return jnp.bfloat16 if self.config.compute_dtype == "bfloat16" else self.embedding.tokens.dtype

    def normalise(
        self, x: Float[Array, "*batch width"], steps: Steps | EarlyExit | None = None
    ) -> Float[Array, "*batch width"]:
        """Apply the final norm to the state of a reading at `steps`, the model's own number if not given."""
        return normalise(self.norm_at(steps), x, self.config.final_norm_epsilon)

    def norm_at(self, steps: Steps | EarlyExit | None = None) -> Norm:
        """Return the final norm of a reading at `steps`; steps of unequal length count as equal ones."""
        if self.norm_changes is None:
            return self.final_norm
        grid = self.grid(steps.steps if isinstance(steps, EarlyExit) else steps)
        return norm_of_length(self.final_norm, self.norm_changes, 1 / grid.steps)

    def integrate(
        self,
        ids: Int[Array, "batch position"],
        *,
        steps: Steps | EarlyExit | None = None,
        key: Key[Array, ""] | None = None,
        observer: Observer | None = None,
        cache: KeyValueCache | None = None,
        window: Window | None = None,
    ) -> Solution:
        """Integrate from the embedding to the end of depth, before the final norm, and count what it costs.

        **Arguments:** `ids`, `steps` and `key` as for the model itself; the others as for `solve`. Raises as `hidden`.
        """
        embedding_key, block_key = (None, None) if key is None else jax.random.split(require_key(key))
        x = self.embed(ids, 0 if window is None else window.start)
        x = dropout(x, self.config.dropout.embedding, embedding_key)
        return self.flow(x, steps=steps, key=block_key, observer=observer, cache=cache, window=window)

    def flow(
        self,
        x: Float[Array, "batch position width"],
        *,
        steps: Steps | EarlyExit | None = None,
        key: Key[Array, ""] | None = None,
        observer: Observer | None = None,
        field: Field | None = None,
        cache: KeyValueCache | None = None,
        window: Window | None = None,
    ) -> Solution:
        """Integrate from any state at depth 0, such as a perturbed embedding, to the end of depth.

        If the config has a tolerance and there are no `steps`, no cache and no observer but `States`, the solver
        chooses its own steps; otherwise the grid is fixed. `field` replaces the model's own, for analyses that compute
        the same in another way. The others are those of `solve`.

        **Raises:** `BadInput` if the model cannot take `steps`, or for an `EarlyExit` with a cache or an observer.
        """
        config, field = self.config, field or self.field
        # States can be read off Diffrax's solution; all other observers need steps that they can see.
        seen = observer is None or isinstance(observer, States)
        if config.tolerance and steps is None and cache is None and seen:
            return solve_adaptively(
                field, self.weights, x, scheme=self.scheme, tolerance=config.tolerance, grid=self.grid(),
                horizon=config.interval, adjoint=self.adjoint, precision=self._compute_dtype,
                first_step=config.first_step, key=key, keep_states=observer is not None,
            )  # fmt: skip
        grid = self.grid(steps.steps if isinstance(steps, EarlyExit) else steps)
        table = self.weights.table(grid, self.scheme.nodes)
        if isinstance(steps, EarlyExit):
            if cache is not None or observer is not None:
                raise BadInput(
                    f"steps is {steps}, but early exit is for a forward pass: it keeps neither states nor a cache."
                )
            return solve_until_settled(
                field, self.scheme, table, x, grid=grid, threshold=steps.threshold, horizon=config.interval,
                normalise=partial(self.normalise, steps=steps), precision=self._compute_dtype, key=key,
            )  # fmt: skip
        return solve(
            field, self.scheme, table, x, grid=grid, horizon=config.interval, precision=self._compute_dtype,
            adjoint=self.adjoint, observer=observer, key=key, cache=cache, window=window,
        )  # fmt: skip

    @property
    def adjoint(self) -> Adjoint:
        """What the backward pass keeps: the config's choice, or the default for the scheme."""
        usual: Adjoint = Reconstructing() if isinstance(self.scheme, Reversible) else Checkpointed()
        adjoint = self.config.gradient.build() if self.config.gradient else usual
        # The config builds it without the probe, an array that exists only during an update.
        return Reconstructing(self.probe) if isinstance(adjoint, Reconstructing) else adjoint
