"""Tasks of the harness on a run: found by name, local data, what is written; and `simple_evaluate` from outside."""

# ruff: noqa: E402 - imports stand behind the check that lm_eval is there

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diffeqformer.config import dump_yaml
from diffeqformer.errors import BadInput
from diffeqformer.progress import Silent, Terminal
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.folder import open_config
from diffeqformer.studies.paper.claims import Finished, Trained
from diffeqformer.studies.paper.measures import task
from tests.interop.harness_tasks import CHOICES, STORIES, write_tasks
from tests.interop.runs import run_of
from tests.tolerances import nats

pytestmark = pytest.mark.harness
lm_eval = pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance

from diffeqformer.cli import main
from diffeqformer.interop import harness
from diffeqformer.interop.tasks import Tasks, evaluate_tasks, summary
from diffeqformer.store.files import read_sealed

PAPER = ["arc_challenge", "arc_easy", "hellaswag", "lambada_openai", "lambada_standard", "logiqa", "mmlu", "piqa"]
PAPER += ["sciq", "winogrande", "wsc273"]
FOLDERS = ["arc", "hellaswag", "lambada", "logiqa", "mmlu/default", "piqa", "sciq", "winogrande", "wsc273", "blimp"]


@pytest.fixture(scope="module", autouse=True)
def compiled(compile_once):
    """The same small model, again and again."""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("harness") / "tasks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that `load_run` opens."""
    run = run_of("vanilla", tmp_path_factory.mktemp("harness") / "run")
    Checkpoints(run.folder / "checkpoints").save(3, {"model": run.model}, {})
    run.tokenizer.save(str(run.folder / "tokenizer.json"))
    (run.folder / "config.yaml").write_text(dump_yaml(run.config))
    return run.folder


@pytest.fixture(scope="module")
def papers_tasks(tmp_path_factory):
    """The harness's files of the paper's tasks alone: its whole list takes a minute to read."""
    own, few = Path(lm_eval.__file__).parent / "tasks", tmp_path_factory.mktemp("few")
    for name in FOLDERS:
        shutil.copytree(own / name, few / name)
    return few


@pytest.fixture
def few_tasks(papers_tasks, monkeypatch):
    monkeypatch.setattr("lm_eval.tasks.manager.__file__", str(papers_tasks / "manager.py"))


@pytest.mark.parametrize("name", [*PAPER, "blimp"])
def test_tasks_of_the_paper_resolve(name, few_tasks, monkeypatch):
    """And without their data one sentence says what to do."""

    def no_network(*_, **__):
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr("datasets.load_dataset", no_network)
    with pytest.raises(BadInput, match=f"task '{name}' cannot be loaded .*reach the Hub.*docs/harness.md"):
        Tasks([name])


def test_what_does_not_exist(few_tasks, tasks, tmp_path):
    with pytest.raises(BadInput, match="task 'hellaswga' is not known .* did you mean hellaswag"):
        Tasks(["choices", "hellaswga"], [str(tasks)])
    with pytest.raises(BadInput, match=r"task 'no/such\.yaml' is not known"):
        Tasks(["no/such.yaml"])
    with pytest.raises(BadInput, match="--include-path is '.*nowhere', but must be a folder"):
        Tasks(["choices"], [str(tmp_path / "nowhere")])
    (tmp_path / "choices.yaml").write_text((tasks / "choices.yaml").read_text())
    with pytest.raises(BadInput, match="task file '.*choices.yaml' has the name of another one, 'choices'"):
        Tasks([str(tasks / "choices.yaml"), str(tmp_path / "choices.yaml")])


def test_a_group_of_your_own_may_name_tasks_of_the_harness(tasks, tmp_path, monkeypatch):
    monkeypatch.setattr("lm_eval.tasks.manager.__file__", str(tasks / "manager.py"))
    inner = "{group: inner, task: [choices], aggregate_metric_list: [{metric: acc}]}"
    path = tmp_path / "all.yaml"
    path.write_text(f"group: all\ntask: [{inner}, answers]\naggregate_metric_list: [{{metric: acc}}]\n")
    ((one,),) = Tasks(["all"], [str(tmp_path)]).loaded.values()
    assert one.name == "all" and [task.task_name for task in one.get_all_tasks()] == ["choices", "answers"]
    with pytest.raises(BadInput, match="all.yaml' is a group, which is found by its name only: give --include-path"):
        Tasks([str(path)])


def test_evaluations_with_other_settings_of_generation_stand_side_by_side(folder, tasks, few_tasks, tmp_path):
    own = shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("evaluations"))
    run = harness.load_run(own)
    for settings in ("", "temperature=0.7,do_sample=True", "until=" + "x" * 80, "until=!", "until=?"):
        list(evaluate_tasks(run, Tasks(["answers"], [str(tasks)]), gen_kwargs=settings))
    found = sorted((own / "evaluations").glob("*.json"))
    assert len(found) == 5 and max(len(path.name) for path in found) < 100
    assert "answers-3-steps-temperature-0.7-do_sample-True-lie-trotter.json" in {path.name for path in found}


