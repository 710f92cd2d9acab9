"""The items of the paper: what it has of each, and what the list of items says of runs and verdicts."""

from dataclasses import replace

import jax
import pytest

from diffeqformer.config import shipped_configs
from diffeqformer.errors import BadInput
from diffeqformer.model.count import smallest_useful_d_emb
from diffeqformer.progress import Silent
from diffeqformer.studies.inputs import shipped
from diffeqformer.studies.paper import article as paper_page
from diffeqformer.studies.paper import record as paper_record
from diffeqformer.studies.paper import runs as paper_runs
from diffeqformer.studies.paper.claims import Trained, judge, models_of
from diffeqformer.studies.paper.items import ITEMS
from diffeqformer.studies.paper.measures import TASKS
from diffeqformer.studies.paper.models import GPU_MODELS, MODELS
from diffeqformer.studies.paper.reported import REPORTED
from diffeqformer.studies.paper.runs import Arguments, Runs
from diffeqformer.studies.reproduce.reproduce_paper import study


def test_every_item_names_models_that_there_are_and_their_configs_are_sound(tmp_path):
    claimed = {name for item in ITEMS.values() for claim in item.claims for name in claim.models}
    drawn = {name for item in ITEMS.values() for _, names in item.figures for name in names}
    assert claimed | drawn <= set(MODELS)
    assert {model.rate_of for model in MODELS.values()} - {""} <= set(MODELS)
    runs = Runs(Arguments(to=str(tmp_path), other=("a.txt",), web=("b.txt",)), MODELS, Silent())
    configs = {name: runs.config(name, 1, 1e-3) for name in MODELS}
    assert len({config.run for config in configs.values()}) == len(MODELS)
    texts = {name: config.data.train for name, config in configs.items()}
    assert texts == {name: {"own": (), "other": ("a.txt",), "web": ("b.txt",)}[MODELS[name].text] for name in MODELS}
    assert configs["gpt-other"].trainer.updates == 3 * configs["gpt"].trainer.updates == 1500


def test_the_page_says_what_every_model_is():
    for models in (MODELS, GPU_MODELS):
        rows = {name: (config, said) for name, config, said in paper_page.configs_table(list(models), models).rows}
        assert set(rows) == set(models) and {config for config, _ in rows.values()} <= set(shipped_configs())
        assert len(set(rows.values())) == len(rows) - len({name for name in rows if name.endswith("-own")})
    rows = {name: tuple(said) for name, *said in paper_page.configs_table(list(MODELS), MODELS).rows}
    assert rows["gpt"] == ("quickstart-gpt", "–")
    assert rows["gpt-other"] == ("quickstart-gpt", "3 times the updates; the other text")
    assert rows["smooth"] == ("quickstart-diffeqformer", "model.weights.highest_frequency 12.0")
    assert rows["free-rows"][1] == "built by diffeqformer.studies.paper.controls.free_rows"
    assert rows["repeats-llama"][1].endswith("trained on diffeqformer.studies.paper.controls.RepeatedTokens")
    assert 'model.weights {"kind": "knots", "average": true}' in rows["knots"][1]


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


def test_the_claim_of_d_emb_8_names_the_size_from_which_matrices_are_free():
    least = smallest_useful_d_emb(shipped("quickstart-diffeqformer").model)
    assert any(f"(from {least} on, matrices of 6 steps" in claim.sentence for claim in ITEMS["figure-14"].claims)


def test_an_unknown_item_is_refused():
    with pytest.raises(BadInput, match="no item 'table-9'; the items are "):
        study(Arguments(items=("table-9",)), Silent())
    with pytest.raises(BadInput, match="names table-1 more than once"):
        study(Arguments(items=("table-1", "table-1")), Silent())


def test_presets_have_the_published_sizes(tmp_path):
    effect = ITEMS["table-3"].claims[0].measure(Trained({}, 0, tmp_path, Silent()))
    assert effect is not None
    assert effect > 0


