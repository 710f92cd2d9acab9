"""Two runs side by side: which evaluations are compared, what is said about them, and how it is shown."""

import copy
import json
import re

import numpy as np
import pytest

from diffeqformer.cli import main
from diffeqformer.config import Config, ModelConfig, dump_yaml, to_dict
from diffeqformer.errors import BadInput
from diffeqformer.interop.comparing import compare_runs
from diffeqformer.progress import Silent
from diffeqformer.report.figures import color
from diffeqformer.studies.compare import (
    Arguments,
    _way,
    accuracies,
    compare_document,
    findings,
    label,
    remarks,
    runs_table,
    stars,
    study,
    tasks_table,
)
from diffeqformer.studies.compare_figures import task_figure

HOSTILE = "$x$ <b>_y</b>"


def document(task, scores, metric="acc", steps=2, **settings):
    scores = [float(score) for score in scores]
    row = {"task": task, "group": False, "metric": metric, "filter": "none", "value": float(np.mean(scores))}
    row |= {"stderr": 0.01, "higher_is_better": True}
    return {
        "task": task, "created": "2026-01-01T00:00:00+00:00", "update": 8, "steps": steps, "limit": None,
        "scheme": "lie-trotter", "checkpoint": "latest",
        "gen_kwargs": None, "num_fewshot": {task: 0}, "task_versions": {task: 1}, "samples": {task: len(scores)},
        "results": [row], "items": {task: {f"{metric},none": scores}},
    } | settings  # fmt: skip


def make(folder, documents=(), loss=3.0, text="abc", **model):
    folder.mkdir(parents=True)
    shape = ModelConfig(weights="layer", scheme="lie-trotter", horizon="steps", steps=2, width=16, heads=2, context=16,
                        vocabulary=280, **model)  # fmt: skip
    config = Config(run=str(folder), model=shape)
    (folder / "config.yaml").write_text(dump_yaml(config))
    (folder / "data.json").write_text(json.dumps({"content": text}))
    if loss is not None:
        entry = {"validation": {"loss": loss, "perplexity": np.exp(loss), "bits_per_byte": loss / 2}}
        entry |= {"updates": 8, "tokens": 1000, "tokens_per_second": 500.0, "seconds": 2.0, "config": to_dict(config)}
        (folder / "results.json").write_text(json.dumps({"models": [entry]}))
    (folder / "evaluations").mkdir()
    for number, one in enumerate(documents):
        (folder / "evaluations" / f"{number}.json").write_text(json.dumps(one))
    return folder


GOOD, POOR = [1] * 30 + [0] * 10, [1] * 10 + [0] * 30


@pytest.fixture
def pair(tmp_path):
    one = make(tmp_path / "one", [document("piqa", GOOD), document(HOSTILE, [1, 0] * 20), document("sciq", GOOD)])
    other = make(tmp_path / "other", [document("piqa", POOR), document(HOSTILE, [0, 1] * 20)], 3.5, field="llama")
    return one, other


def test_what_is_compared_and_said(pair):
    found = compare_runs(*pair)
    assert [row.task for row in found.rows] == ["piqa", HOSTILE]
    piqa, same = found.rows
    assert piqa.items == 40 and piqa.difference.value == 0.5 and piqa.difference.p == pytest.approx(2 * 0.5**20)
    assert piqa.holm == pytest.approx(4 * 0.5**20) and same.difference.p == same.holm == 1.0
    assert (stars(piqa.holm), stars(0.02), stars(0.05), stars(None)) == ("***", "*", "", "")
    assert found.missing == ((), ("sciq",))
    assert findings(found) == [
        "Vanilla GPT has the lower validation loss, by 0.500 nats per token (3.000 against 3.500 for Vanilla Llama). "
        "With one run of each, a small difference can be due to chance.",
        "Vanilla GPT is significantly better on piqa; of 2 measurements that can be compared item by item, 1 differs "
        "significantly after Holm's correction.",
    ]
    assert "Not evaluated in Vanilla Llama: sciq." in remarks(found)
    assert not any("of the values" in one for one in remarks(found))
    table = tasks_table(found)
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "task": "piqa", "metric": "acc", "Vanilla GPT": "0.7500 ± 0.0100", "Vanilla Llama": "0.2500 ± 0.0100",
        "difference": "+0.5000 ± 0.0801", "items": "40", "p": "0.001 or less", "Holm's p": "0.001 or less", "": "***",
    }  # fmt: skip
    assert runs_table(found).rows[1][:4] == ("Vanilla Llama", "other", "3.500", "33.12")


