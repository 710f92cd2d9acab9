"""The paper's tables and figures, in its order: what is trained for each, and how its claims are measured.

Sizes are the quickstart's: what holds or fails here is said of small models, on the text given, after the updates
given. A new item is an entry of `ITEMS`; a model that it needs, one of `MODELS`.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from diffeqformer.studies.paper import Claim, Item, Measure, Model, Trained

if TYPE_CHECKING:
    from diffeqformer.runs.trainer import TrainResult

SMOOTH = 12.0
"""Radians per unit of depth of the fastest feature of the smooth band: twice the number of steps."""
MATCHING = 0.5
"""Prefix matching of a head that is called an induction head; without one the inference cannot be tested."""
CONTEXTS = 48
"""On which explanations are tested."""
OURS = "diffeqformer"
B2 = (0.9, 0.95, 0.99, 0.999)
D_EMB = (4, 8, 12, 24, 96, 144)

MODELS = {
    "gpt": Model("quickstart-gpt"),
    OURS: Model("quickstart-diffeqformer"),
    "shared": Model("quickstart-shared"),
    "llama": Model("quickstart-llama"),
    "diffeqformer-llama": Model("quickstart-diffeqformer-llama"),
    "shared-mlp": Model("quickstart-shared-mlp"),
    "smooth": Model("quickstart-diffeqformer", {"model.weights.highest_frequency": SMOOTH}, OURS),
    **{
        f"{name}-b2-{b2}": Model(f"quickstart-{name}", {"optimizer.b2": b2}, name)
        for name in (OURS, "gpt")
        for b2 in B2
    },
    **{f"d_emb-{d_emb}": Model("quickstart-diffeqformer", {"model.weights.d_emb": d_emb}, OURS) for d_emb in D_EMB},
    "gpt-normed": Model("quickstart-gpt", {"model.embedding_norm": True}),
    "diffeqformer-normed": Model("quickstart-diffeqformer", {"model.embedding_norm": True}),
    "diffeqformer-normed-long": Model("quickstart-diffeqformer", {"model.embedding_norm": True, "model.horizon": 6.0}),
    "knots-normed": Model("quickstart-gpt", {"model.embedding_norm": True, "model.weights": "knots"}),
}
"""By the name of their folder."""


def gain(found: Trained, better: str, worse: str) -> float:
    """By how many nats per token one model's loss is below another's."""
    return found.loss(worse) - found.loss(better)


def lower(better: str, worse: str, sentence: str) -> Claim:
    """A claim that one model has a lower loss than another."""
    unit = "nats per token, the other's loss minus its own"
    return Claim(sentence, unit, (better, worse), lambda found: gain(found, better, worse))


def gap(result: "TrainResult") -> float:
    """How much higher the loss is on validation than on the last tenth of the training batches."""
    curve = result.entry["curve"]["train"]
    last = [loss for step, loss in curve if step > 0.9 * result.entry["updates"]]
    return result.entry["validation"]["loss"] - sum(last) / len(last)


def elsewhere(better: str, worse: str) -> Measure:
    """The difference of bits per byte on the other text, without training on it."""

    def measure(found: Trained) -> float | None:
        if not found.other:
            return None
        ours, theirs = (_bits(found.models[name], found.other) for name in (better, worse))
        return theirs - ours

    return measure


def _bits(result: "TrainResult", files: tuple[str, ...]) -> float:
    from diffeqformer.data.cache import tokens_of
    from diffeqformer.data.loader import evaluation_batches
    from diffeqformer.evaluation.perplexity import evaluate
    from diffeqformer.progress import Silent

    config = result.config
    tokens, bytes_ = tokens_of(files, config.data, result.tokens.tokenizer, Silent())
    batches = evaluation_batches(tokens, config.model.context, config.trainer.batch_size)
    found = evaluate(result.model, batches, bytes_=bytes_, block=config.trainer.loss_block).bits_per_byte
    return math.nan if found is None else found


def growth(name: str, pair: str) -> Measure:
    """The logarithm of how much larger the spectral radius is in the last third of depth than in the first."""

    def measure(found: Trained) -> float:
        from diffeqformer.analysis.spectra import spectra

        seen = spectra(found.models[name].model, times=24)
        radius = seen.pairs[pair].radius
        over_depth = radius.reshape(len(radius), -1).mean(1)
        third = max(1, len(over_depth) // 3)
        return math.log(over_depth[-third:].mean() / over_depth[:third].mean())

    return measure


def induction(name: str) -> Measure:
    """Rank correlation of prefix matching with positive eigenvalues of both pairs, where a head matches prefixes."""

    def measure(found: Trained) -> float | None:
        from diffeqformer.analysis.induction import measure_induction

        result = found.models[name]
        special = result.tokens.tokenizer.get_added_tokens_decoder()
        seen = measure_induction(
            result.model,
            candidates=[one for one in range(result.tokens.tokenizer.get_vocab_size()) if one not in special],
            sequences=16, length=25, repeats=4, seed=found.seed,
        )  # fmt: skip
        there = seen.behaviours["prefix matching"].max() >= MATCHING
        return seen.inference.rho if there else None

    return measure


def more_clusters(*, level: bool) -> Measure:
    """Clusters left where weights grow with the square of depth, over those where they are shared, as a logarithm.

    **Arguments:** `level`, whether growing weights have the integral of shared ones.
    """

    def measure(found: Trained) -> float:
        from diffeqformer.analysis.clusters import simulate

        ends = (simulate("particles", order, level=level, seed=found.seed).measures for order in (0, 2))
        shared, growing = (float(np.median(one.clusters(0.1, of="now")[-1])) for one in ends)
        return math.log(growing / shared)

    return measure


def faithful(name: str) -> Measure:
    """How much better the pairwise exponents rank tokens by their effect than attention does, in rank correlation."""

    def measure(found: Trained) -> float:
        from diffeqformer.analysis.faithfulness import PAIRWISE, faithfulness

        result = found.models[name]
        length = min(48, result.config.model.context)
        tokens = result.tokens.validation
        seen = faithfulness(result.model, tokens, contexts=CONTEXTS, length=length, seed=found.seed)
        of = lambda method: float(seen.strength[:, seen.methods.index(method)].mean())
        return of(PAIRWISE) - of("attention rollout")

    return measure


def counts(found: Trained) -> float:
    """Half a per cent less the largest relative error of the vanilla presets' parameters."""
    from diffeqformer.config import read_yaml, shipped_configs
    from diffeqformer.model.count import parameters

    published = {"gpt-small": 124.4e6, "gpt-medium": 354.8e6, "gpt-large": 774.0e6}
    stored: dict[str, Any] = {name: parameters(read_yaml(shipped_configs()[name]).model).stored for name in published}
    return 0.005 - max(abs(stored[name] / number - 1) for name, number in published.items())


