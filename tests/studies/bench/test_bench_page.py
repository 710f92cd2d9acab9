"""The documents of all benchmarks as tables and as one page; the numbers are made up."""

import copy
import json
import re
from pathlib import Path

import pytest

from diffeqformer.cli import main
from diffeqformer.cli.study import write_document
from diffeqformer.errors import BadInput, Damaged
from diffeqformer.studies import BENCHMARKS
from diffeqformer.studies.bench import bench_train
from diffeqformer.studies.bench.bench_page import benchmark_of, benchmark_page, read_documents
from diffeqformer.studies.bench.bench_scaling import exponent
from diffeqformer.studies.bench.bench_train import Arguments
from diffeqformer.studies.bench.benchmark import summary
from tests.blocks import ROOT

MACHINE = {
    "processor": "Some | CPU", "cores": 2, "devices": 1, "device": "cpu",
    "versions": {"python": "3.11.0", "jax": "0.10.2"},
}  # fmt: skip
SIZES = {"width": 256, "steps": 12, "heads": 8, "context": 256, "vocabulary": 512, "d_emb": 96, "batch": 4}
VANILLA = [0.4, 0.4, 0.42, 0.38, 0.4, 0.4, 0.4]
FAST, SLOW = (summary([factor * one for one in VANILLA], VANILLA) for factor in (0.5, 1.5))
SAME = summary(VANILLA, VANILLA)
DENSE = {
    "steps": 24, "heads": 16, "width": 1024, "seconds": 1.26, "spread": [1.2, 1.4], "dense_measured": 4,
    "dense_seconds": 504.0, "ratio": 400.0, "ratio_spread": [360.0, 420.0], "largest_difference": 5.7e-13,
}  # fmt: skip


def memory_row(gradient: str, steps: int, temporary: int) -> dict:
    return {
        "gradient": gradient, "steps": steps, "weights_bytes": 2**20, "temporary_bytes": temporary * 2**20,
        "generated_bytes": 0, "peak_bytes": (2 + temporary) * 2**20,
    }  # fmt: skip


def growth_row(axis: str, model: str, power: float) -> dict:
    sizes = [64, 128, 256]
    seconds = [summary([one * (size / 64) ** power for one in VANILLA], VANILLA) for size in sizes]
    flops, parameters = [1e9 * size for size in sizes], [size**2 for size in sizes]
    measured = {"time": [one["median_seconds"] for one in seconds], "flops": flops, "parameters": parameters}
    exponents = {name: exponent(sizes, values) for name, values in measured.items()}
    row = {"axis": axis, "model": model, "sizes": sizes, "seconds": seconds, "flops": flops}
    return {**row, "parameters": parameters, "exponents": exponents}


def generation_row(model: str, library: str, times: dict, speed: float) -> dict:
    return {"model": model, "library": library, "batch": 8, **times, "tokens_per_second": speed}


FOUND = {
    "train": {
        "rows": [
            {"model": "vanilla", **SAME, "temporary_bytes": 146_000_000, "least_seconds": 0.3},
            {"model": "diffeqformer", **SLOW, "temporary_bytes": 320_000_000, "least_seconds": 0.4},
            {"model": "torch", **SLOW, "temporary_bytes": None, "least_seconds": 0.3},
        ]
    },
    "finetune": {"rows": [{"way": "vanilla, full", **SAME, "optimizer_bytes": 10_000, "temporary_bytes": 2_000_000}]},
    "generate": {
        "new_tokens": 200,
        "rows": [
            generation_row("vanilla", "diffeqformer", SAME, 4000.0),
            generation_row("vanilla", "transformers", SLOW, 2000.0),
        ],
    },
    "drafts": {
        "run": "runs/elastic",
        "steps": 12,
        "rows": [
            {"way": "plain", **SAME, "tokens_per_second": 100.0},
            {"way": "4 tokens by 3 steps", **FAST, "tokens_per_second": 200.0, "acceptance": 0.814,
             "tokens_per_reading": 3.5, "equal": 1.0},
        ],
    },
    "schemes": {
        "rows": [
            {"scheme": "euler", "evaluations": {"attention": 6, "feed_forward": 12}, **SAME, "predicted_ratio": 1.0,
             "measured_over_predicted": None},
        ]
    },
    "memory": {
        "weights": "layer", "scheme": "reversible over euler", "checkpoints": 4,
        "rows": [memory_row("plain", 12, 1400), memory_row("plain", 96, 11200), memory_row("reversible", 12, 50),
                 memory_row("reversible", 96, 50)],
    },
    "text": {
        "source": "stdlib",
        "rows": [
            {"what": "packing", "tokens": 1000, "bytes": 3000, **summary([1e-6] * 7, [1e-4] * 7)},
            {"what": "a training update", "tokens": 2048, "bytes": None, **summary([1e-4] * 7, [1e-4] * 7)},
        ],
    },
    "scaling": {"rows": [growth_row("width", "diffeqformer", 2.0), growth_row("width", "vanilla", 1.0)]},
    "spectra": DENSE,
    "lyapunov": {**DENSE, "tokens": 128},
    "explorer": {"tokens": 32, "rows": [{"steps": 12, "part": "prediction", **SAME, "processor_seconds": 0.9}]},
    "start": {"rows": [{"command": "python -c pass", **SAME}]},
    "plan": {
        "card": "h100", "price": 2.5,
        "rows": [
            {"model": "gpt-small", "weights": weights, "devices": 8, "data": 8 // fsdp, "fsdp": fsdp, "tokens": 131072,
             "compute": 0.013, "memory": 0.007, "links": 0.004, "bytes": 8_400_000_000,
             "parameters": {"stored": 10**9, "effective": 124_400_000}}
            for weights, fsdp in (("time", 2), ("knots", 1))
        ],
    },
}  # fmt: skip


