"""The record of the paper's verdicts, and the page that is made of it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from diffeqformer.errors import BadInput
from diffeqformer.progress import Silent
from diffeqformer.store.files import write_sealed
from diffeqformer.studies.paper import article as paper_page
from diffeqformer.studies.paper import record as paper_record
from diffeqformer.studies.paper.claims import Verdict, judge
from diffeqformer.studies.paper.items import ITEMS
from diffeqformer.studies.paper.record import Record, of_claim
from diffeqformer.studies.paper.runs import Arguments
from diffeqformer.studies.reproduce.reproduce_paper import study, write

ROOT = Path(__file__).resolve().parents[3]


def seeds(*effects, first=0):
    return judge(dict(enumerate(effects, first)))


def test_seeds_of_these_runs_join_those_of_the_record(tmp_path):
    path, of = tmp_path / "record.json", {"scale": "laptop", "updates": 500, "text": "a"}
    item, claim = "table-1", ITEMS["table-1"].claims[0]
    three, other = seeds(0.1, 0.11, 0.12), seeds(-0.1, -0.11, -0.12)
    rates = {"m": {"best": 0.1, "losses": {"0.1": 4.0, "0.2": None}}}  # at 0.2 training diverged
    claims = [of_claim(item, claim.sentence, "", three)]
    paper_record.write(path, {"claims": claims, "models": [], "rates": rates}, of)
    record = paper_record.read(path, of)
    assert record.rates == {"m": (0.1, {0.1: 4.0, 0.2: math.inf})}
    assert record.claims[item, claim.sentence] == three
    assert record.verdict(item, claim, seeds(0.13, first=3)) == seeds(0.1, 0.11, 0.12, 0.13)
    assert record.verdict(item, claim, seeds(0.2, first=1)) == seeds(0.1, 0.2, 0.12)
    assert record.verdict(item, claim, other) == other
    assert record.verdict(item, ITEMS["table-1"].claims[1], other) == other
    said = paper_page.contradictions({item: [other, *[judge({})] * 5]}, record)
    assert said == [f"Different from the record: {claim.sentence} (fails now, holds there)."]
    assert paper_page.contradictions({item: [seeds(0.13, first=3), *[judge({})] * 5]}, record) == []


def test_of_a_record_without_effects_the_verdict_of_more_seeds_counts():
    claim = ITEMS["table-1"].claims[0]
    known = replace(seeds(0.1, 0.11, 0.12), effects={})
    record = Record({}, {("table-1", claim.sentence): known})
    assert record.verdict("table-1", claim, seeds(-0.1, -0.11)) == known
    assert record.verdict("table-1", claim, seeds(-0.1, -0.11, -0.12)).word == "fails"


def test_a_claim_without_chance_is_judged_by_what_is_found_now():
    claim = next(claim for claim in ITEMS["ours"].claims if claim.exact)
    record = Record({}, {("ours", claim.sentence): judge({0: 1.0}, exact=True)})
    now = judge({1: -0.5}, exact=True)
    assert record.verdict("ours", claim, now) == now and now.word == "fails"
    assert record.other("ours", claim, now).word == "holds"
    assert record.verdict("ours", claim, judge({}, exact=True)).word == "holds"


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def test_a_verdict_that_changes_is_said_and_the_page_is_that_of_the_new_record(tmp_path):
    claim = ITEMS["table-3"].claims[0]
    arguments = Arguments(
        items=("table-3",), to=str(tmp_path), record=str(tmp_path / "record.json"), markdown=str(tmp_path / "page.md")
    )
    before = of_claim("table-3", claim.sentence, claim.unit, judge({0: -0.1}, exact=True))
    paper_record.write(tmp_path / "record.json", {"claims": [before], "models": [], "rates": {}}, arguments.of)
    progress = Said()
    write(study(arguments, progress), arguments)
    assert f"Different from the record: {claim.sentence} (holds now, fails there)." in progress.lines
    again = study(replace(arguments, finished=True), Silent())
    assert paper_page.markdown(again, tmp_path / "page") == (tmp_path / "page.md").read_text(encoding="utf-8")


def test_a_record_is_of_its_texts(tmp_path):
    path, of = tmp_path / "record.json", lambda **given: Arguments(**given).of
    first = of(data=("x/train.txt",), other=("a/test.txt",))
    paper_record.write(path, {"claims": [], "models": [], "rates": {}}, first)
    for others in ({"data": ("y/train.txt",)}, {"data": ("x/train.txt",), "other": ("b/test.txt",)}, {}):
        with pytest.raises(BadInput, match="the record .* is of .*, but this would be of"):
            paper_record.read(path, of(**others))
    without = of(data=("elsewhere/x/train.txt",))
    assert paper_record.read(path, without).of == first
    paper_record.write(path, {"claims": [], "models": [], "rates": {}}, without)
    assert paper_record.read(path, without).of == first


SOUND = {
    "of": {"scale": "laptop", "updates": 3, "text": "a.txt"},
    "claims": [of_claim("table-1", "it is so", "nats", seeds(0.1, 0.2))],
    "models": [["gpt", "1.00", "0.001", "its own", "4.0", "2"]],
    "rates": {"gpt": {"best": 1e-3, "losses": {"0.001": 4.0}}},
    "texts": {"gpt": "one"},
}
OTHERS = {
    "nothing": {}, "no scale": SOUND | {"of": {"a": 1}}, "words": SOUND | {"of": SOUND["of"] | {"updates": "3"}},
    "claims": SOUND | {"claims": "x"}, "verdict": SOUND | {"claims": [SOUND["claims"][0] | {"verdict": "perhaps"}]},
    "mean": SOUND | {"claims": [SOUND["claims"][0] | {"mean": "much"}]}, "models": SOUND | {"models": "x"},
    "short row": SOUND | {"models": [["gpt"]]}, "rate": SOUND | {"rates": {"gpt": {"best": -1.0, "losses": {}}}},
    "figures": SOUND | {"figures": {"a": 1}}, "tables": SOUND | {"tables": {"a": 1}}, "results": {"models": []},
}  # fmt: skip


@pytest.mark.parametrize("document", OTHERS.values(), ids=OTHERS)
def test_what_is_no_record_is_refused_in_a_sentence_and_stays(tmp_path, document):
    path, of = tmp_path / "record.json", SOUND["of"]
    write_sealed(path, SOUND)
    assert paper_record.read(path, of).texts == {"gpt": "one"}
    write_sealed(path, document)
    before = path.read_bytes()
    with pytest.raises(BadInput, match=r"file '.*record.json' is no record of `reproduce paper`"):
        paper_record.read(path, of)
    assert path.read_bytes() == before


def test_a_record_of_a_text_of_the_same_name_is_another_one():
    record = Record({}, texts={"gpt": "one", "shared": "two"})
    record.require_texts({"gpt": "one", "diffeqformer": "three"})
    with pytest.raises(BadInput, match="shared was trained on another text, or with another tokenizer, than it was"):
        record.require_texts({"gpt": "one", "shared": "one"})


def test_ends_that_are_not_zero_are_not_written_as_zero():
    shown = lambda *effects: paper_page._shown(seeds(*effects))
    assert shown(0.1, 0.2, 0.3) == "+0.200 [\u22120.048, +0.448]"
    assert shown(0.0, 0.0, 0.0) == "+0.000 [+0.000, +0.000]"
    small = Verdict("holds", {}, 0.038, 0.000426, 0.075, 3)
    assert paper_page._shown(small) == "+0.0380 [+0.0004, +0.0750]"


def test_the_page_of_the_documentation_is_that_of_the_record(tmp_path):
    arguments = Arguments(
        items=("table-1",), finished=True, to=str(tmp_path / "none"), record=str(ROOT / "docs/paper.json")
    )
    assert paper_page.markdown(study(arguments, Silent()), ROOT / "docs/paper") == (ROOT / "docs/paper.md").read_text(
        encoding="utf-8"
    )
