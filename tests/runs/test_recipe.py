"""Ideas of one's own in a run: optimisers, schedules, averages, callbacks, batches, text; each resumes to the bit."""

import json
import math
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from diffeqformer.config import EMAConfig, KnotsConfig, LastConfig, LoRAConfig
from diffeqformer.data.corpus import Corpus
from diffeqformer.data.split import Part
from diffeqformer.data.stream import Stream
from diffeqformer.errors import BadInput, Interrupted, RunFailed
from diffeqformer.model.build import build
from diffeqformer.progress import Silent
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.metrics import read_metrics
from diffeqformer.runs.opening import load_run
from diffeqformer.runs.results import read_results
from diffeqformer.runs.resume import ResumeState
from diffeqformer.runs.sampling import continue_text
from diffeqformer.runs.trainer import train
from diffeqformer.store.files import read_sealed, write_sealed
from diffeqformer.studies.run_report import run_report
from diffeqformer.training.recipe import Callback, Recipe
from tests.runs.test_trainer import Lines, lasting, same_model
from tests.runs.tiny_run import changed


class StopAt(Callback):
    """Stops as soon as so many updates are done."""

    def __init__(self, step: int):
        self.step = step

    def after_update(self, now, measured):
        if now.step == self.step:
            now.stop("that is enough")


def whole_and_resumed(config, tmp_path, recipe=None, at: int = 6):
    """A run that was never stopped, and one that was stopped once and went on."""
    make = recipe or Recipe
    whole = train(changed(config, run=str(tmp_path / "whole")), Silent(), recipe=make())
    stopping = make()
    with pytest.raises(Interrupted, match=rf"stopped at update {at} of 12 \(that is enough\)"):
        train(config, Silent(), recipe=Recipe(
            stopping.rule, stopping.schedule, stopping.batches, stopping.corpus, (*stopping.callbacks, StopAt(at))
        ))  # fmt: skip
    resumed = train(config, Silent(), recipe=make())
    assert lasting(config.run) == lasting(tmp_path / "whole")
    assert same_model(resumed.model, whole.model)
    return whole


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "adafactor", "schedule": "linear", "average": LastConfig(4), "spike": 1.5},
        {"rule": "muon", "schedule": "trapezoidal", "average": EMAConfig(0.8)},
    ],
)
def test_rules_averages_and_the_guard_resume_to_the_bit(config, tmp_path, settings):
    config = changed(config, **{f"optimizer__{name}": value for name, value in settings.items()})
    whole = whole_and_resumed(config, tmp_path, at=9)
    items = {path.name for path in (Path(config.run) / "checkpoints/12").iterdir()}
    assert items == {"manifest.json", "model", "optimizer", "trained"}
    assert same_model(load_run(config.run).model, whole.model)
    records = [record for record in lasting(config.run) if record["kind"] == "update"]
    assert all(("skipped" in record) == ("spike" in settings) for record in records)


def test_what_is_evaluated_and_kept_is_the_average(config, tmp_path):
    plain = train(changed(config, run=str(tmp_path / "plain")), Silent())
    averaged = train(changed(config, optimizer__average=EMAConfig(0.9)), Silent())
    losses = lambda folder: [record["loss"] for record in lasting(folder) if record["kind"] == "update"]
    assert losses(config.run) == losses(tmp_path / "plain")  # it is not what is trained
    assert averaged.entry["validation"]["loss"] != plain.entry["validation"]["loss"]
    last = {name: Checkpoints(tmp_path / name / "checkpoints") for name in ("run", "plain")}
    assert last["run"].steps()[-1] == last["plain"].steps()[-1] == 12
    assert same_model(load_run(config.run).model, averaged.model) and not same_model(averaged.model, plain.model)


class OneOdd:
    """The same batch again and again, but for one."""

    def __init__(self, config, tokens):
        self.shape = (config.trainer.batch_size, config.model.context + 1)

    def __getitem__(self, k):
        return np.full(self.shape, 70 if k == 9 else 5, np.int32)


