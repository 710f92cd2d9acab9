"""docs/reference/cli.md, generated from the verbs' `Arguments`: `python -m tests.cli_page` writes it."""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from diffeqformer.cli import STORY, module_of
from diffeqformer.cli.study import Verb
from diffeqformer.config import Config
from tests.blocks import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"
HEAD = """# Commands

Generated from the commands' own arguments by `python -m tests.cli_page`; `diffeqformer VERB --help` prints the same.
Every command also takes `--json` (one document on standard output), `--debug` (a traceback when it fails) and `--help`.
Positional arguments are in capitals; `--no-NAME` switches off an option that is on.
"""
SETTINGS = "and every [setting](config.md) by its dotted name, such as `--model.width 256`."
OF_FINETUNE = (
    "and the [settings](config.md) of `model.dropout`, `depth`, `data`, `optimizer`, `trainer` and `mesh` by their "
    "dotted names, such as `--trainer.updates 1000`."
)


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, verbs in STORY.items():
        parts.append(f"## {title}\n")
        for verb in verbs:
            module = module_of(verb)
            if not isinstance(module, Verb):
                parts.append(_command(verb, module.Arguments))
                continue
            listed = "".join(f"- `{name}`: {what}\n" for name, what in module.known.items())
            parts.append(f"### {verb}\n\n{module.about}\n\n{listed}")
            for name in module.known:
                parts.append(_command(f"{verb} {name}", module.module(name).Arguments))
    return "\n".join(parts)


def _command(command: str, cls: type) -> str:
    """A section: what the command does, an example, its options."""
    example, lines = "", []
    for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
        start, _, shown = line.partition("Example: ")
        if shown and not start:
            example += ("\n" if example else "") + shown
        else:
            lines.append(line.replace("[", "\\[").replace("|", "\\|"))
    rows = "\n".join(f"| {' | '.join(row)} |" for row in _rows(cls))
    table = f"| argument | default | |\n|---|---|---|\n{rows}\n"
    settings = OF_FINETUNE if command == "finetune" else SETTINGS
    more = f"\n{settings}\n" if any(_is_settings(hint) for hint in get_type_hints(cls).values()) else ""
    level = "####" if " " in command else "###"
    return f"{level} {command}\n\n{chr(10).join(lines).strip()}\n\n```text\n{example}\n```\n\n{table}{more}"


def _is_settings(hint: Any) -> bool:
    """Whether a field stands for the sections of a config."""
    return hint is Config or getattr(hint, "__name__", "") == "Settings"


def _rows(cls: type, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Argument, default, what it is: a row per option."""
    hints, said = get_type_hints(cls, include_extras=True), _docstrings(cls)
    for field in dataclasses.fields(cls):
        hint, kinds = hints[field.name], ()
        if get_origin(hint) is Annotated:
            hint, *kinds = get_args(hint)
        if _is_settings(hint):
            continue
        if dataclasses.is_dataclass(hint):
            yield from _rows(hint, f"{prefix}{field.name}.")
            continue
        metavar = next((m for kind in kinds if (m := getattr(kind, "metavar", None))), None) or _metavar(hint)
        metavar = metavar.replace("|", "\\|")
        if tyro.conf.Positional in kinds:
            name = f"`{metavar}`"
        else:
            name = f"`--{prefix}{field.name.replace('_', '-')}" + (f" {metavar}`" if metavar else "`")
        yield name, _default(field), " ".join(said.get(field.name, "").split()).replace("|", "\\|")


def _metavar(hint: Any) -> str:
    """How a value of a type is written."""
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    if hint is bool:
        return ""
    parts = [part for part in get_args(hint) if part not in (type(None), ...)]
    return (
        "|".join(dict.fromkeys(map(_metavar, parts)))
        if parts
        else {"str": "TEXT"}.get(hint.__name__, hint.__name__.upper())
    )


def _default(field: Any) -> str:
    if field.default in (None, "", ()):
        return ""
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "needed"
    if field.default is dataclasses.MISSING:
        return ""
    if isinstance(field.default, bool):
        return "on" if field.default else ""
    return f"`{' '.join(map(str, field.default))}`" if isinstance(field.default, tuple) else f"`{field.default}`"


def _docstrings(cls: type) -> dict[str, str]:
    """The string below each field, of a class and of those that it inherits from."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__[:-1]):
        (node,) = ast.parse(inspect.cleandoc(inspect.getsource(one))).body
        assert isinstance(node, ast.ClassDef)
        for before, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(before, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                found[ast.unparse(before.target)] = str(after.value.value)
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
