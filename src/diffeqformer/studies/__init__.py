"""Analyses, benchmarks and experiments: one module each, `arguments -> Result`, and here the only list of them.

A new study is a module of this package, a line below, and its page of the documentation. Its module has

- `Arguments`, a frozen dataclass: its docstring is the help, with an example; its fields are the options;
- `study(arguments, progress) -> Result`, which does everything but printing and writing.

Modules are imported when they are used. At their top they import nothing heavy (no JAX, no Matplotlib), so that help,
completion and a wrong option cost nothing: what is heavy is imported by `study`, and figures stand in a neighbour
`NAME_figures`.
"""

ANALYSES = {
    "spectra": "complex eigenvalues of attention and feed-forward pairs, at every step and in between",
    "induction": "prefix matching and copying of every head, beside its spectra",
    "lyapunov": "how sensitive an output token is to each input token, as Lyapunov exponents along depth",
    "attribution": "other explanations of the same output, and a test of which to trust",
    "clusters": "whether tokens gather as depth goes on: simulated particles, or a run's hidden states",
    "depth": "perplexity and speed at several depths without fine-tuning, beside fine-tuned and other models",
}
"""Of `diffeqformer analyze`: name of the module, and what it does."""
BENCHMARKS: dict[str, str] = {}
"""Of `diffeqformer bench`."""
EXPERIMENTS: dict[str, str] = {}
"""Of `diffeqformer reproduce`."""
