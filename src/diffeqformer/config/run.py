"""Every setting of a run, as frozen dataclasses that are read strictly from YAML.

Nothing is dropped and nothing is guessed: an unknown key, a wrong type or a contradiction is a `BadInput` that
names the key, its value and what would be right. The resolved config is written into every run folder.
"""

from dataclasses import dataclass, field
from typing import Literal

from diffeqformer.config.bounds import INT32, MOST_STEPS, SIZES, UINT32, setting, whole_numbers
from diffeqformer.config.model import ModelConfig
from diffeqformer.config.optimizer import OptimizerConfig
from diffeqformer.config.puzzles import PuzzleConfig
from diffeqformer.config.sections import SharedConfig

Which = Literal["latest", "best", "sound"]
"""A run's newest checkpoint, that of lowest validation loss, or the newest that is not damaged."""
Method = Literal["lora", "full", "continuous", "levels"]
"""What fine-tuning trains: adapters, all weights of the table of layers, the functions of depth, or a table for each
of several numbers of steps."""


@dataclass(frozen=True)
class DataConfig:
    """Where text comes from and how it becomes tokens."""

    source: Literal["stdlib", "files", "huggingface", "puzzle"] = "stdlib"
    """Python's own standard library, text files, a Hugging Face dataset, or problems that need depth."""
    train: tuple[str, ...] = ()
    """Paths or globs of .txt, .jsonl, .jsonl.gz, .jsonl.zst or .parquet files, or WikiText's .raw (source: files)."""
    validation: tuple[str, ...] = ()
    """Such files for validation; if empty, a part of the training documents is held out."""
    stream: int = setting(0, least=0, most=INT32)
    """Training reads text of any size in its own order, tokenises it on the fly and stores none of it; this many
    documents at each source's beginning are read first, for the tokenizer and to hold some out. 0: all is packed."""
    weights: tuple[float, ...] = setting((), positive=True)
    """How often training draws from each of `train`, in proportion: a mixture; if empty, all tokens are drawn equally.
    """
    documents: Literal["joined", "apart"] = "joined"
    """Training windows run on from document to document, or hold one each, padded: then no token attends to another
    document, and each begins at the first position. Evaluations always join them."""
    targets: Literal["all", "completions"] = "all"
    """Tokens whose prediction is learned: all, or of a .jsonl with `prompt` and `completion` only the completion, with
    `messages` only what the assistant says."""
    dataset: str = ""
    """Hub id or local folder (source: huggingface)."""
    dataset_name: str = ""
    """Name of the dataset's configuration, if it has several."""
    puzzle: PuzzleConfig | None = None
    """What the problems are: `hops`, `p-hop` or `permutations` (source: puzzle). They have a tokenizer of their own."""
    text_field: str = "text"
    """The field of a JSON line or of a table that holds the text."""
    validation_fraction: float = setting(0.05, fraction=True)
    """Fraction of the text that is held out for validation, where nothing else is."""
    split_seed: int = setting(2357, least=0, most=2**63 - 1)
    """Seed of which documents are held out."""
    tokenizer: str = "train"
    """`train` (on the training split), a folder or file, or a hub name such as `gpt2`."""
    tokenizer_vocabulary: int = setting(2048, least=257, most=SIZES)
    """Entries of a trained tokenizer."""
    strict: bool = False
    """Refuse undecodable bytes instead of replacing them."""
    cache: str = "~/.cache/diffeqformer"
    """Folder of packed tokens, shared by all runs."""


@dataclass(frozen=True)
class TrainerConfig:
    """Length of a run and what it keeps."""

    updates: int = setting(1500, least=1, most=INT32)
    """Number of updates in all."""
    batch_size: int = setting(16, least=1, most=SIZES)
    """Sequences per update, over all devices and accumulated parts."""
    accumulation: int = setting(1, least=1, most=SIZES)
    """Parts that each batch is split into, computed one after the other to save memory."""
    seed: int = setting(0, least=0, most=UINT32)
    """Seed of initial weights, order of batches, dropout and drawn depths."""
    log_every: int = setting(10, least=1, most=INT32)
    """Updates between writes of `metrics.jsonl`, which has a line for each."""
    evaluate_every: int = setting(250, least=1, most=INT32)
    """Updates between evaluations on the validation split."""
    evaluate_batches: int = setting(16, least=0, most=INT32)
    """Validation batches of intermediate evaluations, spread over the split; 0 for all.

    The last evaluation is always whole."""
    checkpoint_every: int = setting(500, least=0, most=INT32)
    """Updates between checkpoints; 0 for none by count."""
    checkpoint_minutes: float = setting(10.0, not_negative=True)
    """Minutes between checkpoints; 0 for none by time."""
    keep_last: int = setting(2, least=1, most=SIZES)
    """Newest checkpoints kept."""
    keep_best: int = setting(1, least=0, most=SIZES)
    """Checkpoints of lowest validation loss kept besides; unless 0, an evaluation that finds a new lowest saves one."""
    samples: tuple[str, ...] = ()
    """Prompts that are continued, greedily, at each intermediate evaluation, for the report."""
    loss_block: int = setting(4096, least=1, most=INT32)
    """Positions whose logits exist at a time in the loss."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where `metrics.jsonl` is also shown: TensorBoard, Weights & Biases, Trackio (extras of the same names)."""
    profile: int = setting(0, least=0, most=INT32)
    """Updates to trace for XProf or TensorBoard, into the run's folder, after the first three; 0 for none."""
    tracker_project: str = "diffeqformer"
    """The project that Weights & Biases and Trackio keep the run in."""