def test_losses_that_print_alike_are_not_said_to_differ(pair, tmp_path):
    found = compare_runs(pair[0], make(tmp_path / "near", [], 3.0001))
    assert findings(found) == ["To three decimals, both have the same validation loss, 3.000 nats per token."]


def test_an_evaluation_as_trained_comes_before_newer_ones_by_other_ways(tmp_path):
    newer = {"created": "2026-02-01T00:00:00+00:00"}
    others = ({"scheme": "heun"}, {"checkpoint": "best"}, {"steps": 4}, {"scheme": "heun", "update": 9})
    more = [document("piqa", POOR, **newer | way) for way in others]
    one = make(tmp_path / "one", [*more[:2], document("piqa", GOOD), *more[2:]])
    other = make(tmp_path / "other", more)
    found = compare_runs(one, other)
    assert found.sides[0].tasks["piqa", 0, None, None]["scheme"] == "lie-trotter"
    assert [side.otherwise for side in found.sides] == [[], ["piqa"]]
    said = "at other steps, with another scheme or from another checkpoint than the last: piqa."
    assert [said in line for line in remarks(found)].count(True) == 1
    early = make(tmp_path / "early", [document("piqa", GOOD, update=4)])
    assert compare_runs(early, one).sides[0].otherwise == ["piqa"]


def test_a_part_of_a_task_is_named_as_one(tmp_path):
    parts = [document("piqa", GOOD), document("piqa", GOOD[:20], limit=20.0)]
    pair = make(tmp_path / "one", parts), make(tmp_path / "other", parts, field="llama")
    assert list(map(label, compare_runs(*pair).rows)) == ["piqa", "piqa, limit 20"]


def test_swapping_the_runs_swaps_the_signs(pair):
    found, swapped = compare_runs(*pair), compare_runs(*pair[::-1])
    assert [row.difference.value for row in swapped.rows] == [-row.difference.value for row in found.rows]
    assert findings(swapped)[0] == findings(found)[0]


def test_the_figure_shows_every_accuracy_and_difference(pair):
    figure = task_figure(compare_runs(*pair))
    left, right = figure.axes
    points = [bar.lines[0].get_xdata().tolist() for bar in left.containers]
    assert points == [[75.0, 50.0], [25.0, 50.0]]  # a model each
    assert [bar.lines[0].get_color() for bar in left.containers] == [color(0), color(1)]
    first, second = (bar.lines[0].get_ydata() for bar in left.containers)
    assert list(first - second) == pytest.approx([0.28, 0.28]) and list(first) == pytest.approx([1.14, 0.14])
    errors = [segment[:, 0].tolist() for bar in left.containers for segment in bar.lines[2][0].get_segments()]
    assert errors[0] == [74.0, 76.0] and errors[2] == [24.0, 26.0]  # a standard error to each side
    labels = left.get_yticklabels()
    assert [(label.get_position()[1], label.get_text()) for label in labels] == [(1, "piqa"), (0, HOSTILE)]
    assert not any(label.get_parse_math() for label in labels)  # a pair of dollars is no formula
    assert [text.get_text() for text in right.texts] == ["+50.0***", "+0.0"]
    sure, unsure = (bar.lines[0] for bar in right.containers)
    assert (sure.get_xydata().tolist(), unsure.get_xydata().tolist()) == ([[50.0, 1.0]], [[0.0, 0.0]])
    assert (sure.get_color(), sure.get_markerfacecolor(), unsure.get_markerfacecolor()) == (color(0), color(0), "none")
    assert [axis.get_xlabel() for axis in figure.axes] == [
        "accuracy (%), ± standard error", "difference (points), 95 % interval"
    ]  # fmt: skip
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Vanilla GPT", "Vanilla Llama"]
    assert [line.get_color() for line in figure.legends[0].get_lines()] == [color(0), color(1)]
    swapped = task_figure(compare_runs(*pair[::-1])).axes[1]
    assert swapped.containers[0].lines[0].get_color() == color(1)  # of the model that is ahead


