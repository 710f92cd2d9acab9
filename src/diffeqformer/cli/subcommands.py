"""Verbs with subcommands: list them, or run the one that is named."""

import difflib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffeqformer.cli.output import print_json
from diffeqformer.errors import BadInput


@dataclass(frozen=True)
class Subcommands:
    """The subcommands of a verb."""

    verb: str
    about: str
    """One sentence for the help."""
    noun: tuple[str, str]
    """What one is called, and several."""
    known: Mapping[str, str]
    """What each does; its module has its name."""
    package: str
    """Where the modules are, each with `Arguments` and `run`."""
    example: str

    def run(self, words: Sequence[str], as_json: bool) -> None:
        """List the subcommands, or run the one that is named with the remaining arguments.

        **Raises:** `BadInput` for an unknown name, with the nearest one.
        """
        if not words and as_json:
            return print_json(dict(self.known))
        if not words or words[0] in ("-h", "--help", "help"):
            return print(self._help())
        what, rest = words[0], words[1:]
        if what not in self.known:
            one, several = self.noun
            if what.startswith("-"):
                raise BadInput(f"`diffeqformer {self.verb}` needs one of {', '.join(self.known)} before {what!r}.")
            near = difflib.get_close_matches(what, self.known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"the {several} are {', '.join(self.known)}."
            raise BadInput(f"unknown {one} {what!r}: {advice}")
        importlib.import_module(f"{self.package}.{what}").run(rest, as_json)

    def _help(self) -> str:
        return "\n".join(
            [
                self.about,
                "",
                f"usage: diffeqformer {self.verb} WHAT [ARGUMENTS] [--json]",
                "",
                *(f"  {name:<13}{what}" for name, what in self.known.items()),
                "",
                f"  {self.verb} WHAT --help   arguments and an example",
                "",
                f"Example: diffeqformer {self.example}",
            ]
        )
