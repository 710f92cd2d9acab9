"""The paper's registry: the rule of its verdicts, the search for rates, and the page from runs to Markdown."""

import json
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from diffeqformer.config import read_yaml
from diffeqformer.errors import BadInput, Damaged
from diffeqformer.model import count
from diffeqformer.progress import Silent
from diffeqformer.studies.paper import article as paper_page
from diffeqformer.studies.paper import controls as paper_controls
from diffeqformer.studies.paper import figures as paper_figures
from diffeqformer.studies.paper import items as paper_items
from diffeqformer.studies.paper import measures as paper_measures
from diffeqformer.studies.paper import models as paper_models
from diffeqformer.studies.paper import record as paper_record
from diffeqformer.studies.paper import runs as paper_runs
from diffeqformer.studies.paper.adaptation import adapted
from diffeqformer.studies.paper.claims import Claim, Finished, Item, Model, Trained, judge
from diffeqformer.studies.paper.measures import (
    OURS,
    best_head,
    comparable,
    gap,
    grown,
    growth,
    growth_at,
    lower,
    peak,
    spectra_of,
    task,
)
from diffeqformer.studies.paper.models import MODELS
from diffeqformer.studies.paper.runs import Arguments, Runs
from diffeqformer.studies.reproduce import reproduce_paper
from diffeqformer.studies.reproduce.experiments import rates_table, search
from diffeqformer.studies.reproduce.reproduce_paper import study, write
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
            figures=((paper_figures.curves, ("wide", "normed")), (paper_figures.tasks, ("wide", "normed"))),
        )
    }  # fmt: skip
    arguments = Arguments(
        items=("norm",), seeds=(0,), updates=3, data=(str(folder / "text.txt"),), to=str(folder / "runs"),
        markdown=str(folder / "paper.md"), cache=str(folder / "cache"),
    )  # fmt: skip
    patch = pytest.MonkeyPatch()
    patch.setattr(paper_models, "MODELS", models)
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