def test_of_several_evaluations_the_runs_own_steps_count(tmp_path):
    later = document("piqa", POOR, steps=4, created="2027-01-01T00:00:00+00:00")
    one = make(tmp_path / "one", [document("piqa", GOOD), later])
    other = make(tmp_path / "other", [document("piqa", GOOD, created="2020"), document("piqa", POOR)], tied=False)
    (row,) = compare_runs(one, other).rows
    assert row.values == (0.75, 0.25)


def test_other_items_are_not_compared(tmp_path):
    one = make(tmp_path / "one", [document("piqa", GOOD), document("sciq", GOOD)])
    five = document("sciq", GOOD, num_fewshot={"sciq": 5})
    other = make(tmp_path / "other", [document("piqa", GOOD[:-1]), five], text="another")
    found = compare_runs(one, other)
    assert found.rows == () and found.unlike == ("piqa",) and found.missing == (("sciq (5-shot)",), ("sciq",))
    assert [side.name for side in found.sides] == ["Vanilla GPT (one)", "Vanilla GPT (other)"]
    assert findings(found) == [] and "cannot be compared" in remarks(found)[0]


def test_runs_of_one_system_and_one_folder_name_have_their_own_sentences_and_pages(tmp_path):
    one, other, beside = (
        make(tmp_path / name, [document("piqa", scores, "f1")], loss)
        for name, scores, loss in (("a/gpt", GOOD, 3.0), ("b/gpt", POOR, 3.5), ("a/new", GOOD, 3.0))
    )
    assert "Vanilla GPT (a/gpt) is significantly better on piqa, f1" in findings(compare_runs(one, other))[1]
    pairs = (one, beside), (beside, other), (beside, one)
    pages = [study(Arguments(*map(str, pair)), Silent()).folder for pair in pairs]
    assert [page.name for page in pages] == ["compare-new", "compare-b,gpt", "compare-gpt"]


def test_no_two_ways_to_a_run_have_one_page(tmp_path):
    ways = ("x-y", "x y", "x_y", "x/y", "x,y", "..,x", "x", "other/x", "other-x", "y/../z/x")
    names = [_way(tmp_path / "one", tmp_path / way) for way in ways]
    assert len({*names}) == len(ways) and (names[0], names[3]) == ("x-y", "x,y")
    assert all(re.fullmatch(r"[\w.,-]+", name) for name in names)


def test_a_metric_that_is_no_mean_has_its_own_difference(tmp_path):
    documents = [document("lambada", scores, "perplexity") for scores in ([-1.0, -2.0, -3.5], [-2.0, -2.5, -4.5])]
    for one, value in zip(documents, (8.0, 20.0), strict=True):
        one["results"][0] |= {"value": value, "higher_is_better": False}
    found = compare_runs(*(make(tmp_path / name, [one]) for name, one in zip("ab", documents, strict=True)))
    ((_, _, _, _, difference, items, p, *_),) = tasks_table(found).rows
    assert (difference, items, p) == ("−12.0000", "3", "0.038")  # t = 5 with 2 degrees of freedom
    (saved,) = compare_document(found)["tasks"]
    assert saved["difference"] == {"value": -12.0, "stderr": None, "p": pytest.approx(0.038, abs=1e-3)}
    assert not accuracies(found)


def test_groups_are_compared_by_all_items_of_their_parts(tmp_path):
    parts = {"a": [1.0, 0.0, 1.0], "b": [0.0, 1.0]}
    group = document("both", [0.6])
    group |= {"items": {name: {"acc,none": scores} for name, scores in parts.items()}, "samples": {"a": 3, "b": 2}}
    group |= {"num_fewshot": {"a": 5, "b": 5}}
    group["results"][0]["group"] = True
    other = copy.deepcopy(group)
    other["items"]["b"]["acc,none"] = [1.0, 1.0]
    (row,) = compare_runs(make(tmp_path / "one", [group]), make(tmp_path / "other", [other])).rows
    assert row.items == 5 and row.difference.value == pytest.approx(-0.2)