def cheaper_memory(found: Trained) -> float:
    """The ratio of stored parameters at d_emb 144 and at 48, less that of what an update needs, as compiled."""
    from diffeqformer.runs.footprint import update_footprint

    small, large = (found.models[name] for name in (OURS, "d_emb-144"))
    sizes = [one.entry["parameters"]["stored"] for one in (small, large)]
    totals = [update_footprint(one.config).total or math.nan for one in (small, large)]
    return sizes[1] / sizes[0] - totals[1] / totals[0]


def task(name: str) -> Measure:
    """The difference of accuracies on a task that the runs' folders hold evaluations of."""

    def measure(found: Trained) -> float | None:
        from diffeqformer.interop.comparing import compare_runs

        compared = compare_runs(*(str(found.models[one].folder) for one in (OURS, "gpt")))
        rows = [
            row for row in compared.rows if row.task.startswith(name) and row.is_accuracy and None not in row.values
        ]
        return float(np.mean([np.subtract(*map(float, row.values)) for row in rows])) if rows else None

    return measure


def adapted(steps: int | None) -> Measure:
    """GPT's perplexity after LoRA over DiffEqFormer's at so many steps (own ones if `None`), as a logarithm, over both
    directions."""

    def measure(found: Trained) -> float | None:
        if not found.other:
            return None
        from diffeqformer.config import DataConfig
        from diffeqformer.studies.reproduce_adapt import Arguments, records, reproduce

        own = found.models[OURS].config.data
        texts = {"own": own, "other": DataConfig(source="files", train=found.other, cache=own.cache)}
        words = Arguments(texts=("own", "other"), seeds=(found.seed,), cache=own.cache)
        rows = records([reproduce(words, texts, found.seed, found.folder / f"adapt/seed-{found.seed}", found.progress)])
        lora = [row for row in rows if row["method"] == "lora"]
        depth = words.steps if steps is None else steps
        pairs = [
            (row["final"]["loss"], next(ours["final"]["loss"] for ours in lora if ours["direction"] == row["direction"]
             and ours["system"].startswith("DiffEqFormer") and ours["steps"] == depth))
            for row in lora if not row["system"].startswith("DiffEqFormer")
        ]  # fmt: skip
        return sum(theirs - ours for theirs, ours in pairs) / len(pairs)

    return measure


