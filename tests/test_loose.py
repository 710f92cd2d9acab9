"""What Python lets through and this project's type checks, which all other tests have, do not: NumPy's numbers where
whole numbers and floats are asked for, paths for texts, misspelt words. A process of its own meets them as users do.
"""

import dataclasses
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

REFUSED = {
    "compute_dtype": "model.compute_dtype is 'bf16', but must be one of 'float32', 'bfloat16'.",
    "basis": "model.weights.basis is 'cubik', but must be one of 'hat', 'cubic', 'box'.",
    "steps": "model.steps is '3', but must be a whole number.",
    "tolerance": "model.tolerance is 0.01, but must be a table of settings.",
    "together": "depth.together is 'row', but must be one of 'one', 'rows'.",
    "train": "data.train is 'bottles.txt', but must be a list.",
    "rule": "optimizer.rule is 'sgd', but must be one of 'adamw', 'muon', 'adafactor', 'lion'.",
    "train_roles": "optimizer.train_roles[0] is 'mat', but must be one of 'embedding', 'matrix',",
    "updates": "trainer.updates is 2.0, but must be a whole number.",
    "weights": "weights is 'heun', but must be an object with the methods of WeightSource.",
    "class": "but must be an object with the methods of Scheme.",
    "half a scheme": "but must be an object with the methods of Scheme; it has no evaluations, nodes.",
    "build without return": "`build` returned None, but must return a model, as `diffeqformer.build` does.",
    "new_tokens": "the number of new tokens is 2.5, but must be a whole number.",
    "top_k": "top-k is 2.5, but must be a whole number.",
    "variant": "variant is 'spheres', but must be one of 'particles',",
    "order": "order is -1, but must be at least 0.",
    "points": "points is 1, but must be at least 2.",
    "dt": "dt is 0.0, but must be a positive number.",
    "no dt": "dt is None, but must be a positive number.",
    "word for a unit": "unit is '1', but must be a positive number.",
    "seed for the key of networks": "key is 0, but must be a random key, such as jax.random.key(0).",
    "kind": "kind is 'spline', but must be 'knots' or 'time'.",
    "knots": "knots is 1.5, but must be a whole number.",
    "unread": "knots is 2, but only the weights 'knots' read it.",
    "samples": "samples is 0, but must be at least 1.",
    "float ids": "token ids are float32, but must be whole numbers.",
    "ids": "token id 41 does not exist: the model's vocabulary has 40 entries, 0 to 39.",
    "axes": "ids have the shape (1, 2, 4), but must have (position,) or (batch, position), none of them 0.",
    "no tokens": "ids have the shape (2, 0), but must have",
    "traced": "steps is traced, but decides which program is compiled:",
    "no steps": "but must be a whole number of at least 1.",
    "edges": "a grid has 2 steps and 2 edges, but must have an edge more than steps.",
    "edges back": "the times between steps are [0.0, 2.0, 1.0], but must rise from 0 to 1.",
    "an edge": "edges are 0.5, but must be times on one axis, such as (0, 0.3, 1).",
    "word for edges": "edges are '012', but must be times on one axis, such as (0, 0.3, 1).",
    "name of a scheme": "scheme is 'strang', but must be a scheme, such as SCHEMES['strang'].",
    "no steps to solve": "steps is 0, but must be a whole number of at least 1.",
    "most steps": "steps is 20000, but must be at most 16384.",
    "bool steps": "steps is True, but must be a whole number of at least 1.",
    "threshold": "the threshold of early exit is nan, but must be a number, and not negative.",
    "numpy threshold": "the threshold of early exit is np.float32(-1.0), but must be a number, and not negative.",
    "word threshold": "the threshold of early exit is 'a', but must be a number, and not negative.",
    "wrapped id": "token id 4294967303 does not exist",
    "last target": "token id -20 does not exist",
    "one token": "the text has 1 token, but must have at least 2, of which the second is predicted.",
    "mask of weights": "the mask is float32 of the shape (2, 12), but must be bool of the shape (2, 12): true where",
    "mask of another shape": "the mask is bool of the shape (12, 2), but must be bool of the shape (2, 12)",
    "evaluated mask": "the mask is bool of the shape (12, 2), but must be bool of the shape (2, 12)",
    "attributed id": "token id 41 does not exist",
    "pairwise id": "token id -1 does not exist",
    "watched id": "token id 41 does not exist",
    "induction": "token id 49 does not exist",
    "exported model": "run is Transformer, but must be a run as load_run opens it, whose tokenizer goes with its",
    "pieces": "tokens has 1 pieces, but the text has 4 tokens.",
    "no outputs": "outputs is empty, but must name at least one of the text's tokens, 0 to 3.",
    "half an output": "an output is 2.0, but must be a whole number.",
    "prompt of one axis": "ids have the shape (4,), but must have (batch, position), none of them 0.",
    "ragged prompts": "ids have rows of different lengths, but a batch has rows of one length.",
    "word for a temperature": "temperature is 'warm', but must be a number.",
    "no temperature": "temperature is None, but must be a number.",
    "word for a top-p": "top-p is '0.5', but must be a number.",
    "no block": "block is 0, but must be at least 1.",
    "no prompts": "the prompt is empty, but must have at least one token.",
    "trajectory of one text": "ids have the shape (4,), but must have (batch, position), none of them 0.",
    "scheme": "but must be an object with the methods of Scheme.",
    "flow": "dt is 0.0, but must be a number other than 0.",
    "flow of whole numbers": "the state is int32 of the shape (2,), but must be real numbers of at least 32 bits on",
    "flow of 16 bits": "the state is bfloat16 of the shape (2,), but must be real numbers of at least 32 bits on",
    "flow of two axes": "the state is float32 of the shape (2, 2), but must be real numbers of at least 32 bits on",
    "mask of one axis": "the mask is bool of the shape (3,), but must be bool of the shape (1, 2).",
    "listed mask of weights": "the mask is int64 of the shape (1, 2), but must be bool of the shape (1, 2).",
    "checkpoint": "checkpoint is 'Best', but must be one of latest, best, sound.",
    "method": "method is 'adapter', but must be one of lora, full, continuous, levels.",
    "tuned steps": "steps is [0, 0.1, 1], but must be a whole number.",
    "count": "count is 0, but must be at least 1.",
    "NaN": "the model's logits are not finite",
    "trajectory": "it keeps neither states nor a cache.",
    "populate": "what is asked for here takes all steps of a grid.",
    "whole config": "config is a Config, but must be a ModelConfig, such as the `model` of a Config.",
    "no exits": "several numbers of steps from one pass, but its first steps are not the model of fewer (early_exits).",
    "exit after none": "steps is 0, but must be a whole number of at least 1.",
    "float candidates": "token ids are float64, but must be whole numbers.",
    "candidates": "candidates name a token more than once, but those of a sequence are different.",
    "float tokens": "tokens are float64, but must be whole numbers.",
    "listed tokens": "tokens are [0, 1, 2], but must be an array of whole numbers.",
    "wide tokens": "tokens go from 4294967296 to 4294967335, but must be from 0 to 2147483647.",
    "no batch": "batch_size is 0, but must be at least 1.",
    "name for a config": "config is 'quickstart-gpt', but must be a Config, such as `read_yaml` makes of a file.",
    "model for a config": "config is a ModelConfig, but must be a Config, such as `read_yaml` makes of a file.",
    "counted config": "config is a Config, but must be a ModelConfig, such as the `model` of a Config.",
    "counted model": "config is a Transformer, but must be a ModelConfig, such as the `model` of a Config.",
    "twin of a config": "config is a Config, but must be a ModelConfig, such as the `model` of a Config.",
    "scheme for its section": "scheme is a RungeKutta, but must be a SchemeConfig or a ReversibleConfig; `build` takes",
    "weights for their section": "weights is a TimeWeights, but must be a TimeConfig or",
    "seed for a key": "key is 0, but must be a random key, such as jax.random.key(0).",
    "seed for the key of new tokens": "key is 0, but must be a random key, such as jax.random.key(0).",
    "seed for the key of drafts": "key is 0, but must be a random key, such as jax.random.key(0).",
    "seed for the key of dropout": "key is 0, but must be a random key, such as jax.random.key(0).",
    "tokens for a text": "the prompt is [3], but must be text.",
    "key for a seed": "but must be a whole number.",
    "rule of ones own": "the rule of your own gives 3, but must give a gradient transformation of Optax.",
    "way back": "model.gradient is 'reversible', but the scheme Forward cannot run back",
}
"""What its message holds, by the thing that is wrong."""


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What this file, run as a program, says of each."""
    done = subprocess.run([sys.executable, "-m", "tests.test_loose"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("thing", REFUSED)
def test_it_is_refused_by_name(said, thing):
    assert REFUSED[thing] in said[thing]


SAME = (
    "config", "list", "generate", "speculate", "grid", "evaluate", "pairwise", "outputs", "lists", "list of edges",
    "trained edges", "flow of a list", "listed mask", "sum of lengths", "whole", "known threshold",
    "lists of the loss", "narrow ids", "counted edges", "number for a grid", "length of sequences",
    "length of contexts", "traced edge",
)  # fmt: skip
"""What is taken as what it stands for."""


@pytest.mark.parametrize("thing", SAME)
def test_numbers_of_numpy_and_paths_are_taken_as_what_they_stand_for(said, thing):
    assert said[thing] == "the same"


def _say() -> dict[str, str]:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    from diffeqformer import (
        BadInput,
        Config,
        DataConfig,
        DepthConfig,
        EarlyExit,
        Grid,
        KnotsConfig,
        OneStep,
        OptimizerConfig,
        TrainerConfig,
        abstract,
        at_depths,
        attribute,
        build,
        continue_text,
        evaluate,
        export,
        finetune_config,
        flops,
        flow_exponents,
        generate,
        lift,
        load_run,
        measure_induction,
        next_token_loss,
        pairwise,
        simulate,
        speculate,
        validate,
        vanilla_twin,
        with_scheme,
    )  # fmt: skip
    from diffeqformer.analysis import faithfulness
    from diffeqformer.analysis.gathering import watch_states
    from diffeqformer.analysis.participation import participation
    from diffeqformer.config import dump_yaml
    from diffeqformer.config.files import read_yaml
    from diffeqformer.data.loader import EvaluationBatches
    from diffeqformer.data.tokenizer import train_tokenizer
    from diffeqformer.ode.schemes.splitting import LieTrotter
    from diffeqformer.ode.solve import solve
    from diffeqformer.ode.solvers import SchemeSolver
    from diffeqformer.training.optimizer import optimizer
    from tests.models import KINDS, TINY, model_of, tokens

    found, key, model, ids = {}, jax.random.key(0), model_of(TINY), tokens(positions=4)
    batch = np.asarray(tokens(2, 13)), np.ones((2, 12), bool)

    def refused(thing, call):
        try:
            call()
        except BadInput as error:
            found[thing] = str(error)
        else:
            found[thing] = "not refused"

    def same(thing, *each):
        equal = all(np.array_equal(np.asarray(one), np.asarray(each[0])) for one in each)
        found[thing] = "the same" if equal else f"not the same: {each}"

    half = type("Half", (OneStep,), {"order": 1, "advance": lambda self, field, x, dt: x})()
    wrong = {
        "compute_dtype": {"compute_dtype": "bf16"}, "basis": {"weights": KnotsConfig(basis="cubik")},
        "steps": {"steps": "3"}, "tolerance": {"tolerance": 1e-2},
    }  # fmt: skip
    for thing, settings in wrong.items():
        config = dataclasses.replace(TINY, **settings)
        refused(thing, lambda config=config: validate(Config(model=config)))
        message = found[thing]
        refused(thing, lambda config=config: build(config, key))
        found[thing] = message if message == found[thing] else f"{message} / {found[thing]}"
    refused("together", lambda: validate(Config(depth=DepthConfig(sample=(1, 2), together="row"))))
    refused("train", lambda: validate(Config(data=DataConfig(source="files", train="bottles.txt"))))
    refused("rule", lambda: validate(Config(optimizer=OptimizerConfig(rule="sgd"))))
    refused("train_roles", lambda: validate(Config(optimizer=OptimizerConfig(train_roles=("mat",)))))
    refused("updates", lambda: validate(Config(trainer=TrainerConfig(updates=2.0))))
    refused("weights", lambda: build(TINY, key, weights="heun"))
    refused("class", lambda: build(TINY, key, scheme=type(model.scheme)))
    refused("half a scheme", lambda: build(TINY, key, scheme=half))
    refused("build without return", lambda: abstract(TINY, lambda config, key: None))
    refused("new_tokens", lambda: generate(model, ids, 2.5, key=key))
    refused("top_k", lambda: generate(model, ids, 2, key=key, top_k=2.5))
    for thing, value in {"variant": "spheres", "order": -1, "points": 1, "dt": 0.0}.items():
        refused(thing, lambda own={thing: value}: simulate(**({"variant": "sphere", "order": 1} | own)))
    refused("no dt", lambda: simulate("sphere", 1, dt=None))
    refused("word for a unit", lambda: simulate("sphere", 1, unit="1"))
    table = model_of(KINDS["vanilla"])
    refused("seed for the key of networks", lambda: lift(table, "time", key=0))
    refused("kind", lambda: lift(table, "spline", key=key))
    refused("knots", lambda: lift(table, knots=1.5, key=key))
    refused("unread", lambda: lift(table, "time", knots=2, key=key))
    refused("samples", lambda: measure_induction(model, length=2, repeats=2, samples=0))
    refused("float ids", lambda: model(ids.astype(jnp.float32)))
    refused("axes", lambda: model(ids[None]))
    refused("no tokens", lambda: model(ids[:, :0]))
    same("list", model(ids), model(ids.tolist()))
    refused("ids", lambda: at_depths(model, [(np.full_like(batch[0], 41), batch[1])], [2]))
    refused("traced", lambda: eqx.filter_jit(model)(ids, steps=np.int64(2)))
    refused("no steps", lambda: at_depths(model, [batch], np.array([0])))
    refused("edges", lambda: Grid(2, (0.0, 1.0)))
    refused("edges back", lambda: model(ids, steps=Grid(2, [0.0, 2.0, 1.0])))
    refused("an edge", lambda: Grid(2, 0.5))
    refused("word for edges", lambda: Grid(2, "012"))
    refused("name of a scheme", lambda: SchemeSolver("strang"))
    solve_in = lambda grid: solve(model.field, model.scheme, three, model.embed(ids), grid=grid, horizon=1.0).state
    three = model.weights.table(Grid(3))
    refused("no steps to solve", lambda: solve_in(0))
    same("number for a grid", *map(solve_in, (Grid(3), 3, np.int64(3))))
    refused("most steps", lambda: Grid(20_000))
    refused("bool steps", lambda: Grid(True))
    refused("threshold", lambda: model(ids, steps=EarlyExit(4, float("nan"))))
    refused("numpy threshold", lambda: model(ids, steps=EarlyExit(4, np.float32(-1))))
    refused("word threshold", lambda: model(ids, steps=EarlyExit(4, "a")))
    refused("wrapped id", lambda: model(np.array([[2**32 + 7, 3]])))
    texts, beyond = jnp.asarray(batch[0]), np.array([0, 1, 41, 2])
    refused("last target", lambda: next_token_loss(model, texts.at[0, -1].set(-20)))
    refused("one token", lambda: next_token_loss(model, texts[:, :1]))
    refused("mask of weights", lambda: next_token_loss(model, texts, jnp.full((2, 12), 0.5)))
    refused("mask of another shape", lambda: next_token_loss(model, texts, jnp.ones((12, 2), bool)))
    refused("evaluated mask", lambda: evaluate(model, [(batch[0], batch[1].T)]))
    refused("attributed id", lambda: attribute(model, beyond, [3], points=2))
    refused("pairwise id", lambda: pairwise(model, np.array([0, -1]), [1]))
    refused("watched id", lambda: watch_states(model, beyond[None]))
    refused("induction", lambda: measure_induction(model, candidates=np.arange(45, 50), length=3, repeats=2, samples=9))
    refused("pieces", lambda: attribute(model, ids[0], [3], points=2, tokens=["a"]))
    refused("no outputs", lambda: attribute(model, ids[0], [], points=2))
    refused("half an output", lambda: pairwise(model, ids[0], [2.0]))
    refused("prompt of one axis", lambda: generate(model, ids[0], 2, key=key))
    refused("ragged prompts", lambda: generate(model, [[1, 2], [3]], 2, key=key))
    refused("word for a temperature", lambda: generate(model, ids, 2, key=key, temperature="warm"))
    refused("no temperature", lambda: generate(model, ids, 2, key=key, temperature=None))
    refused("word for a top-p", lambda: generate(model, ids, 2, key=key, top_p="0.5"))
    refused("no block", lambda: next_token_loss(model, texts, block=0))
    refused("no prompts", lambda: generate(model, ids[:0], 2, key=key))
    refused("trajectory of one text", lambda: model.trajectory(ids[0]))
    refused("scheme", lambda: with_scheme(model, 3))
    refused("flow", lambda: flow_exponents(lambda t, x: x, jnp.ones(2), dt=0.0, steps=2))
    refused("flow of whole numbers", lambda: flow_exponents(lambda t, x: x, jnp.array([1, 2]), dt=0.1, steps=2))
    narrow = jnp.ones(2, jnp.bfloat16)
    refused("flow of 16 bits", lambda: flow_exponents(lambda t, x: x, narrow, dt=0.1, steps=2))
    refused("flow of two axes", lambda: flow_exponents(lambda t, x: x, jnp.ones((2, 2)), dt=0.1, steps=2))
    refused("mask of one axis", lambda: participation(model, [[3, 4, 5]], np.ones(3, bool)))
    refused("listed mask of weights", lambda: participation(model, [[3, 4, 5]], [[2, 0]]))
    refused("exported model", lambda: export(model, "nowhere"))
    refused("checkpoint", lambda: load_run("nowhere", "Best"))
    base = SimpleNamespace(model=model, config=Config(model=TINY))
    refused("method", lambda: finetune_config(base, "tuned", method="adapter"))
    refused("tuned steps", lambda: finetune_config(base, "tuned", steps=[0, 0.1, 1]))
    refused("count", lambda: continue_text(model, train_tokenizer(["a"], 257), "a", count=0))
    broken = table.replace(final_norm=jax.tree.map(lambda x: x * jnp.nan, table.final_norm))
    refused("NaN", lambda: lift(broken, key=key))
    refused("trajectory", lambda: model.trajectory(ids, steps=EarlyExit(4, 0.1)))
    refused("populate", lambda: model.populate(EarlyExit(4, 0.1)))
    refused("whole config", lambda: build(Config(), key))
    refused("no exits", lambda: model.hidden_at_each(ids, [1, 2]))
    exits = model_of(dataclasses.replace(TINY, weights="shared", scheme="residual"))
    refused("exit after none", lambda: exits.hidden_at_each(ids, [2, 0]))
    few = {"length": 3, "repeats": 2, "samples": 9}
    refused("float candidates", lambda: measure_induction(model, candidates=[1.5, 2.5, 3.5], **few))
    refused("candidates", lambda: measure_induction(model, candidates=[1, 1, 1], **few))
    refused("float tokens", lambda: EvaluationBatches(np.arange(40) * 1.5, 8, 2))
    refused("listed tokens", lambda: EvaluationBatches([0, 1, 2], 2, 1))
    refused("wide tokens", lambda: EvaluationBatches(np.arange(40) + 2**32, 8, 2))
    refused("no batch", lambda: EvaluationBatches(np.arange(40), 8, 0))
    back = dataclasses.replace(TINY, weights="shared", scheme="reversible", gradient="reversible")
    refused("name for a config", lambda: validate("quickstart-gpt"))
    refused("model for a config", lambda: validate(TINY))
    refused("counted config", lambda: flops(Config()))
    refused("counted model", lambda: flops(model))
    refused("twin of a config", lambda: vanilla_twin(Config()))
    refused("scheme for its section", lambda: dataclasses.replace(TINY, scheme=model.scheme))
    refused("weights for their section", lambda: dataclasses.replace(TINY, weights=model.weights))
    refused("seed for a key", lambda: build(TINY, 0))
    refused("seed for the key of new tokens", lambda: generate(model, ids, 2, key=0))
    refused("seed for the key of drafts", lambda: speculate(model, model, ids, 2, key=0))
    refused("seed for the key of dropout", lambda: model(ids, key=0))
    refused("tokens for a text", lambda: continue_text(model, train_tokenizer(["a"], 257), [3]))
    refused("key for a seed", lambda: continue_text(model, train_tokenizer(["a"], 257), "a", seed=key))
    refused("rule of ones own", lambda: optimizer(OptimizerConfig(), lambda step: 1e-3, lambda config, rate: 3))
    refused("way back", lambda: build(back, key, scheme=type("Forward", (LieTrotter,), {})()))

    own = dataclasses.replace(TINY, width=np.int64(16), edges=np.array([0, 0.25, 0.5, 1.0]))
    settings = {"learning_rate": np.geomspace(1e-4, 1e-2, 3)[1], "b2": jnp.float32(0.5)}
    data = DataConfig(source="files", train=(Path("text.txt"),))
    given = validate(Config(run=Path("runs/a"), model=own, data=data, optimizer=OptimizerConfig(**settings)))
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(dump_yaml(given))
        found["config"] = "the same" if read_yaml(path) == given and given.run == "runs/a" else repr(given)

    usual, choice = {"temperature": 0.5, "top_k": 4, "top_p": 0.75}, {"top_k": np.int64(4), "top_p": jnp.float32(0.75)}
    choice["temperature"] = np.float64(0.5)
    one, other = generate(model, ids, 3, key=key, **usual), generate(model, ids, np.int64(3), key=key, **choice)
    same("generate", one, other)
    draft = lambda number, length: speculate(model, model, ids, number, key=key, draft_length=length, **usual).tokens
    same("speculate", draft(3, 2), draft(np.int32(3), np.int64(2)))
    same("grid", *(Grid.of(three).edges for three in (3, np.int64(3), np.array(3), jnp.int32(3))))
    same("evaluate", *(at_depths(model, [batch], depths)[0].loss for depths in ([2], np.array([2]))))
    unequal = (0.0, 0.25, 1.0)
    uneven = model_of(dataclasses.replace(TINY, steps=2, edges=unequal))
    same("trained edges", *(uneven.grid(two).edges for two in (None, 2, np.int64(2), np.array(2), jnp.asarray(2))))
    listed, state = ([1.0, 2.0], jnp.array([1.0, 2.0]))
    same("flow of a list", *(flow_exponents(lambda t, x: -x, one, dt=0.1, steps=2) for one in (listed, state)))
    copies = {"sequences": 2, "repeats": 2, "samples": 9}
    same("length of sequences", *(measure_induction(model, length=n, **copies).loss_later for n in (3, np.int64(3))))
    flat = SimpleNamespace(scores={method: np.ones((1, 3)) for method in faithfulness.METHODS})
    faithfulness.explain = lambda *_, **__: flat
    tested = partial(faithfulness.faithfulness, model, np.arange(30), contexts=2, draws=1)
    same("length of contexts", *(tested(length=n).deletion for n in (3, np.int64(3))))
    masks = ([[True, False]], np.array([[True, False]]))
    same("listed mask", *(participation(model, [[3, 4, 5]], mask).loss for mask in masks))
    edges = [pairwise(model, ids[0], [3], steps=one, iterations=0).exponents for one in (unequal, np.array(unequal))]
    number = [pairwise(model, ids[0], [3], steps=one, iterations=0).exponents for one in (2, np.int64(2))]
    same("pairwise", *edges)
    if found["pairwise"] == "the same":
        same("pairwise", *number)
    some = [pairwise(model, ids[0], own, iterations=0).exponents for own in ([0, 3], np.array([0, 3]))]
    same("outputs", *map(np.nan_to_num, some))
    same("lists", generate(model, ids, 2, key=key), generate(model, ids.tolist(), 2, key=key))
    same("lists of the loss", *(next_token_loss(model, *one) for one in (batch, [one.tolist() for one in batch])))
    many = build(dataclasses.replace(TINY, vocabulary=1000, init_std=0.5), key)
    prompts = [ids.astype(dtype) for dtype in (jnp.int32, jnp.int8, jnp.uint8)]
    same("narrow ids", *(speculate(many, many, one, 3, key=key, temperature=0).tokens for one in prompts),
         *(generate(many, one, 3, key=key, temperature=0) for one in prompts))  # fmt: skip
    given = [model.populate(Grid(2, own)) for own in ((0.0, 0.5, 1.0), [0.0, 0.5, 1.0], jnp.array([0, 0.5, 1.0]))]
    same("list of edges", *(one(ids) for one in given))
    inner = (lambda t: Grid.of((0, t, 1)), lambda t: Grid(2, [0.0, t, 1.0]), lambda t: Grid.of(jnp.array([0, t, 1])))
    same("traced edge", *(jax.jit(lambda t, of=of: of(t).times())(0.3) for of in inner))
    sums = np.cumsum([0, *[1 / 9] * 9])
    same("counted edges", *(flops(dataclasses.replace(own, edges=given)) for given in (own.edges, own.edges.tolist())))
    same("sum of lengths", Grid(np.int64(9), sums).edges, Grid.of(sums).edges, Grid(9).edges)
    number, stop = Grid(np.int64(3)).steps, jnp.float32(0.1)
    found["whole"] = "the same" if type(number) is int else f"{type(number)}"
    stopped = jax.jit(lambda i: model(i, steps=EarlyExit(4, stop)))(ids)
    near = np.allclose(stopped, model(ids, steps=EarlyExit(4, stop)), atol=1e-4)
    found["known threshold"] = "the same" if near else "another"
    return found


if __name__ == "__main__":
    json.dump(_say(), sys.stdout)
