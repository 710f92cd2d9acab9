"""From words on the command line to dataclasses, with every mistake told in one sentence."""

import contextlib
import dataclasses
import difflib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import tyro

from diffeqformer.config import Config, read_yaml, shipped_configs
from diffeqformer.errors import BadInput
from diffeqformer.validation import validate

T = TypeVar("T")
ABOUT = {
    "train": "Train the model of a config; the same command again continues a run that was stopped.",
    "info": "Parameters, operations a token and memory of a config or a run, beside its vanilla twin.",
}
NOT_A_NUMBER = (
    r"Error parsing (\S+): (?:.* does not match choices \((.*?),?\))?"
    r".*?(?:invalid literal for |could not convert string to )(int|float).*: '(.*)'"
)
EXAMPLES = {
    "train": "quickstart-gpt --run runs/mine --data.source files --data.train 'texts/*.txt'",
    "info": "diffeqformer-gpt-small --model.time.d-emb 96",
}
KINDS = {"int": "a whole number", "float": "a number"}


@dataclass(frozen=True)
class ConfigArguments:
    """What `train` and `info` take: a config, and settings that replace its own."""

    config: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
    """A YAML file, or the name of a shipped config."""
    settings: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


C = TypeVar("C", bound=ConfigArguments)


def parse(cls: type[T], words: Sequence[str], prog: str, *, default: Any = None, about: str = "") -> T:
    """Fill the dataclass `cls` from command-line words; `--help` prints and exits.

    **Raises:** `BadInput` with what is wrong as one sentence.
    """
    options = options_of(cls)
    words = _joined(words, options)
    _require_known(words, list(options), prog)
    words = _spelled(words, options)
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            known = {} if default is None else {"default": default}
            return tyro.cli(cls, args=words, prog=prog, description=about or None, **known)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise BadInput(f"{_sentence(heard.getvalue(), prog)} See `{prog} --help`.") from None


def options_of(cls: Any, prefix: str = "") -> dict[str, Any]:
    """The dotted names of a dataclass's settings, as they are written behind two dashes, and their types."""
    options: dict[str, Any] = {}
    for name, hint in get_type_hints(cls).items():
        if name == "settings":  # their names stand for themselves
            options |= options_of(hint)
        elif dataclasses.is_dataclass(hint):
            options |= options_of(hint, f"{prefix}{name}.")
        else:
            options[prefix + name.replace("_", "-")] = hint
            if hint is bool:
                options[f"{prefix}no-{name.replace('_', '-')}"] = hint
    return options


def _joined(words: Sequence[str], options: dict[str, Any]) -> list[str]:
    """The words with text that starts with a dash, and is no option, written as its option's: `--prompt=--x`."""
    joined: list[str] = []
    for word in words:
        before = joined[-1] if joined else ""
        takes_text = before.startswith("--") and options.get(before[2:].replace("_", "-")) in (str, str | None)
        name = word.partition("=")[0][2:].replace("_", "-")
        if takes_text and word.startswith("-") and name not in ("help", *options):
            joined[-1] = f"{before}={word}"
        else:
            joined.append(word)
    return joined


def _spelled(words: Sequence[str], options: dict[str, Any]) -> list[str]:
    """The words with `true`, `false` and `null` as tyro spells them, where an option takes one of them for value."""
    spelled, asked = [], False
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if name:
            asked = bool in get_args(options.get(name[2:].replace("_", "-")))
        value = {"true": "True", "false": "False", "null": "None"}.get(value, value) if asked else value
        spelled.append(name + equals + value)
    return spelled


def _require_known(words: Sequence[str], options: list[str], prog: str) -> None:
    """Refuse the first option that is none; the nearest is looked for among whole names, then among last parts."""
    for word in words:
        given = word.partition("=")[0][2:].replace("_", "-")
        if not word.startswith("--") or given in ("help", *options):
            continue
        last = {option.rpartition(".")[2]: option for option in reversed(options)}
        near = difflib.get_close_matches(given, options, n=1)
        near = near or [last[name] for name in difflib.get_close_matches(given.rpartition(".")[2], last, n=1)]
        advice = f"did you mean --{near[0]}?" if near else f"see `{prog} --help`."
        raise BadInput(f"unknown option --{given}: {advice}")


def _sentence(box: str, prog: str) -> str:
    """The complaint in one of tyro's boxes, in this program's words where they are known."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]  # without the title; in ASCII, without a frame
    message: list[str] = []
    for line in filter(None, lines):
        if not set(line) <= {"─", "-"}:
            message.append(line)
        elif message:
            break
    text = " ".join(message).rstrip(".") or "the arguments could not be read"
    if found := re.match(NOT_A_NUMBER, text):
        other = "" if found[2] in (None, "'None'") else f"one of {found[2]} or "
        return f"{found[1]} is {found[4]!r}, but must be {other}{KINDS[found[3]]}."
    if found := re.match(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*?),?\)", text):
        choices = found[3].split(", ")
        choices = sorted(choices) if "'None'" in choices else choices  # tyro joins those in no order
        return f"{found[2]} is {found[1]!r}, but must be one of {', '.join(choices)}."
    if found := re.match(r"Missing value for argument '(.*?)'", text):
        return f"{found[1]} needs a value; one that starts with a dash is written {found[1]}=VALUE."
    if text.startswith("Missing from "):
        missing = [part.split()[0] for part in text.partition(": ")[2].split("(required)") if part.strip()]
        return f"`{prog}` needs {' and '.join(missing)}."
    if found := re.match(r"Unrecognized options: (.*)", text):
        return f"there is nothing that {found[1]!r} could be here."
    return f"{text}."


def find_config(name: str) -> Path:
    """A config file by path, or one of the shipped ones by name.

    **Raises:** `BadInput` if there is neither, with the nearest name.
    """
    shipped = shipped_configs()
    if Path(name).is_file() or Path(name).suffix in (".yaml", ".yml"):
        return Path(name)
    if name in shipped:
        return shipped[name]
    near = difflib.get_close_matches(name, shipped, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"the shipped ones are {', '.join(shipped)}."
    raise BadInput(f"config {name!r} is neither a file nor the name of a shipped config; {advice}")


def config_from(words: Sequence[str], verb: str) -> Config:
    """The config that `arguments_from` reads, once its settings agree.

    **Raises:** `BadInput` as that, and as `validate`.
    """
    return validate(arguments_from(words, verb, ConfigArguments).settings)


def arguments_from(words: Sequence[str], verb: str, cls: type[C]) -> C:
    """`CONFIG --key value ...`: a file or shipped config, then overrides by dotted key, in any order.

    **Raises:** `BadInput` for a missing or unreadable config, an unknown key, or a value that does not fit.
    """
    prog = f"diffeqformer {verb}"
    about = (
        f"{ABOUT[verb]}\n\nExample: {prog} {EXAMPLES[verb]}\n\n"
        f"Shipped configs: {', '.join(shipped_configs())}. Options replace a config's own settings."
    )
    words = ["--data.strict" if word == "--strict" else word for word in words]
    if not words:
        raise BadInput(f"`{prog}` needs a config: a YAML file or one of {', '.join(shipped_configs())}.")
    name = words[0]
    if name.startswith("-"):  # the config stands behind options, or help is asked for
        name = parse(cls, words, prog, about=about).config
    default = cls(name, read_yaml(find_config(name)))
    return parse(cls, words, prog, default=default, about=about)