def test_the_machines_speed_is_by_the_time_of_its_processors(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(paper_runs.time, "process_time", lambda: 1e-3 * next(ticks))
    monkeypatch.setattr(paper_runs.os, "sched_getaffinity", lambda process: {0, 1, 2})
    assert paper_runs.matrix_speed() == pytest.approx(3 * 2 * 64**4 / 1e-3)


def test_the_list_has_the_verdicts_of_the_record(tmp_path):
    path = tmp_path / "record.json"
    asked = Arguments(items=("table-3",), list=True, to=str(tmp_path), record=str(path))
    assert study(asked, Silent()).document["items"][0]["on_record"] is None
    claim = ITEMS["table-3"].claims[0]
    kept = paper_record.of_claim("table-3", claim.sentence, claim.unit, judge({0: 0.1}, exact=True))
    row = ["gpt", "1.47", "0.001", "its own", "4.2", "3"]
    paper_record.write(path, {"claims": [kept], "models": [row], "rates": {}}, asked.of)
    found = study(asked, Silent()).document["items"][0]
    assert found["on_record"]["holds"] == 1
    assert paper_record.read(path, asked.of).models == {"gpt": tuple(row)}


def test_what_needs_another_text_says_so_in_its_command_its_section_and_the_list(tmp_path):
    for text in ("other", "web"):
        needy = {name for name, item in ITEMS.items() if text in item.texts}
        assert needy == {name for name, item in ITEMS.items() if f"--{text} FILES" in item.missing}
        assert needy >= {name for name, item in ITEMS.items() if any(MODELS[m].text == text for m in models_of(item))}
    found = {name: [judge({})] * len(ITEMS[name].claims) for name in ("table-1", "table-2", "table-3")}
    commands = {row[-1].removeprefix("diffeqformer reproduce paper ") for row in paper_page.summary(found).rows}
    assert commands == {"table-1 --other FILES", "table-2 --other FILES --web FILES", "table-3"}
    asked = Arguments(items=("table-3", "table-1", "figure-5"), list=True, to=str(tmp_path))
    (said,) = study(asked, Silent()).findings
    assert "Without --other, claims of table-1 and figure-5 stay untested" in said
    (said,) = study(replace(asked, other=("other.txt",)), Silent()).findings
    assert "--other" not in said


def test_an_items_row_has_its_main_claim_with_its_effect():
    verdicts = [judge({0: n + 0.1, 1: n + 0.2, 2: n + 0.3}) for n in range(len(ITEMS["what-decides"].claims))]
    (row,) = paper_page.summary({"what-decides": verdicts}).rows
    assert row[1:4] == (ITEMS["what-decides"].claims[1].sentence, "holds", "+1.200 [+0.952, +1.448]")
    assert row[4] == "12 hold and 1 is within noise"
    assert all(0 <= item.main < len(item.claims) for item in ITEMS.values())


def test_every_item_of_the_paper_says_what_the_paper_has_and_where():
    assert set(REPORTED) == {name for name, item in ITEMS.items() if "not in" not in item.where}
    for reported in REPORTED.values():
        assert all(place and there.endswith(".") for place, there in reported.places)
        assert all(len(row) == len(table.columns) for table in reported.numbers for row in table.rows)
    tables = {table.caption.partition("\n")[0]: table for table in REPORTED["tables-4-5"].numbers}
    four, five = (next(one for name, one in tables.items() if name.startswith(f"Table {n}")) for n in (4, 5))
    assert [row[0] for row in four.rows] == [row[0] for row in five.rows] == list(TASKS)
    assert four.rows[3][1:3] == ["37.24 (0.67)", "38.39 (0.68)"]
    assert five.rows[4][3:] == ["24.04 (0.60)", "28.22 (0.63)"]
    (figure,) = REPORTED["figure-5"].numbers
    ends = {row[0]: [float(one) for one in row[1:6]] for row in figure.rows}
    ahead = {name: [one < row[4] for one in row[:4]] for name, row in ends.items() if name.endswith("LoRA")}
    assert list(ahead.values()) == [[False, False, True, True]] * 2  # as is said above it
    diverged = {"gpt": [2], "shared": [0]}  # one of them is another item's
    verdicts = [judge({}) for _ in ITEMS["tables-4-5"].claims]
    page = paper_page.item_tables("tables-4-5", verdicts, {}, diverged)
    assert "\nC.7, table 5, figures 11 and 12: beside Llama-1B" in page[0].caption
    assert "\nModels: diffeqformer, gpt.\n" in page[0].caption
    assert "\nTraining diverged, so these are left out of the effects: gpt with seed 2.\n" in page[0].caption
    assert page[1:] == REPORTED["tables-4-5"].numbers
