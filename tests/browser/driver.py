"""A real browser for tests: Chromium through ChromeDriver, by the WebDriver protocol. CHROMIUM names the browser."""

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014",
        "ArrowDown": "\ue015", "End": "\ue010", "Home": "\ue011", "Control": "\ue009"}  # fmt: skip


def browser() -> str:
    """The browser's path."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    assert found, f"no browser among {', '.join(NAMES)}: install one, or name it in CHROMIUM."
    return found


class Browser:
    """One window, as wide as a desktop's or a phone's, light or dark."""

    def __init__(self, folder: Path) -> None:
        driver = shutil.which("chromedriver")
        assert driver, "no chromedriver: install it beside the browser."
        self.process = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout
        line = next(line for line in self.process.stdout if "started successfully on port" in line)
        self.root = f"http://127.0.0.1:{line.split()[-1].rstrip('.')}/session"
        options = {"binary": browser(), "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"]}
        wanted = {
            "capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        }
        self.root += "/" + self._call("", wanted)["sessionId"]

    def close(self) -> None:
        """End the browser and its driver."""
        request = urllib.request.Request(self.root, method="DELETE")
        urllib.request.urlopen(request, timeout=30).close()
        self.process.terminate()
        self.process.wait(10)

    def look(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """As wide as that, and of that scheme of colours, from now on."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._cdp("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._cdp("Emulation.setEmulatedMedia", {"features": scheme})

    def open(self, address: str) -> None:
        """Go to a page."""
        self._call("/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self._call("/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Click in the middle of an element, as a person does."""
        self._call(f"/element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str, *, clear: bool = False) -> None:
        """Type into an element."""
        element = self._find(selector)
        if clear:
            self._call(f"/element/{element}/clear", {})
        self._call(f"/element/{element}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def complaints(self) -> list[str]:
        """What the browser's console has to say."""
        return [entry["message"] for entry in self._call("/se/log", {"type": "browser"})]

    def picture(self, path: Path, *, whole: bool = True) -> Path:
        """Save what is seen, or the whole page, as PNG."""
        found = self._cdp("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def _find(self, selector: str) -> str:
        return self._call("/element", {"using": "css selector", "value": selector})[ELEMENT]

    def _cdp(self, command: str, parameters: dict) -> Any:
        return self._call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _call(self, path: str, content: dict) -> Any:
        request = urllib.request.Request(self.root + path, json.dumps(content).encode())
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None
