"""Every setting of a run, as frozen dataclasses that are read strictly from YAML.

Nothing is dropped and nothing is guessed: an unknown key, a wrong type or a contradiction is a `BadInput` that
names the key, its value and what would be right. The resolved config is written into every run folder.
"""

import dataclasses
import difflib
import math
import reprlib
import types
from collections.abc import Hashable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from diffeqformer.errors import BadInput

MOST_STEPS = 1 << 14
"""Of depth; times and weights of all steps are computed at once."""
MOST_BYTES = 1 << 20
"""Of a config file."""
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100

Role = Literal["embedding", "matrix", "bias", "norm", "time", "adapter"]


@dataclass(frozen=True)
class TimeConfig:
    """Time features and time networks (paper eq. 6 and appendix A); read by `time` weights only."""

    d_emb: int = 48
    """Width of the time networks, the paper's d_emb."""
    frequencies: int = 32
    """K: sines and cosines of K frequencies, so 2K+1 features."""
    highest_frequency: float | None = None
    """Radians per unit of depth of the fastest feature. By default the paper's s, 1000; where depths are drawn, twice
    `model.steps`, so that weights between the trained times are smooth (docs/elastic-depth.md)."""
    lowest_frequency: float = 0.1
    """Where the geometric series of frequencies would end (it stops one ratio before): the paper's s / 10000."""

    @property
    def fastest(self) -> float:
        """`highest_frequency`, or the paper's."""
        return 1000.0 if self.highest_frequency is None else self.highest_frequency


@dataclass(frozen=True)
class DropoutConfig:
    """Probabilities of dropping, in training only."""

    embedding: float = 0.0
    attention: float = 0.0
    residual: float = 0.0


@dataclass(frozen=True)
class ReversibleConfig:
    """The reversible scheme (McCallum & Foster 2024); read by scheme `reversible` only."""

    base: str = "euler"
    """Scheme whose steps are made reversible; each reversible step takes two of them."""
    coupling: float = 0.99
    """lambda, in (0, 1]: how strongly the two states keep apart; reconstruction errors grow by 1 / lambda a step."""


@dataclass(frozen=True)
class ToleranceConfig:
    """Adaptive steps: a PID controller keeps the error estimate of each step below `atol + rtol |x|`."""

    rtol: float | None = None
    """Relative tolerance; if not given, steps are fixed."""
    atol: float = 1e-6
    """Absolute tolerance."""
    max_steps: int = 4096
    """Steps after which an adaptive solve fails."""


@dataclass(frozen=True)
class LoRAConfig:
    """Low-rank adapters on the linear maps of a table of layers (Hu et al. 2021): `W + alpha / rank A B`."""

    rank: int | None = None
    """Columns of A and rows of B; if not given, there are no adapters."""
    alpha: float = 16.0
    """Adapters are scaled by alpha / rank."""
    dropout: float = 0.0
    """Probability of dropping an adapter's input, in training only."""
    targets: tuple[str, ...] = ("*",)
    """Which linear maps: names such as `attention.output` or `down`, or patterns such as `attention.*`."""