def test_runs_on_a_text_that_has_changed_are_refused(trained):
    _, arguments, folder = trained
    text = folder / "text.txt"
    before = text.read_text()
    text.write_text(before[: len(before) // 2])
    with pytest.raises(BadInput, match="the text or the tokenizer of run folder .* has changed since the run began"):
        study(arguments, Silent())
    judged = study(replace(arguments, finished=True), Silent())  # by runs of one text, wherever that is
    assert judged.document["claims"][0]["effects"]
    text.write_text(before)


def test_damaged_results_are_named_where_nothing_is_trained(trained):
    _, arguments, folder = trained
    results = next(folder.glob("runs/normed/*/*/results.json"))
    before = results.read_bytes()
    results.write_bytes(before.replace(b'"loss"', b'"lose"', 1))
    with pytest.raises(Damaged, match="results.json' is damaged"):
        study(replace(arguments, finished=True), Silent())
    results.write_bytes(before)


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
    said = (
        "## Nowhere",
        "The paper: that a norm helps",
        "Its figure: two curves",
        "Models: normed, wide.",
        "a task, given",
    )
    assert "\n\n".join((*said, "| claim")) in text
    item = text.partition("## Nowhere")[2].partition("\n## ")[0]
    assert "\n\n![Nowhere. Validation loss on the whole split is" in item and "](paper/norm-curves-wide.png)\n" in item
    assert item.index("](paper/norm-effects.png)") < item.index("](paper/norm-curves-wide.png)")
    names = ("norm-curves-wide", "norm-effects")
    assert all((folder / f"paper/{name}.png").read_bytes()[1:4] == b"PNG" for name in names)
    page = (folder / "runs/index.html").read_text()
    assert "the norm helps" in page
    assert "points: validation loss on 16 batches. The paper's: two curves" in page
    models = next(table for table in result.tables if table.caption.startswith("Models\n"))
    assert [row[0] for row in models.rows] == ["wide", "normed"]
    assert [row[3] for row in models.rows] == ["its own", "wide"]


def test_spectra_are_of_the_start_the_middle_and_the_end(trained):
    _, arguments, _ = trained
    runs = Runs(arguments, paper_models.MODELS, Silent())
    one = runs.trained("wide", 0)
    assert one is not None
    seen = spectra_of(one)
    assert list(seen) == [0, 2, 3]
    radii = [found.pairs["QK"].radius for found in seen.values()]
    assert not any(np.allclose(a, b, rtol=1e-4) for a, b in pairwise(radii))
    found = Trained({"wide": one}, 0, runs.folder, Silent())
    whole = {part: growth_at("wide", "FF", part)(found) for part in (0.0, 2 / 3, 1.0)}
    assert whole == {part: grown(spectra, "FF") for part, spectra in zip(whole, seen.values(), strict=True)}
    assert growth("wide", "FF")(found) == pytest.approx(whole[1.0], rel=1e-6)
    assert growth_at("wide", "FF", 1 / 3)(found) is None  # no checkpoint was kept there
    for pair in ("QK", "FF"):
        first, last = seen[3].pairs[pair].radius[seen[3].steps(pair)].mean(1)
        assert peak("wide", pair)(found) == pytest.approx(math.log(last / first), rel=1e-6)  # of two steps
    drawn = paper_figures.spectra(runs, ("wide",))
    assert [figure.name for figure in drawn] == ["wide-qk", "wide-ov", "wide-ff"]
    effect = best_head("wide")(Trained({"wide": one}, 0, runs.folder, Silent()))
    assert effect is not None
    assert -0.5 <= effect < 0


def test_batches_of_repeated_tokens(trained):
    _, arguments, _ = trained
    wide = Runs(arguments, paper_models.MODELS, Silent()).trained("wide", 0)
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
    assert none.findings[0] == "Of 3 claims, 3 are untested."
    assert not (folder / "none").exists()
    wide = Runs(arguments, paper_models.MODELS, Silent()).trained("wide", 0)
    assert wide is not None
    tuned = Trained({OURS: wide}, 0, folder / "none", Silent(), ("other.txt",), train=False)
    assert adapted(3)(tuned) is None
    assert not (folder / "none").exists()


def test_the_list_counts_what_is_there_and_estimates_the_rest(trained):
    _, arguments, folder = trained
    asked = replace(arguments, seeds=(0, 1, 2), list=True)
    said, counted, own = [], [], count.update_operations

    def operations(model, batch):
        counted.append(model)
        return own(model, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Silent, "say", lambda self, line: said.append(line))
        patch.setattr(count, "update_operations", operations)
        found = study(asked, Silent())
    assert said == ["Counting the operations of what is left …"] and len(counted) == len({*counted})
    assert found.tables[0].rows[0][2] == "2 of 6"
    told = json.loads(json.dumps(found.document["items"][0]))
    assert (told["finished"], told["runs"], told["models"], told["on_record"]) == (2, 6, ["wide", "normed"], None)
    assert told["seconds_left"] > 0 and all(type(told[name]) is float for name in told if name.startswith("seconds"))
    cost = lambda result: result.findings[0].partition("; all that is left ")[2]
    assert "by finished runs" in cost(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_items, "ITEMS", {name: paper_items.ITEMS["norm"] for name in ("norm", "again")})
        both = study(replace(asked, items=("norm", "again")), Silent())
        assert cost(both) == cost(found)  # what items share is counted once
        patch.setattr(paper_runs, "matrix_speed", lambda: 2e6)
        runs = Runs(replace(asked, to=str(folder / "none")), paper_models.MODELS, Silent())
        assert runs.pace == (1e6, "this machine's speed")  # before anything has run
        assert runs.seconds("wide") == 3 * runs.operations("wide") / 1e6
        assert (runs.searches("wide"), runs.searches("normed")) == (4, 0)
    assert found.tables[1].rows == [("norm", "wide, normed")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Silent, "say", lambda self, line: said.append(line))
        longer = study(replace(asked, updates=4), Silent())
    assert longer.tables[0].rows[0][2] == "0 of 6" and said[-2].endswith("is of other settings: trainer.updates.")


def test_effects_of_another_text_are_not_joined(trained):
    """Though its file has the same name."""
    result, arguments, folder = trained
    assert result.document["texts"].keys() == {"wide", "normed"}
    asked = replace(arguments, record=str(folder / "texts.json"))
    paper_record.write(folder / "texts.json", result.document, asked.of)
    assert study(asked, Silent()).document["texts"] == result.document["texts"]
    paper_record.write(folder / "texts.json", result.document | {"texts": {"normed": "another"}}, asked.of)
    with pytest.raises(BadInput, match="normed was trained on another text, or with another tokenizer, than it was"):
        study(asked, Silent())
    paper_record.write(folder / "texts.json", result.document | {"texts": {"wide": "another"}}, asked.of)
    said = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(BadInput, match="wide was trained on another text"):
        patch.setattr(Silent, "say", lambda self, line: said.append(line))
        study(asked, Silent())
    assert [line[:2] for line in said if "/" in line[:3]] == ["1/"]  # not after the models of all claims


def test_slow_effects_are_kept_until_a_run_or_the_other_text_changes(trained):
    _, arguments, folder = trained
    measured = []
    claim = Claim("Slow, truly", "nats", ("wide",), lambda found: measured.append(found.seed) or 0.5, slow=True)
    again = replace(arguments, to=str(folder / "runs"))
    effect = lambda a: reproduce_paper._effect(claim, Runs(a, paper_models.MODELS, Silent()), 0)
    other = folder / "b.txt"
    other.write_text("one")
    assert [effect(again), effect(again), effect(replace(again, finished=True))] == [0.5] * 3
    assert measured == [0]
    for content in ("one", "two"):
        other.write_text(content)
        assert [effect(replace(again, other=(str(other),))) for _ in range(2)] == [0.5] * 2
    assert len(measured) == 3
    other.unlink()
    assert effect(replace(again, other=(str(other),), finished=True)) == 0.5  # it may be elsewhere
    assert effect(again) == 0.5  # whatever the other text was
    kept = folder / "runs/effects/slow-truly-0.json"
    kept.write_text(kept.read_text().replace("0.5", "0.7"))
    with pytest.raises(Damaged, match="slow-truly-0.json"):
        effect(again)
    kept.unlink()
    assert effect(replace(again, finished=True)) is None
    assert len(measured) == 3


def finished(folder):
    return Finished(read_yaml(folder / "config.yaml"), {"updates": 8}, lambda: pytest.fail("no model is opened"))


class TasksOf(NamedTuple):
    """Of ten items, in their first version."""

    name: str

    def are_those_of(self, evaluation):
        return (evaluation["samples"], evaluation["task_versions"]) == ({self.name: 10}, {self.name: 1})


def test_tasks_are_compared_by_their_metric_and_their_examples(tmp_path, monkeypatch):
    shots = lambda name, right, n: document(name, [1] * right + [0] * (10 - right), num_fewshot={name: n})
    perplexity = lambda value: document("arc_easy", [value] * 2, "perplexity")
    folders = [
        make(tmp_path / OURS, [shots("sciq", 7, 0), shots("sciq", 4, 5), perplexity(2.0), shots("piqa", 5, 0)]),
        make(tmp_path / "gpt", [shots("sciq", 5, 0), shots("sciq", 5, 5), perplexity(6.0), shots("piqa", 7, 0)]),
    ]
    runs = {one.name: finished(one) for one in folders}
    found = Trained(runs, 0, tmp_path, Silent(), train=False)
    assert task("sciq", 0)(found) == pytest.approx(0.2)
    assert task("sciq", 5)(found) == pytest.approx(-0.1)
    assert task("arc_easy", 0, "perplexity")(found) == pytest.approx(math.log(3))
    assert comparable(["sciq", "piqa"], 0)(found) == pytest.approx(0.01)
    assert comparable(["sciq"], 0)(found) == pytest.approx(0.01 - 0.2)
    assert comparable(["sciq", "piqa", "wsc273"], 0)(found) == pytest.approx(0.01)
    assert comparable(["sciq", "wsc273"], 0)(found) is None
    there = Runs(Arguments(), MODELS, Silent())
    monkeypatch.setattr(there, "trained", lambda name, seed: runs[name])
    (figure,) = paper_figures.tasks(there, (OURS, "gpt"))
    absent = "arc_challenge, hellaswag, lambada_openai, lambada_standard, logiqa, mmlu, winogrande and wsc273"
    assert figure.caption.endswith(f" Not evaluated here: {absent}.")


def test_a_part_of_a_task_is_not_the_task(tmp_path, monkeypatch):
    part = lambda **how: document("sciq", [1, 0] * 5, **how)
    runs = {
        "whole": part(), "limited": part(limit=8.0), "other steps": part(steps=5), "best": part(checkpoint="best"),
        "other examples": part(num_fewshot={"sciq": 5}), "other task": document("piqa", [1]),
        "other scheme": part(scheme="heun"), "early": part(update=4), "other items": document("sciq", [1, 0]),
        "other version": part(task_versions={"sciq": 2}),
    }  # fmt: skip
    evaluated = []
    monkeypatch.setattr(paper_measures, "_tasks", lambda name, *given: TasksOf(name))
    monkeypatch.setattr(paper_measures, "load_run", lambda folder: folder.name)
    monkeypatch.setattr(paper_measures, "evaluate_tasks", lambda run, *given, **how: evaluated.append(run) or [])
    for name, one in runs.items():
        found = Trained({OURS: finished(make(tmp_path / name, [one]))}, 0, tmp_path, Silent())
        paper_measures._evaluate(found, found.models[OURS], "sciq", 0)
    assert evaluated == [name for name in runs if name != "whole"]
    for name in ("limited", "early", "other scheme"):
        other = finished(make(tmp_path / f"{name}, gpt", [runs[name]], field="llama"))
        pair = {OURS: finished(tmp_path / name), "gpt": other}
        assert task("sciq", 0)(Trained(pair, 0, tmp_path, Silent(), train=False)) is None


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
    page = paper_page.markdown(again, folder / "paper")
    assert "](paper/norm-curves-wide.png)" in page  # its file is there, though its runs are not
    assert ".png" not in paper_page.markdown(again, folder / "none")
    runs = Runs(gone, paper_models.MODELS, Silent(), paper_record.read(path, gone.of).rates)
    assert runs.searches("wide") == 0
    assert runs.rate("wide") == result.document["rates"]["wide"]["best"]  # without a search, which would train
    kept = path.read_bytes()
    with pytest.raises(
        BadInput, match=r"record.json' is of scale laptop, updates 3, text .*text.txt, but .* updates 4"
    ):
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
    assert runs.trained("gpt", 0) is not None and runs.diverged == {}
    assert rates_table(runs.rates, 0).rows[0][2] == "yes"  # the best is inside, whatever diverged above it


def test_a_rate_at_which_the_loss_is_zero_is_the_best(tmp_path, monkeypatch):
    runs = Runs(Arguments(to=str(tmp_path)), MODELS, Silent())
    shipped = runs.config("gpt", 0, 1e-3).optimizer.learning_rate

    def trained(config, model):
        entry = {"validation": {"loss": abs(config.optimizer.learning_rate - shipped)}}
        return Finished(config, entry, lambda: pytest.fail("opened"))

    monkeypatch.setattr(runs, "_train", trained)
    assert runs.rate("gpt") == shipped and runs.rates["gpt"][1][shipped] == 0.0
