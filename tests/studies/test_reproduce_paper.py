"""The paper's registry: the rule of its verdicts, the search for rates, and the page from runs to Markdown."""

import json
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
import pytest
from scipy.stats import ttest_1samp

from diffeqformer.config import Config, ModelConfig, OptimizerConfig, read_yaml
from diffeqformer.errors import BadInput, Damaged
from diffeqformer.model.build import build
from diffeqformer.model.count import count
from diffeqformer.progress import Silent
from diffeqformer.studies import (
    paper_controls,
    paper_items,
    paper_measures,
    paper_page,
    paper_record,
    paper_runs,
    reproduce_paper,
)
from diffeqformer.studies.experiments import rates_table, search
from diffeqformer.studies.paper import Claim, Finished, Item, Model, Trained, judge
from diffeqformer.studies.paper_items import GPU_MODELS, ITEMS, MODELS, OURS
from diffeqformer.studies.paper_measures import adapted, best_head, comparable, gap, lower, spectra_of, task
from diffeqformer.studies.paper_runs import Arguments, Runs
from diffeqformer.studies.reproduce_paper import study, write
from diffeqformer.studies.reproduce_paper_figures import FIGURES
from diffeqformer.training.optimizer import roles, usual_rule
from tests.studies.test_compare import document, make


@pytest.mark.parametrize(
    ("seeds", "word"),
    [
        ([0.1, 0.11, 0.12], "holds"),
        ([-0.1, -0.11, -0.12], "fails"),
        ([0.1, -0.1, 0.12], "within noise"),
        ([0.1, 0.11], "untested"),
        ([0.1, None, math.nan], "untested"),
        ([], "untested"),
    ],
)
def test_a_claim_is_judged_by_the_interval_of_its_effect(seeds, word):
    assert judge(dict(enumerate(seeds))).word == word


def test_the_interval_is_students():
    effects = np.random.default_rng(0).normal(0.3, 1.0, 5)
    found, known = judge(dict(enumerate(effects))), ttest_1samp(effects, 0).confidence_interval(0.95)
    np.testing.assert_allclose((found.low, found.high), (known.low, known.high), rtol=1e-12)


def test_what_nothing_random_enters_is_judged_by_its_sign():
    assert (judge({0: 0.1}, exact=True).word, judge({0: -0.1}, exact=True).word) == ("holds", "fails")


@pytest.mark.parametrize(("best", "tried"), [(2e-3, 4), (1e-3, 3), (1e-1, 7)])
def test_the_search_ends_with_its_best_rate_inside_or_its_budget_spent(best, tried):
    rate, losses = search(lambda rate: abs(math.log(rate / best)), 1e-3)
    assert len(losses) == tried
    inside = min(losses) < rate < max(losses)
    assert inside or len(losses) == 7
    assert losses[rate] == min(losses.values())


def test_every_item_names_models_that_there_are_and_their_configs_are_sound(tmp_path):
    claimed = {name for item in ITEMS.values() for claim in item.claims for name in claim.models}
    drawn = {name for item in ITEMS.values() for kind, names in item.figures for name in names}
    assert claimed | drawn <= set(MODELS)
    assert {kind for item in ITEMS.values() for kind, _ in item.figures} <= set(FIGURES)
    assert {model.rate_of for model in MODELS.values()} - {""} <= set(MODELS)
    runs = Runs(Arguments(to=str(tmp_path), other=("other.txt",)), MODELS, Silent())
    configs = {name: runs.config(name, 1, 1e-3) for name in MODELS}
    assert len({config.run for config in configs.values()}) == len(MODELS)
    assert {name for name, config in configs.items() if config.data.train} == {n for n in MODELS if MODELS[n].other}
    assert configs["gpt-other"].trainer.updates == 3 * configs["gpt"].trainer.updates == 1500


