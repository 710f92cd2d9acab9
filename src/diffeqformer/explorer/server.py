"""Server of the explorer's page, its answers and the runs' own pages, on this machine's loopback only, under an address
that cannot be guessed."""

import json
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote, unquote

from diffeqformer.errors import BadInput, DiffEqFormerError, said_of
from diffeqformer.plain import Values
from diffeqformer.studies.inputs import ANALYSES_FOLDER

MOST_BYTES = 1 << 20
"""Maximum size of a question."""
KINDS = {
    ".html": "text/html; charset=utf-8", ".png": "image/png", ".svg": "image/svg+xml",
    ".npz": "application/octet-stream",
}  # fmt: skip
"""Content types of those files of a run that its pages consist of, by suffix."""
Answer = Callable[[Values], Any]


class _Server(ThreadingHTTPServer):
    """Says nothing of connections that end early, before a question or an answer: the page may be closed."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def serve(
    page: str, answers: Mapping[str, Answer], port: int = 0, runs: Sequence[Path] = ()
) -> tuple[ThreadingHTTPServer, str]:
    """Create a server that is not running yet, and its address; call `serve_forever`.

    **Arguments:** `page`, HTML; `answers`, by name: a function from a JSON object to a JSON document; `port`, 0 for a
    free one; `runs`, folders whose reports and analyses are served as well, at `pages_of`.

    **Raises:** `BadInput` if the port is taken.
    """
    root, lock = f"/{secrets.token_urlsafe(16)}/", Lock()

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds for a question to arrive

        def do_GET(self) -> None:
            asked = self._asked()
            file = None if asked is None else _file_of(runs, asked)
            if asked == "":
                self._send(200, KINDS[".html"], page)
            elif file is not None:
                self._send(200, KINDS[file.suffix], file.read_bytes())
            else:
                self._refuse(404, "there is no such page.")

        def do_POST(self) -> None:
            if (answer := answers.get(self._asked() or "")) is None:
                return self._refuse(404, "there is no such question.")
            length = self.headers.get("Content-Length", "")
            # `int` reads digits of any script, and raises for thousands of them.
            if not length.isascii() or not length.isdecimal() or len(length) > 9 or int(length) > MOST_BYTES:
                return self._refuse(413, f"a question must have at most {MOST_BYTES} bytes.")
            try:
                asked = json.loads(self.rfile.read(int(length)))
                if not isinstance(asked, dict):
                    raise BadInput("a question must be a JSON object.")
                with lock:  # one at a time: each takes all cores
                    found = answer(asked)
                self._send(200, "application/json", json.dumps(found, allow_nan=False))
            except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
                self._refuse(400, "a question must be JSON.")
            except DiffEqFormerError as error:
                self._refuse(400, said_of(error))
            except Exception as error:  # the page keeps working
                self._refuse(500, said_of(error))

        def _asked(self) -> str | None:
            """Return what is asked for below `root`; `None` if the request was made to another address, since another
            site's host name may resolve to this one."""
            ours = self.headers.get("Host", "") == host and self.path.startswith(root)
            return self.path.removeprefix(root) if ours else None

        def _refuse(self, status: int, said: str) -> None:
            self._send(status, "application/json", json.dumps({"error": said}))

        def _send(self, status: int, kind: str, content: str | bytes) -> None:
            body = content.encode() if isinstance(content, str) else content
            self.send_response(status)
            for name, value in (
                ("Content-Type", kind),
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
                ("Referrer-Policy", "no-referrer"),
                ("X-Content-Type-Options", "nosniff"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the terminal is the user's."""

    try:
        server = _Server(("127.0.0.1", port), Handler)
    except OSError as error:
        raise BadInput(f"port {port} cannot be used: {error.strerror}; leave --port out for a free one.") from error
    host = f"127.0.0.1:{server.server_port}"
    return server, f"http://{host}{root}"


def pages_of(runs: Sequence[Path]) -> list[str]:
    """Return, for each run, where `serve` has the page that links all its pages; empty where there is none."""
    addresses = [
        f"runs-{number}/{quote(run.resolve().name)}/{ANALYSES_FOLDER}/index.html" for number, run in enumerate(runs)
    ]
    return [address if _file_of(runs, address) else "" for address in addresses]


def _file_of(runs: Sequence[Path], asked: str) -> Path | None:
    """Find a file of the reports and analyses of a run, or of runs in the same folder, to which pages link.

    **Arguments:** `asked`, `runs-0/NAME/analysis/...`: the number of a run, and a path from the folder that it is in.

    **Returns:** its path; `None` for any other file.
    """
    first, *parts = unquote(asked).split("/")
    folders = {f"runs-{number}": run.resolve().parent for number, run in enumerate(runs)}
    shown = parts == ["report.html"] or (len(parts) > 1 and parts[1] in ("report.html", ANALYSES_FOLDER))
    if first not in folders or not shown:
        return None
    path = folders[first].joinpath(*parts)
    with suppress(OSError, ValueError):  # names that no file can have
        # No symbolic link on the way, no `..` and no empty name.
        if path.resolve() == path and path.parts[-len(parts) :] == tuple(parts) and path.suffix in KINDS:
            return path if path.is_file() else None
    return None
