"""Dataclasses from nested dictionaries, strictly: nothing is dropped and nothing is guessed."""

import dataclasses
import functools
import math
import os
import re
import types
from collections.abc import Hashable, Iterable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from diffeqformer.errors import BadInput
from diffeqformer.plain import Document, Values, is_utf8, nearest, shown

Hints = dict[str, Any]
"""Settings by name, and the type of each: a class, or a form such as `int | None`, for which Python has no type."""


def to_dict(config: Any) -> Document:
    """Return the config as nested plain dictionaries and lists, as YAML and JSON take them."""
    return _plain(dataclasses.asdict(config))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # NumPy's and JAX's numbers and arrays
        return value.tolist()
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def dump_yaml(config: Any) -> str:
    """Return the config as YAML text that `read_yaml` reads back to an equal config."""
    return yaml.dump(to_dict(config), Dumper=StrictDumper, sort_keys=False, allow_unicode=True)


def from_dict(cls: type, values: Any, where: str = "") -> Any:
    """Build the dataclass `cls` from nested dictionaries, strictly.

    **Arguments:** `cls`, a config dataclass; `values`, nested dictionaries; `where`, the dotted path for messages.

    **Raises:** `BadInput` for an unknown key (with the nearest known one), a wrong type or a value outside its choices.
    """
    if not isinstance(values, dict):
        raise BadInput(f"{where or 'the config'} is {shown(values)}, but must be a table of settings.")
    hints, kwargs = hints_of(cls), {}
    for key, value in values.items():
        name = key if isinstance(key, str) else shown(key)
        path = f"{where}.{name}" if where else name
        if key not in hints:
            # Cut, since difflib takes quadratic time.
            advice = nearest(name[:80], hints, f"known keys: {', '.join(hints)}.")
            raise BadInput(f"unknown key {shown(path)}: {advice}")
        kwargs[key] = _convert(hints[key], value, path)
    return cls(**kwargs)


def checked(config: Any, kind: type, where: str = "") -> Any:
    """Return the config as it would be read back from its file: with Python's own numbers, and strings for paths.

    **Raises:** `BadInput` as `from_dict`, or for what is not a config of this kind, such as the name of one.
    """
    if not isinstance(config, kind):
        found = f"a {type(config).__name__}" if dataclasses.is_dataclass(type(config)) else shown(config)
        source = "the `model` of a Config" if where else "`read_yaml` makes of a file"
        raise BadInput(f"config is {found}, but must be a {kind.__name__}, such as {source}.")
    return from_dict(kind, to_dict(config), where)


def parse_value(text: str) -> Any:
    """Read a single value as a config file would have it.

    **Raises:** `BadInput` if it is not a single value.
    """
    try:
        value = yaml.load(text, StrictLoader)
    except Exception:  # besides its own errors, PyYAML lets through those of values that do not fit their tag
        value = [text]
    if isinstance(value, list | dict | tuple | set):
        raise BadInput(f"{shown(text)} is no value of a setting, but must be a number, a word, true, false or null.")
    return value


def with_values(config: Any, values: Values) -> Any:
    """Return the config with settings replaced, named as in `optimizer.learning_rate`; an absent section is created.

    A section may be replaced by its kind, a word, and have settings as well, in any order. As on the command line, its
    `kind` is the same as the section itself, and the kind that it already has changes nothing.

    **Raises:** `BadInput` as `from_dict`.
    """
    found = to_dict(config)
    parts = {name: name.removesuffix(".kind").split(".") for name in values}
    for name in sorted(values, key=lambda name: len(parts[name])):  # a section before its settings
        *sections, last = parts[name]
        section = found
        for part in sections:
            if not isinstance(inner := section.get(part), dict):
                section[part] = {"kind": inner} if isinstance(inner, str) else {}
            section = section[part]
        kept = section.get(last)
        if not isinstance(kept, dict) or kept.get("kind", kept) != values[name]:
            section[last] = values[name]
    return from_dict(type(config), found)


