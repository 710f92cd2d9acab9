"""The widget of a notebook: its traits, its answers, and its frame in a real browser between two fakes of a kernel."""

import json

import pytest

from tests.browser.driver import Browser
from tests.browser.test_explorer import SEEN, cells_of
from tests.explorer.made import TEXT, run_of

pytestmark = pytest.mark.browser
HOST = """<!doctype html><body><script type="module">{module}
const widget = ({module_name});
const handlers = new Set();
window.sent = [];
window.told = (content) => handlers.forEach((handle) => handle(content));
const model = {{ get: (name) => ({state})[name], send: (content) => window.sent.push(content),
  on: (_, handle) => handlers.add(handle), off: (_, handle) => handlers.delete(handle) }};
window.leave = widget.render({{ model, el: document.body }});
</script>"""


@pytest.fixture
def widget(monkeypatch):
    from diffeqformer.explorer.widget import Explorer

    made, sent = Explorer(run_of("diffeqformer"), text=TEXT, height=700), []
    monkeypatch.setattr(made, "send", sent.append)
    return made, sent


def test_questions_of_the_frame_are_answered_by_the_kernel(widget, tmp_path):
    made, sent = widget
    question = {"run": 0, "text": TEXT, "steps": 3, "scheme": "euler", "rtol": None}
    assert (made.height, made.traits(sync=True)["page"].name) == (
        700,
        "page",
    ) and "connect-src &#39;none&#39;" in made.page
    for asked, said in (
        ({"id": "1", "name": "read", "question": {**question, "steps": 0}}, "steps is 0"),
        ({"id": "2", "name": "nosuch", "question": question}, "no such question"),
        ({"id": "3", "name": "read", "question": {**question, "scheme": {}}}, "scheme is {}"),
    ):
        made._asked(made, asked, [])
        assert sent[-1]["id"] == asked["id"] and said in sent.pop()["error"]
    made._asked(made, "nonsense", [])
    assert not sent

    state = json.dumps({"page": made.page, "height": 700}).replace("</", "<\\/")
    module = made._esm.replace("export default", "const exported =").rstrip().rstrip(";") + ";"
    host = tmp_path / "host.html"
    host.write_text(HOST.format(module=module, module_name="exported", state=state))
    browser = Browser(tmp_path)
    try:
        browser.look(1280)
        browser.open(host.as_uri())
        answered = 0
        while answered < 3:  # what the page shows first: the text after every step, a cell, and how far its planes go
            browser.wait(f"window.sent?.length > {answered}", 5)
            made._asked(made, browser.run(f"return sent[{answered}]"), [])
            browser.run("told(arguments[0])", sent[answered])
            answered += 1
        browser._call("/frame", {"id": 0})
        browser.wait("document.body?.dataset.ready")
        assert browser.run(SEEN)["cells"] == cells_of(made._session.read(question))
        browser._call("/frame", {"id": None})
        browser.run("leave(); told({id: sent[0].id});")
        assert not browser.complaints()
    finally:
        browser.close()
