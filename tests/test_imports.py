"""The package is imported without what its users may not have, or have not asked for."""

import subprocess
import sys

HEAVY = "{'jax', 'numpy', 'scipy', 'matplotlib', 'torch', 'transformers', 'lm_eval', 'wandb', 'tensorboardX'}"


def loaded(code: str) -> set[str]:
    """Which of the heavy packages a new process has loaded after `code`."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*({HEAVY} & set(sys.modules)))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(ran.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_heavy():
    assert loaded("import diffeqformer; dir(diffeqformer)") == set()


def test_nothing_of_the_api_loads_torch_or_another_extra():
    code = "import diffeqformer\nfor name in diffeqformer.__all__: getattr(diffeqformer, name)"
    assert loaded(code) == {"jax", "numpy", "scipy", "matplotlib"}


def test_help_is_shown_without_jax():
    assert loaded("from diffeqformer.cli import main; main(['--help']); main(['eval', '--help'])") <= {"numpy"}
