"""Weight sources, which give a block's weights as functions of depth."""

from diffeqformer.ode.weights.knots import KnotWeights
from diffeqformer.ode.weights.layer import LayerWeights, populated
from diffeqformer.ode.weights.layer_drop import LayerDropWeights
from diffeqformer.ode.weights.levels import LevelWeights
from diffeqformer.ode.weights.modulated import ModulatedWeights
from diffeqformer.ode.weights.shared import SharedWeights
from diffeqformer.ode.weights.source import WeightSource
from diffeqformer.ode.weights.time import TimeWeights

AdaptableWeights = KnotWeights | LayerWeights | LevelWeights
"""Sources that can have low-rank adapters."""

__all__ = [
    "AdaptableWeights", "KnotWeights", "LayerDropWeights", "LayerWeights", "LevelWeights", "ModulatedWeights",
    "SharedWeights", "TimeWeights", "WeightSource", "populated",
]  # fmt: skip