@dataclass(frozen=True)
class ModelConfig:
    """One point of the grid weights x field x scheme, and its sizes."""

    family: Literal["gpt", "llama"] = "gpt"
    """The field: GPT blocks (LayerNorm, GELU, biases, learned positions) or Llama's (RMSNorm, SwiGLU, RoPE)."""
    weights: Literal["time", "time-shared-mlp", "layer", "shared"] = "time"
    """How block weights depend on depth: time networks, with an MLP for each matrix or one for all (paper, D.2); a
    table of layers; or constant."""
    layer_rows: Literal["step", "node"] = "step"
    """Rows of a `layer` table: one a step, shared by all of the scheme's nodes, or one for each node of each step."""
    scheme: str = "euler"
    """How one step goes: euler, lie-trotter, macaron, strang, midpoint, heun, rk4, reversible, or diffrax:NAME."""
    reversible: ReversibleConfig = ReversibleConfig()
    tolerance: ToleranceConfig = ToleranceConfig()
    horizon: Literal["unit", "steps"] | float = "unit"
    """Length of the depth interval: 1 (steps of 1/steps), the number of steps (steps of 1, as vanilla models), or a
    number."""
    steps: int = 6
    first_step: float | None = None
    """Length of the first step as a fraction of depth, whatever the number of steps; the others share the rest equally.
    If not given, all steps are equal. It is what lets one checkpoint run at any depth (`docs/elastic-depth.md`)."""
    width: int = 128
    heads: int = 4
    kv_heads: int | None = None
    """Heads of keys and values, each shared by heads / kv_heads queries (family: llama); `heads` if not given."""
    hidden: int | None = None
    """Width of the feed-forward block; 4 x width if not given."""
    context: int = 128
    vocabulary: int | None = None
    """Entries of the embedding; the tokenizer's own size if not given."""
    norm_epsilon: float = 1e-5
    init_std: float = 0.02
    """Standard deviation of initial embeddings and of initial block matrices, generated ones included."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of activations and of the block weights they meet; parameters and times stay float32."""
    gradient: Literal["checkpointed", "plain", "recursive", "reversible"] | None = None
    """What a training step keeps: each depth step's state (`checkpointed`), all activations (`plain`), `checkpoints`
    states a level (`recursive`), or the last state alone (`reversible`, for the scheme of that name and its default).
    If not given, `checkpointed` for all other schemes."""
    checkpoints: int = 4
    """States that `recursive` keeps at each level of its recursion."""
    nested_norm: bool = False
    """Feed-forward blocks normalise the already normalised attention input, as the authors' Llama does (llama only)."""
    rope_theta: float = 10000.0
    """Base of the rotary embedding's wavelengths (family: llama)."""
    tied: bool | None = None
    """Unembedding is the embedding, transposed; if not given: true for gpt, false for llama."""
    time: TimeConfig = TimeConfig()
    lora: LoRAConfig = LoRAConfig()
    dropout: DropoutConfig = DropoutConfig()

    @property
    def interval(self) -> float:
        """Length of the depth interval in the state's own clock; a step is interval / steps."""
        return {"unit": 1.0, "steps": float(self.steps)}.get(self.horizon, self.horizon)  # pyright: ignore

    def horizon_at(self, steps: int) -> Literal["unit", "steps"] | float:
        """The horizon by which another number of steps covers the same interval of depth."""
        return self.interval if self.horizon == "steps" and steps != self.steps else self.horizon

    @property
    def adaptive(self) -> bool:
        """Whether a tolerance chooses the steps."""
        return self.tolerance.rtol is not None

    @property
    def adapted(self) -> bool:
        """Whether low-rank adapters stand beside the weights."""
        return self.lora.rank is not None

    @property
    def time_dependent(self) -> bool:
        """Whether time networks generate the weights."""
        return self.weights in ("time", "time-shared-mlp")


@dataclass(frozen=True)
class DataConfig:
    """Where text comes from and how it becomes tokens."""

    source: Literal["stdlib", "files", "huggingface"] = "stdlib"
    """Python's own standard library, text files, or a Hugging Face dataset."""
    train: tuple[str, ...] = ()
    """Paths or globs of .txt, .jsonl, .jsonl.gz, .jsonl.zst or .parquet files, or WikiText's .raw (source: files)."""
    validation: tuple[str, ...] = ()
    """The same for validation; if empty, a part of the training documents is held out."""
    dataset: str = ""
    """Hub id or local folder (source: huggingface)."""
    dataset_name: str = ""
    """Name of the dataset's configuration, if it has several."""
    text_field: str = "text"
    """The field of a JSON line or of a table that holds the text."""
    validation_fraction: float = 0.05
    split_seed: int = 2357
    tokenizer: str = "train"
    """`train` (on the training split), a folder or file, or a hub name such as `gpt2`."""
    tokenizer_vocabulary: int = 2048
    """Entries of a trained tokenizer."""
    strict: bool = False
    """Refuse undecodable bytes instead of replacing them."""
    cache: str = "~/.cache/diffeqformer"
    """Folder of packed tokens, shared by all runs."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up, cosine decay and clipping; nothing is left to a library's default."""

    learning_rate: float = 1e-3
    b1: float = 0.9
    b2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    decay_roles: tuple[Role, ...] = ("embedding", "matrix")
    """Roles of the parameters that decay; `time` (all of a time-dependent weight) is best left out."""
    train_roles: tuple[Role, ...] = ("embedding", "matrix", "bias", "norm", "time", "adapter")
    """Roles of the parameters that are trained; the others stay as they are, without gradient or moments."""
    warmup_fraction: float = 0.01
    final_fraction: float = 0.1
    """Learning rate at the end, as a fraction of the peak."""
    clip_norm: float = 1.0