def test_a_groups_better_model_is_that_of_the_difference_that_is_tested(tmp_path):
    groups = []
    for small, large in ((0.0, 80), (1.0, 40)):  # task means 0.4 and 0.7; of all items 80 and 50 of 110
        scores = {"a": [small] * 10, "b": [1.0] * large + [0.0] * (100 - large)}
        group = document("both", [(small + large / 100) / 2], num_fewshot=dict.fromkeys(scores, 0))
        group |= {"items": {name: {"acc,none": own} for name, own in scores.items()}, "samples": {"a": 10, "b": 100}}
        group["results"][0]["group"] = True
        groups.append(group)
    one, other = make(tmp_path / "one", [groups[0]]), make(tmp_path / "other", [groups[1]], 3.0, field="llama")
    found = compare_runs(one, other)
    assert found.rows[0].values == (0.4, 0.7) and found.rows[0].difference.value == pytest.approx(30 / 110)
    assert findings(found)[1].startswith("Vanilla GPT is significantly better on both;")
    assert remarks(found)[-1].endswith("not that of the values: both (+0.2727).")


@pytest.mark.parametrize("known", [True, False])
def test_a_group_within_a_group_is_compared_by_its_own_items_alone(tmp_path, known):
    scores = {"a": [1.0, 0.0, 1.0], "b": [0.0, 1.0], "c": [1.0, 1.0]}
    group = document("all", [5 / 7], num_fewshot=dict.fromkeys(scores, 0))
    group |= {"items": {name: {"acc,none": own} for name, own in scores.items()}}
    first = group["results"][0] | {"group": True}
    group["results"] = [first, first | {"task": "some", "value": 0.8}]
    if known:  # by a document of today
        group["subtasks"] = {"all": ["a", "some"], "some": ["b", "c"]}
    other = copy.deepcopy(group)
    other["items"]["a"]["acc,none"] = [0.0, 0.0, 0.0]
    whole, part = compare_runs(make(tmp_path / "one", [group]), make(tmp_path / "other", [other])).rows
    assert whole.items == 7 and whole.difference.value == pytest.approx(2 / 7)
    if known:
        assert part.items == 4 and part.difference.value == 0.0
    else:  # which items "some" has is not known, so nothing is tested
        assert (part.items, part.difference) == (0, None)


def test_the_command(pair, capsys, tmp_path):
    assert main(["report", "compare", *map(str, pair), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["task"] for row in found["tasks"]] == ["piqa", HOSTILE]
    assert found["tasks"][0]["difference"]["p"] == pytest.approx(2 * 0.5**20)
    folder = pair[0] / "analysis" / "compare-other"
    assert {path.name for path in folder.iterdir()} == {"index.html", "compare.npz", "accuracy.png", "accuracy.svg"}
    page = (folder / "index.html").read_text()
    assert "Vanilla Llama" in page and "http://" not in page.replace("http://www.w3.org", "") and "<b>_y" not in page
    assert "Settings that differ" in page and "model.<wbr>field" in page and 'href="../index.html"' in page
    assert 'href="compare-other/index.html"' in (folder.parent / "index.html").read_text()
    with np.load(folder / "compare.npz") as arrays:
        assert arrays["differences"].tolist() == [0.5, 0.0]
    assert main(["report", "compare", *map(str, pair), "--to", str(tmp_path / "page")]) == 0
    said = capsys.readouterr().out
    assert "+0.5000 ± 0.0801" in said and "Not evaluated in Vanilla Llama: sciq." in said


@pytest.mark.parametrize("kind", ["twice", "no folder", "no run", "nothing in common", "no evaluation"])
def test_refusals(pair, tmp_path, kind, capsys):
    one, other = pair
    if kind == "twice":
        other, sentence = one, "is given twice, but two different runs must be compared."
    elif kind == "no folder":
        other, sentence = tmp_path / "none", "does not exist; `diffeqformer train` makes one."
    elif kind == "no run":
        other, sentence = tmp_path, "is not a run: it has no config.yaml; it holds runs, such as"
    elif kind == "nothing in common":
        other, sentence = make(tmp_path / "new", loss=None), "no task has been evaluated in both runs"
    else:
        (other / "evaluations" / "0.json").write_text('{"task": "piqa"}')
        sentence = "is not an evaluation as `eval --tasks` writes it"
    with pytest.raises(BadInput, match=sentence.replace("(", "\\(")):
        compare_runs(one, other)
    assert main(["report", "compare", str(one), str(other)]) == 2 and sentence in capsys.readouterr().err
    assert not (one / "analysis").exists()


def test_a_page_cannot_take_a_files_place(pair, tmp_path, capsys):
    (tmp_path / "file").write_text("kept")
    assert main(["report", "compare", *map(str, pair), "--to", str(tmp_path / "file")]) == 2
    assert "but that is a file; name a folder" in capsys.readouterr().err
