"""README and pages tell the truth: commands parse, links lead somewhere, the tree is the tree, counts are the counts.

test_docs.py runs their blocks.
"""

import re

import pytest

from diffeqformer.cli import VERBS, module_of
from diffeqformer.cli.parse import ConfigArguments, arguments_from, parse, shipped_configs
from diffeqformer.cli.study import Verb
from diffeqformer.config import Config, read_yaml, validate
from tests import cli_page
from tests.blocks import ROOT, blocks_of

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def commands() -> list[list[str]]:
    """The words of every different `diffeqformer` command of all pages, without those of `--version`."""
    pages = [blocks_of(page.relative_to(ROOT).as_posix()) for page in PAGES]
    found = [words for page in pages for block in page if block.language == "sh" for words in block.commands()]
    mine = [words[1:] for words in found if words[0] == "diffeqformer" and words[1] != "--version"]
    return [words for i, words in enumerate(mine) if words not in mine[:i]]


def tree() -> dict[str, str]:
    """Paths of the tree in docs/architecture.md (folders end in a slash) and what is said of each."""
    (lines,) = [block.text for block in blocks_of("docs/architecture.md") if block.language == "tree"]
    found, above = {}, []
    for line in lines.splitlines():
        name, _, what = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 4
        above = [*above[:depth], name]
        found["".join(above)] = what.strip()
    return found


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_every_verb_is_shown_and_exists():
    shown = {words[0] for words in commands()}
    assert shown == set(VERBS)
    code = re.sub(r"^```.*?^```", "", README, flags=re.M | re.S)
    assert set(re.findall(r"`(?:\S*/)?diffeqformer ([a-z]+)\b", code)) <= set(VERBS)


def test_the_reference_of_commands_is_fresh():
    assert cli_page.PAGE.read_text(encoding="utf-8") == cli_page.page(), "run `python -m tests.cli_page`"


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_command_parses(words):
    verb, *rest = words
    module = module_of(verb)
    if isinstance(module, Verb):
        if not rest:
            return  # lists what there is
        module, rest = module.module(rest[0]), rest[1:]
    if not issubclass(module.Arguments, ConfigArguments):
        known = module.Arguments(rest[0]) if verb == "finetune" else None  # as the command does, for its choices
        parse(module.Arguments, rest, verb, default=known)
    elif verb == "info" and rest[0].startswith("runs/"):
        assert rest[1:] == []  # a run has its settings
    elif rest[0] in shipped_configs():
        validate(arguments_from(rest, verb, module.Arguments).settings)
    else:  # a file that only the reader has
        assert rest[0].endswith(".yaml")
        validate(parse(Config, rest[1:], verb, default=Config()))


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    shown = "".join(block.text for block in blocks_of("README.md") if block.language == "sh")
    assert set(re.findall(r"^make ([a-z-]+)", shown, re.M)) == {"quickstart", "test"}
    for page in PAGES:
        if page.name != "log.md":  # a diary: it names what there was
            assert set(re.findall(r"`make ([a-z-]+)`", page.read_text(encoding="utf-8"))) <= targets, page


def test_tree_paths_exist():
    paths = tree()
    assert len(paths) > 60
    missing = [p for p in paths if not ((ROOT / p).is_dir() if p.endswith("/") else (ROOT / p).is_file())]
    assert missing == []


def test_every_module_is_in_the_tree():
    source = ROOT / "src" / "diffeqformer"
    modules = {p.relative_to(ROOT).as_posix() for p in source.rglob("*.py") if p.stat().st_size}
    assert modules - tree().keys() == set()


def test_no_module_is_longer_than_350_lines():
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in (ROOT / "src").rglob("*.py")}
    assert {p: lines for p, lines in lengths.items() if lines > 350} == {}


def test_presets_have_the_parameters_of_the_table():
    from diffeqformer.model.count import parameters

    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([\d,.]+) M \| ([\d,.]+) M \|$", page, re.M)
    assert len(rows) == 8
    for name, stored, populated in rows:
        found = parameters(read_yaml(shipped_configs()[name]).model)
        assert (f"{found.stored / 1e6:,.1f}", f"{found.effective / 1e6:,.1f}") == (stored, populated), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_and_nothing_is_left_blank(page):
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in link]
    assert [link for link in links if link and not (page.parent / link).exists()] == []
    assert re.findall(r"\{\{[A-Z]+\}\}", text) == []
