"""A real browser, driven through its DevTools protocol over two pipes."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One open page. `events` is everything the browser reported, in order."""

    def __init__(self, to_browser: int, from_browser: int, patience: float = 60) -> None:
        self._to, self._from, self._patience = to_browser, from_browser, patience
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{part}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        deadline = monotonic() + self._patience
        while b"\0" not in self._rest:
            ready, _, _ = select([self._from], [], [], max(deadline - monotonic(), 0))
            part = os.read(self._from, 1 << 16) if ready else b""
            assert part, "the browser does not answer"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        read: dict[str, Any] = json.loads(message)
        return read

    def open(self, path: Path, fragment: str = "", *, width: int = 1280, dark: bool = False) -> None:
        """Load a page in a window of this width and wait until it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._go("about:blank")  # so that another fragment of the same page is a new load too
        self._go(path.resolve().as_uri() + fragment)

    def _go(self, url: str) -> None:
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        text, code = {"Enter": ("\r", 13), "ArrowRight": ("", 39)}[key]
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=text, windowsVirtualKeyCode=code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def point_at(self, element: str) -> None:
        """Move the mouse onto the middle of an element, which is scrolled to."""
        middle = (
            f"(element => {{ element.scrollIntoView({{block: 'center'}}); const box = element.getBoundingClientRect(); "
            f"return [box.x + box.width / 2, box.y + box.height / 2] }})({element})"
        )
        x, y = self.evaluate(middle)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def roles(self) -> list[tuple[str, str]]:
        """What a screen reader is told: roles and names."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]

    def screenshot(self, path: Path) -> None:
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings in the console."""
        found = [event["params"] for event in self.events if event.get("method") == "Runtime.exceptionThrown"]
        for event in self.events:
            if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
                found.append(event["params"]["entry"])
            if event.get("method") == "Runtime.consoleAPICalled":
                found.append(event["params"])
        return [json.dumps(complaint) for complaint in found]

    def requests(self) -> list[str]:
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]


@contextmanager
def browse(program: str, profile: Path) -> Iterator[Page]:
    """Start a browser of its own and end it."""
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    # The protocol wants descriptors 3 and 4, which only a shell can arrange without running code after a fork.
    command = ["bash", "-c", f'exec "$@" 3<&{from_us} 4>&{to_us}', "browser", program]
    command += [*_FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        command,
        pass_fds=(from_us, to_us),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(from_us)
    os.close(to_us)
    try:
        yield Page(to_browser, from_browser)
    finally:
        os.close(to_browser)
        process.terminate()
        process.wait(timeout=30)
        os.close(from_browser)
