"""The page says what the numbers say, holds everything it shows, and lets nothing in that acts."""

import copy
import math
import re
from html.parser import HTMLParser

import matplotlib
import pytest
import report_examples as examples

from diffeqformer.errors import RunFailed
from diffeqformer.report import figures, run_figures, run_text, text
from diffeqformer.runs.results import WEIGHTS
from diffeqformer.studies.run_report import run_report, write_report

VOID = {"meta", "link", "br", "img", "hr", "input", "base", "wbr"}
SVG = {"svg", "g", "path", "use", "defs", "text", "clippath", "rect"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> ]]> {{ 7*7 }} $x$ \x00\x07\u202e\ud800 --><!--"


class Page(HTMLParser):
    """All elements with their attributes, the tables cell by cell, and the text of each section."""

    def __init__(self, source: str):
        super().__init__()
        self.tags, self.open, self.tables, self.sections = [], [], {}, {}
        self.ids, self.table, self.section, self.visible = [], None, "", ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.section = attributes["id"]
        if tag == "table":
            self.table = self.tables.setdefault(attributes["class"], [])
        if tag == "tr":
            self.table.append([])
        if tag in ("td", "th"):
            self.table[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            return
        self.visible += data
        self.sections[self.section] = self.sections.get(self.section, "") + data
        if self.table and ("td" in self.open or "th" in self.open):
            self.table[-1][-1] += data


def render(results) -> str:
    return run_report(results).page()


@pytest.fixture(scope="module")
def source() -> str:
    return render(examples.comparison())


@pytest.fixture(scope="module")
def page(source) -> Page:
    return Page(source)


def test_headline_and_terms_are_computed(page):
    assert (
        "Of 3 models, DiffEqFormer has the lowest validation loss, 3.980 nats per token: "
        "0.100 below Vanilla GPT and 0.420 below Shared weights." in page.visible
    )
    assert "Each was trained once, for 1,500 updates, 3.07\u00a0M tokens." in page.visible


def test_every_kind_of_weights_is_explained(page):
    kinds = {kind for kind in WEIGHTS if kind not in ("box", "own")}
    assert all(f"{kind}: " in page.sections["terms"] for kind in kinds)


def test_unequal_compute_at_equal_updates_is_told():
    """A model that is trained at several depths has more, or less, of it than those of one depth."""
    models = examples.comparison()["models"]
    for model, compute in zip(models, (9000, 9000, 9050), strict=True):
        model["compute"] = compute
    assert "same compute" not in run_text.comparison(models)  # within one per cent
    models[2]["compute"] = 11_250
    first, second, third = (model["name"] for model in models)
    assert run_text.comparison(models).startswith(
        "Each was trained once, for 1,500 updates, 3.07\u00a0M tokens, but not with the same compute (steps of depth, "
        f"summed over updates): 9,000 in {first} and {second} and 11,250 in {third}. Parameters"
    )


def test_headline_follows_the_numbers():
    models = examples.comparison()["models"]
    models[0]["validation"]["loss"] = 4.5
    assert run_text.headline(models).startswith("Of 3 models, Vanilla GPT has the lowest validation loss, 4.080 nats")
    models[0]["validation"]["loss"], models[1]["validation"]["loss"] = 4.0806, 4.0803
    assert "4.080 nats per token: less than 0.001 below DiffEqFormer and 0.320 below" in run_text.headline(models)
    models[0]["validation"]["loss"] = 4.0804
    assert run_text.headline(models) == (
        "Of 3 models, Vanilla GPT and DiffEqFormer share the lowest validation loss, 4.080 nats per token: "
        "0.320 below Shared weights."
    )
    assert run_text.headline(models, 256).endswith("below Shared weights. Guessing every token uniformly has 5.545.")
    assert run_text.headline(models[:1], 256).endswith("bits per byte. Guessing every token uniformly has 5.545.")
    models[1]["validation"]["loss"] = math.nan
    assert run_text.headline(models).endswith("Vanilla GPT did not reach a finite validation loss.")
    assert run_text.headline(models[1:2]) == "Vanilla GPT did not reach a finite validation loss."
    models[1]["tokens"] //= 2
    assert run_text.comparison(models).startswith(
        "They were not trained equally long: DiffEqFormer on 3.07\u00a0M tokens"
    )
    models[1]["validation"]["loss"] = 4.2
    assert run_text.headline(models).startswith(
        "Not trained equally long: of 3 models, DiffEqFormer has the lowest validation loss, 4.080 nats per token: "
    )
    for model in models:
        model["compute"] = 9000
    assert run_text.headline(models).startswith("Of 3 models, ")


def test_effective_parameters_stand_beside_the_stored_ones():
    models = examples.comparison()["models"]
    assert "effective, once the weights of every step are populated: 1.47\u00a0M in each." in run_text.comparison(
        models
    )
    models[1]["parameters"]["effective"] = 2_000_000
    assert "populated: 1.47\u00a0M in DiffEqFormer, 2.00\u00a0M in Vanilla GPT and 1.47" in run_text.comparison(models)
    del models[1]["parameters"]["effective"]
    assert "effective" not in run_text.comparison(models)


def test_the_curves_caption_begins_with_where_they_end():
    report = run_report(examples.comparison())
    ends = [m["curve"]["validation"][-1][1] for m in examples.comparison()["models"]]
    assert report.figures[-1].caption.startswith(f"Validation loss ends at {ends[0]:.3f} in DiffEqFormer, ")


@pytest.mark.parametrize(("batches", "said"), [((4, 16, 4), "4 and 16 batches."), ((1, 1, 1), "1 batch.")])
def test_batches_of_estimates_are_told_in_order_and_in_number(batches, said):
    """16 was before 4, as texts are sorted."""
    results = examples.comparison()
    for model, number in zip(results["models"], batches, strict=True):
        model["config"]["trainer"]["evaluate_batches"] = number
    assert f"estimated during training on at most {said}" in run_report(results).figures[-1].caption


def test_table_of_results(page):
    head, *rows = page.tables["results"]
    assert len(head) == 10 and head[6:8] == ["parameters", "effective parameters"]
    assert rows[0] == [
        "DiffEqFormer", "3.980", "53.52", "1.694", "6", "6", "2.31\u00a0M", "1.47\u00a0M", "17,230",
        "2\u00a0min 58\u00a0s",
    ]  # fmt: skip
    assert [row[1] for row in rows] == ["3.980", "4.080", "4.400"]


def test_steps_and_evaluations_are_told_as_they_were():
    results = examples.comparison()
    first, second, third = results["models"]
    first["evaluations"] = {"attention": 6.0, "feed_forward": 12.0}
    second["evaluations"] = {"attention": 31.25, "feed_forward": 31.25}
    second["config"]["model"]["tolerance"] = {"rtol": 1e-3}
    del third["evaluations"]  # results of an earlier version
    rows = Page(render(results)).tables["results"][1:]
    assert [row[4:6] for row in rows] == [["6", "6 + 12"], ["adaptive (rtol 0.001)", "31.2"], ["6", "–"]]


def test_best_values_are_marked(source):
    results = source[source.index('<table class="results">') :].partition("</table>")[0]
    assert re.findall(r"<strong>(.*?)</strong>", results) == [
        "3.980",
        "53.52",
        "1.694",
    ]  # speed and time are those of a machine that others may have used, too


def test_depth_is_told_truthfully(page):
    rows = {row[0]: row[1:] for row in page.tables["depth"][1:]}
    assert {steps: loss for steps, (loss,) in rows.items()} == {
        "3": "7.460", "4": "6.100", "5": "5.400", "6": "3.980", "8": "5.200", "9": "6.090", "12": "6.970",
    }  # fmt: skip
    section = page.sections["depth"]
    assert "between 1.220 nats above it at 8 steps and 3.480 nats above it at 3 steps" in section
    assert "poor until it is fine-tuned" in section
    assert "7.625 nats" in section


def test_depths_that_were_drawn_have_a_table_and_a_part_of_the_text_is_told():
    results = examples.comparison()
    page = Page(render(results))
    assert "drawn" not in page.tables and "of the validation text" not in page.sections["depth"]
    results["models"][0]["drawn"] = [
        {"steps": 2, "updates": 1300, "loss": 3.25, "tokens_per_second": 11000.0},
        {"steps": 12, "updates": 0, "loss": None, "tokens_per_second": None},
    ]
    page = Page(render({**results, "depth_part": 0.25}))
    assert page.tables["drawn"][1:] == [["2", "1,300", "3.250", "11,000"], ["12", "0", "–", "–"]]
    read = "All of this was read on 25\u00a0% of the validation text, evenly spread"
    assert f"{read}; Vanilla GPT and Shared weights on all of it." in page.sections["depth"]
    for model in results["models"][1:]:  # read at their own steps, as a quickstart does
        model["depth"] = [{**model["validation"], "steps": 6}]
    assert f"{read}." in Page(render({**results, "depth_part": 0.25})).sections["depth"]


def test_depth_caption_claims_nothing_the_numbers_do_not_show():
    results = examples.comparison()
    results["models"][0]["depth"] = [{"steps": 12, "loss": 3.9, "perplexity": math.exp(3.9), "bits_per_byte": 1.6}]
    section = Page(render(results)).sections["depth"]
    assert "its loss lies 0.080 nats below it at 12 steps." in section
    assert "poor" not in section
    assert "guessing" not in section


def test_samples_corpus_settings_versions(page, source):
    assert source.count('<pre><span class="prompt">def read(self, size=-1):\n</span>') == 3
    assert "Read and return up to size bytes." in page.sections["samples"]
    assert ["Tokens", "3,356,567", "177,912"] in page.tables["corpus"]
    differ = {row[0]: row[1:] for row in page.tables["settings differ"][1:]}
    assert differ == {
        "run": ["runs/quickstart/diffeqformer", "runs/quickstart/vanilla", "runs/quickstart/shared"],
        "model.weights": ["time", "layer", "shared"],
        "model.scheme": ["euler", "lie-trotter", "euler"],
        "model.horizon": ["unit", "steps", "unit"],
    }
    every = {row[0]: row[1] for row in page.tables["settings every"][1:]}
    assert every["optimizer.epsilon"] == "1e-08"
    assert every["optimizer.decay_roles"] == "[embedding, matrix]"
    assert every["model.hidden"] == "null"
    assert every["data.strict"] == "false"

    def leaves(config):
        return sum(leaves(v) if isinstance(v, dict) else 1 for v in config.values())

    assert len(every) == leaves(examples.comparison()["models"][0]["config"])
    for shown in ("0.10.2", "3.11.13", "cpu (2 cores)", "21 November 2026, 09:41 UTC"):
        assert shown in page.visible


def test_stands_alone(page, source):
    assert not re.search(r"https?:|//[a-z]|@import|javascript:", source, re.IGNORECASE)
    assert all(not re.match(r"(?!#)", a) for a in re.findall(r"url\((.*?)[)]", source))
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "image", "foreignObject")
        assert not any(name.startswith("on") or name in ("src", "srcset") for name in attributes)
        assert attributes.get("href", "#").startswith("#")
    assert len(page.ids) == len(set(page.ids))
    used = {a["href"][1:] for _, a in page.tags if "href" in a} | set(re.findall(r"url\(#(.*?)\)", source))
    assert used <= set(page.ids)


