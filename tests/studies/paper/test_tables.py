"""Tables of the paper's page that no claim is made of: measured once, kept beside the runs and in the record."""

import json
from dataclasses import asdict, replace

from diffeqformer.config import Config
from diffeqformer.model.count import parameters
from diffeqformer.progress import Silent
from diffeqformer.report.table import Table
from diffeqformer.studies.paper import article as paper_page
from diffeqformer.studies.paper import items as paper_items
from diffeqformer.studies.paper import tables as paper_tables
from diffeqformer.studies.paper.claims import Claim, Item
from diffeqformer.studies.paper.runs import Arguments
from diffeqformer.studies.reproduce.reproduce_paper import study, write
from tests.models import TINY


def test_costs_have_a_row_for_every_size(monkeypatch):
    monkeypatch.setattr(paper_tables, "BATCH_SIZES", (2, 4))
    monkeypatch.setattr(paper_tables, "planned_memory", lambda config, size: size * config.model.time.d_emb * 10**6)
    monkeypatch.setattr(paper_tables.benchmark, "repeated", lambda config: config)
    turns = lambda updates, rounds, progress: {name: [4.0, 0.25, 0.5] for name in updates}
    monkeypatch.setattr(paper_tables.benchmark, "take_turns", turns)
    configs = {d_emb: Config(model=replace(TINY, weights=replace(TINY.weights, d_emb=d_emb))) for d_emb in (2, 600)}
    table = paper_tables.costs(Silent(), configs)
    assert table.columns[2:] == (
        "memory (MB), 2 sequences", "memory (MB), 4 sequences", "tokens per second, 2 sequences",
        "tokens per second, 4 sequences",
    )  # fmt: skip
    sizes = [f"{parameters(one.model).stored / 1e6:.2f}" for one in configs.values()]
    assert table.rows == [("2", sizes[0], "4", "8", "48", "96"), ("600", sizes[1], "1,200", "2,400", "48", "96")]
    assert Table(**json.loads(json.dumps(asdict(table)))).to_markdown() == table.to_markdown()


def test_every_d_emb_of_the_figure_is_a_size():
    sizes = paper_tables._sizes(paper_tables.shipped("quickstart-diffeqformer"))
    assert list(sizes) == [4, 8, 24, 48, 144]
    assert [one.model.weights.d_emb for one in sizes.values()] == [4, 8, 24, 48, 144]


def test_a_table_is_measured_once_and_the_record_has_it_when_its_runs_are_gone(tmp_path, monkeypatch):
    table, measured = Table("A table\nof one row.", ("what", "number"), [("one", "1")]), []
    claim = Claim("nothing is known", "nats", (), lambda found: None)
    some = lambda progress: measured.append(1) or table
    some.__name__ = "some"
    for module in (paper_page, paper_items):
        monkeypatch.setattr(module, "ITEMS", {"norm": Item("nowhere", "a norm", (claim,), tables=(some,))})
    asked = Arguments(to=str(tmp_path / "runs"), record=str(tmp_path / "r.json"), markdown=str(tmp_path / "page.md"))
    assert "some" not in study(replace(asked, finished=True), Silent()).document["tables"]
    for _ in range(2):
        write(study(asked, Silent()), asked)
    assert measured == [1]
    text = (tmp_path / "page.md").read_text()
    assert "## A table\n\nof one row.\n\n| what | number |\n| --- | ---: |\n| one | 1 |\n" in text
    gone = study(replace(asked, finished=True, to=str(tmp_path / "gone")), Silent())
    assert paper_page.markdown(gone, tmp_path / "page") == text
