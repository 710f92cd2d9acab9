"""Every block of README and of the pages of docs is run, or listed here with the reason why it is not.

Commands are run with the words that the reader sees, in a small world: shipped configs of width 32 with 20 updates, a
standard library of a few files, and, after the words, options that make a command short.
"""

import argparse
import ast
import json
import re
import shutil
import sysconfig
from pathlib import Path

import jax
import pytest
import yaml
import zstandard

import diffeqformer
from diffeqformer import config as settings
from diffeqformer.cli import main, parse
from diffeqformer.config import Config, from_dict, validate
from diffeqformer.runs import compare
from tests.blocks import ROOT, Block, blocks_of

QUICK = ("README.md", "docs/python.md", "docs/models.md")
"""Pages that need nothing but what they make themselves: run by `make test`."""
HOW_TOS = ("docs/own-text.md", "docs/several-depths.md", "docs/hugging-face.md", "docs/lift.md", "docs/harness.md")
LONG = (
    "docs/own-parts.md",
    "docs/own-training.md",
    "docs/index.md",
    "docs/tutorial.md",
    *HOW_TOS,
    "docs/command-line.md",
    "docs/analyses.md",
    "docs/architecture.md",
    "docs/runs.md",
    "docs/elastic-depth.md",
    "docs/elastic-depth-measured.md",
    "docs/elastic-depth-trials.md",
    "docs/puzzles.md",
    "docs/trackers.md",
    "docs/devices.md",
    "docs/analysis-sensitivity.md",
    "docs/analysis-steps.md",
    "docs/explorer.md",
)
PAGES = (*QUICK, *LONG, "docs/analysis-spectra.md", "docs/troubleshooting.md")
NOTEBOOKS = {
    "docs/notebooks/train-and-adapt.ipynb": "runs/continuous-readmes-3",
    "docs/notebooks/look-inside.ipynb": "runs/continuous",
}
"""With a run that each finishes."""
PAGE = {".md", ".ipynb"}

NOT_RUN = {
    "README.md: x(0)   = embed(ids)": "an equation",
    "README.md: @inproceedings{tong2025neural,": "a citation",
    "docs/models.md: x(0)   = embed(ids)": "an equation",
    "docs/architecture.md: src/diffeqformer/": "the tree, which test_readme.py compares with the files",
    "docs/runs.md: config.yaml      every setting, defaults included": "a list of files",
    "docs/devices.md: mesh: {data: 2, fsdp: 4, tensor: 1}": "needs eight devices; test_sharding.py has them",
    "docs/analysis-spectra.md: from diffeqformer.analysis.induction import measure_induction": (
        "has no model of its own; the tests of both analyses call them"
    ),
    "docs/harness.md: import lm_eval": "a published task; tests/interop/test_tasks.py does the same with a local one",
    "docs/harness.md: python -m diffeqformer.interop.harness run --model diffeqformer --model_args "
    "run=runs/quickstart/diffeqformer,steps=6 \\": "a published task; test_tasks.py as well",
    "docs/harness.md: task: stories": "a task, no config; test_the_task_of_the_page_runs",
}
"""Blocks, by page and first line."""
EQUATIONS = ("docs/analysis-sensitivity.md", "docs/mathematics.md")
"""Pages whose blocks of text are equations."""
NOT_RUN_COMMANDS = {
    "make": "runs these tests, or installs",
    "pip install": "changes the environment that these tests run in",
    ".": "opens the environment that these tests run in",
    "hf download": "fetches a published model; the small world has one in that place",
    "hf upload": "needs the hub; tests/interop/test_hub.py has one of its own",
    "diffeqformer import openai-community/gpt2": "fetches a published model; the next line has one of the small world",
    "diffeqformer import ORGANISATION/NAME": "needs the hub, as above",
    "diffeqformer import ORGANISATION/NAME-run": "needs the hub, as above",
    "diffeqformer export --push": "needs the hub, as above",
    "diffeqformer train --data.dataset": "fetches a published dataset; tests/data/test_stream.py has one of its own",
    "diffeqformer eval --tasks": "needs published data; test_the_task_of_the_page_runs has its own",
    "diffeqformer train --mesh.data": "needs several devices; tests/test_sharding.py has virtual ones",
    "diffeqformer info --mesh.data": "needs several devices; the tests of the footprint have virtual ones",
    "diffeqformer train --trainer.trackers": "needs trackers; the tests of trackers have stand-ins",
    "diffeqformer bench": "measures the machine at full size; tests of the benchmarks run the same code at small size",
}
"""Commands, by their first words and an option."""
SHORT = {
    "quickstart": "--minutes 0.01",
    "sweep": "--updates 2",
    "train": "--trainer.updates 2",
    "finetune": "--trainer.updates 2",
    "reproduce adapt": "--pretraining 2 --finetuning 2 --cache cache",
    "reproduce depth": "--updates 2 --models elastic --cache cache",
    "analyze spectra": "--times 4",
    "analyze induction": "--sequences 2",
    "analyze clusters": "--texts 2",
    "analyze steps": "--texts 2",
    "analyze compression": "--texts 4",
}
"""What is added to make a command short."""
RARE_SHORT = {"--faithfulness": "--faithfulness 2"}


