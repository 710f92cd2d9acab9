"""The lock files are parts of one resolution, which is that of pyproject.toml."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def pinned(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(encoding="utf-8"), re.M))


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def test_lock_files_agree_and_keep_what_pyproject_asks_for():
    ours, torch, docs = (pinned(f"requirements{which}.lock") for which in ("", "-torch", "-docs"))
    for other in (torch, docs):
        assert {name: other[name] for name in other.keys() & ours.keys()} == {n: ours[n] for n in other.keys() & ours}
    assert {n: docs[n] for n in docs.keys() & torch} == {n: torch[n] for n in docs.keys() & torch}
    assert numbers(torch["pytablewriter"]) >= [1]  # older ones call the columns of the harness's results A, B, C
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    floors = [re.fullmatch(r"([\w.-]+)>=([\d.]+)", wanted) for wanted in project["dependencies"]]
    for name, floor in (found.groups() for found in floors if found):
        assert numbers(ours[name.replace("_", "-")]) >= numbers(floor), name
    assert all(floors)
