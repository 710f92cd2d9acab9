"""The glossary: definitions of the terms that a page uses."""

import re
from dataclasses import dataclass

_UNSEEN = re.compile(r"<style>.*?</style>|<script(?: type=\"application/octet-stream\"[^>]*)?>.*?</script>", re.DOTALL)
"""Styles, scripts and arrays. A page's JSON documents are kept: their text is shown when a token is selected."""


@dataclass(frozen=True)
class Term:
    """A term, the pattern that detects it in a page, and its definition."""

    name: str
    pattern: str
    meaning: str


TERMS = (
    Term("The paper", r"\bthe paper\b",
         "Tong et al., Neural ODE Transformers: Analyzing Internal Dynamics and Adaptive Fine-tuning, ICLR 2025, the "
         "source of these models and of several of the measurements."),
    Term("Depth, step", r"\bdepths?\b|\bsteps?\b",
         "A solver carries a state from the embedding, at depth 0, to the output, at depth 1, in steps. In an ordinary "
         "transformer each step is a layer."),
    Term("Scheme", r"\bschemes?\b",
         "The method for one step: which evaluations of attention and feed-forward it consists of. Weights are trained "
         "with one scheme; others solve the same equation."),
    Term("Tolerance", r"\btolerances?\b|\brtol\b",
         "The solver chooses its own steps so that its estimate of the relative error stays below the tolerance."),
    Term("Head", r"\bheads?\b", "One of the parallel parts of attention; each attends to the text in its own way."),
    Term("QK, OV, FF", r"(?-i:\bQK\b|\bOV\b|\bFF\b)",
         "Matrix products: W_Q W_Kᵀ, which token attends to which; W_V W_O, what is copied from the attended tokens; "
         "W_up W_down, the feed-forward block without its activation."),
    Term("Eigenvalue", r"\beigenvalues?\b|\bspectr",
         "The factor by which a matrix stretches a direction that it preserves. A positive real part keeps the sign of "
         "what it acts on, and a negative one flips it; an imaginary part rotates it in a plane."),
    Term("Spectral radius", r"\bspectral radi|\bradius\b", "The largest absolute value among a matrix's eigenvalues."),
    Term("Sum ratio", r"\bsum ratio\b",
         "The sum of a matrix's eigenvalues divided by the sum of their absolute values (Elhage et al. 2021): 1 if all "
         "are positive, −1 if all are negative, 0 if they cancel."),
    Term("Effective rank", r"\beffective rank",
         "How many directions count: e to the entropy of the singular values (over depth, of their squares), taken as "
         "shares of their sum. 1 if one direction holds everything, the full number if all are equal."),
    Term("Prefix matching", r"\bprefix matching\b|\bmatch(?:es)? prefixes\b",
         "At a token that occurred earlier in the text, the share of a head's attention that goes to the token that "
         "followed it then: the first part of copying a repeated sequence."),
    Term("Rollout", r"\brollout\b",
         "Attention traced through the whole depth: the product of the steps' mean attention, each averaged with the "
         "identity, which stands for the state that passes on unchanged."),
    Term("Occlusion", r"\bocclusion\b",
         "How far log p of the prediction falls when the mean embedding replaces that of one token."),
    Term("Integrated gradients", r"\bintegrated gradients\b",
         "The gradient of log p with respect to a token's embedding, averaged along the straight line from the mean "
         "embedding to its own, times the difference; summed over all tokens, this gives the change in log p."),
    Term("Knots", r"\bknots?\b",
         "Depths at which weights are stored; in between they are interpolated, or constant around each (basis box)."),
    Term("Dyadic steps", r"\bdyadic\b",
         "Steps whose lengths are the whole depth divided by powers of two: all of it, a half, a quarter, and so on."),
    Term("d_emb", r"\bd_emb\b", "Width of the small networks that compute the weights from time."),
    Term("Logit lens", r"\blogit lens\b|\bplain lens\b|after every step",
         "What the model would predict if depth ended there: its final norm and its head applied to the state after a "
         "step."),
    Term("Nats", r"\bnats?\b|\blog p\b",
         "The unit of log p with the natural logarithm; a loss in nats per token is the mean of −ln p(next token)."),
    Term("Perplexity", r"\bperplexit",
         "e to the loss: the number of equally likely tokens between which the model is, on average, undecided."),
    Term("Bits per byte", r"\bbits per byte\b|\bbits/byte\b",
         "The loss in bits per byte of text, which can be compared across tokenizers."),
    Term("Effective parameters", r"\beffective parameters\b|<th[^>]*>effective</th>",
         "How many numbers the weights of all steps hold once computed. They are computed from the stored parameters, "
         "which are those of the model."),
    Term("State size", r"\bstate size\b|\bsize of (?:a|the) states?\b",
         "Root mean square of the numbers in a token's state."),
    Term("State norm", r"\bstate norm\b|\blength of (?:the |a )?states?\b",
         "Length of a token's state as a vector: its size (root mean square) times the square root of the width."),
    Term("Clusters", r"\bclusters\b",
         "Groups of states: two belong together if they are closer to each other than a share of the mean distance, "
         "or if a chain of others, each that close to the next, connects them (single linkage)."),
    Term("Interaction energy", r"\binteraction energy\b",
         "Half the mean, over all pairs of states, of e to the cosine of the angle between them: 0.5 if all are at "
         "right angles, 1.359 if all point in one direction (Geshkovski et al. 2023)."),
    Term("KL to the end", r"\bKL\b|\bdivergence",
         "How far a prediction is from the last one: the KL divergence of the last prediction from it, in nats."),
    Term("Exponent", r"\bexponents?\b|\blyapunov\b",
         "The natural logarithm of how much a small change grows; at 0 it neither grows nor shrinks."),
    Term("· ⏎ ⇥ ∅ �", r"·\S|[⏎⇥∅�]", "In tokens: a space, a line break, a tab, nothing; � is part of a character."),
)  # fmt: skip


def terms_of(page: str) -> list[Term]:
    """Return the terms that a page uses, in order.

    **Arguments:** `page`, its HTML.
    """
    seen = _UNSEEN.sub(" ", page)
    text = re.sub(r"<[^>]*>", " ", re.sub(r"<code>.*?</code>", " ", seen, flags=re.DOTALL))
    return [term for term in TERMS if re.search(term.pattern, seen if "<" in term.pattern else text, re.IGNORECASE)]