def test_a_spike_is_reported_and_changes_nothing(config, monkeypatch):
    monkeypatch.setattr("diffeqformer.training.optimizer.WARMING", 3)
    said = Lines()
    train(changed(config, optimizer__spike=1.2, optimizer__learning_rate=0.1), said, recipe=Recipe(batches=OneOdd))
    assert [r["step"] for r in lasting(config.run) if r.get("skipped")] == [10]
    (told,) = (line for line in said.lines if "changed nothing" in line)
    assert told.startswith("Update 10 changed nothing: its gradient, of norm ")


class Watch(Callback):
    """Sees and logs everything, and remembers how often it was asked."""

    def __init__(self):
        self.calls, self.seen = 0, []

    def before_update(self, step):
        self.seen.append(("before", step))

    def after_update(self, now, measured):
        self.calls += 1
        now.log(calls=self.calls, double=2 * float(measured.loss))

    def evaluated(self, now, loss):
        self.seen.append(("evaluated", now.step))
        now.log(perplexity=math.exp(loss))

    def saved(self, step):
        self.seen.append(("saved", step))

    def memory(self):
        return self.calls

    def remember(self, memory):
        self.calls = memory


def test_callbacks_are_called_log_and_remember_over_a_stop(config, tmp_path):
    made = []

    def recipe():
        made.append(Watch())
        return Recipe(callbacks=(made[-1],))

    whole_and_resumed(config, tmp_path, recipe)
    own = [record for record in read_metrics(Path(config.run) / "metrics.jsonl") if record["kind"] == "own"]
    losses = {r["step"]: r["loss"] for r in lasting(config.run) if r["kind"] == "update"}
    assert [r["calls"] for r in own if "calls" in r] == [*range(1, 13)]
    assert all(r["double"] == 2 * losses[r["step"]] for r in own if "double" in r)
    assert [r["step"] for r in own if "perplexity" in r] == [5, 10, 12]
    seen = made[0].seen
    assert [step for what, step in seen if what == "before"] == [*range(12)]
    assert [step for what, step in seen if what == "evaluated"] == [5, 10, 12]
    assert {step for what, step in seen if what == "saved"} >= {4, 8, 12}


def test_a_callback_that_logs_no_number_is_named(config):
    class Bad(Callback):
        def evaluated(self, now, loss):
            now.log(quotient=math.inf)

    with pytest.raises(BadInput, match="a callback logs quotient inf at update 5, but numbers must be finite"):
        train(config, Silent(), recipe=Recipe(callbacks=(Bad(),)))


@pytest.mark.parametrize("name", ["step", "kind"])
def test_what_each_line_has_is_no_name_for_a_number_of_ones_own(config, name):
    class Bad(Callback):
        def evaluated(self, now, loss):
            now.log(**{name: 1.0})

    with pytest.raises(BadInput, match=f"a callback logs '{name}', but each line has one of its own"):
        train(config, Silent(), recipe=Recipe(callbacks=(Bad(),)))


def test_a_rule_that_has_changed_makes_another_run(config, tmp_path):
    """As a rule does that reads a variable of a notebook."""

    factor, models = 1.0, []

    def rule(settings, rate):
        return optax.chain(optax.scale(factor), optax.sgd(rate))

    for factor in (1.0, 0.0):
        own = changed(config, run=str(tmp_path / str(factor)), trainer__updates=2)
        models.append(train(own, Silent(), recipe=Recipe(rule=rule)).model)
    assert not same_model(*models)
    first = build(models[1].config, jax.random.fold_in(jax.random.key(own.trainer.seed), 0))
    assert all(np.allclose(*pair) for pair in zip(*map(jax.tree.leaves, (first, models[1])), strict=True))


def test_a_callback_need_not_say_why_it_stops_a_run(config):
    class Stops(Callback):
        def after_update(self, now, measured):
            now.stop("")

    with pytest.raises(Interrupted, match=r"stopped at update 1 of 12 \(a callback asked for it\)"):
        train(config, Silent(), recipe=Recipe(callbacks=(Stops(),)))


class Best(Callback):
    """The lowest loss so far: infinite until one is known."""

    def __init__(self, best=math.inf):
        self.best, self.back = best, None

    def after_update(self, now, measured):
        if self.back is None:
            now.stop("soon")

    def memory(self):
        return (self.best, -math.inf)

    def remember(self, memory):
        self.back = memory