@dataclass(frozen=True)
class DepthConfig:
    """Training at depths that are drawn anew for each update, so that one checkpoint serves many."""

    sample: tuple[int, ...] | str = ()
    """Numbers of steps to draw from, such as 4 6 9, 4-9 or 3,5-15; if none, all updates are at `model.steps`."""
    weights: tuple[float, ...] | Literal["equal", "inverse"] = "equal"
    """How often each is drawn, or its share of the rows: equally, inversely to its cost (each depth gets as much
    compute), or as listed."""
    shallow_fraction: float = setting(0.0, fraction=True)
    """Fraction of the updates, the first ones, that are all at the smallest depth, where an update costs least."""
    together: Literal["one", "rows"] = "one"
    """What an update trains at: the depth drawn; or, by rows, every one of them, each with its share of the batch's
    sequences, so that nothing is drawn and all depths are in each gradient."""
    always: tuple[int, ...] = setting((), least=1, most=MOST_STEPS)
    """Depths that every update trains at besides the one drawn, on all of its sequences, such as the shallowest and the
    deepest (the sandwich rule, Yu & Huang 2019)."""
    distill: float = setting(0.0, fraction=True)
    """Share of the loss at an update's other depths that is learned from the deepest one's prediction."""
    teacher: Literal["deepest", "base"] = "deepest"
    """What that share is learned from: the deepest, or, at all depths, the frozen model that the run starts from, at
    its own depth."""
    jitter: float = setting(0.0, not_negative=True, most=1)
    """Moves the times between steps, each at most by this fraction of half a step; steps are then unequal. With
    `model.first_step` the first keeps its length."""

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of steps that are drawn from, in order; empty if depth is not drawn.

        **Raises:** `BadInput` for an invalid range.
        """
        return whole_numbers(self.sample, "depth.sample") if isinstance(self.sample, str) else self.sample

    @property
    def drawn(self) -> tuple[int, ...]:
        """The numbers of steps from which each update draws one; empty if it draws none."""
        return self.depths if self.together == "one" else ()

    @property
    def alone(self) -> bool:
        """Whether an update trains at one depth."""
        return self.together == "one" and not self.always

    @property
    def shares(self) -> tuple[float, ...]:
        """How often each of `depths` is drawn, in proportion."""
        if isinstance(self.weights, str):
            return tuple(1.0 if self.weights == "equal" else 1.0 / depth for depth in self.depths)
        return self.weights


@dataclass(frozen=True)
class MeshConfig:
    """How many devices share the work, and how (`docs/devices.md`). One of them may be -1: all devices that are left.

    Updates depend on it only by rounding: a run may be continued on another mesh."""

    data: int = setting(1, least=-1, most=SIZES)
    """Parts of the batch, each with all weights."""
    fsdp: int = setting(1, least=-1, most=SIZES)
    """Parts of the batch, the weights and the optimiser's moments; weights are all-gathered when they are used."""
    tensor: int = setting(1, least=-1, most=SIZES)
    """Parts of the heads, hidden units and vocabulary, and of what is computed with them."""


@dataclass(frozen=True)
class BaseConfig:
    """The run that a run starts from; `diffeqformer finetune` writes it."""

    run: str = ""
    """Its folder; if not given, the run starts from random weights."""
    checkpoint: Which = "latest"
    """Its newest checkpoint, the one of lowest validation loss, or the newest that is not damaged."""
    update: int | None = setting(None, least=0, most=INT32)
    """The update of that checkpoint."""
    method: Method | None = None
    """What fine-tuning was asked to train."""
    system: str = ""
    """Description of the base, for reports."""
    imported: bool | None = None
    """Whether the original model was imported, so that the tokens that its tokenizer starts a text with precede
    prompts; assumed if not given."""

    @property
    def from_imported(self) -> bool:
        """Whether there is a base, and the original model was imported."""
        return bool(self.run) and self.imported is not False


@dataclass(frozen=True)
class Config:
    """Everything a run depends on."""

    run: str = "runs/run"
    """Folder of the run."""
    base: BaseConfig = field(default_factory=BaseConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    depth: DepthConfig = field(default_factory=DepthConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)

    @property
    def trained_at(self) -> tuple[int, ...]:
        """Numbers of steps that updates are made at, increasing; none where a tolerance chooses them."""
        if self.model.tolerance:
            return ()
        return tuple(sorted({*self.depth.depths, *self.depth.always})) or (self.model.steps,)

    @property
    def trained_between(self) -> bool:
        """Whether training sees weights at other times than those of the model's own steps: constant ones, drawn
        depths, adaptive steps."""
        m = self.model
        constant = isinstance(m.weights, SharedConfig) and m.modulation is None
        return constant or m.tolerance is not None or len(self.trained_at) > 1 or self.depth.jitter > 0

    @property
    def tokens_per_update(self) -> int:
        """Target positions of an update, whether or not all of them count in its loss."""
        return self.trainer.batch_size * self.model.context