NATS = "nats per token"
ITEMS = {
    "table-1": Item(
        "table 1, figure 4",
        "On WikiText-103 DiffEqFormer has a lower perplexity than GPT, small and medium, and overfits less; shared "
        "weights fall short of both.",
        (
            lower(OURS, "gpt", "DiffEqFormer has a lower loss than GPT"),
            lower("gpt", "shared", "shared weights have a higher loss than GPT"),
            Claim(
                "DiffEqFormer overfits less than GPT", f"{NATS}, GPT's gap from training to validation minus its own",
                (OURS, "gpt"), lambda found: gap(found.models["gpt"]) - gap(found.models[OURS]),
            ),
        ),
    ),
    "table-2": Item(
        "table 2, figure 8, C.6",
        "On OpenWebText DiffEqFormer has a lower perplexity than GPT at three sizes, and than Llama-1B by more.",
        (
            lower("diffeqformer-llama", "llama", "DiffEqFormer-Llama has a lower loss than Llama"),
            Claim(
                "it gains more on Llama than on GPT", f"{NATS}, gain on Llama minus gain on GPT",
                ("diffeqformer-llama", "llama", OURS, "gpt"),
                lambda found: gain(found, "diffeqformer-llama", "llama") - gain(found, OURS, "gpt"),
            ),
            Claim(
                "DiffEqFormer is ahead of GPT on a text that neither was trained on",
                "bits per byte, GPT's minus its own", (OURS, "gpt"), elsewhere(OURS, "gpt"),
            ),
        ),
        "The last claim needs another text: --other FILES.",
    ),
    "table-3": Item(
        "tables 3 and 6",
        "GPT-small has 117 M parameters, medium 345 M, large 762 M, Llama-1B 1,213 M.",
        (
            Claim(
                "the presets have the sizes of the published GPT-2: 124.4 M, 354.8 M and 774.0 M (the paper has those "
                "that OpenAI first gave)", "half a per cent minus the largest relative difference", (), counts, True,
            ),
        ),
    ),
    "tables-4-5": Item(
        "tables 4 and 5, figures 9 to 12",
        "Of eleven tasks DiffEqFormer is significantly better on both LAMBADAs, by 2 to 4 points, and comparable "
        "on the others.",
        (Claim("DiffEqFormer is ahead of GPT on LAMBADA", "accuracy, its own minus GPT's", (OURS, "gpt"),
               task("lambada")),),
        "Evaluate both runs first: `diffeqformer eval RUN --tasks lambada_openai` (docs/harness.md). A model of the "
        "quickstart's size answers next to none of these tasks.",
    ),
    "figure-2": Item(
        "figure 2 a and b, appendix E",
        "The magnitudes of the eigenvalues of QK and OV grow with depth, with a peak near the last layers.",
        tuple(
            Claim(f"eigenvalues of {pair} grow with depth{said}", "log of the last third's radius over the first's",
                  (name,), growth(name, pair))
            for name, said in ((OURS, ""), ("smooth", ", with a smooth band of features"), ("gpt", " in GPT"))
            for pair in ("QK", "OV", "FF")
        ),
    ),
    "induction": Item(
        "section 5.1",
        "Positive eigenvalues of QK and OV make induction heads highly probable in the last layers.",
        tuple(
            Claim(f"heads of {said} with positive eigenvalues match prefixes", "rank correlation", (name,),
                  induction(name))
            for name, said in (("llama", "Llama"), ("diffeqformer-llama", "DiffEqFormer-Llama"))
        ),
        f"Measured where a head matches prefixes by {MATCHING} or more; else there is nothing to be predicted.",
    ),
    "figure-2cd": Item(
        "figures 2 c and d, 13, C.8",
        "Particles gather in clusters if weights are shared, and do not if weights grow with depth.",
        (
            Claim("growing weights leave more clusters than shared ones", "log of the ratio", (),
                  more_clusters(level=False)),
            Claim("growing weights of the same integral leave more clusters, too", "log of the ratio", (),
                  more_clusters(level=True)),
        ),
    ),
    "figure-3": Item(
        "figure 3, appendix F",
        "Lyapunov exponents say which tokens a prediction is sensitive to, better than attention.",
        (Claim("exponents rank tokens by their effect better than attention rollout", "difference of rank correlations",
               (OURS,), faithful(OURS)),),
    ),
    "figure-5": Item(
        "figure 5, section 6.2",
        "After LoRA on a new text DiffEqFormer of 18 steps is ahead of GPT of 24 layers at 9, 12, 18 and 24 steps.",
        tuple(
            Claim(f"after LoRA DiffEqFormer of 6 steps is ahead of GPT of 8 layers at {steps} steps",
                  f"{NATS}, GPT's minus its own, over both directions", (OURS,), adapted(steps))
            for steps in (3, 4, 6, 8)
        ),
        "Needs a second text: --other FILES. `reproduce adapt` has figures and full fine-tuning, too.",
    ),
    "figure-7": Item(
        "figure 7, C.5",
        "A lower b2 (0.95) helps DiffEqFormer, the usual one (0.999) helps GPT.",
        (
            lower(f"{OURS}-b2-0.95", f"{OURS}-b2-0.999", "DiffEqFormer is better with b2 0.95 than with 0.999"),
            lower("gpt-b2-0.999", "gpt-b2-0.95", "GPT is better with b2 0.999 than with 0.95"),
            lower(f"{OURS}-b2-0.9", f"{OURS}-b2-0.99", "DiffEqFormer is better with b2 0.9 than with 0.99"),
            lower("gpt-b2-0.99", "gpt-b2-0.9", "GPT is better with b2 0.99 than with 0.9"),
        ),
    ),
    "figure-14": Item(
        "figures 14 to 16, D.1",
        "Quality rises with d_emb, and memory by less than the parameters.",
        (
            lower(OURS, "d_emb-4", "d_emb 48 is better than 4"),
            lower(OURS, "d_emb-8", "d_emb 48 is better than 8, from where on matrices of 6 steps can be anything"),
            lower("d_emb-144", OURS, "d_emb 144 is better than 48"),
            Claim("memory grows by less than parameters", "ratio of parameters minus ratio of planned memory",
                  (OURS, "d_emb-144"), cheaper_memory, True),
        ),
    ),
    "figure-18": Item(
        "figures 17 and 18, D.2",
        "A network of time for each matrix is better than one for all.",
        (lower(OURS, "shared-mlp", "separate time networks are better than a shared one"),),
    ),
    "what-decides": Item(
        "not in the paper",
        "Whether the gain is that of time-dependent weights, or of the scale of the state that they start from.",
        (
            lower("gpt-normed", "gpt", "one line, the state normalised at depth 0, helps GPT"),
            lower("gpt-normed", OURS, "GPT with that line is better than DiffEqFormer as published"),
            lower("diffeqformer-normed-long", "diffeqformer-normed", "with it DiffEqFormer needs steps of 1, not 1/6"),
            lower("diffeqformer-normed-long", "gpt-normed", "with it and steps of 1 DiffEqFormer is better than GPT"),
            lower("knots-normed", "gpt-normed", "knots are better than a table of layers, both normalised"),
        ),
    ),
}  # fmt: skip
"""By the word that the command line takes."""