def test_a_callback_may_remember_infinities(config):
    with pytest.raises(Interrupted, match="soon"):
        train(config, Silent(), recipe=Recipe(callbacks=(Best(),)))
    again = Best()
    train(config, Silent(), recipe=Recipe(callbacks=(again,)))
    assert again.back == [math.inf, -math.inf]


def test_what_checkpoints_held_of_callbacks_before_infinities_is_still_read():
    known = {"clock": {}, "best": None, "callbacks": [[1.5, 2], None]}
    assert ResumeState.of(known).callbacks == [[1.5, 2], None]


def test_each_callback_gets_the_memory_of_its_own_class():
    class Other(Best):
        """Another one."""

    first, second, other = Best(), Best(), Other()
    known = ResumeState.of({"clock": {}, "best": None, "callbacks": [1, 2], "callback_names": ["Best", "Best"]})
    assert known.remembered((other, first, second)) == [(first, 1), (second, 2)]
    assert known.remembered((first,)) == [(first, 1)]
    older = ResumeState.of({"clock": {}, "best": None, "callbacks": [1]})
    assert older.remembered((first, other)) == [(first, 1)]


def test_a_callback_that_remembers_what_a_checkpoint_cannot_keep_is_named_before_training(config):
    with pytest.raises(BadInput, match=r"Best.memory\(\) gives \(array\(3"):
        train(config, Silent(), recipe=Recipe(callbacks=(Best(np.array(3.0)),)))
    assert not Path(config.run, "checkpoints/0").exists() and not lasting(config.run)


def sgd(settings, rate):
    return optax.chain(optax.clip(0.5), optax.sgd(rate, momentum=settings.b1))


def falling(settings, updates):
    return lambda step: settings.learning_rate * (1 - step / updates)


class Counting:
    """Batches that count upwards from their own number."""

    def __init__(self, config, tokens):
        self.shape, self.vocabulary = (config.trainer.batch_size, config.model.context + 1), config.model.vocabulary

    def __getitem__(self, k):
        rows, columns = np.indices(self.shape)
        return ((k + rows + columns) % self.vocabulary).astype(np.int32)


def test_rule_schedule_and_batches_of_ones_own_resume_and_are_not_forgotten(config, tmp_path):
    recipe = Recipe(rule=sgd, schedule=falling, batches=Counting)
    whole_and_resumed(config, tmp_path, lambda: recipe)
    rates = [r["learning_rate"] for r in lasting(config.run) if r["kind"] == "update"]
    np.testing.assert_allclose(rates, [1e-2 * (1 - k / 12) for k in range(12)], rtol=1e-6)
    load_run(config.run)  # needs none of them
    with pytest.raises(BadInput, match="parts of a recipe: rule sgd, schedule falling, batches Counting; here.* none"):
        train(config, Silent())


def test_a_run_that_is_older_than_a_setting_goes_on_with_its_default(config):
    short = changed(config, trainer__updates=4, model__weights=KnotsConfig(2))
    entry = train(short, Silent()).entry
    for manifest in Path(config.run).glob("checkpoints/*/manifest.json"):
        content = read_sealed(manifest)
        for name in ("optimizer.rule", "model.weights.start"):
            del content["metadata"]["config"][name]
        del content["metadata"]["callbacks"]
        write_sealed(manifest, content)
    assert train(short, Silent()).entry == entry
    with pytest.raises(BadInput, match="optimizer.rule is 'adamw' there, but 'lion' here"):
        train(changed(short, optimizer__rule="lion"), Silent())
    with pytest.raises(BadInput, match="model.weights.start is 'independent' there, but 'constant' here"):
        train(changed(short, model__weights=KnotsConfig(2, start="constant")), Silent())
    with pytest.raises(BadInput, match="model.weights.lora.rank is None there, but 8 here"):
        train(changed(short, model__weights=KnotsConfig(2, lora=LoRAConfig())), Silent())


def test_text_of_ones_own(config):
    lines = [f"line {number} of a corpus" for number in range(200)]
    part = lambda chosen: Part(len(chosen), None, lambda: ((line,) for line in chosen))
    corpus = Corpus("mine", "1", lambda: (part(lines[:180]), part(lines[180:])))
    result = train(config, Silent(), recipe=Recipe(corpus=corpus))
    assert result.tokens.statistics["name"] == "mine" and result.tokens.statistics["train_documents"] == 180
    with pytest.raises(BadInput, match="has changed since the run began"):
        train(config, Silent())