def reason(words: list[str]) -> str | None:
    """Why a command is not run, if it is not."""
    for name, why in NOT_RUN_COMMANDS.items():
        first = [part for part in name.split() if not part.startswith("--")]
        if words[: len(first)] == first and {part for part in name.split() if part.startswith("--")} <= {*words}:
            return why
    return None


def run_command(words: list[str]) -> None:
    """Run a `diffeqformer` command in this process, made short."""
    assert words[0] == "diffeqformer", words
    line = " ".join(words[1:])
    added = next((more for start, more in SHORT.items() if f"{line} ".startswith(f"{start} ")), "")
    added += next((f" {more}" for part, more in RARE_SHORT.items() if part in line), "")
    if line.startswith("train") and "--model.width" in line:
        added += " --model.width 32"
    assert main([*words[1:], *added.split()]) == 0, line


def needs_torch(block: Block) -> bool:
    return (
        block.language == "python" and re.search(r"from (transformers|peft) import|AutoModel", block.text) is not None
    )


def is_equation(block: Block) -> bool:
    return block.language == "text" and block.page in EQUATIONS


def run_page(page: str, *, torch: bool) -> None:
    """Run the blocks of a page in order, in one namespace; those that need torch only if asked for."""
    names: dict = {}
    for block in blocks_of(page):
        if block.name in NOT_RUN or is_equation(block) or (needs_torch(block) and not torch):
            continue
        if block.language == "sh":
            for words in block.commands():
                if reason(words) is None:
                    run_command(words)
        elif block.language == "python":
            exec(compile(block.text, block.name, "exec"), names)
        else:
            assert block.language == "yaml", block.name
            validate(from_dict(Config, yaml.safe_load(block.text)))


@pytest.fixture(scope="module")
def texts(tmp_path_factory, compile_once):
    """A folder with some texts, where shipped configs and the standard library are small."""
    home, monkeypatch = tmp_path_factory.mktemp("world"), pytest.MonkeyPatch()
    library, configs, place = home / "library", home / "configs", home / "place"
    for folder in (library, configs, place / "books", place / "more", place / "wikitext-2-raw", place / "downloads"):
        folder.mkdir(parents=True)
    source = Path(argparse.__file__)
    for module in (source, *Path(json.__file__).parent.glob("*.py")):
        shutil.copy(module, library)
    for name, path in settings.shipped_configs().items():
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if name.startswith("quickstart-"):
            values["model"] |= {"width": 32, "heads": 4}
            weights = values["model"].get("weights", "time")
            weights = weights if isinstance(weights, dict) else {"kind": weights}
            if weights.get("kind", "time").startswith("time"):
                values["model"]["weights"] = weights | {"d_emb": 8, "frequencies": 8}
            if name == "quickstart-elastic":  # of a batch of 4 each depth has one
                values["depth"] |= {"sample": [2, 4, 6, 12], "weights": "equal"}
            values["trainer"] |= {"updates": 20, "batch_size": 4, "evaluate_batches": 2, "evaluate_every": 10}
        (configs / path.name).write_text(yaml.safe_dump(values), encoding="utf-8")
    prose = "\n\n".join(re.findall(r'"""(.*?)"""', source.read_text(encoding="utf-8"), re.S))
    for name in ("notes.txt", "books/one.txt", "books/two.txt"):
        (place / name).write_text(prose, encoding="utf-8")
    lines = "".join(json.dumps({"text": part}) + "\n" for part in prose.split("\n\n") if part)
    (place / "more/some.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))
    for name in ("wiki.test.raw", "wiki.valid.raw"):
        articles = "".join(f" = {name} {i} = \n\n {prose} \n\n" for i in range(3))
        (place / "wikitext-2-raw" / name).write_text(articles, encoding="utf-8")
    (place / "my.yaml").write_text(
        yaml.safe_dump({"model": {"width": 32, "heads": 4, "context": 32}}), encoding="utf-8"
    )

    here = {path.stem: path for path in sorted(configs.glob("*.yaml"))}
    for module in (settings, settings.files, parse):
        monkeypatch.setattr(module, "shipped_configs", lambda: here)
    real = sysconfig.get_path
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(library) if name == "stdlib" else real(name))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(place)
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is nearly all of the work here
    yield place
    jax.config.update("jax_disable_most_optimizations", before)
    monkeypatch.undo()