@pytest.fixture
def documents():
    return {
        name: {"benchmark": name, "command": f"diffeqformer bench {name}", "machine": MACHINE, "sizes": SIZES, **found}
        for name, found in copy.deepcopy(FOUND).items()
    }


def keep(document: dict, path: Path) -> None:
    """As `diffeqformer bench NAME --to FILE` does."""
    result = benchmark_of(document["benchmark"]).result(document)
    write_document(result, Arguments(to=str(path)))


def test_every_benchmark_has_a_table_and_a_section():
    assert [*BENCHMARKS] == [*FOUND, "page"]
    assert [benchmark_of(name).name for name in FOUND] == [*FOUND]


def test_make_runs_every_benchmark():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (names,) = re.findall(r"^BENCHMARKS := (.*)$", text, re.M)
    assert {*names.split(), "drafts"} == {*FOUND}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        (
            "plan",
            (
                "gpt-small",
                "knots",
                "8",
                "8 x 1",
                "13.0 ms",
                "7.00 ms",
                "4.00 ms",
                "compute",
                "4,032,985",
                "8.4\u00a0GB",
                "10\u00a0min 17\u00a0s",
                "3",
            ),
        ),
        (
            "train",
            (
                "diffeqformer",
                "600 ms",
                "600 ms to 600 ms",
                "1.500",
                "1.500 (1.500 to 1.500)",
                "320.0\u00a0MB",
                "400 ms",
                "67 %",
            ),
        ),
        ("memory", ("reversible", "96", "1.0", "50.0", "0.0", "52.0", "224.0")),
        ("text", ("packing", "3.00", "1,000,000", "100.0", "100.0 (100.0 to 100.0)")),
        ("spectra", ("1.26 s (1.20 s to 1.40 s)", "504 s", "400 (360 to 420)", "5.7e-13")),
        ("scaling", ("width", "diffeqformer", "64 to 256", "2.00 ± 0.00", "1.00 ± 0.00", "2.00 ± 0.00")),
        ("drafts", ("plain", "100", "400 ms", "400 ms to 400 ms", "1.000", "1.000 (1.000 to 1.000)", "–", "–", "–")),
    ],
)
def test_a_row_is_written(documents, name, row):
    table, *_ = benchmark_of(name).tables(documents[name])
    assert row in table.rows and all(len(one) == len(table.columns) for one in table.rows)


def test_the_page_of_all_documents(documents, tmp_path):
    for name, document in documents.items():
        keep(document, tmp_path / "in" / f"{name}.json")
    found = read_documents(tmp_path / "in")
    assert json.dumps(found) == json.dumps(documents)
    pages = []
    for folder in ("one", "two"):
        made = ["bench", "page", "--folder", str(tmp_path / "in"), "--to", str(tmp_path / folder / "benchmarks.md")]
        assert main(made) == 0
        pages.append({path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()})
    assert pages[0] == pages[1] and {*pages[0]} == {
        "benchmarks.md", "benchmarks-memory.png", "benchmarks-scaling.png",
    }  # fmt: skip
    text = pages[0]["benchmarks.md"].decode()
    assert re.findall("^## (.*)", text, re.M) == [benchmark_of(name).title for name in FOUND]
    assert text.count("2 cores of Some | CPU, with Python 3.11.0 and JAX 0.10.2.") == len(documents)
    assert "![Memory by depth](benchmarks-memory.png)" in text and "Some \\| CPU" not in text