def test_samples_on_the_way_are_in_the_metrics_and_in_the_report(config):
    prompts = ("the cat", "a dog sees")
    result = train(changed(config, trainer__samples=prompts), Silent())
    found = [(record["step"], record["prompt"]) for record in lasting(config.run) if record["kind"] == "sample"]
    assert found == [(step, prompt) for step in (5, 10, 12) for prompt in prompts]
    last = result.entry["samples"][-1]
    assert last["text"] == continue_text(result.model, result.tokens.tokenizer, prompts[1], temperature=0.0)[0]
    page = run_report(read_results(Path(config.run) / "results.json")).page()
    assert page.count(", update 10") == 2 and "a dog sees" in page
    for prompt in ("", "the " * 40):
        with pytest.raises(BadInput, match="trainer.samples has .* tokens, but must have between 1 and 15"):
            train(changed(config, run=f"{config.run}-2", trainer__samples=(prompt,)), Silent())


def test_documents_apart_in_a_mixture_with_completions_resume_to_the_bit(config, tmp_path):
    for name, word in (("a", "yes"), ("b", "no")):
        lines = [json.dumps({"prompt": f"{name} {n}?", "completion": f" {word} {n}" * 3}) for n in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    data = replace(
        config.data, train=(f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"), weights=(2.0, 1.0), targets="completions",
        documents="apart",
    )  # fmt: skip
    whole = whole_and_resumed(replace(config, data=data), tmp_path)
    assert whole.entry["validation"]["bits_per_byte"] is None
    joined = train(replace(config, data=replace(data, documents="joined"), run=f"{config.run}-joined"), Silent())
    assert joined.entry["validation"] != whole.entry["validation"]


def test_streams_resume_to_the_bit_from_where_they_were(config, tmp_path, monkeypatch):
    for name in "ab":
        lines = [json.dumps({"text": f"{name} {n} the cat sees " * (n % 5 + 1)}) for n in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    data = replace(
        config.data, train=(f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"), weights=(2.0, 1.0), stream=20
    )  # fmt: skip
    config, found = replace(config, data=data), []
    remember = Stream.remember
    monkeypatch.setattr(Stream, "remember", lambda self, memory: (found.append(memory), remember(self, memory)))
    whole_and_resumed(config, tmp_path)
    (memory,) = found  # of the run that was stopped
    assert memory["batch"] == 6 and max(memory["places"]) > [0, 0, 0]


def test_a_stream_with_a_bad_line_far_on_fails_and_says_what_is_safe(config, tmp_path, monkeypatch):
    lines = [json.dumps({"text": f"{n} the cat sees " * (n % 5 + 1)}) for n in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    config = replace(config, data=replace(config.data, train=(f"{tmp_path}/a.jsonl",), stream=20))
    read = Stream._read

    def until_six(stream):
        if stream._next == 6:
            raise BadInput("line 50 of 'a.jsonl' is not valid JSON.")
        return read(stream)

    monkeypatch.setattr(Stream, "_read", until_six)
    with pytest.raises(RunFailed, match=r"^line 50 of 'a.jsonl' is not valid JSON; the last good .* is at update 5\.$"):
        train(config, Silent())


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (lambda ids: ids[:, 1:], r"its ids is an array of shape \(\d+, \d+\), but must be one of shape"),
        (lambda ids: ids[:1], "its ids is an array of shape"),
        (lambda ids: (ids, np.ones(ids.shape, bool)), "its mask is an array of shape"),
        (lambda ids: (ids, np.zeros_like(ids[:, 1:], bool)), "its mask counts no target"),
        (lambda ids: ids.tolist(), r"its ids is \[\["),
        (lambda ids: ids + 100_000, "token id 100... does not exist"),
        (lambda ids: ids.astype(np.float32), "token ids are float32"),
    ],
)
def test_batches_of_ones_own_have_the_shapes_and_tokens_that_are_trained(config, shape, message):
    class Own:
        def __getitem__(self, k):
            return shape(np.zeros((config.trainer.batch_size, config.model.context + 1), np.int32))

    with pytest.raises(BadInput, match=message):
        train(config, Silent(), recipe=Recipe(batches=lambda config, tokens: Own()))
