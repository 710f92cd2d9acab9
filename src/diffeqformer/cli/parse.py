"""Turn words on the command line into dataclasses, and every mistake into one sentence."""

import contextlib
import dataclasses
import difflib
import inspect
import io
import itertools
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from diffeqformer.cli.words import joined, option_of, require_lists_once, separated, spelled
from diffeqformer.config import (
    Config,
    OwnConfig,
    choices_of,
    find_config,
    hints_of,
    kinds_of,
    read_yaml,
    shipped_configs,
)
from diffeqformer.config.bounds import require_bounds
from diffeqformer.config.strict import Hints, section_of
from diffeqformer.errors import BadInput
from diffeqformer.plain import clean, shown
from diffeqformer.store.paths import path_of, require_writable

T = TypeVar("T")
NOT_A_NUMBER = (
    r"Error parsing (\S+): (?:.* does not match choices \((.*?),?\))?"
    r".*?(?:invalid literal for |could not convert string to )(int|float).*: '(.*)'"
)
"""tyro's complaint about a word that is no number: the option, the words that it takes besides, the type, the word."""
NARROWEST = 20
"""Fewest columns that help is wrapped to: tyro never finishes boxes without room for a letter."""
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
    if hasattr(default, "settings"):  # of a whole config, or of the parts of one that `finetune` takes
        for name in ("model", "data", "optimizer"):  # the parts with choices of sections
            part, words = chosen_sections(getattr(default.settings, name), words, f"{name}.")
            default = dataclasses.replace(default, settings=dataclasses.replace(default.settings, **{name: part}))
            _require_own(part, words, f"{name}.")
    if {"-h", "--help"} & {*words}:
        default = _printable(default)
        if shutil.get_terminal_size().columns < NARROWEST:
            os.environ["COLUMNS"] = str(NARROWEST)
    # Values that start with dashes are attached first: they would be taken for unknown options.
    words = joined(words, options)
    _require_known(words, list(options), prog)
    require_lists_once(words, options)
    words = separated(spelled(words, options), options)
    if not isinstance(default, ConfigArguments):  # with a config, a list of its own may be emptied
        _require_values(words, options)
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            known: dict[str, Any] = {} if default is None else {"default": default}
            # For a choice of sections, the options are those of the default's section.
            config = (tyro.conf.AvoidSubcommands,)
            found: Any = tyro.cli(cls, args=words, prog=prog, description=about or None, config=config, **known)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        sentence = _after_a_flag(words, options) or _sentence(heard.getvalue(), prog)
        raise BadInput(f"{sentence} See `{prog} --help`.") from None
    require_bounds(found, "--")
    # Every command that has these writes there: mistakes are reported before it computes.
    for name, is_file in (("to", False), ("figure", True), ("markdown", True), ("record", True)):
        if where := getattr(found, name, None):
            require_writable(path_of(where), f"--{name}")
            if is_file and path_of(where).is_dir():
                raise BadInput(f"--{name} {shown(where)} is a folder, but must name a file.")
    return found


def _printable(settings: Any) -> Any:
    """Make the texts of settings safe for a terminal: help shows those of a config, which may be a stranger's."""
    if isinstance(settings, str):
        return clean(settings)
    if isinstance(settings, tuple):
        return tuple(map(_printable, settings))
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        return settings
    return dataclasses.replace(settings, **{name: _printable(value) for name, value in vars(settings).items()})


def options_of(cls: Any, prefix: str = "") -> Hints:
    """Return the dotted names of a dataclass's settings, as written after two dashes, and their types.

    A choice of sections contributes those of every section.
    """
    options: Hints = {}
    for name, hint in get_type_hints(cls).items():
        sections = [one for one in (hint, *get_args(hint)) if dataclasses.is_dataclass(one)]
        dotted = prefix + name.replace("_", "-")
        if name == "settings":  # their names stand for themselves
            options |= options_of(hint)
        elif sections:
            for section in sections:
                if section is not OwnConfig:  # which only `build` can make
                    options |= options_of(section, f"{dotted}.")
            if words := _words_for(hint):  # a bare word chooses
                own = tuple(name for section in sections for name in getattr(section, "names", ()))
                options[dotted] = Literal[words] if all(map(kinds_of, sections)) else Literal[(*words, *own)] | str
                if f"{dotted}.kind" in options:  # each section knows only its own
                    options[f"{dotted}.kind"] = Literal[(*(word for word in words if word != "None"), *own)]
        elif get_origin(hint) is not ClassVar:
            options[dotted] = hint
            if hint is bool:  # tyro puts the `no` into the name's last part
                options[f"{prefix}no-{name.replace('_', '-')}"] = hint
    return options