@pytest.mark.parametrize(
    ("given", "new", "temperature"),
    [("max_new_tokens=1", 1, 0.0), ("temperature=0.7", 4, 0.7), ("temperature=0.7,do_sample=False", 4, 0.0)],
)
def test_settings_of_generation_override_those_of_the_task(
    folder, tasks, tmp_path, monkeypatch, given, new, temperature
):
    """Also those that the task gives by another name, or that not sampling would make void."""
    text = (tasks / "answers.yaml").read_text().replace("max_gen_toks: 4", "max_gen_toks: 4, do_sample: false")
    (tmp_path / "answers.yaml").write_text(text)
    plans, run = [], replace(harness.load_run(folder), folder=tmp_path)
    made = lambda _, requests, **__: [plans.append(harness._plan(one.args[1], 9, 12, 40)) or "" for one in requests]
    monkeypatch.setattr(harness.DiffEqFormerLM, "generate_until", made)
    list(evaluate_tasks(run, Tasks(["answers"], [str(tmp_path)]), gen_kwargs=given))
    assert {(plan.new_tokens, plan.temperature) for plan in plans} == {(new, temperature)}


def test_tasks_are_the_same_for_each_evaluation(folder, tasks, tmp_path):
    """The harness writes settings into them, where a second evaluation found those of the first."""
    run, loaded = replace(harness.load_run(folder), folder=tmp_path), Tasks(["answers"], [str(tasks)])
    (one,) = loaded.loaded["answers"]
    settings = lambda: (one.get_config("num_fewshot"), dict(one.get_config("generation_kwargs")))
    before = settings()
    list(evaluate_tasks(run, loaded, num_fewshot=1, gen_kwargs="until=!"))
    assert settings() == before
    (document,) = evaluate_tasks(run, loaded)
    assert document["num_fewshot"] == {"answers": 0} and settings() == before


def test_a_task_that_takes_no_examples_says_so(folder, tasks, tmp_path, capsys):
    """Its file is named by what was run."""
    (tmp_path / "choices.yaml").write_text((tasks / "choices.yaml").read_text() + "num_fewshot: 0\n")
    run = replace(harness.load_run(folder), folder=tmp_path)
    loaded = Tasks(["choices"], [str(tmp_path)])
    (document,) = evaluate_tasks(run, loaded, num_fewshot=2, progress=Terminal())
    assert document["num_fewshot"] == {"choices": 0}
    assert "--num-fewshot is 2, but 1 of 1 tasks ask for no examples." in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob("evaluations/*")] == ["choices-3-steps-0-shot-lie-trotter.json"]


def test_the_papers_tables_evaluate_what_is_missing(folder, tasks, few_tasks, tmp_path):
    words = {}
    for name in ("gpt", "diffeqformer"):
        run = str(shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("evaluations")))
        config = replace(open_config(Path(run)), run=run)
        words[name] = Finished(config, {"updates": 3}, lambda: pytest.fail("the runs are opened by their folders"))
    found = Trained(words, 0, tmp_path, Silent(), tasks=(str(tasks),))
    assert task("choices", 0)(found) == task("choices", 1)(found) == 0.0  # the same model twice
    written = [tmp_path / f"gpt/evaluations/choices-3-steps-{shots}-shot-lie-trotter.json" for shots in (0, 1)]
    assert [read_sealed(path)["num_fewshot"] for path in written] == [{"choices": 0}, {"choices": 1}]
    before = [path.stat().st_mtime_ns for path in written]
    assert task("choices", 1)(found) == 0.0
    assert [path.stat().st_mtime_ns for path in written] == before  # neither is evaluated again
    assert task("no_such_task", 0)(found) is None