@functools.cache
def hints_of(cls: type) -> Hints:
    """Return the settings of a config dataclass and their types."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, path)  # pyright: ignore[reportArgumentType]
    if origin is Literal:
        if value not in args:
            raise BadInput(f"{path} is {shown(value)}, but must be one of {', '.join(map(repr, args))}.")
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        if sections := tuple(choice for choice in args if dataclasses.is_dataclass(choice)):
            return section_of(sections, value, path)
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
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        # Python makes no float of a whole number from 2^1024 on.
        value = float(value) if abs(value) < 1 << 1000 else math.inf
    if type(value) is not hint:
        names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise BadInput(f"{path} is {shown(value)}, but must be {names[hint]}.")
    if isinstance(value, str) and not is_utf8(value):
        raise BadInput(f"{path} is {shown(value)}, but must be UTF-8 text without NUL.")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise BadInput(f"{path} is {shown(value)}, but must be a whole number of less than 64 bits.")
    return value


def section_of(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    """Make one of several sections, chosen by `kind`; a bare word is short for a kind, and the first is the default.

    **Arguments:** `value`, the word, or a table of settings; `path`, the dotted path for messages.

    **Raises:** `BadInput` for a kind that none of the sections has, and as `from_dict`.
    """
    kinds = {kind: choice for choice in choices for kind in kinds_of(choice)}
    anything = next((choice for choice in choices if hints_of(choice).get("kind") is str), None)
    values = {"kind": value} if isinstance(value, str) and (kinds or anything) else value
    if not isinstance(values, dict):
        words = f" or one of {_words(kinds)}" if kinds else ""
        raise BadInput(f"{path} is {shown(value)}, but must be a table of settings{words}.")
    if "kind" not in values:
        return from_dict(choices[0], values, path)
    kind = values["kind"]
    choice = kinds.get(kind, anything) if isinstance(kind, str) else None
    if choice is None:
        raise BadInput(f"{path} is {shown(kind)}, but must be one of {_words(kinds)}.")
    return from_dict(choice, values, path)


@functools.cache
def choices_of(cls: type) -> dict[str, tuple[Any, ...]]:
    """Return the settings of a config class that are a choice of sections, and the sections to choose from."""
    is_section = lambda one: dataclasses.is_dataclass(one) and "kind" in hints_of(one)
    choices = {name: tuple(filter(is_section, get_args(hint))) for name, hint in hints_of(cls).items()}
    return {name: sections for name, sections in choices.items() if sections}


class Choosing:
    """Settings, some of which are a choice of sections: a bare word for one becomes its section on construction.

    **Raises:** `BadInput` for a word that names none, or an object in place of a section, such as a scheme.
    """

    def __post_init__(self) -> None:
        for name, choices in choices_of(type(self)).items():
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, section_of(choices, value, name))
            elif dataclasses.is_dataclass(type(value)) and not isinstance(value, choices):
                must = " or ".join(f"a {choice.__name__}" for choice in choices if kinds_of(choice) != ("own",))
                raise BadInput(f"{name} is a {type(value).__name__}, but must be {must}; `build` takes other objects.")


def _words(kinds: Iterable[str]) -> str:
    """Return the kinds that a user may write, for a message."""
    return ", ".join(repr(kind) for kind in kinds if kind != "own")


def kinds_of(section: Any) -> tuple[str, ...]:
    """Return the kinds that a section class stands for; empty if it has no kind, or if any word may be one."""
    return get_args(hints_of(section).get("kind"))


CORE = {
    "null": (r"~|null|Null|NULL|", ("", *"~nN")),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": ("<<", "<"),  # not in the schema, but recognised so as to be refused
}
"""Plain scalars of each type in the core schema of YAML 1.2 (section 10.3.2), and the characters they can begin with.

PyYAML's own schema is that of YAML 1.1, where `040` is 32, `1:30` is 90 and `no` is false."""


class StrictDumper(yaml.SafeDumper):
    """Quotes text that any reader of YAML 1.1 or 1.2 would take for something else."""


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema of YAML 1.2; it refuses duplicate keys, and merges, which can grow
    without bound.
    """

    # Without PyYAML's own, which are those of YAML 1.1; those of `CORE` are added below.
    yaml_implicit_resolvers = {}

    def construct_core(self, node: yaml.ScalarNode) -> Any:
        text, kind = self.construct_scalar(node), node.tag.rpartition(":")[2]
        if not re.fullmatch(CORE[kind][0], text):  # whatever its tag says
            raise yaml.constructor.ConstructorError(None, None, f"{shown(text)} is no {kind}", node.start_mark)
        if kind == "int":
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        return self.construct_yaml_float(node) if kind == "float" else self.construct_yaml_bool(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        refused, seen = yaml.constructor.ConstructorError, set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise refused(None, None, "the merge key << is not read", key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):  # PyYAML refuses others itself
                if key in seen:
                    raise refused(None, None, f"the key {shown(key)} is given twice", key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep)


for _name in ("bool", "int", "float"):
    StrictLoader.add_constructor(f"tag:yaml.org,2002:{_name}", StrictLoader.construct_core)
for _name, (_pattern, _first) in CORE.items():
    for _reader in (StrictLoader, StrictDumper):
        _reader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_pattern})$"), list(_first))