def _words_for(hint: Any) -> tuple[str, ...]:
    """Return the words that may stand for a section: `None` if it is optional, and the kinds to choose from."""
    sections = [one for one in get_args(hint) if dataclasses.is_dataclass(one)]
    kinds = [kind for one in sections for kind in kinds_of(one) if kind != "own"]
    return (*(("None",) if sections and type(None) in get_args(hint) else ()), *kinds)


def chosen_sections(part: Any, words: Sequence[str], prefix: str) -> tuple[Any, list[str]]:
    """Apply words such as `--model.weights layer`, which choose sections, to the model or another part of a config and
    to the sections in it; return that part and the other words.

    An optional section, such as `model.weights.lora`, is created as soon as one of its settings is given, and removed
    by `None`.

    **Raises:** `BadInput` for a kind that does not exist, or is missing.
    """
    left, words = [], list(words)
    choices, hints = choices_of(type(part)), hints_of(type(part))
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        name = name.removeprefix(f"--{prefix}").removesuffix(".kind") if name.startswith(f"--{prefix}") else ""
        name = name.replace("-", "_")
        if not (known := _words_for(hints.get(name))):
            left.append(word)
            continue
        if not equals and (not words or words[0].startswith("--")):
            raise BadInput(f"--{prefix}{name} needs a value.")
        kind = value if equals else words.pop(0)
        if kind in ("None", "null") and "None" in known:
            part = dataclasses.replace(part, **{name: None})
            continue
        sections = tuple(section for section in choices.get(name, ()) if section is not OwnConfig)
        if kind not in known and all(map(kinds_of, sections)):
            raise BadInput(f"--{prefix}{name} is {shown(kind)}, but must be one of {', '.join(map(repr, known))}.")
        section = section_of(sections, kind, f"--{prefix}{name}")
        if getattr(getattr(part, name), "kind", None) != kind:
            part = dataclasses.replace(part, **{name: section})
    options = {option_of(word) for word in left if word.startswith("--")}
    for name, hint in hints.items():
        section, dotted = getattr(part, name), f"{prefix}{name.replace('_', '-')}."
        if section is None:
            sections: Any = [one for one in get_args(hint) if dataclasses.is_dataclass(one)]
            section = next((one() for one in sections if options & options_of(one, dotted).keys()), None)
        if dataclasses.is_dataclass(section):
            section, left = chosen_sections(section, left, dotted)
            part = dataclasses.replace(part, **{name: section})
    return part, left


def _require_own(part: Any, words: Sequence[str], prefix: str) -> None:
    """Refuse settings of a kind other than the chosen one."""
    for name, choices in choices_of(type(part)).items():
        chosen = getattr(part, name)
        own = options_of(type(chosen), f"{prefix}{name}.") if chosen else {}
        for option in (option_of(word) for word in words if word.startswith(f"--{prefix}{name}.")):
            reading = [choice for choice in choices if option in options_of(choice, f"{prefix}{name}.")]
            readers = [kind for choice in reading for kind in kinds_of(choice)]
            if option not in own and readers:
                raise BadInput(
                    f"--{option} is given, but {prefix}{name} {getattr(chosen, 'kind', None)!r} has no such setting; "
                    f"{' and '.join(map(repr, readers))} {'has' if len(readers) == 1 else 'have'}."
                )


LONGEST = 400
"""Most characters that are shown of a complaint of tyro's that is not known here."""
ALIKE = 0.75
"""Similarity from which an option's name may be a typo for another: `difflib`'s ratio, 1 for equal names."""


def _require_known(words: Sequence[str], options: list[str], prog: str) -> None:
    """Refuse the first option that does not exist, and name the one whose last part is most similar, if any."""
    for word in words:
        given = option_of(word)
        if not word.startswith("--") or given in ("help", *options):
            continue
        last = lambda name: name.rpartition(".")[2]
        alike = difflib.get_close_matches(last(given), {last(option) for option in options}, n=1, cutoff=ALIKE)
        meant = [option for option in options if last(option) in alike]
        likeness = lambda option, given=given: difflib.SequenceMatcher(None, option, given).ratio()
        advice = f"did you mean --{max(meant, key=likeness)}?" if meant else f"see `{prog} --help`."
        raise BadInput(f"unknown option --{given}: {advice}")


