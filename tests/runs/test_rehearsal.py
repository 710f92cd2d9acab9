"""A rehearsal tells what a run would take, and leaves nothing but the token cache."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diffeqformer.cli import main
from diffeqformer.config import BaseConfig, DepthConfig, MeshConfig, TimeConfig, dump_yaml, read_yaml
from diffeqformer.errors import BadInput
from diffeqformer.progress import Silent
from diffeqformer.runs.rehearsal import rehearse
from diffeqformer.runs.trainer import train
from tests.runs.test_trainer import lasting
from tests.runs.tiny_run import changed


def test_a_rehearsal_has_the_runs_own_first_loss_and_leaves_no_run(config):
    found = rehearse(config, Silent())
    assert not Path(config.run).exists()
    result = train(config, Silent())
    assert found.first_loss == lasting(config.run)[0]["loss"]
    assert abs(found.first_loss - math.log(280)) < 0.2
    windows = (len(result.tokens.train) - 1) // 16
    assert found.text == result.tokens.statistics and found.epochs == 12 / -(-windows // 4)
    assert found.memory.total > 4 * result.entry["parameters"]["stored"]
    assert math.isclose(found.seconds, 12 * found.seconds_per_update)


def test_what_training_would_refuse_is_refused(config):
    with pytest.raises(BadInput, match="trainer.samples has '', of 0 tokens"):
        rehearse(changed(config, trainer__samples=("",)), Silent())


def test_a_mesh_of_what_the_devices_leave_is_planned_as_one_of_its_sizes(config):
    memory = rehearse(changed(config, mesh=MeshConfig(data=1)), Silent()).memory
    assert rehearse(changed(config, mesh=MeshConfig(data=-1)), Silent()).memory == memory


REHEARSE_AND_TRAIN = """
import sys
from diffeqformer.cli import main
sys.exit(main(["train", sys.argv[1], "--dry-run"]) or main(["train", sys.argv[1]]))
"""


@pytest.mark.slow
def test_a_base_teaches_on_a_mesh(config, tmp_path):
    base = changed(config, model__weights=TimeConfig(d_emb=4, frequencies=3), trainer__updates=1)
    train(base, Silent())
    written = read_yaml(Path(base.run) / "config.yaml")  # with the frequencies that the base was trained with
    taught = changed(
        written, run=str(tmp_path / "taught"), base=BaseConfig(base.run, method="continuous"), mesh=MeshConfig(data=2),
        depth=DepthConfig(sample=(1, 2), distill=0.5, teacher="base"),
    )  # fmt: skip
    (tmp_path / "c.yaml").write_text(dump_yaml(taught))
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()
    done = subprocess.run(
        [sys.executable, "-c", REHEARSE_AND_TRAIN, str(tmp_path / "c.yaml")],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "first loss" in done.stdout and (tmp_path / "taught" / "results.json").exists()


def test_the_command_prints_it(config, tmp_path, capsys):
    drawn = changed(config, model__weights=TimeConfig(d_emb=4, frequencies=3), depth=DepthConfig(sample=(1, 2)))
    (tmp_path / "c.yaml").write_text(dump_yaml(drawn))
    assert main(["train", str(tmp_path / "c.yaml"), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        6 * found["seconds_per_update"] <= found["seconds"] <= 12 * found["seconds_per_update"]
    )  # some at half the depth
    assert not Path(config.run).exists()
    assert main(["train", str(tmp_path / "c.yaml"), "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())  # a terminal's lines break where the run's path is long
    assert "first loss" in said and "nats per token" in said and "s per update" in said and "held out" in said
