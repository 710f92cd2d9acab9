"""Analyses, benchmarks and experiments: one module each, `arguments -> Result`, and the only list of them.

A new study needs a module in this package (in `bench` for a benchmark, in `reproduce` for an experiment), a line below,
and a page in the documentation. Its module has

- `Arguments`, a frozen dataclass: its docstring is the help, with an example; its fields are the options;
- `study(arguments, progress) -> Result`, which does everything but printing and writing.

Modules are imported when they are used. At their top they import nothing heavy (no JAX, no Matplotlib), so that help,
completion and a wrong option are fast. `study` imports what is heavy, and figures of more than a few lines are in a
neighbouring module `NAME_figures`.
"""

ANALYSES = {
    "spectra": "complex eigenvalues of attention and feed-forward pairs over depth",
    "induction": "prefix matching and copying of every head, alongside its spectra",
    "lyapunov": "how sensitive an output token is to each input token, as Lyapunov exponents along depth",
    "attribution": "other explanations of the same output; with --faithfulness, a test of which to trust",
    "clusters": "whether tokens cluster as depth increases: simulated particles, or a run's hidden states",
    "steps": "what each step does: the prediction after it, how far it moves the state, how weights change over depth",
    "compression": "a table of layers compressed by knots, depth modes or low rank: loss against size",
    "depth": "perplexity and speed at several depths without fine-tuning, compared with fine-tuned and other models",
    "all": "every analysis of a run, on one text where a text is needed, and the page that links them",
}
"""Analyses of `diffeqformer analyze`: name of the module, and what it does."""
BENCHMARKS = {
    "train": "an update of DiffEqFormer, of the vanilla transformer of the same size, and of PyTorch's if installed",
    "finetune": "an update of a populated model in full and by LoRA, compared with the vanilla transformer's",
    "generate": "greedy decoding by a populated model, by the vanilla one, and by both in Transformers if installed",
    "drafts": "self-speculative decoding of a trained run, compared with plain decoding",
    "schemes": "an update by each scheme, compared with what its NFE predicts, and a hand-written Euler update",
    "memory": "the memory that a gradient needs, by method and number of steps, as compiled; nothing is run",
    "text": "tokenizer training, packing and batch loading, compared with the update that reads the batches",
    "scaling": "updates as width, steps, context and d_emb grow, compared with the growth of their counted operations",
    "spectra": "all QK and OV eigenvalues of a GPT-medium-sized model, compared with those of the D x D products",
    "lyapunov": "the leading exponents of all inputs of a GPT-small-sized model, compared with dense Jacobians",
    "explorer": "a turn of the explorer's dial at GPT-2 small's size",
    "start": "commands that have next to nothing to do, each in its own process",
    "plan": "on paper: what training would take on accelerators that are not available here",
    "page": "one page built from the documents that these write with --to",
}
"""Benchmarks of `diffeqformer bench`, in the order of its page; the module of each is `bench/bench_NAME`."""
EXPERIMENTS = {
    "adapt": "the paper's figure 5: pretrain on one text, fine-tune on another, at several depths",
    "depth": "where depth pays: one checkpoint at every depth, against models of one depth and other elastic models",
    "paper": "the paper's tables and figures, item by item, each claim with its effect over seeds and a verdict",
    "lift": "a pretrained model, lifted and fine-tuned on a few more tokens, compared with models of each depth",
}
"""Experiments of `diffeqformer reproduce`; the module of each is `reproduce/reproduce_NAME`."""