def test_hostile_text_is_inert():
    results = examples.comparison()
    harmless = copy.deepcopy(results)
    for model in harmless["models"]:
        model["sample"]["settings"] = dict.fromkeys("abcde", 1)
        model["weights"] = model["scheme"] = "x"
    expected = [tag for tag, _ in Page(render(harmless)).tags]
    results |= {"title": HOSTILE, "device": HOSTILE, "created": HOSTILE}
    results["versions"] = {"diffeqformer": HOSTILE, "jax": HOSTILE, "python": HOSTILE}
    results["corpus"]["name"] = HOSTILE
    for model in results["models"]:
        model["name"] = "_$\\frac{$" + HOSTILE
        model["weights"] = model["scheme"] = HOSTILE
        model["sample"] = {"prompt": HOSTILE, "text": "\n" + HOSTILE, "settings": dict.fromkeys("abcde", HOSTILE)}
        model["config"]["data"]["tokenizer"] = HOSTILE
    hostile = render(results)
    page = Page(hostile)
    assert [tag for tag, _ in page.tags if tag not in SVG] == [tag for tag in expected if tag not in SVG]
    assert {tag for tag, _ in page.tags} == set(expected)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff\ufffe\uffff]", hostile)
    assert "{{ 7*7 }}" in page.visible
    assert page.sections["samples"].count("<script>alert(1)</script>") >= 6
    legends = re.findall(r"<text[^>]*>(_\$\\frac{\$&lt;script[^<]*)</text>", hostile)
    assert len(legends) >= 6
    hostile.encode("utf-8")


