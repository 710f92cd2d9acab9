"""The command line: each verb parses its arguments, calls one library function and prints.

One file per verb, and `study.py` for those whose second word names a study.
"""

import errno
import importlib
import logging
import os
import resource
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING

from diffeqformer.errors import BadInput, DiffEqFormerError, Interrupted, reason
from diffeqformer.plain import brief, clean, is_utf8, nearest, shown, version_of
from diffeqformer.program import INTERRUPTED, say_interrupted
from diffeqformer.studies import ANALYSES, BENCHMARKS, EXPERIMENTS

if TYPE_CHECKING:
    from diffeqformer.cli.study import Verb

STORY = {
    "Train": {
        "quickstart": "train DiffEqFormer and its baselines, and write a report",
        "train": "train, or resume, the run of a config: CONFIG [--key value ...]",
        "sweep": "search over settings: CONFIG --over KEY=VALUES",
        "finetune": "adapt a run to other text, at any depth: RUN --data FILES",
        "lift": "a table of layers becomes a function of depth: RUN --to RUN",
    },
    "Use": {
        "eval": "loss and perplexity at any depth; published tasks: RUN",
        "sample": "continue a prompt: RUN --prompt TEXT",
    },
    "Understand": {
        "explore": "turn the dial called depth, in a page: RUN [RUN2]",
        "analyze": f"look inside: {', '.join(ANALYSES)}",
        "report": "two runs side by side: compare RUN_A RUN_B",
        "info": "parameters, FLOPs and memory: CONFIG or RUN",
    },
    "Exchange with Hugging Face": {
        "import": "make a run of a GPT-2, a Llama or an export: FOLDER --to RUN",
        "export": "write a run's model for Transformers: RUN --to DIR",
    },
    "Measure": {
        "reproduce": f"experiments, from training to a page: {', '.join(EXPERIMENTS)}",
        "bench": f"speed and memory on this machine: {', '.join(BENCHMARKS)}",
        "completion": "a script for your shell: bash|zsh|fish",
    },
}
"""The verbs, in the order in which a newcomer meets them."""
VERBS = {verb: what for part in STORY.values() for verb, what in part.items()}
COLUMNS = 60
"""Width of the help, in columns: half a screen."""


def _entry(verb: str, what: str) -> str:
    return textwrap.fill(what, COLUMNS, initial_indent=f"  {verb:<12}", subsequent_indent=" " * 14)


HELP = "\n".join(
    [
        "Continuous-depth language models and their baselines.",
        "",
        "usage: diffeqformer VERB [ARGUMENTS] [--json] [--debug]",
        *(
            line
            for title, part in STORY.items()
            for line in ("", f"{title}:", *(_entry(verb, what) for verb, what in part.items()))
        ),
        "",
        "  VERB --help   arguments    --json   result for programs",
        "  --version     devices      --debug  traceback on failure",
        "",
        "Start with: diffeqformer quickstart --minutes 2",
    ]
)
GAVE_UP = (
    "adaptive steps did not reach the end of depth: more than model.tolerance.max_steps are needed, or the state is "
    "not finite; a larger tolerance, or fixed steps, may get there."
)
NO_MEMORY = (
    "this needs more memory than there is; a smaller model, batch or number of steps may fit, and `diffeqformer info` "
    "prints what a model needs."
)


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        return command(words)
    except KeyboardInterrupt:
        say_interrupted()
        return INTERRUPTED


def command(words: Sequence[str] | None = None, interrupted: Callable[[], bool] = lambda: False) -> int:
    """Run one command as `main` does, but pass an interruption on as `KeyboardInterrupt`.

    **Arguments:** `interrupted`, whether one came; an import may have turned it into an error of its own.
    """
    own_process = words is None
    words = list(sys.argv[1:] if words is None else words)
    as_json, debug = "--json" in words, "--debug" in words
    words = [word for word in words if word not in ("--json", "--debug")]
    if not debug:  # JAX would also print errors that come back as exceptions
        logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)
    try:
        if own_process:
            _require_streams()
        for word in words:
            if not is_utf8(word):
                raise BadInput(f"{shown(word)} cannot be read: words must be UTF-8 text without NUL.")
        status = _run(words, as_json, own_process)
        sys.stdout.flush()  # a full disk is reported here; at its end Python would only grumble
        return status
    except Interrupted as stop:
        return stop.exit_code
    except BrokenPipeError:  # `diffeqformer ... | head`: nobody reads on
        _discard_output()
        # 128 + SIGPIPE, which a shell reports for a program that this signal ends.
        return 141
    except Exception as error:
        if interrupted() and isinstance(error, ImportError):
            raise KeyboardInterrupt from error
        if debug:
            traceback.print_exc()
        with suppress(OSError):
            print(f"diffeqformer: {brief(clean(_sentence(error)))}", file=sys.stderr)
        if own_process and isinstance(error, OSError):
            _discard_output()
        return error.exit_code if isinstance(error, DiffEqFormerError) else 1


