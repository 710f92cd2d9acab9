"""Continuous-depth language models: transformers whose weights are smooth functions of depth.

The whole public API on one screen. Names are loaded on first use, so that importing the package costs nothing. The
imports below serve type checkers and editors; `_HOMES` reads from them which module each name is in.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # isort: off
    from diffeqformer.analysis.attribution import attribute
    from diffeqformer.analysis.clusters import simulate
    from diffeqformer.analysis.end_to_end import end_to_end
    from diffeqformer.analysis.exponents import flow_exponents
    from diffeqformer.analysis.faithfulness import faithfulness
    from diffeqformer.analysis.induction import measure_induction
    from diffeqformer.analysis.lyapunov import pairwise
    from diffeqformer.analysis.spectra import spectra
    from diffeqformer.config import BaseConfig, Config, DataConfig, DepthConfig, DropoutConfig, GPTConfig
    from diffeqformer.config import GradientConfig, LayerConfig, LlamaConfig, LoRAConfig, ModelConfig, OptimizerConfig
    from diffeqformer.config import RecursiveConfig, ReversibleConfig, SchemeConfig, SharedConfig, TimeConfig
    from diffeqformer.config import LevelsConfig, ToleranceConfig, TrainerConfig, read_yaml, validate
    from diffeqformer.config import EMAConfig, KnotsConfig, LayerDropConfig, MeshConfig, ModulationConfig
    from diffeqformer.data.cache import TokenCache, prepare
    from diffeqformer.data.loader import EvaluationBatches, Loader
    from diffeqformer.errors import BadInput, DiffEqFormerError, Interrupted, RunFailed
    from diffeqformer.evaluation.depth import at_depths
    from diffeqformer.evaluation.perplexity import Evaluation, evaluate
    from diffeqformer.interop.exporting import export
    from diffeqformer.interop.huggingface import from_huggingface
    from diffeqformer.interop.importing import import_huggingface
    from diffeqformer.interop.peft import load_adapter
    from diffeqformer.model.build import abstract, build
    from diffeqformer.model.count import flops, parameters, vanilla_twin
    from diffeqformer.model.generate import generate
    from diffeqformer.model.lift import lift
    from diffeqformer.model.loss import next_token_loss
    from diffeqformer.model.solving import with_scheme
    from diffeqformer.model.speculate import speculate
    from diffeqformer.model.transformer import Transformer
    from diffeqformer.ode.early_exit import EarlyExit
    from diffeqformer.ode.field import Field
    from diffeqformer.ode.grid import Grid
    from diffeqformer.ode.schemes import SCHEMES, OneStep, Scheme
    from diffeqformer.ode.solve import solve
    from diffeqformer.ode.solvers import SchemeSolver
    from diffeqformer.ode.weights import LayerWeights, SharedWeights, TimeWeights, WeightSource
    from diffeqformer.progress import Silent, Terminal
    from diffeqformer.runs.finetune import finetune_config
    from diffeqformer.runs.lifting import lift_run
    from diffeqformer.runs.opening import Run, load_run
    from diffeqformer.runs.sampling import continue_text
    from diffeqformer.runs.trainer import TrainResult, train
    from diffeqformer.studies.run_report import write_report
    from diffeqformer.training.recipe import Callback, Recipe

_HOMES = {
    name.name: node.module
    for node in ast.walk(ast.parse(Path(__file__).read_bytes()))
    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("diffeqformer.")
    for name in node.names
}

__all__ = [
    "SCHEMES", "BadInput", "BaseConfig", "Callback", "Config", "DataConfig", "DepthConfig", "DiffEqFormerError",
    "DropoutConfig", "EMAConfig", "EarlyExit", "Evaluation", "EvaluationBatches", "Field",
    "GPTConfig", "GradientConfig", "Grid", "Interrupted", "KnotsConfig", "LayerConfig", "LayerDropConfig",
    "LayerWeights", "LevelsConfig", "LlamaConfig", "LoRAConfig", "Loader", "MeshConfig", "ModelConfig",
    "ModulationConfig", "OneStep", "OptimizerConfig", "Recipe", "RecursiveConfig", "ReversibleConfig", "Run",
    "RunFailed", "Scheme", "SchemeConfig", "SchemeSolver", "SharedConfig", "SharedWeights", "Silent", "Terminal",
    "TimeConfig", "TimeWeights", "TokenCache", "ToleranceConfig", "TrainResult", "TrainerConfig", "Transformer",
    "WeightSource", "abstract", "at_depths", "attribute", "build", "continue_text", "end_to_end", "evaluate",
    "export", "faithfulness", "finetune_config", "flops", "flow_exponents", "from_huggingface", "generate",
    "import_huggingface", "lift", "lift_run", "load_adapter", "load_run", "measure_induction", "next_token_loss",
    "pairwise", "parameters", "prepare", "read_yaml", "simulate", "solve", "spectra", "speculate", "train",
    "validate", "vanilla_twin", "with_scheme", "write_report",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffeqformer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
