"""Runs of tiny models for the explorer, opened without a folder."""

import dataclasses
from functools import lru_cache
from pathlib import Path

from diffeqformer.config import Config, KnotsConfig, LayerDropConfig, LlamaConfig, ModulationConfig
from diffeqformer.data.tokenizer import train_tokenizer
from diffeqformer.explorer.session import Session
from diffeqformer.progress import Silent
from diffeqformer.runs.opening import Run
from tests.models import KINDS, model_of

TEXT = "the cat sat on the mat, isn't it? \n  ¿12 naïve 猫"
LLAMA = KINDS["vanilla llama, grouped queries"]
KINDS = KINDS | {
    "wide heads, biases": dataclasses.replace(LLAMA, field=LlamaConfig(kv_heads=2, head_width=6, biases=True)),
    "knots, modulated": dataclasses.replace(KINDS["knots, normalised"], modulation=ModulationConfig(halvings=2)),
    "knots, means over steps": dataclasses.replace(
        KINDS["knots, normalised"], weights=KnotsConfig(3, "cubic", average=True), scheme="strang", spacing="dyadic"
    ),
    "knots, boxes": dataclasses.replace(
        KINDS["knots, normalised"], weights=KnotsConfig(3, "box", average=True), spacing="dyadic"
    ),
    "knots, corrected": dataclasses.replace(
        KINDS["knots, normalised"], weights=KnotsConfig(3, "box", rank=2), spacing="thirds", final_norm_halvings=2
    ),
    "knots, corrected, by two nodes": dataclasses.replace(
        KINDS["knots, normalised"],
        weights=KnotsConfig(3, rank=2),
        scheme="heun",
        spacing="dyadic",
        modulation=ModulationConfig(halvings=2),
    ),
    "time, llama, nested norm, macaron": dataclasses.replace(KINDS["time, llama, nested norm"], scheme="macaron"),
    "nested layers, corrected": dataclasses.replace(
        KINDS["vanilla"],
        weights=LayerDropConfig(5, nested=True, rank=2, landings=2),
        scheme="residual",
        final_norm_halvings=2,
    ),
    "layers left out": dataclasses.replace(KINDS["vanilla"], weights="layerdrop", horizon="unit"),
    "head norms": dataclasses.replace(LLAMA, field=LlamaConfig(head_norms=True)),
}
TOKENIZER = train_tokenizer([TEXT * 3, "the cat and the mat"], 300)


@lru_cache
def run_of(kind: str, seed: int = 0) -> Run:
    """A run of one of the tiny models, with a tokenizer that has real words."""
    model = dataclasses.replace(KINDS[kind], vocabulary=TOKENIZER.get_vocab_size(), context=40)
    return Run(Path(kind), Config(run=kind, model=model), TOKENIZER, model_of(model, seed), 7)


def session_of(*runs: Run, text: str = TEXT) -> Session:
    """The runs, as the page asks them."""
    return Session(runs, text, Silent())