def test_command_prints_and_writes(folder, tasks, capsys):
    words = ["eval", str(folder), "--tasks", "choices,stories,answers", "--include-path", str(tasks)]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    written = [
        read_sealed(folder / f"evaluations/{document['task']}-3-steps-lie-trotter.json")
        for document in printed["evaluations"]
    ]
    assert printed["evaluations"] == written
    assert [document["task"] for document in written] == ["choices", "stories", "answers"]
    choices, stories, answers = written
    assert (choices["update"], choices["steps"], choices["limit"]) == (3, 3, None)
    assert choices["samples"] == {"choices": 4}

    model = harness.DiffEqFormerLM(folder)
    ask = lambda item, end: Instance("loglikelihood", {}, (item["start"], f" {end}"), 0)
    right = []
    for item in CHOICES:
        nats = [nats for nats, _ in model.loglikelihood([ask(item, end) for end in item["ends"]])]
        right.append(float(np.argmax(nats) == item["right"]))
    (row,) = choices["results"]
    assert row | {"stderr": 0} == {
        "task": "choices", "group": False, "metric": "acc", "filter": "none",
        "value": np.mean(right), "stderr": 0, "higher_is_better": True,
    }  # fmt: skip
    assert row["stderr"] == pytest.approx(np.std(right, ddof=1) / 2)
    assert choices["items"] == {"choices": {"acc,none": right}}

    nats = model.loglikelihood_rolling([Instance("", {}, (item["text"],), 0) for item in STORIES])
    found = {row["metric"]: row["value"] for row in stories["results"]}
    bytes_ = sum(len(item["text"].encode()) for item in STORIES)
    assert found["bits_per_byte"] == pytest.approx(-sum(nats) / np.log(2) / bytes_)
    assert answers["results"][0]["metric"] == "exact_match"

    assert main([*words[:3], "choices", *words[4:], "--limit", "2", "--num-fewshot", "1", "--steps", "3"]) == 0
    out = capsys.readouterr().out
    assert "standard error" in out and "choices" in out and "acc" in out
    (path,) = folder.glob("evaluations/*limit-2*")
    assert path.name == "choices-3-steps-1-shot-limit-2-lie-trotter.json"
    short = json.loads(path.read_text())
    assert short["samples"] == {"choices": 2} and short["num_fewshot"] == {"choices": 1}


def test_nothing_is_left_of_a_task_that_fails(folder, tasks, capsys):
    before = sorted(folder.rglob("*"))
    words = ["eval", str(folder), "--include-path", str(tasks), "--tasks"]
    assert main([*words, "answers", "--gen-kwargs", "max_gen_toks=12"]) == 2
    assert "max_gen_toks is 12, but must be" in capsys.readouterr().err
    for given, said in (
        (
            "max_gen_tokz=2",
            "gen_kwargs has 'max_gen_tokz', which is no setting of generation: did you mean 'max_gen_toks'?",
        ),
        ("temperature=0.5,top_p", "gen_kwargs has top_p without a value; write top_p=VALUE."),
        ("max_gen_toks=abc", "max_gen_toks is 'abc', but must be a whole number."),
        ("max_gen_toks=2,max_tokens=3", "gen_kwargs has max_gen_toks and max_tokens, names of the same number"),
        ("temperature=hot", "temperature is 'hot', but must be a number."),
    ):
        assert main([*words, "answers", "--gen-kwargs", given]) == 2 and said in capsys.readouterr().err
    assert main([*words, "choices", "--steps", "4"]) == 2
    assert sorted(folder.rglob("*")) == before


def test_simple_evaluate_by_name(folder, tasks):
    """As any other model of the harness, by words alone."""
    (document,) = evaluate_tasks(harness.load_run(folder), Tasks(["choices"], [str(tasks)]))
    found = lm_eval.simple_evaluate(
        model="diffeqformer",
        model_args=f"run={folder},steps=3",
        tasks=["choices"],
        batch_size=2,
        task_manager=Tasks(["choices"], [str(tasks)]).manager,
    )
    assert found["results"]["choices"]["acc,none"] == summary(document)[0]["value"]
    assert (found["config"]["steps"], found["config"]["update"]) == (3, 3)


@pytest.mark.torch
def test_equal_to_the_hf_class_on_the_exported_model(tmp_path, tasks, monkeypatch):
    """Item by item: a choice and a perplexity whose texts are longer than the context."""
    from lm_eval.models.huggingface import HFLM

    from diffeqformer.interop.exporting import export

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path)
    run = run_of("diffeqformer")
    export(run, tmp_path / "made")
    theirs = HFLM(
        pretrained=str(tmp_path / "made"), trust_remote_code=True, device="cpu", dtype="float32", batch_size=3
    )
    ours = harness.DiffEqFormerLM(run, batch_size=4)
    loaded = Tasks(["choices", "stories"], [str(tasks)])
    evaluated = [
        lm_eval.simple_evaluate(model, tasks=["choices", "stories"], task_manager=loaded.manager)
        for model in (theirs, ours)
    ]
    for name in ("choices", "stories"):
        pairs = list(zip(*(found["samples"][name] for found in evaluated), strict=True))
        numbers = [[np.ravel(np.asarray(item["filtered_resps"], float)) for item in pair] for pair in pairs]
        worst = max(np.abs(their - our).max() for their, our in numbers)
        print(f"{name}: {len(pairs)} items, largest difference of a log-likelihood {worst:.1e} nats")
        assert worst <= nats(26)  # the longest text
    their, our = (found["results"]["choices"]["acc,none"] for found in evaluated)
    assert their == our