@dataclass(frozen=True)
class TrainerConfig:
    """Length of a run and what it keeps."""

    updates: int = 1500
    batch_size: int = 16
    """Sequences an update, over all devices and accumulated parts."""
    accumulation: int = 1
    """Parts that each batch is split into, one after the other, to save memory."""
    seed: int = 0
    log_every: int = 10
    evaluate_every: int = 250
    evaluate_batches: int = 16
    """Validation batches of the evaluations on the way, spread over the split; 0 for all.

    The last evaluation is always whole."""
    checkpoint_every: int = 500
    """Updates between checkpoints; 0 for none by count."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints; 0 for none by time."""
    keep_last: int = 2
    keep_best: int = 1
    """Checkpoints of lowest validation loss kept besides; unless 0, an evaluation that finds a new lowest saves one."""
    loss_block: int = 4096
    """Positions whose logits exist at one time in the loss."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where `metrics.jsonl` is shown besides: TensorBoard, Weights & Biases, Trackio (extras of the same names)."""
    profile: int = 0
    """Updates to trace for XProf or TensorBoard, into the run's folder, after the first three; 0 for none."""
    tracker_project: str = "diffeqformer"
    """The project that Weights & Biases and Trackio keep the run in."""


@dataclass(frozen=True)
class DepthConfig:
    """Training at depths that are drawn anew for each update, so that one checkpoint reads well at many."""

    sample: tuple[int, ...] | str = ()
    """Numbers of steps to draw from, such as 4 6 9 or a range, 4-9; if none, all updates are at `model.steps`."""
    weights: tuple[float, ...] | Literal["equal", "inverse"] = "equal"
    """How often each is drawn: equally, inversely to its cost (each depth gets as much compute), or as listed."""
    shallow_fraction: float = 0.0
    """This fraction of the updates, the first ones, are all at the smallest depth, where an update costs least."""
    jitter: float = 0.0
    """Moves the times between steps, each at most by this fraction of half a step; steps are then unequal. With
    `model.first_step` the first keeps its length."""

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of steps that are drawn from, in order; none if depth is not drawn.

        **Raises:** `BadInput` for a range that is none.
        """
        if not isinstance(self.sample, str):
            return self.sample
        ends = [int(end) for end in self.sample[:99].split("-") if end.isdecimal()]
        if len(ends) != 2 or not ends[0] < ends[1] or self.sample.count("-") != 1:
            raise BadInput(
                f"depth.sample is {shown(self.sample)}, but must be numbers of steps or a range such as '4-9'."
            )
        return tuple(range(ends[0], min(ends[1], MOST_STEPS + 1) + 1))  # one too many is refused by `validate`

    @property
    def shares(self) -> tuple[float, ...]:
        """How often each of `depths` is drawn, in proportion."""
        if isinstance(self.weights, str):
            return tuple(1.0 if self.weights == "equal" else 1.0 / depth for depth in self.depths)
        return self.weights


@dataclass(frozen=True)
class MeshConfig:
    """How many devices share the work, and how (`docs/devices.md`); -1 for one of them: all that are left.

    No update depends on it but by rounding: a run may be continued on another mesh."""

    data: int = 1
    """Parts of the batch, each with all weights."""
    fsdp: int = 1
    """Parts of the batch, the weights and the optimiser's moments; weights are put together when they are used."""
    tensor: int = 1
    """Parts of the heads, hidden units and vocabulary, and of what is computed with them."""


@dataclass(frozen=True)
class BaseConfig:
    """The run that a run starts from; `diffeqformer finetune` writes it."""

    run: str = ""
    """Its folder; if not given, the run starts from random weights."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Its newest checkpoint, or the one of lowest validation loss."""
    update: int | None = None
    """The update of that checkpoint."""
    method: Literal["lora", "full", "continuous"] | None = None
    """What was asked to be trained: adapters, all weights of the table of layers, or the time networks."""
    system: str = ""
    """What the base is, for reports."""


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