def test_gpu_scale_trains_the_papers_small_models_on_the_text_given(tmp_path):
    runs = Runs(Arguments(scale="gpu", to=str(tmp_path), data=("web.jsonl",)), GPU_MODELS, Silent())
    claims = [claim for item in ITEMS.values() for claim in item.claims if set(claim.models) <= set(GPU_MODELS)]
    assert set(GPU_MODELS) == {name for claim in claims for name in claim.models}  # none is trained for nothing
    for name in GPU_MODELS:
        config = runs.config(name, 0, runs.rate(name))
        m, t = config.model, config.trainer
        assert (m.width, m.steps, m.context, m.compute_dtype, t.updates) == (768, 12, 1024, "bfloat16", 2000)
        assert (config.data.train, config.optimizer.learning_rate) == (("web.jsonl",), 6e-4)
        assert config.run.startswith(str(tmp_path / "gpu"))
    assert runs.rates == {}  # nothing is searched
    with pytest.raises(BadInput, match="--scale is gpu, but JAX finds no GPU here, only cpu"):
        study(Arguments(scale="gpu", to=str(tmp_path)), Silent())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        with pytest.raises(BadInput, match="needs a text of its size: give files with --data"):
            study(Arguments(scale="gpu", to=str(tmp_path)), Silent())
    assert list(tmp_path.iterdir()) == []


def test_controls_start_as_the_models_that_they_are_compared_with():
    key, ids, models = jax.random.key(0), jax.numpy.arange(8)[None], []
    for control, weights in (("free_rows", "time"), ("faster_table", "layer")):
        sections: Any = {"weights": weights, "scheme": "euler"}
        config = ModelConfig(vocabulary=32, width=16, heads=2, steps=3, context=8, **sections)
        plain, own = build(config, key), getattr(paper_controls, control)(config, key)
        np.testing.assert_allclose(own(ids), plain(ids), atol=1e-6)
        models.append((plain, own))
    (_, free), (table, faster) = models
    assert count(faster) == count(table)  # the same numbers, which are moved three times as far
    for moved, weight in zip(jax.tree.leaves(faster.weights), jax.tree.leaves(table.weights), strict=True):
        np.testing.assert_allclose(3 * moved, weight, rtol=1e-6)
    rows = lambda model: model.weights.networks.attention.output.network.rows
    other = eqx.tree_at(rows, free, rows(free).at[0].add(1.0))
    before, after = (one.weights.table(one.grid()).attention.output.weight for one in (free, other))
    # A row is its own step's: no other step's weights follow it.
    assert [np.array_equal(a, b) for a, b in zip(before, after, strict=True)] == [False, True, True]


def test_embeddings_alone_move_faster():
    config = ModelConfig(vocabulary=32, width=16, heads=2, steps=2, context=8, weights="time")  # pyright: ignore
    model = build(config, jax.random.key(0))
    gradient = jax.tree.map(lambda x: jax.numpy.linspace(-1.0, 1.0, x.size, dtype=x.dtype).reshape(x.shape), model)
    changes = []
    for rule in (usual_rule, paper_controls.faster_embeddings):
        one = rule(OptimizerConfig(), optax.constant_schedule(1e-3))
        with jax.numpy_dtype_promotion("standard"):
            changes.append(one.update(gradient, one.init(model), model)[0])
    ratio = jax.tree.map(lambda own, usual: float(np.abs(own).sum() / np.abs(usual).sum()), changes[1], changes[0])
    for role, found in zip(jax.tree.leaves(roles(model)), jax.tree.leaves(ratio), strict=True):
        assert found == pytest.approx(paper_controls.EMBEDDINGS if role == "embedding" else 1.0)


