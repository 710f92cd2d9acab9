"""What the paper reports for each item: the place, and its words or its numbers there.

Words between quotation marks are the paper's own, words in brackets stand for its formulas. The numbers of its tables
1, 2 and 6 and the values of b2 are formulas too, and missing from the text that this was taken from: they are not
quoted. What the figures and the notebook of the authors' release have is, with this source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffeqformer.report.table import Table


@dataclass(frozen=True)
class Reported:
    """What the paper reports for one item."""

    places: Sequence[tuple[str, str]]
    """Each place, such as a section with a figure, and what is there."""
    numbers: tuple[Table, ...] = ()
    """Tables of numbers, as published."""


TWINS: Mapping[str, Mapping[int, int]] = {
    "small": {20: 188, 48: 387, 72: 557, 96: 727, 120: 897, 144: 1067},
    "medium": {20: 317, 48: 670, 72: 972, 96: 1275, 120: 1577, 144: 1879},
    "large": {20: 479, 48: 1030, 72: 1502, 96: 1975, 120: 2447, 144: 2919},
}
"""Millions of parameters of DiffEqFormer in the authors' code, by size and d_emb: those of the paper's table 6."""
COLUMNS = (
    "task", "baseline, 0 examples", "DiffEqFormer, 0 examples", "baseline, 5 examples", "DiffEqFormer, 5 examples",
)  # fmt: skip
GPT_LARGE = """\
arc_challenge | 20.65 (1.18) | 20.90 (1.19) | 21.84 (1.21) | 21.25 (1.20)
arc_easy | 36.03 (0.99) | 35.82 (0.98) | 37.12 (0.99) | 36.32 (0.99)
hellaswag | 25.53 (0.44) | 25.61 (0.44) | 25.40 (0.43) | 25.52 (0.44)
lambada_openai | 37.24 (0.67) | 38.39 (0.68) | 27.79 (0.62) | 27.83 (0.62)
lambada_standard | 29.30 (0.63) | 30.37 (0.64) | 23.05 (0.59) | 24.82 (0.60)
logiqa | 21.35 (1.61) | 21.35 (1.61) | 20.74 (1.59) | 21.81 (1.62)
mmlu | 22.95 (0.35) | 22.99 (0.35) | 26.08 (0.37) | 25.10 (0.36)
piqa | 56.26 (1.16) | 56.96 (1.16) | 55.82 (1.16) | 56.69 (1.16)
sciq | 45.70 (1.58) | 47.20 (1.58) | 50.30 (1.58) | 50.90 (1.58)
winogrande | 50.75 (1.41) | 52.57 (1.40) | 49.33 (1.41) | 53.67 (1.40)
wsc273 | 55.31 (3.01) | 53.11 (3.03) | 50.92 (3.03) | 53.11 (3.03)"""
LLAMA_1B = """\
arc_challenge | 22.27 (1.22) | 22.27 (1.22) | 21.76 (1.21) | 22.44 (1.22)
arc_easy | 29.67 (0.94) | 31.10 (0.95) | 30.01 (0.94) | 31.44 (0.95)
hellaswag | 25.20 (0.43) | 25.32 (0.43) | 25.19 (0.43) | 25.36 (0.43)
lambada_openai | 41.84 (0.69) | 43.74 (0.69) | 30.47 (0.64) | 34.41 (0.66)
lambada_standard | 27.58 (0.62) | 31.55 (0.65) | 24.04 (0.60) | 28.22 (0.63)
logiqa | 21.51 (1.61) | 22.27 (1.63) | 21.04 (1.60) | 21.20 (1.60)
mmlu | 22.93 (0.35) | 22.98 (0.35) | 26.43 (0.37) | 24.72 (0.36)
piqa | 53.26 (1.16) | 53.81 (1.16) | 53.65 (1.16) | 53.10 (1.16)
sciq | 31.70 (1.47) | 33.20 (1.49) | 34.20 (1.50) | 34.80 (1.51)
winogrande | 50.51 (1.41) | 49.64 (1.41) | 51.38 (1.40) | 49.33 (1.41)
wsc273 | 53.11 (3.03) | 52.38 (3.03) | 52.01 (3.03) | 50.92 (3.03)"""


ADAPTED = """\
OpenWebText to WikiText-103, LoRA | 23.5 | 22.1 | 21.4 | 21.4 | 22.1 | 25.0
OpenWebText to WikiText-103, full | 20.4 | 20.4 | 21.4 | 22.8 | 23.5 | –
WikiText-103 to OpenWebText, LoRA | 40.5 | 38.1 | 36.5 | 35.9 | 37.5 | 26.8
WikiText-103 to OpenWebText, full | 27.0 | 25.6 | 24.2 | 23.7 | 22.9 | –"""


def _table(caption: str, columns: Sequence[str], text: str) -> Table:
    return Table(caption, columns, [row.split(" | ") for row in text.splitlines()])


REPORTED: Mapping[str, Reported] = {
    "table-1": Reported((
        ("section 6.1, table 1", "WikiText-103, perplexities of GPT, of shared parameters and of DiffEqFormer, small "
         'and medium. DiffEqFormer is "outperforming GPT models while exhibiting less overfitting"; sharing weights '
         '"falls short in autoregressive language modeling tasks in this experiment".'),
        ("section 6.1, figure 4", '"GPT-medium shows signs of overfitting on this data", which "can be attributed to '
         'an increase in model parameters without a corresponding increase in data".'),
    )),
    "table-2": Reported((
        ("section 6.1, table 2", "OpenWebText, perplexities of GPT-small, -medium and -large, of Llama-1B, and of "
         'DiffEqFormer of each: it "consistently outperforms all baselines on the OpenWebText dataset, with '
         'particularly substantial improvements over the Llama-1B baseline".'),
        ("C.6, figure 8", 'beside Llama-1B "our model consistently achieves lower perplexity"; in the figure of the '
         "authors' release 9.68 to Llama-1B's 10.18, after 40,000 updates of 256 times 2,048 tokens."),
    )),
    "table-3": Reported(
        (
            ("C.3, table 3", "the sizes of the table below."),
            ("D.1, table 6", "numbers of parameters, in millions, with d_emb 20, 48, 72, 96, 120 and 144."),
            ("D.1", '"a medium-sized architecture using two NVIDIA A100 GPUs, despite having 1.8 billion parameters".'),
        ),
        (
            _table("Table 3 of the paper", ("", "GPT-small", "GPT-medium", "GPT-large", "Llama-1B"), """\
