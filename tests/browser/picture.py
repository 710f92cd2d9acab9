"""`python -m tests.browser.picture RUN FILE`: the first screens of a run's report as PNG."""

import json
import sys
import tempfile
from pathlib import Path

from diffeqformer.studies.run_report import write_report
from tests.browser.driver import Browser

WIDTH, HEIGHT = 1280, 1400


def picture(run: Path, file: Path) -> Path:
    """Draw the report of `run`, a folder with a `results.json`, and save what is seen of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_report(json.loads((run / "results.json").read_text()), folder / "report.html")
        browser = Browser(folder)
        try:
            browser.look(WIDTH, HEIGHT)
            browser.open((folder / "report.html").as_uri())
            return browser.picture(file, whole=False)
        finally:
            browser.close()


if __name__ == "__main__":
    picture(*map(Path, sys.argv[1:3]))