TINY = {
    "model.width": 16, "model.heads": 2, "model.steps": 2, "model.context": 16, "model.weights": "layer",
    "data.tokenizer_vocabulary": 300, "trainer.batch_size": 4, "trainer.checkpoint_every": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two models of a registry of its own, trained with one seed: its result, arguments and folder."""
    folder = tmp_path_factory.mktemp("paper")
    (folder / "text.txt").write_text("one two three four five six seven eight nine ten.\n" * 400)
    models = {
        "wide": Model("quickstart-gpt", TINY),
        "normed": Model("quickstart-gpt", TINY | {"model.embedding_norm": True}, "wide"),
    }
    claims = (
        lower("normed", "wide", "the norm helps"),
        Claim("it overfits", "nats", ("wide",), lambda found: gap(found.models["wide"])),
        Claim("nothing is known", "nats", (), lambda found: None),
    )
    items = {
        "norm": Item(
            "nowhere", "that a norm helps", claims, layout="two curves", missing="a task, given",
            figures=(("curves", ("wide", "normed")), ("tasks", ("wide", "normed"))),
        )
    }  # fmt: skip
    arguments = Arguments(
        items=("norm",), seeds=(0,), updates=3, data=(str(folder / "text.txt"),), to=str(folder / "runs"),
        markdown=str(folder / "paper.md"), cache=str(folder / "cache"),
    )  # fmt: skip
    patch = pytest.MonkeyPatch()
    patch.setattr(paper_items, "MODELS", models)
    for module in (paper_page, paper_items):
        patch.setattr(module, "ITEMS", items)
    patch.setattr(paper_runs, "search", partial(search, most=3))
    yield study(arguments, Silent()), arguments, folder
    patch.undo()


def test_runs_are_shared_and_kept(trained):
    result, arguments, folder = trained
    runs = sorted(str(path.relative_to(folder / "runs")) for path in folder.glob("runs/*/*/*") if path.is_dir())
    best = result.document["rates"]["wide"]["best"]
    rates = result.document["rates"]["wide"]["losses"]
    expected = [f"normed/rate-{best:.3g}/seed-0", *(f"wide/rate-{float(rate):.3g}/seed-0" for rate in rates)]
    assert runs == sorted(expected)  # the search's run at the best rate is the one that is compared
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*/*/results.json")}
    again = study(arguments, Silent())
    assert again.document == result.document
    assert before == {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*/*/results.json")}


def test_effects_are_those_of_the_runs(trained):
    result, _, folder = trained
    best = result.document["rates"]["wide"]["best"]
    loss = lambda name: json.loads((folder / f"runs/{name}/rate-{best:.3g}/seed-0/results.json").read_text())["models"][
        0
    ]["validation"]["loss"]
    claim = result.document["claims"][0]
    assert claim["effects"] == {"0": loss("wide") - loss("normed")}
    assert claim["verdict"] == "untested"  # of one seed
    assert result.document["claims"][2]["effects"] == {}


def test_the_page_and_its_markdown_hold_every_claim(trained):
    result, arguments, folder = trained
    written = write(result, arguments)
    text = (folder / "paper.md").read_text()
    assert written["markdown"] == str(folder / "paper.md")
    assert all(sentence in text for sentence in ("the norm helps", "it overfits", "nothing is known"))
    assert "## Nowhere\n\nThe paper: that a norm helps\n\nIts figure: two curves\n\na task, given\n\n| claim" in text
    page = (folder / "runs/index.html").read_text()
    assert "the norm helps" in page
    assert "validation loss (points). The paper's: two curves" in page
    models = next(table for table in result.tables if table.caption.startswith("Models\n"))
    assert [row[0] for row in models.rows] == ["wide", "normed"]
    assert [row[3] for row in models.rows] == ["its own", "wide"]


def test_spectra_are_of_the_start_the_middle_and_the_end(trained):
    _, arguments, _ = trained
    runs = Runs(arguments, paper_items.MODELS, Silent())
    one = runs.trained("wide", 0)
    assert one is not None
    seen = spectra_of(one)
    assert list(seen) == [0, 2, 3]
    radii = [found.pairs["QK"].radius for found in seen.values()]
    assert not any(np.allclose(a, b, rtol=1e-4) for a, b in pairwise(radii))
    effect = best_head("wide")(Trained({"wide": one}, 0, runs.folder, Silent()))
    assert effect is not None
    assert -0.5 <= effect < 0


def test_batches_of_repeated_tokens(trained):
    _, arguments, _ = trained
    wide = Runs(arguments, paper_items.MODELS, Silent()).trained("wide", 0)
    assert wide is not None
    batches = paper_controls.RepeatedTokens(wide.config, wide.open().tokens)
    batch = batches[3]
    assert batch.shape == (4, 17)
    assert np.array_equal(batch, batches[3])
    assert not np.array_equal(batch, batches[4])
    for row in batch:
        period = next(p for p in range(1, 17) if np.array_equal(row[p:], row[:-p]))
        assert period == len(set(row)) == 6
        assert 0 not in row  # end-of-text


def test_what_is_not_trained_is_untested_if_nothing_is_to_be_trained(trained):
    result, arguments, folder = trained
    again = study(replace(arguments, finished=True), Silent())
    assert again.document == result.document
    none = study(replace(arguments, finished=True, to=str(folder / "none")), Silent())
    assert none.findings[0] == "Of 3 claims 3 are untested."
    assert not (folder / "none").exists()
    wide = Runs(arguments, paper_items.MODELS, Silent()).trained("wide", 0)
    assert wide is not None
    tuned = Trained({OURS: wide}, 0, folder / "none", Silent(), ("other.txt",), train=False)
    assert adapted(3)(tuned) is None
    assert not (folder / "none").exists()


def test_the_list_counts_what_is_there_and_estimates_the_rest(trained):
    _, arguments, folder = trained
    asked = Arguments(items=("norm",), seeds=(0, 1, 2), updates=3, list=True, to=arguments.to)
    found = study(asked, Silent())
    assert found.tables[0].rows[0][2] == "2 of 6"
    assert found.document["items"][0]["runs"] == "2 of 6"
    cost = lambda result: result.findings[0].partition("; about ")[2]
    assert "by finished runs" in cost(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_items, "ITEMS", {name: paper_items.ITEMS["norm"] for name in ("norm", "again")})
        both = study(replace(asked, items=("norm", "again")), Silent())
        assert cost(both) == cost(found)  # what items share is counted once
        patch.setattr(paper_runs, "matrix_speed", lambda: 2e6)
        runs = Runs(replace(asked, to=str(folder / "none")), paper_items.MODELS, Silent())
        assert runs.pace == 1e6  # before anything has run
        assert runs.seconds("wide") == 3 * runs.operations("wide") / 1e6
        assert (runs.searches("wide"), runs.searches("normed")) == (4, 0)
    assert write(found, Arguments(list=True)) == {}


def test_slow_effects_are_kept_until_a_run_or_the_other_text_changes(trained):
    _, arguments, folder = trained
    measured = []
    claim = Claim("Slow, truly", "nats", ("wide",), lambda found: measured.append(found.seed) or 0.5, slow=True)
    again = replace(arguments, to=str(folder / "runs"))
    effect = lambda a: reproduce_paper._effect(claim, Runs(a, paper_items.MODELS, Silent()), 0)
    assert [effect(again), effect(again), effect(replace(again, finished=True))] == [0.5] * 3
    assert measured == [0]
    assert effect(replace(again, other=("b.txt",))) == 0.5
    assert len(measured) == 2
    assert effect(again) == 0.5  # whatever the other text was
    kept = folder / "runs/effects/slow-truly-0.json"
    kept.write_text(kept.read_text().replace("0.5", "0.7"))
    with pytest.raises(Damaged, match="slow-truly-0.json"):
        effect(again)
    kept.unlink()
    assert effect(replace(again, finished=True)) is None
    assert len(measured) == 2


def test_tasks_are_compared_by_their_metric_and_their_examples(tmp_path):
    shots = lambda name, right, n: document(name, [1] * right + [0] * (10 - right), num_fewshot={name: n})
    perplexity = lambda value: document("arc_easy", [value] * 2, "perplexity")
    folders = [
        make(tmp_path / OURS, [shots("sciq", 7, 0), shots("sciq", 4, 5), perplexity(2.0), shots("piqa", 5, 0)]),
        make(tmp_path / "gpt", [shots("sciq", 5, 0), shots("sciq", 5, 5), perplexity(6.0), shots("piqa", 7, 0)]),
    ]
    runs = {one.name: Finished(Config(run=str(one)), {}, lambda: pytest.fail("no model is opened")) for one in folders}
    found = Trained(runs, 0, tmp_path, Silent(), train=False)
    assert task("sciq", 0)(found) == pytest.approx(0.2)
    assert task("sciq", 5)(found) == pytest.approx(-0.1)
    assert task("arc_easy", 0, "perplexity")(found) == pytest.approx(math.log(3))
    assert comparable(["sciq", "piqa"], 0)(found) == pytest.approx(0.01)
    assert comparable(["sciq"], 0)(found) == pytest.approx(0.01 - 0.2)
    assert comparable(["sciq", "piqa", "wsc273"], 0)(found) == pytest.approx(0.01)
    assert comparable(["sciq", "wsc273"], 0)(found) is None


def test_a_part_of_a_task_is_not_the_task(tmp_path, monkeypatch):
    part = lambda **how: document("sciq", [1, 0] * 5, **{"checkpoint": "latest", **how})
    runs = {
        "whole": part(), "limited": part(limit=8.0), "other steps": part(steps=5), "best": part(checkpoint="best"),
        "other examples": part(num_fewshot={"sciq": 5}), "other task": document("piqa", [1], checkpoint="latest"),
    }  # fmt: skip
    evaluated = []
    monkeypatch.setattr(paper_measures, "_tasks", lambda *given: given)
    monkeypatch.setattr(paper_measures, "load_run", lambda folder: folder.name)
    monkeypatch.setattr(paper_measures, "evaluate_tasks", lambda run, *given, **how: evaluated.append(run) or [])
    for name, one in runs.items():
        config = read_yaml(make(tmp_path / name, [one]) / "config.yaml")
        found = Trained({OURS: Finished(config, {}, lambda: pytest.fail("no"))}, 0, tmp_path, Silent())
        paper_measures._evaluate(found, OURS, "sciq", 0)
    assert evaluated == [name for name in runs if name != "whole"]
    limited = [Finished(Config(run=str(make(tmp_path / name, [part(limit=8.0)]))), {}, lambda: None) for name in "ab"]  # pyright: ignore
    assert (
        task("sciq", 0)(Trained(dict(zip((OURS, "gpt"), limited, strict=True)), 0, tmp_path, Silent(), train=False))
        is None
    )


def test_an_unknown_item_is_refused():
    with pytest.raises(BadInput, match="no item 'table-9'; the items are "):
        study(Arguments(items=("table-9",)), Silent())


def test_presets_have_the_published_sizes(tmp_path):
    effect = ITEMS["table-3"].claims[0].measure(Trained({}, 0, tmp_path, Silent()))
    assert effect is not None
    assert effect > 0


def test_the_record_keeps_verdicts_and_rates_of_runs_that_are_gone(trained):
    result, arguments, folder = trained
    path = folder / "record.json"
    recorded = replace(arguments, record=str(path))
    assert write(study(recorded, Silent()), recorded)["record"] == str(path)
    gone = replace(recorded, to=str(folder / "gone"), finished=True)
    again = study(gone, Silent())
    assert not (folder / "gone").exists()
    assert again.document == result.document
    assert [table.rows for table in again.tables] == [table.rows for table in result.tables]
    runs = Runs(gone, paper_items.MODELS, Silent(), paper_record.read(path, gone.of).rates)
    assert runs.searches("wide") == 0
    assert runs.rate("wide") == result.document["rates"]["wide"]["best"]  # without a search, which would train
    kept = path.read_bytes()
    with pytest.raises(BadInput, match=r"record.json' is of scale laptop, updates 3, text text.txt, but .* updates 4"):
        study(replace(gone, updates=4), Silent())
    path.write_text(path.read_text().replace("untested", "holds", 1))
    with pytest.raises(Damaged, match=r"record\.json"):
        study(gone, Silent())
    path.write_bytes(kept)


def test_a_search_that_is_not_at_its_end_gives_no_rate(tmp_path, monkeypatch):
    """With `--finished` two of three first runs are there: a model that diverged is another thing than one missing."""
    runs = Runs(Arguments(items=("norm",), finished=True, to=str(tmp_path)), MODELS, Silent())
    shipped = runs.config("gpt", 0, 1e-3).optimizer.learning_rate
    ended = {shipped / 2: 4.5, shipped: 4.2}

    def trained(config, model):
        if (rate := config.optimizer.learning_rate) in ended:
            return Finished(config, {"validation": {"loss": ended[rate]}}, lambda: pytest.fail("opened"))
        if rate == 2 * shipped and diverged:
            return None
        runs.untrained.add(config.run)
        return None

    monkeypatch.setattr(runs, "_train", trained)
    diverged = False
    assert runs.rate("gpt") is None and runs.trained("gpt", 0) is None and runs.rates == {}
    runs.finished, runs.untrained, diverged = {}, set(), True
    assert runs.rate("gpt") == shipped
    assert runs.rates["gpt"][1] == {shipped / 2: 4.5, shipped: 4.2, 2 * shipped: math.inf}
    assert rates_table(runs.rates).rows[0][2] == "yes"  # the best is inside, whatever diverged above it
