"""The explorer's page: one front end, with answers from outside or with a model of its own."""

from collections.abc import Sequence
from pathlib import Path

from diffeqformer.analysis.attribution import SIGNED
from diffeqformer.explorer.portable import portable
from diffeqformer.explorer.server import pages_of
from diffeqformer.explorer.session import EXPLANATIONS, Session
from diffeqformer.plain import Document
from diffeqformer.report.page import from_template
from diffeqformer.report.text import ends_apart
from diffeqformer.studies.attribution import DESCRIPTIONS


def served_page(session: Session) -> str:
    """Build the page that asks the server it came from, and nobody else."""
    pages = pages_of([run.folder for run in session.runs])
    about = [one | {"pages": address} for one, address in zip(session.about(), pages, strict=True)]
    return _page(session, ("explorer_server.js",), "'self'", {}, about, list(session.answers))


def framed_page(session: Session) -> str:
    """Build the page that asks the page around it, as in a notebook's widget; it can reach nothing else."""
    return _page(session, ("explorer_frame.js",), "'none'", {}, session.about(), list(session.answers))


def portable_page(session: Session) -> str:
    """Build one file that opens offline and runs the models in the browser; it can reach nothing.

    **Raises:** `BadInput` for a run that a page cannot hold.
    """
    documents, arrays = zip(*map(portable, session.runs), strict=True)
    data = {f"arrays-{number}": content for number, content in enumerate(arrays)}
    return _page(session, MODEL, "'none'", data, documents)


OVERLAYS = [{"name": name, "description": DESCRIPTIONS[name], "signed": name in SIGNED} for name in EXPLANATIONS]
MODEL = ("explorer_arrays.js", "explorer_matrices.js", "explorer_weights.js", "explorer_model.js")
"""Scripts of the model in JavaScript."""


def told_apart(runs: Sequence[Document], folders: Sequence[Path]) -> list[Document]:
    """Give runs of the same name distinct ones: with the folder's name and, if the folder is the same, the update."""

    def apart(run: Document, folder: Path) -> str:
        alike = [own for one, own in zip(runs, folders, strict=True) if one["name"] == run["name"]]
        if len(alike) < 2:
            return run["name"]
        more = "" if len({*alike}) == len(alike) else f", update {run['update']}"
        return f"{run['name']} ({ends_apart(alike)[alike.index(folder)]}{more})"

    return [{**run, "name": apart(run, folder)} for run, folder in zip(runs, folders, strict=True)]


def _page(
    session: Session, backend: Sequence[str], connections: str, data: dict[str, str], runs: Sequence[Document],
    answers: Sequence[str] = (),
) -> str:  # fmt: skip
    return from_template(
        "explorer.html",
        scripts=(
            "colours.js",
            "explorer_draw.js",
            *backend,
            "explorer_panels.js",
            "explorer_address.js",
            "explorer.js",
        ),
        title=f"{' and '.join(run.folder.name for run in session.runs)}: explorer",
        connections=connections,
        about={
            "text": session.text,
            "runs": told_apart(runs, [run.folder for run in session.runs]),
            "answers": answers,
            "methods": OVERLAYS if answers else [],
        },
        data=data,
    )
