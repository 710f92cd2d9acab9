"""The paper's registry: the rule of its verdicts, the search for rates, and the page from runs to Markdown."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from diffeqformer.errors import BadInput
from diffeqformer.progress import Silent
from diffeqformer.studies import paper_items, reproduce_paper
from diffeqformer.studies.paper import Claim, Item, Model, Trained, judge, search
from diffeqformer.studies.paper_items import ITEMS, MODELS
from diffeqformer.studies.paper_measures import gap, lower
from diffeqformer.studies.reproduce_paper import Arguments, Runs, study, write
from diffeqformer.studies.reproduce_paper_figures import effects


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
    assert judge(seeds).word == word


def test_the_interval_is_students():
    effects = np.random.default_rng(0).normal(0.3, 1.0, 5)
    found, known = judge(list(effects)), ttest_1samp(effects, 0).confidence_interval(0.95)
    np.testing.assert_allclose((found.low, found.high), (known.low, known.high), rtol=1e-12)


def test_what_nothing_random_enters_is_judged_by_its_sign():
    assert (judge([0.1], exact=True).word, judge([-0.1], exact=True).word) == ("holds", "fails")


@pytest.mark.parametrize(("best", "tried"), [(2e-3, 4), (1e-3, 3), (1e-1, 7)])
def test_the_search_ends_with_its_best_rate_inside_or_its_budget_spent(best, tried):
    rate, losses = search(lambda rate: abs(math.log(rate / best)), 1e-3)
    assert len(losses) == tried
    inside = min(losses) < rate < max(losses)
    assert inside or len(losses) == 7
    assert losses[rate] == min(losses.values())


def test_every_item_names_models_that_there_are_and_their_configs_are_sound(tmp_path):
    needed = {name for item in ITEMS.values() for claim in item.claims for name in claim.models}
    assert needed <= set(MODELS)
    assert {model.rate_of for model in MODELS.values()} - {""} <= set(MODELS)
    runs = Runs(Arguments(to=str(tmp_path)), tmp_path, Silent())
    folders = {runs.config(name, 1, 1e-3).run for name in MODELS}
    assert len(folders) == len(MODELS)


TINY = {
    "model.width": 16, "model.heads": 2, "model.steps": 2, "model.context": 16, "model.weights": "layer",
    "data.tokenizer_vocabulary": 300, "trainer.batch_size": 4,
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
    items = {"norm": Item("nowhere", "that a norm helps", claims, "a task | with a bar")}
    arguments = Arguments(
        items=("norm",), seeds=(0,), updates=3, data=(str(folder / "text.txt"),), to=str(folder / "runs"),
        markdown=str(folder / "paper.md"), cache=str(folder / "cache"),
    )  # fmt: skip
    patch = pytest.MonkeyPatch()
    for module in (paper_items, reproduce_paper):
        patch.setattr(module, "MODELS", models)
        patch.setattr(module, "ITEMS", items)
    patch.setattr(reproduce_paper, "search", partial(search, most=3))
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
    assert claim["effects"] == [loss("wide") - loss("normed")]
    assert claim["verdict"] == "untested"  # of one seed
    assert result.document["claims"][2]["effects"] == []


def test_the_page_and_its_markdown_hold_every_claim(trained):
    result, arguments, folder = trained
    written = write(result, arguments)
    text = (folder / "paper.md").read_text()
    assert written["markdown"] == str(folder / "paper.md")
    assert all(sentence in text for sentence in ("the norm helps", "it overfits", "nothing is known"))
    assert "a task \\| with a bar" in text
    assert "the norm helps" in (folder / "runs/index.html").read_text()


def test_what_is_not_trained_is_untested_if_nothing_is_to_be_trained(trained):
    result, arguments, folder = trained
    again = study(replace(arguments, finished=True), Silent())
    assert again.document == result.document
    none = study(replace(arguments, finished=True, to=str(folder / "none")), Silent())
    assert none.findings[0] == "Of 3 claims 3 are untested."
    assert not (folder / "none").exists()


def test_the_list_counts_what_is_there(trained):
    _, arguments, _ = trained
    found = study(Arguments(items=("norm",), seeds=(0, 1, 2), updates=3, list=True, to=arguments.to), Silent())
    assert found.tables[0].rows[0][2] == "2 of 6"
    twice = {"norm": paper_items.ITEMS["norm"], "again": paper_items.ITEMS["norm"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce_paper, "ITEMS", twice)
        both = study(Arguments(items=("norm", "again"), updates=3, list=True, to=arguments.to), Silent())
    assert both.findings[1] == found.findings[1]  # what items share is counted once
    assert write(found, Arguments(list=True)) == {}


def test_the_figure_shows_seeds_mean_and_interval(trained):
    found = judge([0.1, 0.2, 0.3])
    axes = effects([("a", "claim", found), ("b", "other", judge([-0.2]))]).axes[0]
    seeds, mean, interval = axes.lines[:3]
    assert np.array_equal(seeds.get_xdata(), [0.1, 0.2, 0.3])
    assert np.array_equal(mean.get_xdata(), [found.mean])
    assert np.array_equal(interval.get_xdata(), [found.low, found.high])
    assert [np.asarray(line.get_ydata())[0] for line in (seeds, axes.lines[3])] == [0, 1]
    assert "claim" in axes.get_yticklabels()[0].get_text()
    assert axes.yaxis_inverted()


def test_an_unknown_item_is_refused():
    with pytest.raises(BadInput, match="no item 'table-9'; the items are "):
        study(Arguments(items=("table-9",)), Silent())


def test_presets_have_the_published_sizes(tmp_path):
    effect = ITEMS["table-3"].claims[0].measure(Trained({}, 0, tmp_path, Silent()))
    assert effect is not None
    assert effect > 0
