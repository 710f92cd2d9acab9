"""`bench schemes`: measured and predicted cost of a training update by each scheme."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffeqformer.config import Config, LayerConfig, ModelConfig, TrainerConfig, with_values
from diffeqformer.progress import Progress
from diffeqformer.studies.bench import benchmark as b
from diffeqformer.studies.study import Result

if TYPE_CHECKING:
    from jax import Array

    from diffeqformer.training.update import State

STANDARD = Config(
    model=ModelConfig(weights=LayerConfig(), width=128, steps=6, heads=4, context=128, vocabulary=2048),
    trainer=TrainerConfig(batch_size=16, updates=1000),
)
"""The quickstart's size. Layer weights have the same parameters for every scheme, so that the optimiser's part of an
update is the same."""
HAND_WRITTEN = "euler, hand-written"
BASES = ("euler", "heun")
"""Schemes with one and two NFE per step: their difference is the cost of `steps` evaluations."""


@dataclass(frozen=True)
class Arguments(b.Timed):
    """Time an update by each scheme, beside what its NFE predicts, and Euler's written by hand.

    Example: diffeqformer bench schemes --to benchmarks/schemes.json
    """


def study(arguments: Arguments, progress: Progress) -> Result:
    """Time the update of `STANDARD` by all schemes of this library, and some of Diffrax's."""
    rows = compare_schemes(STANDARD, arguments.rounds, progress, all_schemes())
    return BENCHMARK.measured(arguments, sizes=b.sizes(STANDARD), rows=rows)


def all_schemes() -> tuple[str, ...]:
    """Return the names of the schemes that are timed."""
    from diffeqformer.ode.schemes import SCHEMES

    return (*(name for name in SCHEMES if ":" not in name), "diffrax:Bosh3", "diffrax:Tsit5")


def compare_schemes(config: Config, rounds: int, progress: Progress, schemes: Sequence[str]) -> list[b.Document]:
    """Time one update by each scheme, and a hand-written one by Euler's method, in turns.

    An update is predicted to cost `T(euler) + (T(heun) - T(euler)) (F - F(euler)) / (F(heun) - F(euler))`, with T
    median seconds and F operations of a forward pass: embedding, loss and optimiser cost the same by all schemes. For a
    Runge-Kutta method the fraction is the number of its evaluations per step, less one.

    **Arguments:** `config`, of `layer` weights; `schemes`, the names, with both of `BASES`.

    **Returns:** one row per scheme: NFE of a forward pass, the numbers of `summary` (ratios to Euler's), the predicted
    ratio, and the measured ratio over the predicted one (`None` for `BASES`, whose are 1).
    """
    from diffeqformer.model.count import flops

    configs = {name: with_values(config, {"model.scheme": name}) for name in schemes}
    updates = {HAND_WRITTEN: b.repeated(configs["euler"], hand_written_update)}
    updates |= {name: b.repeated(one) for name, one in configs.items()}
    seconds = b.take_turns(updates, rounds, progress)
    configs = {HAND_WRITTEN: configs["euler"], **configs}
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    operations = {name: flops(one.model).inference_per_token for name, one in configs.items()}

    def row(name: str) -> b.Document:
        more = (operations[name] - operations["euler"]) / (operations["heun"] - operations["euler"])
        predicted = 1 + (medians["heun"] / medians["euler"] - 1) * more
        found = b.summary(seconds[name], seconds["euler"])
        return {
            "scheme": name,
            "evaluations": configs[name].model.scheme.build().evaluations.times(config.model.steps)._asdict(),
            **found,
            "predicted_ratio": predicted,
            "measured_over_predicted": None if name in BASES else found["ratio_of_medians"] / predicted,
        }

    return [row(name) for name in updates]


def hand_written_update(config: Config) -> "Callable[[State, Array], tuple[State, Array]]":
    """Compile the update `(state, ids) -> (state, loss)` of a GPT with `layer` weights by scheme `euler`.

    It is what one would write by hand for a stack of parallel blocks: a scan over the layers, without schemes, nodes or
    a choice of gradient. The field's two halves, the parameters and AdamW are the library's, so that the only
    difference is the computation from the layers' weights to the last state.
    """
    import jax
    import jax.numpy as jnp
    import optax
    from jax import Array

    from diffeqformer.model.transformer import Transformer
    from diffeqformer.nn.linear import normalise
    from diffeqformer.ode.weights import LayerWeights
    from diffeqformer.training.optimizer import learning_rate, optimizer
    from diffeqformer.training.update import State

    m, rule = config.model, optimizer(config.optimizer, learning_rate(config.optimizer, config.trainer.updates))
    field, dt = m.field.build(m), m.interval / m.steps

    def loss_of(model: Transformer, ids: Array) -> Array:
        def layer(x: Array, weights: object) -> tuple[Array, None]:
            return x + dt * (field.attention(weights, x)[0] + field.feed_forward(weights, x)), None  # pyright: ignore

        assert isinstance(model.weights, LayerWeights)
        x = model.embedding(ids[:, :-1], jnp.arange(ids.shape[1] - 1))
        # As in `Checkpointed`, so that both recompute each layer in the backward pass.
        x, _ = jax.lax.scan(jax.checkpoint(layer, prevent_cse=False), x, model.weights.layers)
        x = normalise(model.final_norm, x, m.norm_epsilon).reshape(-1, m.width)
        logits = x @ model.embedding.tokens.T
        at_target = jnp.take_along_axis(logits, ids[:, 1:].reshape(-1, 1), axis=-1)[:, 0]
        return (jax.nn.logsumexp(logits, axis=-1) - at_target).mean()

    def update(state: State, ids: Array) -> tuple[State, Array]:
        loss, gradient = jax.value_and_grad(loss_of)(state.model, ids)
        with jax.numpy_dtype_promotion("standard"):  # Optax is not written for strict promotion
            changes, moments = rule.update(gradient, state.optimizer, state.model)  # pyright: ignore
        return State(optax.apply_updates(state.model, changes), moments, state.step + 1), loss  # pyright: ignore

    return jax.jit(update, donate_argnums=0)


BENCHMARK = b.Benchmark(
    "schemes",
    "Schemes",
    "One update by each scheme, compared with Euler's, and with what its NFE (of attention and feed-forward) predicts "
    "from the medians of Euler and Heun. The hand-written update uses none of this library's solver.",
    b.times_over("euler", b.entry("scheme")),
    b.timed_table(
        "Training update by scheme: {sizes}",
        {"scheme": b.entry("scheme"), "NFE": "{0[evaluations][attention]} + {0[evaluations][feed_forward]}".format},
        {"predicted": b.entry("predicted_ratio", 3), "measured / predicted": b.entry("measured_over_predicted", 3)},
    ),
)
