"""`diffeqformer completion bash|zsh|fish`: a script by which the shell completes verbs and their options."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import tyro

from diffeqformer.cli.output import print_json
from diffeqformer.cli.parse import options_of, parse
from diffeqformer.config import shipped_configs

CHOOSING = ("analyze", "bench", "reproduce")
"""Verbs that name a second word."""
ALWAYS = ("--help", "--json", "--debug")


@dataclass(frozen=True)
class Arguments:
    """Print a script by which the shell completes verbs, options and names of configs.

    In bash: source <(diffeqformer completion bash), in ~/.bashrc for always; in zsh the same with zsh, after compinit;
    in fish: diffeqformer completion fish > ~/.config/fish/completions/diffeqformer.fish.

    Example: diffeqformer completion bash
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(metavar="bash|zsh|fish")]
    """The shell."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Print the script."""
    shell = parse(Arguments, words, "diffeqformer completion").shell
    script = {"bash": bash, "zsh": zsh, "fish": fish}[shell](known_words())
    if as_json:
        return print_json({"shell": shell, "script": script})
    print(script, end="")


def known_words() -> dict[str, tuple[str, ...]]:
    """What may follow the words of a command: `""` before the verb, a verb, or a verb and the second word it names."""
    from diffeqformer.cli import VERBS

    known: dict[str, tuple[str, ...]] = {"": (*VERBS, "--help", "--version")}
    for verb in CHOOSING:
        choice = importlib.import_module(f"diffeqformer.cli.{verb}").CHOICE
        known[verb] = (*choice.known, *ALWAYS)
        for name in choice.known:
            known[f"{verb} {name}"] = _words(choice.module(name).Arguments)
    for verb in VERBS:
        if verb in ("train", "info"):
            arguments = getattr(importlib.import_module(f"diffeqformer.cli.{verb}"), f"{verb.title()}Arguments")
            known[verb] = (*shipped_configs(), *_words(arguments))
        elif verb not in CHOOSING:
            known[verb] = _words(importlib.import_module(f"diffeqformer.cli.{verb}").Arguments)
    return known


def bash(known: Mapping[str, Sequence[str]]) -> str:
    """A function for bash's programmable completion; where no word fits, files are offered."""
    cases = "\n".join(f'    "{words}") known="{" ".join(follow)}" ;;' for words, follow in known.items())
    return f"""_diffeqformer() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" verb="" known=""
  if [ "$COMP_CWORD" -gt 1 ]; then verb="${{COMP_WORDS[1]}}"; fi
  if [ "$COMP_CWORD" -gt 2 ]; then
    case "$verb" in {"|".join(CHOOSING)}) verb="$verb ${{COMP_WORDS[2]}}" ;; esac
  fi
  case "$verb" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$known" -- "$word"))
}}
complete -o default -F _diffeqformer diffeqformer
"""


def zsh(known: Mapping[str, Sequence[str]]) -> str:
    """The same for zsh, which can take bash's."""
    return f"autoload -Uz bashcompinit && bashcompinit\n{bash(known)}"


def fish(known: Mapping[str, Sequence[str]]) -> str:
    """A line of fish for each position."""
    verbs, lines = " ".join(known[""][:-2]), []
    for words, follow in known.items():
        verb, _, second = words.partition(" ")
        where = f"__fish_seen_subcommand_from {verb}" if words else "__fish_use_subcommand"
        if verb in CHOOSING:
            seconds = second or " ".join(each.split()[1] for each in known if each.startswith(f"{verb} "))
            where += f"; and {'' if second else 'not '}__fish_seen_subcommand_from {seconds}"
        lines.append(f"complete -c diffeqformer -n '{where}' -a '{' '.join(follow)}'")
    return "\n".join([f"# verbs: {verbs}", *lines, ""])


def _words(cls: type) -> tuple[str, ...]:
    """What is chosen from by position, then the options, of a dataclass of arguments."""
    chosen: list[str] = []
    positional = []
    for name, hint in get_type_hints(cls, include_extras=True).items():
        kinds = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if tyro.conf.Positional in kinds:
            positional.append(name.replace("_", "-"))
            of = get_args(hint)[0]
            chosen += get_args(of) if get_origin(of) is Literal else ()
    return (*chosen, *(f"--{name}" for name in options_of(cls) if name not in positional), *ALWAYS)
