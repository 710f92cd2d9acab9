"""Keep compiled programs on disk, so that the second `eval` or `sample` of a model compiles nothing.

JAX reads these settings when it is imported. Only the command line sets them, never an import; the
user's own `JAX_COMPILATION_CACHE_DIR` is respected, and an empty one keeps nothing. Verbs that train compile
once for hours, and writing an update's large program has crashed in XLA; `bench` measures compilation.
"""

import os
import warnings
from contextlib import suppress
from pathlib import Path

from diffeqformer.store.digests import digest

KEPT = ("eval", "sample", "info", "analyze", "explore")
MOST_BYTES = 1 << 30
"""Size limit, beyond which the least recently used programs are removed."""


def keep_compiled_programs(verb: str) -> None:
    """Have JAX keep what it compiles for `verb`, in the user's folder for caches, if that can be written."""
    if verb not in KEPT or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    with suppress(OSError, RuntimeError):  # RuntimeError: a user without home
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "diffeqformer" / f"compiled-{_processor()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds machine code
        if os.access(folder, os.W_OK):
            os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
            os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(MOST_BYTES))
            # By default only what took a second to compile is kept.
            os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
            warnings.filterwarnings("ignore", "Error (reading|writing) persistent")  # it is compiled again


def _processor() -> str:
    """Return a name for this processor's features: homes can be shared, and another's programs could crash here."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        able = sorted({line for line in lines if line.startswith(("flags", "Features"))})
        return digest("\n".join(able).encode())[:8]
    return "here"