def test_one_model_and_missing_parts_leave_their_sections_out():
    results = examples.single()
    page = Page(render(results))
    assert "Vanilla GPT reaches a validation loss of 4.080 nats per token: perplexity 59.15" in page.visible
    assert [a["id"] for tag, a in page.tags if tag == "section"] == ["results", "losses", "corpus", "settings", "terms"]
    assert "strong" not in [tag for tag, _ in page.tags]
    assert "settings differ" not in page.tables
    results["models"][0]["curve"] = {"train": [], "validation": []}
    results["corpus"] |= {"train_documents": None, "validation_documents": None}
    page = Page(render(results))
    assert "svg" not in [tag for tag, _ in page.tags]
    assert [row[0] for row in page.tables["corpus"][1:]] == ["Text", "Tokens"]


def test_diverged_model_is_shown_as_such():
    results = examples.comparison()
    broken = results["models"][2]
    broken["validation"] = {"loss": math.nan, "perplexity": math.inf, "bits_per_byte": math.nan}
    broken["curve"]["train"][-3:] = [[1480, math.nan], [1490, math.inf], [1500, None]]
    page = Page(render(results))
    assert page.tables["results"][3][1:4] == ["not finite"] * 3
    assert "Points that are not finite, and so cannot be drawn: 3." in page.sections["losses"]
    assert "Shared weights did not reach a finite validation loss." in page.visible


