"""The paper's tables and figures, in its order: what each claims, and how its claims are measured.

Sizes are the quickstart's: verdicts here are about small models, on the given text, after the given updates. A new item
is an entry of `ITEMS`; a model that it needs, one of `models.MODELS`; what the paper reports for it, one of
`reported.REPORTED`.
"""

from diffeqformer.studies.paper import checks
from diffeqformer.studies.paper import figures as draw
from diffeqformer.studies.paper import measures as by
from diffeqformer.studies.paper.adaptation import TUNING, adapted, overfits_less, transferred
from diffeqformer.studies.paper.claims import Claim, Item
from diffeqformer.studies.paper.measures import MATCHING, NATS, OURS, TASKS, lower
from diffeqformer.studies.paper.models import D_EMB
from diffeqformer.studies.paper.tables import costs

PAIRS = ("QK", "OV", "FF")
"""Pairs of matrices whose eigenvalues are measured."""

TWINS = ("gpt", OURS, "llama", "diffeqformer-llama")
"""For each of two fields the baseline and DiffEqFormer."""
WEB_TWINS = tuple(f"{name}-web" for name in TWINS)

DIRECTIONS = {"own → other": "from the first text to the other", "other → own": "from the other text to the first"}
"""Directions of figure 5, as `reproduce_adapt` names them, and in words."""

