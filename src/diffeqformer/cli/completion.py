"""`diffeqformer completion bash|zsh|fish`: a script by which the shell completes verbs, options and their values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import tyro

from diffeqformer.cli.output import print_json
from diffeqformer.cli.parse import options_of, parse
from diffeqformer.cli.study import STUDY_VERBS, Verb
from diffeqformer.config import shipped_configs

ALWAYS = ("--help", "--json", "--debug")


@dataclass(frozen=True)
class Arguments:
    """Print a script by which the shell completes verbs, options, their values and names of configs.

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
    """Return what may follow `""`, a verb, a verb and its subcommand, or one of these and an option with choices."""
    from diffeqformer.cli import VERBS

    known: dict[str, tuple[str, ...]] = {"": (*VERBS, "--help", "--version")}
    known |= {verb: (*one.known, *ALWAYS) for verb, one in STUDY_VERBS.items()}
    for command, cls in commands():
        known |= _words(command, cls, tuple(shipped_configs()) if command in ("train", "sweep", "info") else ())
    return known


def commands() -> Iterator[tuple[str, type]]:
    """Iterate over every verb, or verb and subcommand, with the class of its arguments."""
    from diffeqformer.cli import VERBS, module_of

    for verb in VERBS:
        module = module_of(verb)
        if isinstance(module, Verb):
            yield from ((f"{verb} {name}", module.module(name).Arguments) for name in module.known)
        else:
            yield verb, module.Arguments


def _words(command: str, cls: type, first: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Return what may follow a command (`first`, its positional arguments' choices, its options) or its options."""
    chosen, positional = list(first), []
    for name, hint in get_type_hints(cls, include_extras=True).items():
        kinds = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if tyro.conf.Positional in kinds:
            positional.append(name.replace("_", "-"))
            chosen += _choices(get_args(hint)[0])
    options = {f"--{name}": hint for name, hint in options_of(cls).items() if name not in positional}
    choices = {f"{command} {option}": tuple(found) for option, hint in options.items() if (found := _choices(hint))}
    return {command: (*chosen, *options, *ALWAYS)} | choices


def _choices(hint: object) -> list[str]:
    """Return the words of the `Literal`s in a type."""
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    return [word for part in get_args(hint) for word in _choices(part)]


def bash(known: Mapping[str, Sequence[str]]) -> str:
    """Return a script for bash's programmable completion; if no word fits, files are offered."""
    cases = "\n".join(f'    "{words}") known="{" ".join(follow)}" ;;' for words, follow in known.items())
    return f"""_diffeqformer_known() {{
  case "$1" in
{cases}
  esac
}}
_diffeqformer() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" verb="" known=""
  if [ "$COMP_CWORD" -gt 1 ]; then verb="${{COMP_WORDS[1]}}"; fi
  if [ "$COMP_CWORD" -gt 2 ]; then
    case "$verb" in {"|".join(STUDY_VERBS)}) verb="$verb ${{COMP_WORDS[2]}}" ;; esac
  fi
  _diffeqformer_known "$verb $before"
  if [ -z "$known" ] || [ "$verb" = "$before" ]; then _diffeqformer_known "$verb"; fi
  COMPREPLY=($(compgen -W "$known" -- "$word"))
}}
complete -o default -F _diffeqformer diffeqformer
"""


def zsh(known: Mapping[str, Sequence[str]]) -> str:
    """Return the script for zsh, which can use bash's."""
    return f"autoload -Uz bashcompinit && bashcompinit\n{bash(known)}"


def fish(known: Mapping[str, Sequence[str]]) -> str:
    """Return the script for fish: one line per command, and one per option with choices."""
    lines = []
    for words, follow in known.items():
        command, dashes, option = words.partition(" --")
        verb, _, second = command.partition(" ")
        where = f"__fish_seen_subcommand_from {verb}" if words else "__fish_use_subcommand"
        if verb in STUDY_VERBS:
            seconds = second or " ".join(word for word in known[verb] if not word.startswith("-"))
            where += f"; and {'' if second else 'not '}__fish_seen_subcommand_from {seconds}"
        target = f"-x -l {option} " if dashes else ""
        lines.append(f"complete -c diffeqformer -n '{where}' {target}-a '{' '.join(follow)}'")
    return "\n".join([*lines, ""])