def test_same_results_same_bytes_and_input_untouched(source):
    results = examples.comparison()
    before = copy.deepcopy(results)
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "text.usetex": True}):
        assert render(results) == source
        assert matplotlib.rcParams["font.size"] == 30
    assert results == before


def test_written_aside_and_renamed(tmp_path, monkeypatch):
    path = tmp_path / "new" / "report.html"
    write_report(examples.single(), path)
    first = path.read_bytes()
    assert first.startswith(b"<!doctype html>") and first.endswith(b"</html>\n")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(RunFailed, match=r"report '.*report\.html' cannot be written: Permission denied\."):
        write_report(examples.comparison(), path)
    assert path.read_bytes() == first
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_curve_helpers():
    line = [(float(i), 3.0 * i) for i in range(90)]
    averages = run_figures.smooth(line)  # full windows only: a line stays a line, and its ends are left out
    assert averages == [pytest.approx(point) for point in line[1:-1]]
    points = [(float(i), (i * 7919 % 1009) / 1009) for i in range(20_000)]
    points[777] = (777.0, 50.0)
    thinned = figures.thin(points)
    assert len(thinned) <= 600
    assert (777, 50.0) in thinned and thinned[0] == points[0] and thinned[-1] == points[-1]
    assert thinned == sorted(thinned)


