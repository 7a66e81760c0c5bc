"""A real browser, headless, to open a page in: Debian's Chromium, spoken to through a pipe.

Chromium reads requests of its DevTools protocol from file descriptor 3, and writes answers and
events to 4; each ends with a NUL. So no port is opened, and no driver is needed. What a page
writes to the console, what it asks the network for, and what its policy refused is collected.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE_S = 120.0
LACKS = "Chromium is not installed: as root on Debian, tests/services/install.sh installs it"


def program() -> str | None:
    """Return where the browser is."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One browser with one page.

    Args:
        folder: where it keeps its profile.
    """

    def __init__(self, folder: Path) -> None:
        found = program()
        assert found is not None, LACKS
        for_it, self._to = os.pipe()
        self._from, from_it = os.pipe()
        for descriptor in (for_it, from_it):
            os.set_inheritable(descriptor, True)
        wanted = f'exec 3<&{for_it} 4>&{from_it}; exec "$0" "$@"'
        self._log = (folder / "browser.log").open("wb")
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", wanted, found, *FLAGS, f"--user-data-dir={folder}/profile"],
            pass_fds=(for_it, from_it),
            env={**os.environ, "HOME": str(folder)},
            stdout=self._log,
            stderr=self._log,
        )
        os.close(for_it)
        os.close(from_it)
        self._read, self._number, self._session = b"", 0, ""
        self.requests: list[str] = []
        self.console: list[str] = []
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._log.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Make a request and return its result."""
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._to, json.dumps(request).encode() + b"\0")
        limit_s = time.monotonic() + PATIENCE_S
        while True:
            message = self._next(limit_s)
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def open(self, page: Path, *, dark: bool = False, script: bool = True) -> None:
        """Open a page, and wait until it has loaded."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Emulation.setDeviceMetricsOverride", width=1240, height=900,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip
        self.requests, self.console, self._loaded = [], [], False
        self.call("Page.navigate", url=page.as_uri())
        limit_s = time.monotonic() + PATIENCE_S
        while not self._loaded:
            self._next(limit_s)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or what it promises, in the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def move_to(self, selector: str) -> None:
        """Move the pointer to the middle of an element, once it has been scrolled into view."""
        script = """new Promise(done => {
            const found = document.querySelector(SELECTOR);
            found.scrollIntoView({block: "center"});
            const told = () => {
                const box = found.getBoundingClientRect();
                done([box.x + box.width / 2, box.y + box.height / 2]);
            };
            requestAnimationFrame(() => requestAnimationFrame(told));
        })"""
        box = self.evaluate(script.replace("SELECTOR", json.dumps(selector)))
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def screenshot(self, file: Path) -> None:
        """Write a picture of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _next(self, limit_s: float) -> dict[str, Any]:
        while b"\0" not in self._read:
            left_s = limit_s - time.monotonic()
            assert left_s > 0, "the browser does not answer"
            ready, _, _ = select.select([self._from], [], [], min(left_s, 1.0))
            if not ready:
                assert self._process.poll() is None, "the browser has died"
                continue
            data = os.read(self._from, 1 << 20)
            assert data, f"the browser has died: {Path(self._log.name).read_text()[-2000:]}"
            self._read += data
        text, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        found = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(found["request"]["url"])
            case "Runtime.consoleAPICalled":
                self.console.append(str(found["args"]))
            case "Runtime.exceptionThrown":
                self.console.append(str(found["exceptionDetails"]))
            case "Log.entryAdded":
                self.console.append(found["entry"]["text"])
            case "Page.loadEventFired":
                self._loaded = True
