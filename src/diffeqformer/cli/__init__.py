"""The command line: one file a verb; each parses its words, calls one library function and prints."""

import difflib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from diffeqformer.errors import BadInput, DiffEqFormerError, Interrupted

STORY = {
    "Train": {
        "quickstart": "train a continuous-depth model and its baselines on built-in text, with a report",
        "train": "train a model on your text: CONFIG [--key value ...]; continues by itself if the run exists",
        "finetune": "adapt a trained model to other text, at any depth: RUN --steps N --method lora|full --data FILES",
    },
    "Use": {
        "eval": "loss, perplexity and bits per byte of a run at any number of depth steps; published tasks",
        "sample": "continue a prompt",
    },
    "Understand": {
        "analyze": "look inside: spectra, induction heads, sensitivity, attribution, clustering, depth",
        "report": "two runs side by side, task by task, with p-values: compare RUN_A RUN_B",
        "info": "parameters, operations a token and memory of a config or a run, beside its vanilla twin",
    },
    "Exchange with Hugging Face": {
        "import": "make a run of a GPT-2, a Llama or an exported model: FOLDER --to RUN",
        "export": "write a run's model for Transformers: RUN --to DIR",
    },
    "Measure": {
        "reproduce": "experiments of the paper at small scale: adapt",
        "bench": "speed and memory on this machine: train, finetune, generate, schemes, memory, ...",
        "completion": "a script by which your shell completes all this: bash|zsh|fish",
    },
}
"""The verbs, in the order in which they are met."""

VERBS = {verb: what for part in STORY.values() for verb, what in part.items()}

HELP = "\n".join(
    [
        "diffeqformer: language models whose depth is continuous, and what they are compared with.",
        "",
        "usage: diffeqformer VERB [ARGUMENTS] [--json] [--debug]",
        *(
            line
            for title, part in STORY.items()
            for line in ("", f"{title}:", *(f"  {verb:<12}{what}" for verb, what in part.items()))
        ),
        "",
        "  VERB --help   arguments and an example      --json   machine-readable result on standard output",
        "  --version     versions and devices          --debug  a traceback when something fails",
        "",
        "Start with: diffeqformer quickstart --minutes 1",
    ]
)


GAVE_UP = (
    "adaptive steps did not reach the end of depth: more than model.tolerance.max_steps are needed, or the state is "
    "not finite; a larger tolerance, or fixed steps, may get there."
)


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    own_process = words is None
    words = list(sys.argv[1:] if words is None else words)
    as_json, debug = "--json" in words, "--debug" in words
    words = [word for word in words if word not in ("--json", "--debug")]
    if own_process:
        signal.signal(signal.SIGTERM, _interrupt)  # as Ctrl-C; training answers both in its own way
    try:
        return _run(words, as_json, own_process)
    except SystemExit as stop:  # --help
        return stop.code if isinstance(stop.code, int) else 0
    except Interrupted as stop:
        return stop.exit_code
    except DiffEqFormerError as error:
        if debug:
            traceback.print_exc()
        print(f"diffeqformer: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `diffeqformer ... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("diffeqformer: interrupted.", file=sys.stderr)
        return 130
    except Exception as error:
        if debug:
            traceback.print_exc()
        if type(error).__name__ == "EquinoxRuntimeError":  # raised on the device, where a solver of Diffrax gives up
            print(f"diffeqformer: {GAVE_UP}", file=sys.stderr)
            return 1
        what = " ".join(str(error).split())[:300]
        print(f"diffeqformer: failed with {type(error).__name__}: {what} (--debug shows where).", file=sys.stderr)
        return 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _run(words: list[str], as_json: bool, own_process: bool) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        if as_json:
            from diffeqformer.cli.output import print_json

            print_json(VERBS)
        else:
            print(HELP)
        return 0
    if words[0] == "--version":
        import jax

        own, devices = version("diffeqformer"), jax.devices()
        if as_json:
            from diffeqformer.cli.output import print_json

            kinds = [device.device_kind for device in devices]
            print_json({"diffeqformer": own, "jax": jax.__version__, "platform": devices[0].platform, "devices": kinds})
        else:
            kinds = ", ".join(sorted({device.device_kind for device in devices}))
            print(f"diffeqformer {own}, jax {jax.__version__}, {len(devices)} x {kinds}")
        return 0
    verb, rest = words[0], words[1:]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"the verbs are {', '.join(VERBS)}."
        raise BadInput(f"unknown verb {verb!r}: {advice}")
    module = importlib.import_module(f"diffeqformer.cli.{verb}")
    if own_process:
        from diffeqformer.cli.accelerators import use_recommended_flags
        from diffeqformer.cli.memory import restart_with_kept_memory

        use_recommended_flags()
        restart_with_kept_memory()
    module.run(rest, as_json)
    return 0
