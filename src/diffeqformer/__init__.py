"""Continuous-depth language models: transformers whose weights are smooth functions of depth.

The whole API on one screen; each name is loaded when it is first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffeqformer.analysis.attribution import attribute as attribute
    from diffeqformer.analysis.clusters import simulate as simulate
    from diffeqformer.analysis.end_to_end import end_to_end as end_to_end
    from diffeqformer.analysis.exponents import flow_exponents as flow_exponents
    from diffeqformer.analysis.faithfulness import faithfulness as faithfulness
    from diffeqformer.analysis.induction import measure_induction as measure_induction
    from diffeqformer.analysis.lyapunov import pairwise as pairwise
    from diffeqformer.analysis.spectra import spectra as spectra
    from diffeqformer.config import BaseConfig as BaseConfig
    from diffeqformer.config import Config as Config
    from diffeqformer.config import DataConfig as DataConfig
    from diffeqformer.config import DepthConfig as DepthConfig
    from diffeqformer.config import DropoutConfig as DropoutConfig
    from diffeqformer.config import LoRAConfig as LoRAConfig
    from diffeqformer.config import ModelConfig as ModelConfig
    from diffeqformer.config import OptimizerConfig as OptimizerConfig
    from diffeqformer.config import ReversibleConfig as ReversibleConfig
    from diffeqformer.config import TimeConfig as TimeConfig
    from diffeqformer.config import ToleranceConfig as ToleranceConfig
    from diffeqformer.config import TrainerConfig as TrainerConfig
    from diffeqformer.config import read_yaml as read_yaml
    from diffeqformer.data.cache import TokenCache as TokenCache
    from diffeqformer.data.cache import prepare as prepare
    from diffeqformer.data.loader import Loader as Loader
    from diffeqformer.data.loader import evaluation_batches as evaluation_batches
    from diffeqformer.errors import BadInput as BadInput
    from diffeqformer.errors import DiffEqFormerError as DiffEqFormerError
    from diffeqformer.errors import RunFailed as RunFailed
    from diffeqformer.evaluation.depth import at_depths as at_depths
    from diffeqformer.evaluation.perplexity import Evaluation as Evaluation
    from diffeqformer.evaluation.perplexity import evaluate as evaluate
    from diffeqformer.interop.exporting import export as export
    from diffeqformer.interop.huggingface import from_huggingface as from_huggingface
    from diffeqformer.interop.importing import import_huggingface as import_huggingface
    from diffeqformer.interop.peft import load_adapter as load_adapter
    from diffeqformer.model.build import abstract as abstract
    from diffeqformer.model.build import build as build
    from diffeqformer.model.count import flops as flops
    from diffeqformer.model.count import parameters as parameters
    from diffeqformer.model.count import vanilla_twin as vanilla_twin
    from diffeqformer.model.generate import generate as generate
    from diffeqformer.model.loss import next_token_loss as next_token_loss
    from diffeqformer.model.solving import with_scheme as with_scheme
    from diffeqformer.model.speculate import speculate as speculate
    from diffeqformer.model.transformer import Transformer as Transformer
    from diffeqformer.ode.early_exit import EarlyExit as EarlyExit
    from diffeqformer.ode.schemes import SCHEMES as SCHEMES
    from diffeqformer.ode.schemes import Scheme as Scheme
    from diffeqformer.ode.schemes import scheme_of as scheme_of
    from diffeqformer.ode.solve import solve as solve
    from diffeqformer.ode.solvers import LieTrotter as LieTrotter
    from diffeqformer.ode.solvers import SchemeSolver as SchemeSolver
    from diffeqformer.ode.solvers import Strang as Strang
    from diffeqformer.ode.weights import LayerWeights as LayerWeights
    from diffeqformer.ode.weights import SharedWeights as SharedWeights
    from diffeqformer.ode.weights import TimeWeights as TimeWeights
    from diffeqformer.progress import Silent as Silent
    from diffeqformer.progress import Terminal as Terminal
    from diffeqformer.report.html import write_report as write_report
    from diffeqformer.runs.finetune import finetune_config as finetune_config
    from diffeqformer.runs.opening import Run as Run
    from diffeqformer.runs.opening import load_run as load_run
    from diffeqformer.runs.sampling import continue_text as continue_text
    from diffeqformer.runs.trainer import TrainResult as TrainResult
    from diffeqformer.runs.trainer import train as train
    from diffeqformer.validation import validate as validate

_MODULES = {
    "analysis.attribution": ("attribute",),
    "analysis.clusters": ("simulate",),
    "analysis.end_to_end": ("end_to_end",),
    "analysis.exponents": ("flow_exponents",),
    "analysis.faithfulness": ("faithfulness",),
    "analysis.induction": ("measure_induction",),
    "analysis.lyapunov": ("pairwise",),
    "analysis.spectra": ("spectra",),
    "config": (
        "BaseConfig",
        "Config",
        "DataConfig",
        "DepthConfig",
        "DropoutConfig",
        "LoRAConfig",
        "ModelConfig",
        "OptimizerConfig",
        "ReversibleConfig",
        "TimeConfig",
        "ToleranceConfig",
        "TrainerConfig",
        "read_yaml",
    ),
    "data.cache": (
        "TokenCache",
        "prepare",
    ),
    "data.loader": (
        "Loader",
        "evaluation_batches",
    ),
    "errors": (
        "BadInput",
        "DiffEqFormerError",
        "RunFailed",
    ),
    "evaluation.depth": ("at_depths",),
    "evaluation.perplexity": (
        "Evaluation",
        "evaluate",
    ),
    "interop.exporting": ("export",),
    "interop.huggingface": ("from_huggingface",),
    "interop.importing": ("import_huggingface",),
    "interop.peft": ("load_adapter",),
    "model.build": (
        "abstract",
        "build",
    ),
    "model.count": (
        "flops",
        "parameters",
        "vanilla_twin",
    ),
    "model.generate": ("generate",),
    "model.loss": ("next_token_loss",),
    "model.solving": ("with_scheme",),
    "model.speculate": ("speculate",),
    "model.transformer": ("Transformer",),
    "ode.early_exit": ("EarlyExit",),
    "ode.schemes": (
        "SCHEMES",
        "Scheme",
        "scheme_of",
    ),
    "ode.solve": ("solve",),
    "ode.solvers": (
        "LieTrotter",
        "SchemeSolver",
        "Strang",
    ),
    "ode.weights": (
        "LayerWeights",
        "SharedWeights",
        "TimeWeights",
    ),
    "progress": (
        "Silent",
        "Terminal",
    ),
    "report.html": ("write_report",),
    "runs.finetune": ("finetune_config",),
    "runs.opening": (
        "Run",
        "load_run",
    ),
    "runs.sampling": ("continue_text",),
    "runs.trainer": (
        "TrainResult",
        "train",
    ),
    "validation": ("validate",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "SCHEMES",
    "BadInput",
    "BaseConfig",
    "Config",
    "DataConfig",
    "DepthConfig",
    "DiffEqFormerError",
    "DropoutConfig",
    "EarlyExit",
    "Evaluation",
    "LayerWeights",
    "LieTrotter",
    "LoRAConfig",
    "Loader",
    "ModelConfig",
    "OptimizerConfig",
    "ReversibleConfig",
    "Run",
    "RunFailed",
    "Scheme",
    "SchemeSolver",
    "SharedWeights",
    "Silent",
    "Strang",
    "Terminal",
    "TimeConfig",
    "TimeWeights",
    "TokenCache",
    "ToleranceConfig",
    "TrainResult",
    "TrainerConfig",
    "Transformer",
    "abstract",
    "at_depths",
    "attribute",
    "build",
    "continue_text",
    "end_to_end",
    "evaluate",
    "evaluation_batches",
    "export",
    "faithfulness",
    "finetune_config",
    "flops",
    "flow_exponents",
    "from_huggingface",
    "generate",
    "import_huggingface",
    "load_adapter",
    "load_run",
    "measure_induction",
    "next_token_loss",
    "pairwise",
    "parameters",
    "prepare",
    "read_yaml",
    "scheme_of",
    "simulate",
    "solve",
    "spectra",
    "speculate",
    "train",
    "validate",
    "vanilla_twin",
    "with_scheme",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diffeqformer' has no attribute {name!r}")
    return getattr(import_module(f"diffeqformer.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
