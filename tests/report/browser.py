"""A small client of Chromium's DevTools protocol over its pipe: real pages, no further dependency."""

import base64
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.needs import needed

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


class Tab:
    """One tab: `call` any DevTools command, `js` an expression; what the console said is kept."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._buffer, self._number = send, receive, b"", 0
        self.session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.loaded = False

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def js(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, path: Path) -> None:
        self.loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self.loaded:
            self._next()

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, media: str = "screen", scheme: str = "light") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._receive, 1 << 20)
            assert chunk, "Chromium closed its pipe."
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """A headless Chromium with one tab; killed at the end."""
    to_child, send = os.pipe()
    receive, from_child = os.pipe()

    # Chromium reads file descriptor 3 and writes 4.
    shell = f'exec "$@" 3<&{to_child} 4>&{from_child}'
    command = [
        "/bin/bash",
        "-c",
        shell,
        "bash",
        needed("chromium"),
        *FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
    ]
    child = subprocess.Popen(
        command, pass_fds=(to_child, from_child), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_child)
    os.close(from_child)
    try:
        page = Tab(send, receive)
        target = None
        while target is None:  # the first tab appears a moment after the pipe
            infos = page.call("Target.getTargets")["targetInfos"]
            target = next((info["targetId"] for info in infos if info["type"] == "page"), None)
            time.sleep(0.05)
        page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        yield page
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        os.close(send)
        os.close(receive)
