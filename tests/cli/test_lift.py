"""`diffeqformer lift`: a run like any other, of the same model, which goes wherever runs go."""

import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from diffeqformer.errors import BadInput
from diffeqformer.runs.checkpoint import Checkpoints
from diffeqformer.runs.lifting import require_made_of
from diffeqformer.runs.opening import load_run
from diffeqformer.studies.compression import WAYS
from tests.cases import slow_but
from tests.interop.folders import CONFIGS, WORDS, golden, write
from tests.tolerances import LOSS


@pytest.fixture(scope="module")
def lifted(place):
    """The run `layer`, lifted by the command, and what that said."""
    from diffeqformer.cli import main

    to = place.folder / "lifted"
    assert main(["lift", str(place.run("layer")), "--to", str(to)]) == 0
    return to


def losses(called) -> dict[int, float]:
    assert called.status == 0, called.err
    return {row["steps"]: row["loss"] for row in json.loads(called.out)["evaluations"]}


def test_it_is_evaluated_on_the_runs_own_text_at_any_depth(call, place, lifted):
    own = losses(call("eval", place.run("layer"), "--json"))
    found = losses(call("eval", lifted, "--steps", "2,3", "--json"))
    assert found[2] == pytest.approx(own[2], rel=LOSS) and np.isfinite(found[3])
    sampled = call("sample", lifted, "--prompt", "the cat", "--tokens", 3, "--steps", 5)
    assert sampled.status == 0 and sampled.out.startswith("the cat")
    assert call("info", lifted).status == 0


def test_it_knows_the_model_that_it_was_made_of(place, lifted):
    require_made_of(lifted, load_run(place.run("layer")))
    with pytest.raises(BadInput, match="was made of another model than .* has now; remove it"):
        require_made_of(lifted, load_run(place.run("time")))