ITEMS = {
    "table-1": Item(
        "table 1, figure 4",
        "On WikiText-103 DiffEqFormer has a lower perplexity than GPT, small and medium, and overfits less; shared "
        "weights fall short of both.",
        (
            lower(OURS, "gpt", "DiffEqFormer has a lower loss than GPT", "Is DiffEqFormer better than GPT?"),
            lower("gpt", "shared", "shared weights have a higher loss than GPT"),
            by.smaller_gap(OURS, "gpt", "DiffEqFormer overfits less than GPT"),
            lower(
                f"{OURS}-other", "gpt-other", "the other text, read several times: DiffEqFormer is better than GPT",
                "Also on another text, read several times, at rates found on the first?",
            ),
            by.smaller_gap(
                f"{OURS}-other", "gpt-other", "the other text, read several times: DiffEqFormer overfits less than GPT"
            ),
            lower("gpt-other", "shared-other", "the other text, read several times: shared weights are worse than GPT"),
        ),
        texts=("other",),
        missing="Claims on the other text need one: --other FILES. Its models are trained three times as long, at the "
        "rates that were found on the first text.",
        layout="Validation perplexity over training, a curve per model; the table has each one's lowest.",
        figures=((draw.curves, ("gpt", OURS, "shared")), (draw.curves, ("gpt-other", f"{OURS}-other", "shared-other"))),
    ),
    "table-2": Item(
        "table 2, figure 8, C.6",
        "On OpenWebText DiffEqFormer has a lower perplexity than GPT at three sizes, and than Llama-1B by more.",
        (
            lower("diffeqformer-llama", "llama", "DiffEqFormer-Llama has a lower loss than Llama"),
            by.larger_gain(TWINS, "it gains more on Llama than on GPT"),
            by.ahead_elsewhere(OURS, "gpt", "DiffEqFormer is ahead of GPT on a text that neither was trained on"),
            lower(f"{OURS}-web", "gpt-web", "trained on web text, DiffEqFormer has a lower loss than GPT"),
            lower(
                "diffeqformer-llama-web", "llama-web",
                "trained on web text, DiffEqFormer-Llama has a lower loss than Llama",
                "Is DiffEqFormer-Llama better than Llama, both trained on web text?",
            ),
            by.larger_gain(WEB_TWINS, "trained on web text, it gains more on Llama than on GPT"),
            by.ahead_elsewhere(
                f"{OURS}-web", "gpt-web", "trained on web text, DiffEqFormer is ahead of GPT on the other text"
            ),
            by.ahead_elsewhere(
                "diffeqformer-llama-web", "llama-web",
                "trained on web text, DiffEqFormer-Llama is ahead of Llama on the other text",
            ),
        ),
        main=4,
        texts=("other", "web"),
        missing="The text of the web needs --web FILES, such as a sample of OpenWebText, and the other text --other "
        "FILES. The models of web text have rates of their own.",
        layout="Validation perplexity of the Llama twins over training, two curves, ours below throughout.",
        figures=((draw.curves, TWINS), (draw.curves, WEB_TWINS)),
    ),
    "table-3": Item(
        "tables 3 and 6",
        "GPT-small has 117 M parameters, medium 345 M, large 762 M, Llama-1B 1,213 M.",
        (
            Claim(
                "the presets have the sizes of the published GPT-2: 124.4 M, 354.8 M and 774.0 M (the paper has those "
                "that OpenAI first gave)",
                "half a per cent minus the largest relative difference", (), checks.counts, True,
            ),
            Claim("Llama-1B has the paper's 1,213 M parameters", "half a million minus the distance, in millions", (),
                  checks.llama_count, True),
            Claim("with d_emb from 20 to 144 the three sizes have the parameters of the authors' code, to the million",
                  "half a million minus the largest distance, in millions", (), checks.twin_counts, True),
        ),
    ),
    "tables-4-5": Item(
        "tables 4 and 5, figures 9 to 12",
        "Of eleven tasks DiffEqFormer is significantly better on both LAMBADAs, by up to 2 points than GPT-large and "
        "by 2 to 4 than Llama-1B, and comparable on the others.",
        (
            *(
                Claim(f"DiffEqFormer is ahead of GPT on {name}, {shots} examples", "accuracy, its own minus GPT's",
                      (OURS, "gpt"), by.task(name, shots))
                for name in ("lambada_openai", "lambada_standard") for shots in (0, 5)
            ),
            Claim("DiffEqFormer finds the last words of lambada_openai likelier", "nats per word, GPT's minus its own",
                  (OURS, "gpt"), by.task("lambada_openai", 0, "perplexity")),
            *(
                Claim(f"over the nine other tasks, or most of them, the two are within a point, {shots} examples",
                      "a hundredth minus the distance of their mean accuracies", (OURS, "gpt"),
                      by.comparable([name for name in TASKS if "lambada" not in name], shots))
                for shots in (0, 5)
            ),
        ),
        missing="The models are those of table 4, GPT's; the Llama twins of table 5 are not evaluated. Tasks are "
        "evaluated as the runs are measured, with lm-evaluation-harness: their data comes from the hub, or with "
        "--include-path from files (docs/harness.md); a task that cannot be had is untested, and the mean over the "
        "nine others is of those that are there, if most are. A model of the quickstart's size answers nothing of "
        "LAMBADA and is at chance on the others, and 5 examples are longer than its context: where both models have "
        "an accuracy of zero there is nothing to compare.",
        layout="Accuracies of two models side by side for each task, with standard errors, at 0 and 5 examples.",
        figures=((draw.tasks, (OURS, "gpt")),),
    ),
    "figure-2": Item(
        "figure 2 a and b, appendix E",
        "The magnitudes of the eigenvalues of QK and OV grow with depth, with a peak near the last layers.",
        (
            *(
                Claim(f"eigenvalues of {pair} grow with depth{said}", "log of the last third's radius over the first's",
                      (name,), by.growth(name, pair))
                for name, said in ((OURS, ""), ("smooth", ", with a smooth band of features"), ("gpt", " in GPT"))
                for pair in PAIRS
            ),
            *(
                Claim(f"{when}, eigenvalues of {pair} grow with depth{said}",
                      "log of the last third's radius over the first's", (name,), by.growth_at(name, pair, part))
                for when, part in (("before training", 0.0), ("halfway through training", 0.5))
                for name, said in ((OURS, ""), ("gpt", " in GPT")) for pair in PAIRS
            ),
            *(
                Claim(f"the largest eigenvalues of {pair} are in the last third of depth{said}",
                      "log of the last third's largest radius over the largest before", (name,), by.peak(name, pair))
                for name, said in ((OURS, ""), ("smooth", ", with a smooth band of features"), ("gpt", " in GPT"))
                for pair in PAIRS
            ),
        ),
        missing="Measured after training on the first text alone; with a smooth band only at the end of training. Of "
        "runs of the same seeds on other machines, which rounding parts, QK and OV had other verdicts, and FF the same "
        "(docs/log.md).",
        layout="Heat maps over depth, one per head: a pair's eigenvalues at each time, sorted; darker near the end.",
        figures=((draw.spectra, (OURS,)), (draw.spectra, ("gpt",)), (draw.spectra, ("smooth",))),
    ),
    "induction": Item(
        "section 5.1",
        "Positive eigenvalues of QK and OV make induction heads highly probable in the last layers.",
        tuple(
            claim
            for name, said in (("repeats-llama", "Llama"), ("repeats-diffeqformer-llama", "DiffEqFormer-Llama"))
            for claim in (
                Claim(f"{said} gets an induction head from random sequences that are repeated",
                      f"prefix matching of its best head minus {MATCHING}", (name,), by.best_head(name)),
                Claim(f"the inference: heads of {said} with positive eigenvalues match prefixes",
                      f"rank correlation, where a head matches prefixes by {MATCHING}", (name,), by.induction(name)),
            )
        ),
        main=3,
        missing="Each model has four heads in two layers, so that a seed's rank correlation is one of a few values; "
        "Student's interval does not know that none is above 1.",
        layout="A remark on figure 2, without a measurement of its own.",
        figures=((draw.induction, ("repeats-llama", "repeats-diffeqformer-llama")),),
    ),
    "figure-2cd": Item(
        "figures 2 c and d, 13, C.8",
        "Particles gather in clusters if weights are shared, and do not if weights grow with depth.",
        (
            Claim("growing weights leave more clusters than shared ones", "log of the ratio", (),
                  by.more_clusters(level=False)),
            Claim("growing weights of the same integral leave more clusters, too", "log of the ratio", (),
                  by.more_clusters(level=True)),
        ),
        layout="Paths of particles: some clusters if weights are shared, points apart if they grow.",
        figures=((draw.particles, ()),),
    ),
    "figure-3": Item(
        "figure 3, appendix F",
        "Lyapunov exponents say which tokens a prediction is sensitive to, in a more principled way than attention.",
        tuple(
            Claim(f"exponents rank tokens by their effect better than {against}{said}",
                  "difference of rank correlations", (OURS,), by.faithful(OURS, against, other=other), slow=True,
                  question=f"Do exponents say better than {against} what a prediction rests on?" * (not other))
            for against, other, said in (
                ("attention rollout", False, ""), ("attention rollout", True, ", on the other text"),
                ("attention", False, ""), ("attention", True, ", on the other text"),
            )
        ),
        texts=("other",), missing="Claims on the other text need one: --other FILES.",
        layout="A text with its words shaded by their exponents; `diffeqformer analyze lyapunov RUN` takes any text.",
        figures=((draw.words, (OURS,)),),
    ),
    "figure-5": Item(
        "figure 5, section 6.2",
        "After LoRA on a new text DiffEqFormer of 18 steps is ahead of GPT of 24 layers at 9, 12, 18 and 24 steps.",
        (
            *(
                Claim(f"after LoRA DiffEqFormer of 6 steps is ahead of GPT of 8 layers at {steps} steps",
                      f"{NATS}, GPT's minus its own, over both directions", (OURS,), adapted(steps),
                      question="" if steps > 3 else "After LoRA, is it ahead of a deeper GPT at half of its steps?")
                for steps in (3, 4, 6, 8)
            ),
            *(
                Claim(f"{words}, {to}: DiffEqFormer of 6 steps is ahead of GPT of 8 layers at {steps} steps",
                      f"{NATS}, GPT's minus its own", (OURS,), adapted(steps, method, direction))
                for method, words in (("lora", "after LoRA"), ("full", "fine-tuned in full"))
                for direction, to in DIRECTIONS.items() for steps in (3, 4, 6, 8)
            ),
            *(
                Claim(f"fine-tuned in full, {to}: 3 steps overfit less than 6",
                      f"{NATS}, rise from the lowest loss to the last at 6 steps minus that at 3", (OURS,),
                      overfits_less(3, 6, direction))
                for direction, to in DIRECTIONS.items()
            ),
            *(
                Claim(f"from scratch, on {text} alone: DiffEqFormer of 6 steps is ahead of GPT of 8 layers",
                      f"{NATS}, GPT's minus its own", (OURS,), adapted(6, "scratch", direction))
                for direction, text in zip(DIRECTIONS, ("the other text", "the first text"), strict=True)
            ),
            *(
                Claim(f"{words}, {to}: DiffEqFormer of 6 steps is ahead of itself from scratch, at 4 times the updates",
                      f"{NATS}, from scratch minus fine-tuned", (OURS,), transferred(method, direction))
                for method, words in (("lora", "after LoRA"), ("full", "fine-tuned in full"))
                for direction, to in DIRECTIONS.items()
            ),
        ),
        texts=("other",),
        missing="Needs a second text: --other FILES. `reproduce adapt` has tables, too. The rates of LoRA and of full "
        "fine-tuning are searched for each system and direction at the depth of pretraining, and taken at the others. "
        "Pretraining, and training from scratch, have the configs' own rate, 1e-3, which is not searched for; what a "
        "search finds with 6 steps on the first text is in the last table. Where no loss rises before the end, nothing "
        "overfits, and the effect is zero.",
        layout="Validation perplexity while fine-tuning, a curve per depth and GPT's; LoRA and full, both directions.",
        figures=((draw.adaptation, ()),),
        # 4 runs of pretraining; 20 of fine-tuning, and 3 more for each of 8 searches, which only the first seed needs.
        length=4 + 44 * TUNING,
    ),
    "figure-7": Item(
        "figure 7, C.5",
        "A lower b2 (0.95) helps DiffEqFormer, the usual one (0.999) helps GPT.",
        (
            lower(OURS, f"{OURS}-b2-0.999", "DiffEqFormer is better with b2 0.95 than with 0.999"),
            lower("gpt", "gpt-b2-0.95", "GPT is better with b2 0.999 than with 0.95"),
            lower(f"{OURS}-b2-0.9", f"{OURS}-b2-0.99", "DiffEqFormer is better with b2 0.9 than with 0.99"),
            lower("gpt-b2-0.99", "gpt-b2-0.9", "GPT is better with b2 0.99 than with 0.9"),
        ),
        missing="Rates were searched for 0.95 and 0.999; 0.9 and 0.99 have that of 0.95.",
        layout="Validation perplexity over training with two values of b2: ours lower with 0.95, GPT's with 0.999.",
        figures=((draw.curves, (OURS, f"{OURS}-b2-0.999", "gpt", "gpt-b2-0.95")),),
    ),
    "figure-14": Item(
        "figures 14 to 16, D.1",
        "Quality rises with d_emb, and memory by less than the parameters.",
        (
            lower(OURS, "d_emb-4", "d_emb 48 is better than 4"),
            lower(OURS, "d_emb-8", "d_emb 48 is better than 8 (from 5 on, matrices of 6 steps can be anything)"),
            lower("d_emb-144", OURS, "d_emb 144 is better than 48"),
            lower(OURS, "d_emb-24", "d_emb 48 is better than 24"),
            *(
                lower(OURS, f"d_emb-{d_emb}-own", f"at rates of their own d_emb 48 is better than {d_emb}")
                for d_emb in D_EMB if d_emb < 48
            ),
            lower("d_emb-144-own", OURS, "at rates of their own d_emb 144 is better than 48"),
            Claim("memory grows by less than parameters", "ratio of parameters minus ratio of planned memory",
                  (OURS, "d_emb-144"), by.cheaper_memory, True),
        ),
        main=7,
        layout="Against d_emb: validation perplexity, which falls; throughput, falling a little; memory, growing less.",
        figures=((draw.sizes, ("d_emb-4", "d_emb-8", "d_emb-24", OURS, "d_emb-144")),
                 (draw.sizes, ("d_emb-4-own", "d_emb-8-own", "d_emb-24-own", OURS, "d_emb-144-own"))),
        tables=(costs,),
        missing="Where rates are not said to be their own, all sizes have the one that was searched for 48. h(t) is "
        "longer with more features, so that the same rate moves the matrices of larger ones further.",
    ),
    "figure-18": Item(
        "figures 17 and 18, D.2",
        "A network of time for each matrix is better than one for all.",
        (lower(OURS, "shared-mlp", "separate time networks are better than a shared one"),),
        layout="Validation perplexity over training, a curve per design; one network for all stays above.",
        figures=((draw.curves, (OURS, "shared-mlp")),),
    ),
    "what-decides": Item(
        "not in the paper, what decides",
        "Whether DiffEqFormer's gain is that of smoothness in time, of seven times the parameters, or of the learning "
        "rate that its matrices see: each alone, in models that lack the others.",
        (
            lower("table", "gpt", "a table of layers at DiffEqFormer's Euler steps of 1/6 and b2 is better than GPT"),
            lower(OURS, "table",
                  "DiffEqFormer is better than a table at its steps and b2 (asked when both were trained)",
                  "Is it better than a plain table of layers with its steps of 1/6 and its b2?"),
            lower("faster-table", "table", "the same table is better if the optimiser moves it 6 times as fast"),
            lower("knots", "table", "smooth weights of as many parameters (means of knots) are better than the table"),
            lower("free-rows", "faster-table", "P h_l with free h_l, 7 times the parameters, are better than that"),
            lower(OURS, "free-rows", "h(t) is better than free h of the same start: smoothness in time helps"),
            lower(OURS, "faster-table", "DiffEqFormer is better than that faster table: a learning rate is not all"),
            lower("table-b2-0.999", "gpt", "with GPT's b2, too, the table is better than GPT: steps of 1/6 do it"),
            lower("gpt-embeddings", "gpt", "GPT is better if its embeddings move 4 times as fast"),
            lower(f"{OURS}-embeddings", OURS, "DiffEqFormer is better if its embeddings move 4 times as fast"),
            lower("table-embeddings", "table", "the table is better if its embeddings move 4 times as fast"),
            lower(f"{OURS}-embeddings", "table-embeddings",
                  "both with such embeddings, DiffEqFormer is ahead of the table"),
            lower(f"{OURS}-embeddings", "gpt-embeddings", "both with such embeddings, DiffEqFormer is ahead of GPT",
                  "Is it still better than GPT if the embeddings of both move 4 times as fast?"),
        ),
        main=1,
        figures=((draw.curves, ("gpt", OURS, "table", "faster-table", "free-rows", "knots")),),
    ),
    "normalisation": Item(
        "not in the paper, the state's scale",
        "Whether the gain is that of time-dependent weights, or of the scale of the state that they start from.",
        (
            lower("gpt-normed", "gpt", "one line, the state normalised at depth 0, helps GPT"),
            lower("gpt-normed", OURS, "GPT with that line is better than DiffEqFormer as published"),
            lower("diffeqformer-normed-long", "diffeqformer-normed", "with it DiffEqFormer needs steps of 1, not 1/6"),
            lower("diffeqformer-normed-long", "gpt-normed", "with it and steps of 1 DiffEqFormer is better than GPT"),
            lower("smooth-normed", "gpt-normed", "means over steps of knots are better than a table, both normalised"),
        ),
        figures=((draw.curves, ("gpt", OURS, "gpt-normed", "smooth-normed", "diffeqformer-normed",
                                "diffeqformer-normed-long")),),
    ),
    "ours": Item(
        "not in the paper, what comparisons rest on",
        "Whether no token sees a later one, whether GPT is the vanilla transformer of DiffEqFormer's own sizes, and "
        "whether both are compared at equal tokens in the same order, and at equal computation. That GPT and Llama "
        "compute what their published implementations do is tested with the library; a verdict has three seeds.",
        (
            *(
                Claim(f"no logit of {said} depends on a later token, to the bit, with random weights",
                      "1 if so, else minus the share of changed tokens that are seen", (), checks.causal(config), True)
                for said, config in (("GPT", "quickstart-gpt"), ("DiffEqFormer", "quickstart-diffeqformer"))
            ),
            Claim("GPT differs from DiffEqFormer in weights, scheme and horizon alone",
                  "1 if so, else minus the number of other settings", (), checks.true_baseline, True),
            Claim("models of one seed see the same tokens in the same batches, in the same order",
                  "1 if so, else minus the share of batches that differ", (), checks.same_batches, True),
            Claim("at equal tokens DiffEqFormer trains with as many operations as GPT, to 2 %",
                  "a fiftieth minus the relative difference", (), checks.equal_compute, True),
            lower(OURS, "gpt-equal-compute", "DiffEqFormer is ahead of GPT that is given at least its operations"),
        ),
        main=5,
    ),
}  # fmt: skip
"""Items by their names on the command line."""