def _require_streams() -> None:
    """Check that standard output is open, and keep files that are opened later from taking a closed stream's place.

    **Raises:** `BadInput` if standard output is closed.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(handle)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise BadInput("standard output is closed; send it to a file, a pipe or /dev/null.")
    # Characters that this output's encoding lacks are shown as escapes.
    sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]


def _discard_output() -> None:
    """Discard what standard output still holds, so that Python can exit without complaint."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(error: Exception) -> str:
    """Return the sentence that is shown for an error without `--debug`."""
    if isinstance(error, DiffEqFormerError):
        return str(error)
    if isinstance(error, OSError):
        what = "standard output, or a file," if error.filename is None else repr(error.filename)
        return f"{what} cannot be used: {reason(error)}."
    if _lacks_memory(error):
        return NO_MEMORY
    kind = type(error).__name__
    if kind == "EquinoxRuntimeError" or "maximum number of solver steps" in str(error):
        return GAVE_UP  # raised on the device, where a Diffrax solver does
    return f"failed with {kind}: {' '.join(str(error).split())[:300]} (--debug shows where)."


def _lacks_memory(error: Exception) -> bool:
    """Whether too little memory is what an error comes from."""
    words = ["RESOURCE_EXHAUSTED", os.strerror(errno.ENOMEM)]
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:  # `ulimit -v`
        # Of an extension that does not fit, by the loader and by nanobind; without a limit they have other causes.
        words += ["failed to map segment from shared object", "error while initializing the extension"]
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _run(words: list[str], as_json: bool, own_process: bool) -> int:
    """Run a command, and return its exit status if it does not fail."""
    from diffeqformer.cli.output import print_json

    if not words or words[0] in ("-h", "--help", "help"):
        print_json(VERBS) if as_json else print(HELP)
        return 0
    if words[0] == "--version":
        _print_version(as_json)
        return 0
    if words[0] not in VERBS:
        advice = nearest(words[0], VERBS, f"the verbs are {', '.join(VERBS)}.")
        raise BadInput(f"unknown verb {words[0]!r}: {advice}")
    if own_process:  # a program that calls `main` keeps its own process as it is
        from diffeqformer.cli.accelerators import use_recommended_flags
        from diffeqformer.cli.compiled import keep_compiled_programs
        from diffeqformer.cli.memory import restart_with_kept_memory
        from diffeqformer.store.paths import have_temporary_folder

        have_temporary_folder()
        use_recommended_flags()
        restart_with_kept_memory()  # before anything large is imported, which would have to be imported twice
        keep_compiled_programs(words[0])
    try:
        module_of(words[0]).run(words[1:], as_json)
    except SystemExit as stop:  # --help
        return stop.code if isinstance(stop.code, int) else 0
    return 0


def module_of(verb: str) -> "ModuleType | Verb":
    """Return what runs a verb: a module with its `Arguments` and `run`, or a `Verb` with studies."""
    if verb in ("analyze", "bench", "report", "reproduce"):
        from diffeqformer.cli.study import STUDY_VERBS

        return STUDY_VERBS[verb]
    # `import` is a keyword of Python, and cannot name a module.
    return importlib.import_module(f"diffeqformer.cli.{'importing' if verb == 'import' else verb}")


def _print_version(as_json: bool) -> None:
    import jax

    from diffeqformer.cli.output import print_json

    own, devices = version_of("diffeqformer"), jax.devices()
    kinds = [device.device_kind for device in devices]
    if as_json:
        platform = devices[0].platform
        return print_json({"diffeqformer": own, "jax": jax.__version__, "platform": platform, "devices": kinds})
    print(f"diffeqformer {own}, jax {jax.__version__}, {len(devices)} x {', '.join(sorted(set(kinds)))}")
