"""A hub of one's own, on this machine: what `huggingface_hub` and `datasets` ask for, and no more."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "c0ffee" + "0" * 34


class Hub:
    """Repositories by name, each a dict of files; `asked`, what it was asked."""

    def __init__(self):
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []
        self.private: dict[str, bool] = {}
        self.address = ""

    def add(self, name: str, folder: Path) -> None:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        self.repositories[name] = {str(path.relative_to(folder)): path.read_bytes() for path in files}

    def answer(self, method: str, url: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(f"{method} {url}")
        path = unquote(urlsplit(url).path)
        if path == "/api/whoami-v2":
            return _json({"type": "user", "name": "me", "auth": {}})
        if path == "/api/repos/create":
            made = json.loads(body)
            name = f"{made.get('organization') or 'me'}/{made['name']}"
            self.private.setdefault(name, bool(made.get("private")) or made.get("visibility") == "private")
            self.repositories.setdefault(name, {})
            return _json({"url": f"{self.address}/{name}", "name": name, "id": name})
        if path == "/api/validate-yaml":
            return _json({"errors": [], "warnings": []})
        found = re.fullmatch(
            r"(?:/api)?(?:/(?:models|datasets))?/([\w.-]+/[\w.-]+)(?:/([\w-]+)(?:/([^/]+)(?:/(.*))?)?)?", path
        )
        name, verb, rest = (found[1], found[2], found[4]) if found else ("", "", "")
        if name not in self.repositories:
            return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
        files = self.repositories[name]
        entries = [
            {"type": "file", "path": path, "size": len(data), "oid": _etag(data)} for path, data in files.items()
        ]
        if found and found[3] not in (None, "main", COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}, b""
        if verb in (None, "revision"):
            return _json({"id": name, "sha": COMMIT, "private": False, "siblings": [{"rfilename": f} for f in files]})
        folders = {str(above) for path in files for above in Path(path).parents[:-1]}
        entries += [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)]
        if verb == "tree":
            whole, root = "recursive=true" in url.lower(), Path(rest or "")
            inside = [e for e in entries if root in (Path(e["path"]).parents if whole else [Path(e["path"]).parent])]
            return _json(inside) if inside or not rest else (404, {"X-Error-Code": "EntryNotFound"}, b"")
        if verb == "paths-info":
            asked = json.loads(body)["paths"] if body.startswith(b"{") else re.findall(r"paths=([^&]*)", body.decode())
            return _json([entry for entry in entries if entry["path"] in map(unquote, asked)])
        if verb == "resolve" and rest in files:
            data = files[rest]
            return 200, {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}, data
        if verb == "preupload":
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return _json({"files": modes})
        if verb == "commit":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                if line["key"] == "deletedFile":
                    del files[line["value"]["path"]]
            return _json({"commitUrl": f"{self.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT, "success": True})
        return 404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}, b""


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def _json(value: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


@contextmanager
def served(hub: Hub) -> Iterator[str]:
    """Its address, while it answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, data = hub.answer(self.command, self.path, body)
            if (
                (asked := self.headers.get("Range"))
                and status == 200
                and (span := re.fullmatch(r"bytes=(\d+)-(\d*)", asked))
            ):
                first, last = int(span[1]), min(int(span[2] or len(data) - 1), len(data) - 1)
                status, headers = 206, headers | {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
                data = data[first : last + 1]
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_POST = do

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub without repositories; the caches are empty, and nobody is signed in."""
    from huggingface_hub import constants

    made = Hub()
    with served(made) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        made.address = address
        yield made
