"""Settings of a run: one section per choice, strict YAML, bounds beside each field, one place that checks them."""

from diffeqformer.config.bounds import MOST_STEPS
from diffeqformer.config.checks import validate, validate_model
from diffeqformer.config.files import MOST_BYTES, find_config, read_shipped, read_yaml, shipped_configs
from diffeqformer.config.model import ModelConfig, Spacing, with_steps
from diffeqformer.config.optimizer import (
    EMAConfig,
    LastConfig,
    OptimizerConfig,
    Role,
    ScheduleConfig,
    TrapezoidalConfig,
)
from diffeqformer.config.puzzles import HopsConfig, PermutationsConfig, PHopConfig, PuzzleConfig
from diffeqformer.config.run import (
    BaseConfig,
    Config,
    DataConfig,
    DepthConfig,
    MeshConfig,
    Method,
    TrainerConfig,
    Which,
)
from diffeqformer.config.sections import (
    DropoutConfig,
    GPTConfig,
    GradientConfig,
    KnotsConfig,
    LayerConfig,
    LayerDropConfig,
    LevelsConfig,
    LlamaConfig,
    LoRAConfig,
    ModulationConfig,
    OwnConfig,
    RecursiveConfig,
    ReversibleConfig,
    RotaryScalingConfig,
    SchemeConfig,
    SharedConfig,
    TimeConfig,
    ToleranceConfig,
)
from diffeqformer.config.strict import (
    choices_of,
    dump_yaml,
    from_dict,
    hints_of,
    kinds_of,
    parse_value,
    to_dict,
    with_values,
)

__all__ = [
    "MOST_BYTES", "MOST_STEPS", "BaseConfig", "Config", "DataConfig", "DepthConfig", "DropoutConfig",
    "EMAConfig", "GPTConfig", "GradientConfig", "HopsConfig", "KnotsConfig", "LastConfig",
    "LayerConfig", "LayerDropConfig", "LevelsConfig", "LlamaConfig", "LoRAConfig", "MeshConfig", "Method",
    "ModelConfig", "ModulationConfig", "OptimizerConfig", "OwnConfig", "PHopConfig", "PermutationsConfig",
    "PuzzleConfig", "RecursiveConfig", "ReversibleConfig", "Role", "RotaryScalingConfig", "ScheduleConfig",
    "SchemeConfig", "SharedConfig", "Spacing", "TimeConfig", "ToleranceConfig", "TrainerConfig",
    "TrapezoidalConfig", "Which", "choices_of", "dump_yaml", "find_config", "from_dict", "hints_of", "kinds_of",
    "parse_value", "read_shipped", "read_yaml", "shipped_configs", "to_dict", "validate", "validate_model",
    "with_steps", "with_values",
]  # fmt: skip
