"""Content made to do harm: in pages, paths and shells it is text; and no file of ours can bring code with it."""

import ast
import json
import os
import pickle
import re
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import yaml

from diffeqformer.cli import main
from diffeqformer.data.cache import prepare
from diffeqformer.errors import DiffEqFormerError
from diffeqformer.interop.exporting import export
from diffeqformer.interop.huggingface import from_huggingface
from diffeqformer.interop.peft import load_adapter
from diffeqformer.report.page import TokenMap, visible, write
from diffeqformer.report.table import Table
from diffeqformer.runs import checkpoint
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.opening import load_run
from tests.browser.test_clicks import dump
from tests.cases import slow, slow_but
from tests.faults.conftest import Lines

BAD = "<img src=x onerror=\"document.body.id='intru'+'ded'\">"
NAMES = [
    f"</svg></script>{BAD}<script>document.body.id='intru'+'ded'</script>".replace("/", "\N{FRACTION SLASH}"),
    "a$(touch bad)`touch bad`;touch bad&|touch bad>bad",
    "'\"><b onclick=x>\n\r\x1b[2J\x07{{7*7}}{%raw%}${7*7}",
    "--help -rf *",
    "=cmd()\u202e\u2028\N{ZERO WIDTH SPACE}é\U0001f600",
]
"""Of runs and of files; what a slash would end is tried in the text."""
TEXT = f"</pre></svg></script>{BAD}<script>document.body.id='intru'+'ded'</script> ]]> --> {{{{7*7}}}} \x1b[2J \u202e\n"


GLOSSARY = {"details", "summary", "dl", "dt", "dd", "code"}


def trained(folder: Path, name: str, line: str) -> Path:
    """A run of this name, on a file of this name, full of this line; returns it."""
    folder.mkdir()
    text = folder / f"{name}.jsonl"
    text.write_text("".join(json.dumps({name: f"{line} {i}"}) + "\n" for i in range(60)))
    settings = {
        "run": str(folder / name),
        "model": {"steps": 2, "width": 16, "heads": 2, "context": 16, "weights": {"d_emb": 4, "frequencies": 3}},
        "data": {
            "source": "files",
            "train": [str(text)],
            "text_field": name,
            "tokenizer_vocabulary": 280,
            "cache": str(folder / "cache"),
        },
        "trainer": {"updates": 2, "batch_size": 4, "evaluate_batches": 1},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(settings, allow_unicode=True))
    assert main(["train", str(folder / "c.yaml")]) == 0
    return folder / name


class Structure(HTMLParser):
    """The elements of a page and the names of their attributes, as a browser finds them."""

    def __init__(self):
        super().__init__()
        self.found: Counter[tuple[str, ...]] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag, *(name for name, _ in attrs)] += 1


def structure(page: str) -> Counter[tuple[str, ...]]:
    parser = Structure()
    parser.feed(page)
    return parser.found


def analysis(run: Path, name: str, line: str) -> Path:
    """A page that shows the name and the tokens of the line."""
    tokenizer = load_run(run).tokenizer
    tokens = tuple(visible(tokenizer.decode([i])) for i in tokenizer.encode(line).ids)[:40]
    tokens += (line, *["."] * (40 - len(tokens)))
    shown = TokenMap(tokens, (0,), {name: np.ones((1, len(tokens)))}, {name: line})
    table = Table(name, (line, name), ((name, line),))
    return write(run.parent / "page", "demo", name, (line,), tables=(table,), maps=(shown,))


