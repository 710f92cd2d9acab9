"""The explorer's page: the same front end, with the server's answers or with a model of its own."""

from collections.abc import Sequence

from diffeqformer.explorer.portable import portable
from diffeqformer.explorer.session import Session
from diffeqformer.report.page import from_template


def served_page(session: Session) -> str:
    """The page that asks the server it came from, and nobody else."""
    return _page(session, "explorer_server.js", "'self'", {}, session.about())


def portable_page(session: Session) -> str:
    """One file that opens offline and runs the models in the browser; it can reach nothing.

    **Raises:** `BadInput` for a run that a page cannot hold.
    """
    documents, arrays = zip(*map(portable, session.runs), strict=True)
    data = {f"arrays-{number}": content for number, content in enumerate(arrays)}
    return _page(session, "explorer_model.js", "'none'", data, documents)


def _page(session: Session, backend: str, connections: str, data: dict[str, str], runs: Sequence[dict]) -> str:
    return from_template(
        "explorer.html",
        scripts=("colours.js", backend, "explorer.js"),
        title=f"{' and '.join(run.folder.name for run in session.runs)}: explorer",
        connections=connections,
        about={"text": session.text, "runs": runs},
        data=data,
    )
