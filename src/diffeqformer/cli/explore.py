"""`diffeqformer explore RUN [RUN2]`"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from diffeqformer.cli.output import print_json, print_text
from diffeqformer.cli.parse import parse
from diffeqformer.config import Which
from diffeqformer.config.bounds import setting
from diffeqformer.errors import BadInput
from diffeqformer.progress import Terminal
from diffeqformer.store.files import write_output
from diffeqformer.store.paths import path_of, require_writable


@dataclass(frozen=True)
class Arguments:
    """Turn a dial called depth: a page that shows what a run would predict after every step, for any text.

    Served on this machine alone, until Ctrl-C; with --to, one file that runs the model in the browser.

    Example: diffeqformer explore runs/quickstart/diffeqformer runs/quickstart/gpt
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    other: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN2")] = ""
    """Another run, to compare with: before fine-tuning, or another model."""
    text: str | None = None
    """Text that the page opens with; the beginning of the validation text if not given."""
    to: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Write one HTML file instead, which opens offline and holds the models; for small ones."""
    port: int = setting(0, least=0, most=65535)
    """Port of the page's address; 0 for a free one."""
    checkpoint: Which = "latest"
    """Newest checkpoint, the one of lowest validation loss, or the newest that is not damaged."""


def run(words: Sequence[str], as_json: bool) -> None:
    """Serve the page and print its address, or write it."""
    arguments = parse(Arguments, words, "diffeqformer explore")
    if arguments.to:
        if arguments.port:
            raise BadInput(f"--port is {arguments.port}, but with --to nothing is served.")
        path = path_of(arguments.to)
        require_writable(path.parent, "--to")
        if path.is_dir():
            raise BadInput(f"--to is {arguments.to!r}, which is a folder, but must name a file.")
        if path.suffix != ".html":
            raise BadInput(f"--to is {arguments.to!r}, but must end with .html.")
    from diffeqformer.explorer.page import portable_page, served_page
    from diffeqformer.explorer.server import serve
    from diffeqformer.explorer.session import Session
    from diffeqformer.runs.opening import load_run

    progress = Terminal()
    folders = [folder for folder in (arguments.run, arguments.other) if folder]
    session = Session(
        [load_run(folder, arguments.checkpoint, progress) for folder in folders], arguments.text, progress
    )
    if arguments.to:
        write_output(path, portable_page(session).encode(), "page")
        return print_json({"page": str(path)}) if as_json else print_text(str(path))
    folders = [run.folder for run in session.runs]
    server, address = serve(served_page(session), session.answers, arguments.port, folders)
    print_json({"address": address}) if as_json else print_text(f"{address}\nCtrl-C ends it.")
    sys.stdout.flush()
    with server:
        server.serve_forever()
