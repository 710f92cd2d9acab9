"""What can be looked at inside a model: one file an analysis, each as the verbs are."""

ANALYSES = {
    "spectra": "complex eigenvalues of attention and feed-forward pairs, at every step and in between",
    "induction": "prefix matching and copying of every head, beside its spectra",
    "lyapunov": "how sensitive an output token is to each input token, as Lyapunov exponents along depth",
    "attribution": "other explanations of the same output, and a test of which to trust",
    "clusters": "whether tokens gather as depth goes on: simulated particles, or a run's hidden states",
    "depth": "perplexity and speed at several depths without fine-tuning, beside fine-tuned and other models",
}
