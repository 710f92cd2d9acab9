"""What the shell offers for a half-written command; bash itself is asked."""

import shutil
import subprocess

import pytest

from diffeqformer.cli import HELP, VERBS
from diffeqformer.cli.completion import bash, fish, known_words, zsh
from diffeqformer.config import SchemeConfig
from diffeqformer.ode.schemes import SCHEMES
from diffeqformer.studies import ANALYSES, BENCHMARKS, EXPERIMENTS


@pytest.fixture(scope="module")
def known():
    return known_words()


@pytest.fixture(scope="module")
def offered(known):
    """What bash offers for the last of some words."""

    def ask(*words: str) -> set[str]:
        line = " ".join(f"'{word}'" for word in ("diffeqformer", *words))
        script = f'COMP_WORDS=({line}); COMP_CWORD={len(words)}; _diffeqformer; printf "%s\\n" "${{COMPREPLY[@]}}"'
        ran = subprocess.run(["bash", "-c", bash(known) + script], capture_output=True, text=True, check=True)
        assert ran.stderr == ""
        return set(ran.stdout.split())

    return ask


def test_bash_completes_verbs_options_and_what_is_chosen_from(offered):
    assert offered("") == {*VERBS, "--help", "--version"}
    assert offered("expo") == {"export"}
    assert offered("eval", "runs/x", "--st") == {"--steps"}
    for verb in ("train", "sweep", "info"):
        assert {"quickstart-gpt", "quickstart-llama"} < offered(verb, "quickstart-")
    assert offered("train", "quickstart-gpt", "--model.weights.d") == {"--model.weights.d-emb"}
    assert offered("eval", "runs/x", "--checkpoint", "") == {"latest", "best", "sound"}
    assert offered("finetune", "runs/x", "--method", "c") == {"continuous"}
    assert offered("train", "quickstart-gpt", "--model.gradient", "rec") == {"recursive"}
    assert offered("train", "quickstart-gpt", "--model.scheme", "lie") == {"lie-trotter", "lie-trotter-middle"}
    assert offered("train", "quickstart-gpt", "--model.scheme.kind", "re") == {"residual", "reversible"}
    assert offered("train", "quickstart-gpt", "--optimizer.schedule.kind", "") == {
        "cosine", "linear", "constant", "trapezoidal"
    }  # fmt: skip
    assert {*SchemeConfig.names, "reversible"} == {name for name in SCHEMES if not name.startswith("diffrax:")}
    assert offered("analyze", "sp") == {"spectra"} and set(ANALYSES) < offered("analyze", "")
    assert "--against" in offered("analyze", "depth", "runs/x", "--")
    assert offered("reproduce", "de") == {"depth"} and "--seeds" in offered("reproduce", "depth", "--")
    assert offered("report", "") >= {"compare"} and "memory" in offered("bench", "m")
    assert offered("sample", "runs/") == set()  # left to bash: files


def test_options_that_take_no_name_are_not_offered(known):
    assert "--run" not in known["eval"] and "--what" not in known["bench"] and "--run" in known["train"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_script_names_every_verb(call, shell):
    called = call("completion", shell)
    assert called.status == 0 and called.err == ""
    assert all(verb in called.out for verb in VERBS)


@pytest.mark.parametrize(("shell", "script"), [("zsh", zsh), ("fish", fish)])
def test_other_shells_can_read_theirs(known, shell, script, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(known))
    subprocess.run([shell, "--no-execute", str(tmp_path / "script")], check=True)


def test_help_is_one_screen_and_names_every_study():
    lines = HELP.splitlines()
    assert 24 <= len(lines) <= 48 and max(map(len, lines)) <= 60
    words = HELP.replace(",", " ").split()
    assert [name for name in (*ANALYSES, *BENCHMARKS, *EXPERIMENTS) if name not in words] == []
