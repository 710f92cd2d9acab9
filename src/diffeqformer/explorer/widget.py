"""The explorer in a notebook: the page in a frame, answered by the kernel."""

from collections.abc import Sequence
from typing import Any

try:
    import anywidget  # pyright: ignore[reportMissingImports]
    import traitlets  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError("the explorer's widget needs anywidget: pip install 'diffeqformer[notebook]'.") from error

from diffeqformer.errors import said_of
from diffeqformer.explorer.page import framed_page
from diffeqformer.explorer.session import Session
from diffeqformer.progress import Silent
from diffeqformer.runs.opening import Run, load_run

FRAME = """
export default {
  render({ model, el }) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts allow-downloads");
    frame.title = "Explorer of depth";
    Object.assign(frame.style, { width: "100%", height: `${model.get("height")}px`, border: "0" });
    frame.srcdoc = model.get("page");
    const asked = ({ source, data }) => { if (source === frame.contentWindow) model.send(data); };
    // A sandboxed frame has an opaque origin, which no address but "*" stands for.
    const answered = (content) => frame.contentWindow?.postMessage(content, "*");
    window.addEventListener("message", asked);
    model.on("msg:custom", answered);
    el.append(frame);
    return () => { window.removeEventListener("message", asked); model.off("msg:custom", answered); };
  },
};
"""


class Explorer(anywidget.AnyWidget):
    """The page of `diffeqformer explore` as a widget.

    **Arguments:** `runs`, one or two: folders, or runs that are open; `text` that it opens with, the beginning of the
    validation text if not given; `height` in pixels.

    **Raises:** `BadInput` as `load_run` and `Session`.
    """

    _esm = FRAME
    page = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(900).tag(sync=True)

    def __init__(self, *runs: Run | str, text: str | None = None, height: int = 900) -> None:
        opened: Sequence[Run] = [load_run(run, "latest", Silent()) if isinstance(run, str) else run for run in runs]
        self._session = Session(opened, text, Silent())
        super().__init__(page=framed_page(self._session), height=height)
        self.on_msg(self._asked)

    def _asked(self, _: Any, asked: Any, buffers: Any = None) -> None:
        """Send the answer to one question of the page, or why there is none."""
        if not isinstance(asked, dict) or not isinstance(asked.get("question"), dict):
            return
        answer = self._session.answers.get(str(asked.get("name")))
        try:
            found = {"answer": answer(asked["question"])} if answer else {"error": "there is no such question."}
        except Exception as error:  # the page keeps working
            found = {"error": said_of(error)}
        self.send({"id": asked.get("id"), **found})