def test_what_is_not_there_is_not_shown(documents):
    text = benchmark_page({"start": documents["start"]}, "benchmarks").markdown
    assert re.findall("^## (.*)", text, re.M) == ["Start-up"] and "![" not in text


def test_marks_say_whether_they_are_met(documents):
    text = benchmark_page(documents, "benchmarks").markdown
    assert "Mark: DiffEqFormer takes at most 1.15 times the vanilla update's time. Here 1.5: not met." in text
    assert "Mark: PyTorch takes at least 1.2 times the vanilla update's time. Here 1.5: met." in text
    assert "at 96 steps needs at most 1.1 times what it needs at 12. Here 1: met." in text
    assert "vanilla, batch 8, is as fast as in Transformers (tokens/s over theirs). Here 2: met." in text


def test_a_page_without_torch_says_so(documents):
    for name in ("train", "generate"):
        documents[name]["rows"] = documents[name]["rows"][:1]
    missing = "PyTorch and Transformers were not installed, so their rows are missing."
    assert " ".join(benchmark_page(documents, "benchmarks").markdown.split()).count(missing) == 2
    for name in ("train", "generate"):
        documents[name]["machine"] = {
            **MACHINE,
            "versions": {**MACHINE["versions"], "torch": "2.13", "transformers": "5"},
        }
    text = benchmark_page(documents, "benchmarks").markdown
    assert "were not installed" not in text and "JAX 0.10.2, PyTorch 2.13 and Transformers 5." in text


def test_documents_that_are_none_are_refused(documents, tmp_path):
    with pytest.raises(BadInput, match=r"folder '.*' holds no document of a benchmark, such as train.json\."):
        read_documents(tmp_path)
    keep(documents["text"], tmp_path / "start.json")
    with pytest.raises(BadInput, match=r"start.json' is no document of `diffeqformer bench start --to FILE`\."):
        read_documents(tmp_path)
    keep(documents["start"], tmp_path / "start.json")
    path = tmp_path / "start.json"
    text = path.read_text()
    path.write_text(text.replace("0.4", "0.3", 1))
    with pytest.raises(Damaged, match=r"start.json' is damaged"):
        read_documents(tmp_path)
    path.unlink()
    (tmp_path / "train.json").write_text("{")
    with pytest.raises(Damaged, match=r"train.json' is damaged"):
        read_documents(tmp_path)


def test_the_command_writes_its_document_and_the_page(documents, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [row | {"operations": 1e9, "parameters": 1000} for row in documents["train"]["rows"]]
    monkeypatch.setattr(bench_train, "compare_updates", lambda config, rounds, progress: rows)
    monkeypatch.setattr(bench_train, "roofline", lambda: {"operations_per_second": 1e9, "bytes_per_second": 1e9})
    assert main(["bench", "train", "--rounds", "8", "--to", "in/train.json"]) == 0
    shown = capsys.readouterr().out
    assert "Training update: width 256" in shown and "1.500 (1.500 to 1.500)" in shown
    document = read_documents(tmp_path / "in")["train"]
    assert document["command"] == "diffeqformer bench train --rounds 8" and document["rounds"] == 8
    assert document["sizes"] == SIZES and document["machine"]["cores"] >= 1
    assert main(["bench", "page", "--folder", "in", "--to", "out.md", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": "out.md", "benchmarks": ["train"]}
    assert "; 8 rounds." in (tmp_path / "out.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train --to x.txt", "--to is 'x.txt', but must end with .json."),
        ("page --to x.json", "--to is 'x.json', but must end with .md."),
        ("page", "`bench page` needs a file to write: name it with --to."),
        ("page --rounds 9 --to x.md", "unknown option --rounds: see `diffeqformer bench page --help`."),
        ("page --folder nowhere --to x.md", "--folder is 'nowhere', which is no folder"),
        ("text --folder x", "unknown option --folder: "),
        ("scaling --rounds 6", "--rounds is 6, but must be at least 7"),
        ("scaling --figure x.pdf", "--figure is 'x.pdf', but must end with .png or .svg."),
    ],
)
def test_bad_arguments_change_nothing(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words.split()]) == 2
    assert says in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_the_page_is_that_of_the_documents_beside_it():
    page = benchmark_page(read_documents(ROOT / "benchmarks"), "benchmarks").markdown
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == page