def _require_values(words: Sequence[str], options: Hints) -> None:
    """Refuse lists such as `--data` with nothing after them, which would have the same effect as leaving them out."""
    for word, after in zip(words, [*words[1:], "--"], strict=False):  # no pairs without words
        name = word.removeprefix("--").replace("_", "-")
        if word.startswith("--") and get_origin(options.get(name)) is tuple and "." not in name and after[:2] == "--":
            raise BadInput(f"{word} needs a value.")


def _after_a_flag(words: Sequence[str], options: Hints) -> str:
    """Return advice about a flag that is followed by a value which nothing else could take; empty if there is none."""
    for word, after in itertools.pairwise(words):
        name = word.removeprefix("--").replace("_", "-")
        if word.startswith("--") and options.get(name) is bool and after.lower() in ("true", "false", "yes", "no"):
            section, _, last = name.rpartition(".")
            section += "." * bool(section)
            other = section + (last[3:] if section + last[3:] in options else f"no-{last}")
            return f"--{name} takes no value, but {shown(after)} follows: give it alone, or --{other}."
    return ""


def _sentence(box: str, prog: str) -> str:
    """Return the complaint in one of tyro's boxes, in this program's words if it is a known one."""
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
        return f"{found[1]} is {shown(found[4])}, but must be {other}{KINDS[found[3]]}."
    if found := re.match(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*?),?\)", text):
        choices = found[3].split(", ")
        choices = sorted(choices) if "'None'" in choices else choices  # tyro joins those in arbitrary order
        return f"{found[2]} is {shown(found[1])}, but must be one of {', '.join(choices)}."
    if found := re.match(r"Error parsing (\S+): Could not find valid parse for arguments: \[(.*)\]", text):
        return f"{found[1]} is {found[2][:100]}, but must be numbers, such as 2 4 8 or 2,4,8."
    if found := re.match(r"Error parsing (\S+): no type matching .*? could be instantiated from (?:\[(.*?)\])?", text):
        return f"{found[1]} is {found[2][:100]}, but must be numbers, such as 2 4 8 or 2,4,8, or a single word."
    if found := re.match(r"Missing value for argument '(.*?)'", text):
        if not found[1].startswith("-"):  # positional, and an option of that name was met in its place
            return f"`{prog}` takes {found[1].upper()} as a word of its own, without an option in front of it."
        return f"{found[1]} needs a value; one that starts with a dash is written {found[1]}=VALUE."
    if text.startswith("Missing from "):
        missing = [part.split()[0] for part in text.partition(": ")[2].split("(required)") if part.strip()]
        return f"`{prog}` needs {' and '.join(missing)}."
    if found := re.match(r"Unrecognized options: (.*)", text):
        return f"there is nothing that {shown(found[1])} could be here."
    return f"{text if len(text) <= LONGEST else f'{text[:LONGEST]} …'}."  # it may quote a value of any length


def positional_first(words: Sequence[str], options: Hints) -> list[str]:
    """Move the first word that is neither an option nor an option's value to the front."""
    before: object = bool
    for at, word in enumerate(words):
        if not word.startswith("-") and before is bool:
            return [word, *words[:at], *words[at + 1 :]]
        takes_one = word.startswith("--") and "=" not in word
        before = options.get(option_of(word)) if takes_one else bool
    return list(words)


def arguments_from(words: Sequence[str], verb: str, cls: type[C]) -> C:
    """Read `CONFIG --key value ...`: a file or shipped config, and overrides by dotted key, in any order.

    **Raises:** `BadInput` for a missing or unreadable config, an unknown key, or a value that does not fit.
    """
    prog = f"diffeqformer {verb}"
    shipped = f"Shipped configs: {', '.join(shipped_configs())}. Options replace a config's own settings."
    about = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{shipped}"
    words = ["--data.strict" if word == "--strict" else word for word in words]
    if not words:
        raise BadInput(f"`{prog}` needs a config: a YAML file or one of {', '.join(shipped_configs())}.")
    name, *_ = words = positional_first(words, options_of(cls))
    if name.startswith("-"):  # help is asked for, or the config is missing
        name = parse(cls, words, prog, about=about).config
    default = cls(name, read_yaml(find_config(name)))
    return default if words == [name] else parse(cls, words, prog, default=default, about=about)