def to_dict(config: Any) -> dict[str, Any]:
    """The config as nested plain dictionaries and lists, as YAML and JSON take them."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    return plain(dataclasses.asdict(config))


def dump_yaml(config: Any) -> str:
    """The config as YAML text that `read_yaml` reads back to an equal config."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def from_dict(cls: type, values: Any, where: str = "") -> Any:
    """Build the dataclass `cls` from nested dictionaries, strictly.

    **Arguments:** `cls`, a config dataclass; `values`, nested dictionaries; `where`, the dotted path for messages.

    **Raises:** `BadInput` for an unknown key (with the nearest known one), a wrong type or a value outside its choices.
    """
    if not isinstance(values, dict):
        raise BadInput(f"{where or 'the config'} is {shown(values)}, but must be a table of settings.")
    hints, kwargs = get_type_hints(cls), {}
    for key, value in values.items():
        name = key if isinstance(key, str) else shown(key)
        path = f"{where}.{name}" if where else name
        if key not in hints:
            near = difflib.get_close_matches(name[:80], hints, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(hints)}."
            raise BadInput(f"unknown key {shown(path)}: {advice}")
        kwargs[key] = _convert(hints[key], value, path)
    return cls(**kwargs)


def shown(value: Any) -> str:
    """A value as a message shows it: cut if it is long, since a few lines of YAML can stand for one without end."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        return "a number of thousands of digits"


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, path)  # pyright: ignore[reportArgumentType]
    if origin is Literal:
        if value not in args or isinstance(value, bool):
            raise BadInput(f"{path} is {shown(value)}, but must be one of {', '.join(map(repr, args))}.")
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        complaints = []
        for choice in (a for a in args if a is not type(None)):
            try:
                return _convert(choice, value, path)
            except BadInput as complaint:
                complaints.append(str(complaint).partition("must be ")[2].rstrip("."))
        raise BadInput(f"{path} is {shown(value)}, but must be {' or '.join(complaints)}.") from None
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise BadInput(f"{path} is {shown(value)}, but must be a list.")
        return tuple(_convert(args[0], v, f"{path}[{i}]") for i, v in enumerate(value))
    if hint is float and isinstance(value, str):  # YAML 1.1 reads 1e-3 as text
        try:
            value = float(value)
        except ValueError:
            pass
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1 << 1000 else math.inf
    if type(value) is not hint:
        names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise BadInput(f"{path} is {shown(value)}, but must be {names[hint]}.")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise BadInput(f"{path} is {shown(value)}, but must be a whole number of less than 64 bits.")
    return value


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, refusing a key that is given twice, and merges, which can grow without end."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        refused, seen = yaml.constructor.ConstructorError, set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise refused(None, None, "the merge key << is not read", key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise refused(None, None, f"the key {shown(key)} is given twice", key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep)


def shipped_configs() -> dict[str, Path]:
    """The configs that come with the package, by name."""
    folder = Path(str(files("diffeqformer") / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_yaml(path: str | Path) -> Config:
    """Read a `Config` from a YAML file; settings that are not named keep their defaults.

    **Raises:** `BadInput` if the file is missing, is not YAML, or does not fit `Config`.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode()
    except FileNotFoundError:
        raise BadInput(f"config file {str(path)!r} does not exist.") from None
    except OSError as error:
        raise BadInput(f"config file {str(path)!r} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"config file {str(path)!r} cannot be read: {error}.") from None
    if len(content) > MOST_BYTES:
        raise BadInput(f"config file {str(path)!r} has more than {MOST_BYTES:,} bytes, which no config needs.")
    try:
        values = yaml.load(text, _StrictLoader)
    except RecursionError:
        raise BadInput(f"config file {str(path)!r} is nested too deeply to be a config.") from None
    except Exception as error:  # besides its own kinds, PyYAML lets pass what a value raises that does not fit its tag
        what = " ".join(str(error).split())[:300].rstrip(".")
        raise BadInput(f"config file {str(path)!r} is not YAML: {what}.") from None
    config = from_dict(Config, {} if values is None else values)
    if "run" not in (values or {}):
        config = dataclasses.replace(config, run=f"runs/{path.stem}")
    return config