@pytest.fixture(scope="module")
def small_world(texts, tmp_path_factory):
    """The same with what the pages take for granted: a trained quickstart and a published model."""
    place = tmp_path_factory.mktemp("trained")
    shutil.copytree(texts, place, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(place)
        for name in ("diffeqformer", "elastic", "gpt"):
            run_command(f"diffeqformer train quickstart-{name} --run runs/quickstart/{name}".split())
        run_command(["diffeqformer", "export", "runs/quickstart/gpt", "--to", "downloads/gpt2"])
    return place


@pytest.fixture
def place(small_world, tmp_path, monkeypatch):
    """A copy of the small world, for one page, where the quickstart trains all its models in any time."""
    shutil.copytree(small_world, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(compare, "plan", lambda costs, *_, **__: [20] * len(costs))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_block_is_run_or_listed():
    known = {"sh", "python", "yaml"}
    blocks = [block for page in PAGES for block in blocks_of(page) if not is_equation(block)]
    have = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md") if "```" in path.read_text("utf-8")
    }
    assert have - {*PAGES, *EQUATIONS} == set()
    assert [block.name for block in blocks if block.language not in known and block.name not in NOT_RUN] == []
    assert NOT_RUN.keys() - {block.name for block in blocks} == set()
    commands = [words for block in blocks if block.language == "sh" for words in block.commands()]
    assert len(commands) > 60
    strange = [words for words in commands if words[0] != "diffeqformer" and reason(words) is None]
    assert strange == []
    unused = [name for name, why in NOT_RUN_COMMANDS.items() if why not in {reason(words) for words in commands}]
    assert unused == []


@pytest.mark.usefixtures("plain_pictures")
@pytest.mark.parametrize("page", QUICK)
def test_quick_page_runs(page, texts, tmp_path, monkeypatch):
    shutil.copytree(texts, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    run_page(page, torch=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in LONG if page != "docs/hugging-face.md"])  # each block needs another
def test_page_runs(page, place):
    run_page(page, torch=False)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/hugging-face.md"])
def test_page_runs_with_torch(page, place):
    assert any(needs_torch(block) for block in blocks_of(page))
    run_page(page, torch=True)


@pytest.mark.slow
@pytest.mark.harness
def test_the_task_of_the_page_runs(place):
    page = blocks_of("docs/harness.md")
    (task,) = [block.text for block in page if block.language == "yaml"]
    line = json.loads(re.findall(r"fields of a line: (.*)", task)[0])
    Path("my_tasks").mkdir()
    Path("my_tasks/stories.yaml").write_text(task, encoding="utf-8")
    Path("my_tasks/stories.jsonl").write_text(3 * f"{json.dumps(line)}\n", encoding="utf-8")
    (words,) = [words for block in page if block.language == "sh" for words in block.commands() if "stories" in words]
    run_command(words)
    (kept,) = Path("runs/quickstart/diffeqformer/evaluations").glob("stories*.json")
    assert "acc" in kept.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "run"), NOTEBOOKS.items())
def test_notebook_runs(name, run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for number, cell in enumerate(json.loads((ROOT / name).read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)
    assert (Path(run) / "results.json").is_file()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_has_its_outputs(name):
    content = (ROOT / name).read_bytes()
    cells = [cell for cell in json.loads(content)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds <= {"execute_result", "display_data", "stream"}  # no error
    assert b"image/png" in content
    assert len(content) < 600_000


def test_every_page_is_in_the_site():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*") if path.suffix in PAGE}
    assert set(re.findall(r"[\w/-]+(?:\.md|\.ipynb)", site)) == pages


def test_the_api_page_has_every_public_name():
    page = (ROOT / "docs/reference/index.md").read_text(encoding="utf-8")
    shown = re.findall(r"\[`(\w+)`\]\[(diffeqformer\.[\w.]+)\.(\w+)\]", page)
    assert {(name, module) for name, module, _ in shown} == set(diffeqformer._HOMES.items())
    assert [name for name, _, last in shown if name != last] == []


def test_troubleshooting_quotes_real_sentences():
    strings = [text for path in (ROOT / "src").rglob("*.py") for text in sentences(path)]
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    quoted = [text for line in re.findall(r"^- (.*)", page, re.M) for text in re.findall(r"`([^`]+)`", line)]
    quoted.remove("RESOURCE_EXHAUSTED")  # XLA's
    assert len(quoted) > 30
    patterns = {text: ".*".join(map(re.escape, text.strip("….").split("…"))) for text in quoted}
    strange = [text for text, pattern in patterns.items() if not any(re.search(pattern, one) for one in strings)]
    assert strange == []


def sentences(path: Path) -> list[str]:
    """The strings of a module, with `…` for what is put in."""

    def written(node: ast.AST) -> str:
        if isinstance(node, ast.JoinedStr):
            return "".join(map(written, node.values))
        return str(node.value) if isinstance(node, ast.Constant) else "…"

    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [written(node) for node in nodes if isinstance(node, ast.JoinedStr | ast.Constant)]