def test_figures_hold_the_data():
    models = examples.comparison()["models"]
    depth = run_figures.depth_curve(models, 2048)
    (axis,) = depth.axes
    assert list(zip(*axis.lines[0].get_data(), strict=True)) == [
        (3, 7.46), (4, 6.1), (5, 5.4), (6, 3.98), (8, 5.2), (9, 6.09), (12, 6.97)
    ]  # fmt: skip
    assert [t.get_text() for t in depth.legends[0].get_texts()] == [
        "DiffEqFormer, not fine-tuned", "Vanilla GPT (6 steps)", "Shared weights (6 steps)",
        "guessing uniformly (ln 2,048)",
    ]  # fmt: skip
    assert axis.get_yscale() == "linear"
    assert list(axis.get_xticks()) == [3, 4, 5, 6, 8, 9, 12]
    models[0]["depth"][0]["loss"] = 60.0
    models[0]["depth"] += [{**models[0]["depth"][0], "steps": steps} for steps in (7, 10, 11, 96)]
    (crowded,) = run_figures.depth_curve(models, 2048, width=figures.NARROW).axes
    assert (crowded.get_xscale(), crowded.get_yscale()) == ("log", "log")
    assert {6, 96} < set(crowded.get_xticks()) < {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 96}
    losses = run_figures.loss_curves(models)
    assert min(losses.axes[1].lines[0].get_xdata()) == 1000
    assert len({figures.color(i) for i in range(3)}) == 3


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (text.compact(9999), "9,999"), (text.compact(12_345), "12.3\u00a0k"), (text.compact(999_900), "1.00\u00a0M"),
        (text.compact(1_240_000_000), "1.24\u00a0B"), (text.duration(48.21), "48.2\u00a0s"),
        (text.duration(59.99), "1\u00a0min 00\u00a0s"), (text.duration(7500), "2\u00a0h 05\u00a0min"),
        (text.size(603_120), "603.1\u00a0kB"), (text.perplexity(53.517), "53.52"), (text.perplexity(1.2e9), "1.20e+09"),
        (text.number(None), "–"), (text.number(-1234.5, 1), "−1,234.5"), (text.signed(-1234.5, 1), "−1,234.5"),
        (text.signed(0.344, 2), "+0.34"), (text.signed(math.nan, 2), "not finite"),
        (text.compact(-12345), "−12.3\u00a0k"),
        (text.unbroken("5 % or 50 %d"), "5\u00a0% or 50\u00a0%d"), (text.join(["a", "b", "c"]), "a, b and c"),
    ],
)  # fmt: skip
def test_numbers_are_written(written, wanted):
    assert written == wanted


def test_what_each_step_does_is_told_of_the_models_that_have_it():
    results = examples.comparison()
    numbers = {name: [0.5] * 2 for name in ("attention", "feed_forward")}
    numbers |= {"times": [0, 0.5, 1], "loss": [9, 4.02, 4], "kl": [3, 0.01, 0], "length": [1, 2, 3]}
    results["models"][0]["participation"] = {**numbers, "energy": {"up": 0.25}, "rank": {"up": 1.5}}
    page = Page(render(results))
    assert "DiffEqFormer: After 1 of 2 steps the prediction has settled: its loss is 4.020 nats there" in page.visible
    assert "25\u00a0% of the weights’ squared size" in page.visible.replace("'", "’")
    assert [row[2] for row in page.tables["steps"][1:]] == ["9.000", "4.020", "4.000"]
    assert "What each step does" not in Page(render(examples.comparison())).visible


@pytest.mark.parametrize(("sample", "depths"), [("4-9", [4, 5, 6, 7, 8, 9]), ([9, 4], [4, 9]), ([], [6])])
def test_trained_depths_are_those_drawn_or_else_those_of_the_config(sample, depths):
    model = {"steps": 6, "config": {"depth": {"sample": sample}}}
    assert run_text.depths_trained_at(model) == depths
    more = {"steps": 6, "config": {"depth": {"sample": sample, "always": [12, 4]}}}
    assert run_text.depths_trained_at(more) == sorted({4, 12} | ({*depths} if sample else set()))
    drawn = [{"steps": 5, "updates": 2}, {"steps": 7, "updates": 0}]
    assert run_text.depths_trained_at(model | {"drawn": drawn}) == [5]


@pytest.mark.parametrize(
    ("depth", "cell"),
    [
        ({"sample": [3], "always": [1, 2, 4]}, "6 (trained at 1 to 4)"),
        ({"sample": [3]}, "6 (trained at 3)"),
        ({"sample": []}, "6"),
    ],
)
def test_the_table_of_results_names_all_depths_that_updates_were_made_at(depth, cell):
    results = examples.single()
    results["models"][0] |= {"drawn": []}
    results["models"][0]["config"]["depth"] |= depth
    assert cell in run_report(results).tables[0].rows[0]
    # A list of many depths takes several lines, so that the table is no wider than the page.
    kinds = re.search(rf'class="([a-z ]*)">{re.escape(cell)}</td>', render(results))[1].split()
    assert ("long" in kinds) == (len(cell) > 20)


def test_small_probabilities_keep_two_digits():
    assert [text.probability(p) for p in (1.0, 0.75, 0.1, 0.0949, 0.0049, 3.14e-5)] == [
        "1.00", "0.75", "0.10", "0.095", "0.0049", "3.1e-05"
    ]  # fmt: skip
