"""The models that the paper's items need, by the names of their folders, at laptop and at gpu scale."""

from diffeqformer.studies.paper.claims import Model
from diffeqformer.studies.paper.controls import RepeatedTokens, faster_table, free_rows
from diffeqformer.studies.paper.measures import OURS

SMOOTH = 12.0
"""Fastest frequency of the smooth band of features, in radians per unit of depth: twice the number of steps."""
NORMED = {"model.embedding_norm": True}
EULER = {"model.scheme": "euler", "model.horizon": "unit", "optimizer.b2": 0.95}
FASTER = {"optimizer.embedding_rate": 4.0}
HALFWAY = {"trainer.checkpoint_every": 250, "trainer.keep_last": 3}
"""Settings of models whose spectra are also measured in the middle of training."""
REPEATS = {
    "model.steps": 2, "model.width": 48, "model.heads": 2, "model.hidden": None, "model.context": 64,
    "model.embedding_norm": True, "data.tokenizer_vocabulary": 300, "trainer.batch_size": 64,
}  # fmt: skip
"""Settings with the two layers that an induction head needs: one looks one token back, and one looks for that token.
Sizes and rate were found by trial: with them such heads come within some hundred updates."""
MEANS = {"model.weights": {"kind": "knots", "average": True}}
D_EMB = (4, 8, 24, 144)

EQUAL_COMPUTE = 1.02
"""Factor on GPT's updates that gives it at least the operations of DiffEqFormer, whose matrices cost some, too."""

MODELS = {
    "gpt": Model("quickstart-gpt", HALFWAY),
    OURS: Model("quickstart-diffeqformer", HALFWAY),
    "shared": Model("quickstart-shared"),
    **{
        f"{name}-other": Model(f"quickstart-{name}", rate_of=name, text="other", length=3.0)
        for name in ("gpt", OURS, "shared")
    },
    **{f"{name}-web": Model(f"quickstart-{name}", text="web") for name in ("gpt", OURS, "llama", "diffeqformer-llama")},
    "gpt-equal-compute": Model("quickstart-gpt", rate_of="gpt", length=EQUAL_COMPUTE),
    "llama": Model("quickstart-llama"),
    "diffeqformer-llama": Model("quickstart-diffeqformer-llama"),
    "repeats-llama": Model("quickstart-llama", REPEATS, rate=4e-3, batches=RepeatedTokens, length=2.0),
    "repeats-diffeqformer-llama": Model(
        "quickstart-diffeqformer-llama",
        REPEATS | {"model.horizon": 2.0, "model.weights.d_emb": 12},
        rate=4e-3,
        batches=RepeatedTokens,
        length=2.0,
    ),
    "shared-mlp": Model("quickstart-shared-mlp"),
    "smooth": Model("quickstart-diffeqformer", HALFWAY | {"model.weights.highest_frequency": SMOOTH}, OURS),
    f"{OURS}-b2-0.999": Model("quickstart-diffeqformer", {"optimizer.b2": 0.999}),
    "gpt-b2-0.95": Model("quickstart-gpt", {"optimizer.b2": 0.95}),
    **{f"{OURS}-b2-{b2}": Model("quickstart-diffeqformer", {"optimizer.b2": b2}, OURS) for b2 in (0.9, 0.99)},
    **{f"gpt-b2-{b2}": Model("quickstart-gpt", {"optimizer.b2": b2}, "gpt-b2-0.95") for b2 in (0.9, 0.99)},
    **{f"d_emb-{d_emb}": Model("quickstart-diffeqformer", {"model.weights.d_emb": d_emb}, OURS) for d_emb in D_EMB},
    **{f"d_emb-{d_emb}-own": Model("quickstart-diffeqformer", {"model.weights.d_emb": d_emb}) for d_emb in D_EMB},
    "table": Model("quickstart-gpt", EULER),
    "knots": Model("quickstart-gpt", EULER | MEANS),
    "free-rows": Model("quickstart-diffeqformer", build=free_rows),
    "faster-table": Model("quickstart-gpt", EULER, build=faster_table),
    "table-b2-0.999": Model("quickstart-gpt", EULER | {"optimizer.b2": 0.999}),
    "gpt-embeddings": Model("quickstart-gpt", FASTER),
    "table-embeddings": Model("quickstart-gpt", EULER | FASTER),
    f"{OURS}-embeddings": Model("quickstart-diffeqformer", FASTER),
    "gpt-normed": Model("quickstart-gpt", NORMED),
    "diffeqformer-normed": Model("quickstart-diffeqformer", NORMED),
    "diffeqformer-normed-long": Model("quickstart-diffeqformer", NORMED | {"model.horizon": 6.0}),
    "smooth-normed": Model("quickstart-gpt", NORMED | MEANS),
}
"""Models by the name of their folder."""

GPU = {
    "data.tokenizer": "train", "data.tokenizer_vocabulary": 50257, "model.vocabulary": 50304,
    "data.validation_fraction": 0.01, "trainer.batch_size": 64, "trainer.accumulation": 4,
    "trainer.checkpoint_every": 1000, "trainer.keep_last": 1,
}  # fmt: skip
"""Settings for one GPU and any text: 65,536 tokens per update; an odd vocabulary is slow on cards (docs/devices.md)."""
GPU_MODELS = {
    "gpt": Model("gpt-small", GPU),
    OURS: Model("diffeqformer-gpt-small", GPU | {"optimizer.b2": 0.95}),
    "shared": Model("diffeqformer-gpt-small", GPU | {"model.weights": "shared"}),
    "shared-mlp": Model("diffeqformer-gpt-small", GPU | {"model.weights": "time-shared-mlp"}),
    f"{OURS}-b2-0.999": Model("diffeqformer-gpt-small", GPU),
    "gpt-b2-0.95": Model("gpt-small", GPU | {"optimizer.b2": 0.95}),
    "gpt-normed": Model("gpt-small", GPU | NORMED),
    "diffeqformer-normed-long": Model("diffeqformer-gpt-small", GPU | NORMED | {"model.horizon": 12.0}),
    "table": Model("gpt-small", GPU | EULER),
    "faster-table": Model("gpt-small", GPU | EULER, build=faster_table),
    "free-rows": Model("diffeqformer-gpt-small", GPU, build=free_rows),
}
"""Models at gpu scale: the sizes of the paper's smallest models. A claim whose models are not here is untested."""