parameters | 117 M | 345 M | 762 M | 1213 M
layers | 12 | 24 | 36 | 16
hidden size | 768 | 1024 | 1280 | 2048
attention heads | 12 | 16 | 20 | 16"""),
            Table(
                "Table 6 of the paper\nMillions of parameters of DiffEqFormer, counted from the authors' code.",
                ("size", *(f"d_emb {d_emb}" for d_emb in TWINS["small"])),
                [(size, *(f"{count:,}" for count in counts.values())) for size, counts in TWINS.items()],
            ),
        ),
    ),
    "tables-4-5": Reported(
        (
            ("section 6.1", '"comparable performance to the baselines across most tasks", and "statistically '
             "significant improvements on reading comprehension tasks (Lambada OpenAI and Lambada Standard) in both "
             'zero-shot and five-shot evaluations".'),
            ("C.7, table 4, figures 9 and 10", "beside GPT-large, without examples significantly better on both "
             'LAMBADAs, with "modest but consistent gains" on LogiQA, PIQA and SciQ; with five it "outperforms '
             'GPT-large on 5 out of 10 tasks", significantly on Lambada Standard and Winogrande.'),
            ("C.7, table 5, figures 11 and 12", 'beside Llama-1B "statistically significant accuracy gains (2% - 4%) '
             'on both Lambada OpenAI and Lambada Standard".'),
        ),
        (
            _table("Table 4 of the paper: GPT-large\nAccuracies in per cent (standard errors).", COLUMNS, GPT_LARGE),
            _table("Table 5 of the paper: Llama-1B\nAccuracies in per cent (standard errors).", COLUMNS, LLAMA_1B),
        ),
    ),
    "figure-2": Reported((
        ("section 5.1, figure 2 a", 'QK: "a higher degree of interactions in its last layers, as evidenced by the '
         'broader range of eigenvalues in these layers".'),
        ("section 5.1, figure 2 b", 'OV: "a significant number of heads exhibit positive eigenvalues, which are '
         'primarily concentrated near the output layer".'),
        ("section 5.1", 'of both pairs, "increasing magnitudes of eigenvalues over time, with a notable peak observed '
         'near the final layers"; of FF it reports no eigenvalues. Vanilla transformers "do not exhibit clear patterns '
         'or behaviors in their dynamics".'),
        ("appendix E", "the same on OpenWebText and WikiText-103, and of a vanilla transformer."),
    )),
    "induction": Reported((
        ("section 5.1", 'from positive eigenvalues of both pairs in figure 2, "it is highly probable that induction '
         'heads occur in the last layer of DiffEqFormer".'),
    )),
    "figure-2cd": Reported((
        ("section 5.1, figures 2 c and 2 d", '"an absence of emergent clusters for a case of time-dependent weights", '
         'which "contrasts with the cluster emergence observed in the weight-sharing case".'),
        ("C.8, figure 13", "200 layers of attention alone, 40 tokens of dimension 3: weights \"increasing at rates "
         'exceeding linear tend not to form clusters"; linear ones show "incipient cluster formation", those of '
         'fourth order "greater scatter".'),
    )),
    "figure-3": Reported((
        ("section 5.2, figure 3", 'two examples: "its" is traced to "BIGBANG" in one, and in an article on Alpha Go '
         '"match" and "after" are highlighted. The exponents "can provide a more principled approach to understanding '
         'the behavior of transformer models compared to solely using attention matrices"; none of it is measured.'),
        ("appendix F", "more examples."),
    )),
    "figure-5": Reported(
        (
            ("section 6.2", "DiffEqFormer of 18 steps, fine-tuned at 9, 12, 18 and 24, beside GPT of 24 layers; from "
             "WikiText-103 to OpenWebText, and back."),
            ("section 6.2, figure 5", '"superior performance compared to the GPT baseline across configurations under '
             'LoRA fine-tuning"; in full, "comparable performance to the baseline, despite initial training with only '
             '18 time steps"; models of fewer steps "are less prone to overfitting during the full-rank weight '
             'fine-tuning process" on WikiText-103. Of training from scratch its text says nothing.'),
            ("the figures of the authors' release", "after LoRA ahead of GPT at 18 and 24 steps, level or behind at 12 "
             "and behind at 9, as the table below has it."),
        ),
        (_table("Figure 5 of the paper\nPerplexities at the end, from the figures of the authors' release.",
                ("", "9 steps", "12 steps", "18 steps", "24 steps", "GPT, 24 layers", "from scratch"), ADAPTED),),
    ),
    "figure-7": Reported((
        ("C.4", "Adam's default values for GPT-small and GPT-medium, others for GPT-large and Llama-1B."),
        ("C.5, figure 7", "OpenWebText, GPT-large's size: with a reduced b2 DiffEqFormer's perplexity falls, "
         '"surpassing GPT baselines"; GPT is better with the standard value; "lower [b2] values generally produce '
         'smoother learning curves in both models".'),
    )),
    "figure-14": Reported((
        ("D.1, figure 14", 'beside GPT-large, "a positive correlation between increasing [d_emb] and improved '
         'performance"; on OpenWebText "relatively high [d_emb] values 144 are necessary to achieve optimal '
         'performance".'),
        ("the notebook of the authors' release", "at GPT-large's size, after 19,500 updates on OpenWebText, perplexity "
         "is 19.7, 18.7 and 18.3 with d_emb 48, 96 and 144, GPT's 18.5."),
        ("D.1, figure 15", 'throughput: "a slight decrease", whose "magnitude" is "notably small".'),
        ("D.1, figure 16", "peak memory of a GPU, GPT-medium's size at batch size 256: increasing d_emb \"does not "
         'proportionally increase GPU memory usage".'),
    )),
    "figure-18": Reported((
        ("D.2, figures 17 and 18", 'separate networks of time outperform "the alternative due to having non-linearity '
         'before the projection block".'),
    )),
}  # fmt: skip
"""What the paper reports, by item; items that are not from the paper have no entry."""