def test_exported_at_its_own_depth_it_is_the_stock_model_to_the_bit(call, place, lifted, tmp_path):
    folders = {"original": (place.run("layer"),), "lifted": (lifted, "--steps", 2), "continuous": (lifted,)}
    for name, words in folders.items():
        assert call("export", *words, "--to", tmp_path / name).status == 0
    files = {name: load_file(tmp_path / name / "model.safetensors") for name in folders}
    assert json.loads((tmp_path / "lifted" / "config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]
    jax.tree.map(np.testing.assert_array_equal, files["lifted"], files["original"])
    back = call("import", tmp_path / "continuous", "--to", tmp_path / "back", "--json")
    assert json.loads(back.out)["model"]["weights"]["kind"] == "knots"


def test_layers_are_left_out_by_their_loss_on_a_text(call, place, tmp_path):
    (tmp_path / "text.txt").write_text(200 * " ".join(WORDS))
    words = ("lift", place.run("layer"), "--to", tmp_path / "fewer", "--weights", "layerdrop")
    for more, sentence in (((), "--data is not given"), (("--align", "--data", "text.txt"), "--align is given")):
        refused = call(*words, *more)
        assert refused.status != 0 and sentence in refused.err
    called = call(*words, "--data", tmp_path / "text.txt", "--json")
    assert called.status == 0, called.err
    found = json.loads(called.out)
    assert found["difference"] == 0 and [row["steps"] for row in found["losses"]] == [1, 2]
    assert found["model"]["weights"]["order"] in ([0, 1], [1, 0])
    own = losses(call("eval", place.run("layer"), "--json"))
    fewer = losses(call("eval", tmp_path / "fewer", "--steps", "1,2", "--json"))
    assert fewer[2] == pytest.approx(own[2], rel=LOSS) and np.isfinite(fewer[1])


def test_a_table_for_each_of_several_depths_is_fine_tuned_at_all_of_them(call, place, tmp_path):
    (tmp_path / "text.txt").write_text(200 * " ".join(WORDS))
    words = ("lift", place.run("layer"), "--to", tmp_path / "levels", "--weights", "levels", "--levels", 1, 4)
    called = call(*words, "--data", tmp_path / "text.txt", "--json")
    assert called.status == 0, called.err
    found = json.loads(called.out)
    assert found["difference"] == 0 and found["model"]["weights"]["levels"] == [1, 2, 4]
    assert [row["steps"] for row in found["losses"]] == [1, 2]
    own = losses(call("eval", place.run("layer"), "--json"))
    at = losses(call("eval", tmp_path / "levels", "--steps", "1-4", "--json"))
    assert at[2] == pytest.approx(own[2], rel=LOSS) and np.isfinite([*at.values()]).all()
    recipe = ("--method", "continuous", "--depth.always", 1, 2, "--depths", 4, "--trainer.updates", 2)
    tuned = call("finetune", tmp_path / "levels", "--to", tmp_path / "tuned", *recipe, "--json")
    assert tuned.status == 0, tuned.err
    run = load_run(tmp_path / "tuned")
    assert run.config.model.weights.levels == (1, 2, 4) and run.config.trained_at == (1, 2, 4)


@pytest.mark.slow  # tests/runs/test_drawn_depths.py and test_finetune.py have its parts
def test_it_becomes_elastic_by_drawn_depths_and_its_own_teaching(call, place, lifted, tmp_path):
    words = ("finetune", lifted, "--method", "continuous", "--to", tmp_path / "tuned", "--depths", 2, 3)
    recipe = ("--depth.jitter", 0.5, "--depth.distill", 0.5, "--depth.teacher", "base", "--trainer.checkpoint-every", 2)
    rest = ("--trainer.updates", 4, "--trainer.evaluate-every", 2, "--trainer.evaluate-batches", 0, "--json")
    called = call(*words, *recipe, *rest)
    assert called.status == 0, called.err
    entry = json.loads(called.out)["models"][0]
    start = losses(call("eval", lifted, "--json"))[2]
    assert entry["curve"]["validation"][0][1] == pytest.approx(start, rel=LOSS)  # where it starts
    assert {row["steps"] for row in entry["drawn"]} == {2, 3}
    run = load_run(tmp_path / "tuned")
    assert (run.config.model.weights.kind, run.config.depth.teacher) == ("knots", "base")
    # Stopped in the middle, it goes on with its teacher to the same numbers, wherever that is by now.
    shutil.rmtree(tmp_path / "tuned" / "checkpoints" / "4")
    (tmp_path / "tuned" / "results.json").unlink()
    moved = lifted.rename(tmp_path / "moved")
    refused = call("train", tmp_path / "tuned" / "config.yaml")
    assert refused.status == 2 and "does not exist, from which this run starts or learns" in refused.err
    again = call("finetune", moved, *words[2:], *recipe, *rest)
    moved.rename(lifted)
    assert again.status == 0, again.err
    assert json.loads(again.out)["models"][0]["validation"] == entry["validation"]
    # From another teacher in its place it does not learn, nor is it asked for by a wrong option.
    shutil.rmtree(tmp_path / "tuned" / "checkpoints" / "4")
    checkpoints = Checkpoints(lifted / "checkpoints")
    kept, other = lifted / "checkpoints" / "0", tmp_path / "kept"
    shutil.copytree(kept, other)
    model = jax.tree.map(lambda leaf: -leaf, load_run(lifted).model)
    checkpoints.save(0, {"model": model}, checkpoints.metadata()[1])
    refused = call(*words, *recipe, *rest)
    assert refused.status == 2 and "has changed since the run" in refused.err
    shutil.rmtree(kept)
    shutil.copytree(other, kept)
    assert call(*words, *recipe, *rest).status == 0
    refused = call(*words, *recipe, *rest, "--optimizer.learning-rate", 0.5)
    assert refused.status == 2 and "(or --to, where the command has that)" in refused.err
    refused = call("finetune", place.run("layer"), "--depths", 2, 3, "--to", tmp_path / "other")
    assert refused.status == 2 and "a table of layers has one depth" in refused.err


@pytest.mark.parametrize("kind", slow_but(["gpt2"], CONFIGS))
def test_an_imported_model_stays_without_a_text(call, tmp_path, kind):
    published = write(tmp_path / "published", CONFIGS[kind], golden(kind).tensors)
    assert call("import", published, "--to", tmp_path / "run").status == 0
    called = call("lift", tmp_path / "run", "--to", tmp_path / "lifted", "--weights", "time", "--d-emb", 8, "--json")
    assert called.status == 0, called.err
    found = json.loads(called.out)
    assert found["difference"] <= 1e-4 and found["condition"] > 1 and found["model"]["weights"]["d_emb"] == 8
    assert "which has no text of its own" in call("eval", tmp_path / "lifted").err
    (tmp_path / "notes.txt").write_text(" ".join(WORDS * 10))
    data = ("--data", tmp_path / "notes.txt", "--json")
    own, of_it = (losses(call("eval", tmp_path / run, *data)) for run in ("run", "lifted"))
    assert of_it[2] == pytest.approx(own[2], rel=10 * LOSS)


def test_a_table_for_people(call, place, lifted, tmp_path):
    called = call("lift", place.run("layer"), "--to", tmp_path / "run", "--knots", 2)
    assert "0, to the bit" in called.out and "Lifting" in called.err


def test_a_text_weighs_fewer_knots_and_compression_is_a_page(call, place, tmp_path):
    found = {}
    for name, words in {"plain": (), "weighted": ("--data", place.text)}.items():
        called = call("lift", place.run("layer"), "--to", tmp_path / name, "--knots", 1, "--align", *words, "--json")
        assert called.status == 0, called.err
        found[name] = losses(call("eval", tmp_path / name, "--json"))[2]
    assert found["weighted"] != found["plain"]
    called = call("analyze", "compression", place.run("layer"), "--texts", 8, "--to", tmp_path / "page", "--json")
    assert called.status == 0, called.err
    made = json.loads(called.out)
    assert made["layers"] == 2 and {row["way"] for row in made["smaller"]} == set(WAYS)
    assert {path.name for path in (tmp_path / "page").iterdir()} >= {"index.html", "compression.npz"}
    (place.folder / "short.txt").write_text("the cat")
    short = call("analyze", "compression", place.run("layer"), "--data", place.folder / "short.txt")
    assert short.status == 2 and "but needs two times 17." in short.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("lifted",), "functions of depth already (knots): it runs at any number of steps as it is."),
        (("layer", "--knots", 2, "--weights", "time"), "--knots is 2, but only --weights knots reads it."),
        (("layer", "--d-emb", 8), "--d-emb is 8, but only --weights time reads it."),
        (("layer", "--data", "x.txt"), "--data is 'x.txt', but only --weights layerdrop, --levels below the model's"),
        (("layer", "--levels", 4), "--levels is (4,), but only --weights levels reads it."),
        (
            ("layer", "--weights", "levels", "--levels", 4, 1),
            "level 1 leaves out some of the model's 2 layers",
        ),
        (("layer", "--weights", "levels", "--data", "x.txt"), "data is 'x.txt', but only levels below the model's 2"),
        (("layer", "--weights", "levels", "--align"), "a level's table has the model's layers as they are"),
        (("layer", "--weights", "time", "--d-emb", 1), "d_emb is 1, but must be at least 2, the number of layers"),
    ],
)
def test_mistakes_are_sentences_and_nothing_is_written(call, place, lifted, tmp_path, words, sentence):
    run = lifted if words[0] == "lifted" else place.run("layer")
    called = call("lift", run, *words[1:], "--to", tmp_path / "new" / "run")
    assert called.status == 2 and sentence in called.err
    assert not (tmp_path / "new").exists()
    taken = call("lift", run, "--to", lifted)
    assert taken.status == 2 and "exists and is not an empty folder" in taken.err


def test_it_is_not_trained_in_its_own_folder(call, lifted):
    called = call("train", lifted / "config.yaml")
    assert called.status == 2 and "holds a lifted model; choose another folder with --run (or --to," in called.err
