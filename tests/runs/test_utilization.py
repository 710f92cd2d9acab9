"""Utilisation is the model's operations over what its devices could do; a trace is where it is asked for."""

import dataclasses
import re
from pathlib import Path

import pytest

from diffeqformer.config import OptimizerConfig, SchemeConfig, ToleranceConfig
from diffeqformer.devices import DEVICES, Device, device_of
from diffeqformer.progress import Silent
from diffeqformer.runs import utilization as module
from diffeqformer.runs.metrics import read_metrics
from diffeqformer.runs.trainer import train
from diffeqformer.runs.utilization import utilization
from diffeqformer.training.depths import Pass
from tests.runs.tiny_run import changed


@pytest.mark.parametrize(
    "kind, name",
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"), ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA L4", "l4"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"), ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"), ("TPU v5 lite", "tpu-v5e"), ("TPU v5", "tpu-v5p"),
        ("TPU v5p", "tpu-v5p"), ("TPU v6 lite", "tpu-v6e"), ("TPU v4", "tpu-v4"), ("NVIDIA L40S", "l40s"),
        ("NVIDIA H100 NVL", "h100-nvl"), ("NVIDIA H200 NVL", "h200-nvl"), ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"), ("NVIDIA GB200", "gb200"), ("NVIDIA B200", "b200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None), ("cpu", None), ("NVIDIA GeForce GTX 1080", None),
    ],
)  # fmt: skip
def test_devices_are_known_by_the_names_that_jax_gives_them(kind, name):
    assert device_of(kind) == (None if name is None else DEVICES[name])


def test_utilization_by_hand(config, monkeypatch):
    config = changed(config, model__vocabulary=300)
    assert utilization(config, [Pass(2, 1)], 1.0) is None  # a CPU
    monkeypatch.setattr(module, "device_of", lambda kind: Device("", 1e9, 1.0))
    m, batch = config.model, config.trainer.batch_size
    tokens = batch * m.context
    matrices = m.width * (3 * m.width) + m.width * m.width + 2 * m.width * m.hidden
    attention = 4 * m.width * (m.context + 1) / 2
    token = 3 * (m.steps * (2 * matrices + attention) + 2 * m.width * 300)
    assert utilization(config, [Pass(m.steps, batch)] * 5, 2.0) == pytest.approx(5 * tokens * token / (2.0 * 1e9))
    deeper = 3 * (4 * (2 * matrices + attention) + 2 * m.width * 300)
    assert utilization(config, [Pass(2, batch), Pass(4, batch)], 1.0) == pytest.approx(tokens * (token + deeper) / 1e9)
    thrice = deeper + 2 * 3 * 2 * m.width * 300  # one pass, of which three depths have logits
    assert utilization(config, [Pass(4, batch, readings=3)], 1.0) == pytest.approx(tokens * thrice / 1e9)
    of_roles = lambda *roles: dataclasses.replace(config, optimizer=OptimizerConfig(train_roles=roles))
    assert utilization(of_roles("adapter"), [Pass(2, 1)], 1.0) is None
    # A GPT has no time networks and no adapters to leave out, as in full fine-tuning with its embeddings.
    every = of_roles("embedding", "matrix", "bias", "norm")
    assert utilization(every, [Pass(2, 1)], 1.0) == utilization(config, [Pass(2, 1)], 1.0)
    assert utilization(of_roles("matrix", "bias", "norm"), [Pass(2, 1)], 1.0) is None
    fixed = changed(config, model__scheme=SchemeConfig("midpoint"))
    assert utilization(fixed, [Pass(2, 1)], 1.0)
    assert utilization(changed(fixed, model__tolerance=ToleranceConfig()), [Pass(2, 1)], 1.0) is None


class Notes(Silent):
    """What the progress bar shows."""

    def __init__(self):
        self.notes = []

    def stage(self, name, total, done=0):
        outer = self

        class Stage:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def advance(self, amount=1, note=""):
                outer.notes.append(note)

        return Stage()


def test_the_line_that_stays_has_what_the_last_update_measured(config):
    progress = Notes()
    train(changed(config, trainer__evaluate_every=2), progress)
    records = read_metrics(Path(config.run) / "metrics.jsonl")
    last = {kind: [r for r in records if r["kind"] == kind][-1] for kind in ("update", "validation")}
    said = [note for note in progress.notes if note.startswith("loss")][-1]
    assert last["update"]["step"] == last["validation"]["step"] == config.trainer.updates
    assert f"loss {last['update']['loss']:.3f}" in said and f"validation {last['validation']['loss']:.3f}" in said


def test_utilization_is_shown_and_kept_and_a_trace_is_written(config, monkeypatch):
    monkeypatch.setattr(module, "device_of", lambda kind: Device("", 1e12, 1.0))
    progress = Notes()
    train(changed(config, trainer__profile=2), progress)
    timings = [r for r in read_metrics(Path(config.run) / "metrics.jsonl") if r["kind"] == "timing"]
    assert timings and all(0 < record["utilization"] < 1 for record in timings)
    assert any(re.search(r"tok/s, \d+ % of peak", note) for note in progress.notes)
    assert len(list(Path(config.run).rglob("profile/**/*.xplane.pb"))) == 1