@pytest.fixture(scope="module")
def tame(tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("tame") / "in", "name", "a line of text like any other")


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(NAMES[:1], NAMES), ids=range(len(NAMES)))
def test_names_and_texts_are_text(tmp_path, monkeypatch, tame, capfd, name):
    monkeypatch.chdir(tmp_path)
    run = trained(tmp_path / "in", name, TEXT)
    for page in (lambda run, *what: run / "report.html", analysis):
        found, known = (structure(one.read_text()) for one in (page(run, name, TEXT), page(tame, "name", "text")))
        kinds = lambda page: {kind for kind in page if kind[0] not in GLOSSARY}  # of the words that a page uses
        # Figures have more or fewer marks of the same kinds, and a name may end a line within it.
        assert kinds(found) - {("wbr",)} == kinds(known) - {("wbr",)}
        assert all(found[key] == known[key] for key in known if key[0] in {"script", "style", "meta", "link", "b"})
    assert main(["report", "compare", str(run), str(tame), "--to", str(tmp_path / "compared")]) == 0
    compared = {part for key in structure((tmp_path / "compared" / "index.html").read_text()) for part in key}
    assert "table" in compared and not compared & {"img", "b", "onerror", "onclick", "script"}
    assert main(["export", str(run), "--to", str(tmp_path / "out")]) == 0
    card = re.sub(
        r"^(```+).*?^\1$|\\.", "", (tmp_path / "out" / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    assert "<img" not in card and "<script" not in card and "\x1b" not in card
    assert {entry.name for entry in tmp_path.iterdir()} == {"in", "compared", "out"}
    assert {entry.name for entry in (tmp_path / "in").iterdir()} == {f"{name}.jsonl", "c.yaml", "cache", name, "page"}


@pytest.mark.browser
def test_pages_of_hostile_content_run_nothing_in_a_browser(tmp_path):
    run = trained(tmp_path / "in", NAMES[0], TEXT)
    intruder = tmp_path / "intruder.html"
    intruder.write_text(f"<body>{BAD}</body>")
    assert 'id="intruded"' in dump(intruder, tmp_path, 900)  # so would one be seen
    for page in (run / "report.html", analysis(run, NAMES[0], TEXT)):
        assert 'id="intruded"' not in dump(page, tmp_path, 900)


# ------------------------------------------------------------------------------------------------------- code in files


class Bomb:
    def __reduce__(self):
        return os.system, (f"touch {os.environ['BOMB']}",)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["run", *slow("cache", "export", "adapter")])
def test_a_pickle_in_the_place_of_any_file_is_never_opened(tmp_path, monkeypatch, tame, what):
    monkeypatch.setenv("BOMB", str(tmp_path / "bad"))
    bomb = pickle.dumps(Bomb())
    run = load_run(tame)
    reads = {
        "run": (tame, lambda: load_run(tame)),
        "cache": (tame.parent / "cache", lambda: prepare(run.config.data, Lines())),
        "export": (tmp_path / "out", lambda: from_huggingface(tmp_path / "out")),
        "adapter": (tmp_path / "adapter", lambda: load_adapter(run.model.populate(), tmp_path / "adapter")),
    }
    export(run, tmp_path / "out")
    (tmp_path / "adapter").mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json", "adapter_model.bin"):
        (tmp_path / "adapter" / name).write_bytes(bomb)
    folder, read = reads[what]
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        before = path.read_bytes()
        path.write_bytes(bomb)
        try:
            read()
        except DiffEqFormerError:
            pass
        finally:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(before)
    assert not (tmp_path / "bad").exists()
    subprocess.run(["python3", "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"], input=bomb, check=True)
    assert (tmp_path / "bad").exists()  # so would one be seen


def test_the_source_has_no_way_to_run_what_it_reads():
    source = Path(__file__).parents[2] / "src" / "diffeqformer"
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
                assert not names & {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}, path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"eval", "exec", "compile", "os.system", "os.popen", "yaml.unsafe_load"}, path
                assert not any(keyword.arg == "shell" for keyword in node.keywords), path
                reads = called in {"np.load", "numpy.load", "torch.load"}
                assert not reads or "allow_pickle=False" in ast.unparse(node), path


def test_a_run_whose_checkpoints_rotate_away_while_it_is_read(tame, monkeypatch):
    """A training process removes the checkpoint that is being read, having written a newer one."""
    store, calls = Checkpoints(tame / "checkpoints"), []
    model = load_run(tame).model
    newest = store.steps()[-1]

    original = checkpoint.read_arrays

    def vanishing(folder, like):
        calls.append(folder.name)
        if len(calls) == 1:
            store.save(newest + 1, {"model": model}, {})
            store._remove(newest)
        return original(folder, like)

    monkeypatch.setattr(checkpoint, "read_arrays", vanishing)
    said = Lines()
    assert load_run(tame, progress=said).step == newest + 1
    assert calls == [str(newest), str(newest + 1)] and said.lines == []
