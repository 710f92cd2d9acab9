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

VERBS = {
    "quickstart": "train a continuous-depth model and its baselines on built-in text, with a report",
    "train": "train a model on your text: CONFIG [--key value ...]; continues by itself if the run exists",
    "finetune": "adapt a trained model to other text, at any depth: RUN --steps N --method lora|full --data FILES",
    "eval": "loss, perplexity and bits per byte of a run, at any number of depth steps",
    "sample": "continue a prompt",
    "analyze": "look inside: spectra, induction heads, sensitivity, attribution, clustering",
    "info": "parameters, operations a token and memory of a config or a run, beside its vanilla twin",
    "import": "make a run of a Hugging Face GPT-2 or Llama: FOLDER --to RUN",
    "export": "write a run's model for Hugging Face's Transformers: RUN --to DIR",
    "reproduce": "experiments of the paper at small scale: reproduce adapt",
    "bench": "measure on this machine: updates, fine-tuning, schemes, memory, spectra, exponents",
}

HELP = "\n".join(
    [
        "diffeqformer: continuous-depth language models.",
        "",
        "usage: diffeqformer VERB [ARGUMENTS] [--json] [--debug]",
        "",
        *(f"  {verb:<12}{what}" for verb, what in VERBS.items()),
        "",
        "  VERB --help   arguments and an example      --json   machine-readable result on standard output",
        "  --version     versions and devices          --debug  a traceback when something fails",
        "",
        "Start with: diffeqformer quickstart --minutes 1",
    ]
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
        what = " ".join(str(error).split())[:300]
        print(f"diffeqformer: failed with {type(error).__name__}: {what} (--debug shows where).", file=sys.stderr)
        return 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _run(words: list[str], as_json: bool, own_process: bool) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if words[0] == "--version":
        import jax

        devices = ", ".join(sorted({device.device_kind for device in jax.devices()}))
        print(f"diffeqformer {version('diffeqformer')}, jax {jax.__version__}, {len(jax.devices())} x {devices}")
        return 0
    verb, rest = words[0], words[1:]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"the verbs are {', '.join(VERBS)}."
        raise BadInput(f"unknown verb {verb!r}: {advice}")
    module = importlib.import_module(f"diffeqformer.cli.{verb}")
    if own_process:
        from diffeqformer.cli.memory import restart_with_kept_memory

        restart_with_kept_memory()
    module.run(rest, as_json)
    return 0
