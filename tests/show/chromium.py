"""A real, headless Chromium over the DevTools protocol, through its debugging pipe: no driver, no port, no download.

Messages are JSON, each ended by a zero byte, written to the browser's file descriptor 3 and read from its 4
(https://chromedevtools.github.io/devtools-protocol, ``--remote-debugging-pipe``).
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FOUND = next(filter(None, map(shutil.which, NAMES)), None)
MISSING = f"none of {', '.join(NAMES)} is on the path; install one, on Debian: apt-get install chromium"
ANSWER_S = 60.0

UNFOLDED = """(async () => {
    const folded = () => [...document.querySelectorAll('WITHIN details:not([open])')];
    const waiting = () => document.querySelector('WITHIN details[open] > .packed');
    while (folded().length || waiting()) {
        folded().forEach(each => each.open = true);
        await new Promise(done => setTimeout(done, 5));
    }
})()"""
"""Opens all that is folded, where WITHIN is a selector, and waits until what was packed is there."""


class Chromium:
    """One page of one browser. Use as a context manager.

    ``console``: what the page logged, threw or was refused. ``requests``: every address that it asked for.
    """

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        assert FOUND, MISSING
        self._answer_s = answer_s
        self._profile = tempfile.TemporaryDirectory(prefix="leantrain-chromium-", ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def pipes() -> None:
            ends = os.dup(theirs_in), os.dup(theirs_out)  # out of the way of 3 and 4
            for target, end in zip((3, 4), ends, strict=True):
                os.dup2(end, target, inheritable=True)

        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to sandbox for root
        self._process = subprocess.Popen(
            [
                FOUND,
                "--headless=new",
                "--remote-debugging-pipe",
                "--disable-gpu",
                "--no-first-run",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                f"--user-data-dir={self._profile.name}",
                *sandbox,
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=pipes,
            close_fds=False,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._number, self._session = b"", 0, ""
        self.console: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        pages = [each for each in self.ask("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        self._session = self.ask("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._out)  # the browser ends with its pipe
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._profile.cleanup()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command. Raises RuntimeError on the browser's error, TimeoutError on its silence."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear(method)
            if heard.get("id") == self._number:
                if "error" in heard:
                    raise RuntimeError(f"{method}: {heard['error']['message']}")
                return heard["result"]

    def open(self, page: Path, fragment: str = "") -> float:
        """Shows a file, at a fragment of it; returns the seconds until it was loaded and laid out."""
        self.console.clear()
        self.requests.clear()
        self._loaded, start_s = False, time.monotonic()
        self.ask("Page.navigate", url=page.resolve().as_uri() + (fragment and f"#{fragment}"))
        while not self._loaded:
            self._hear("load")
        self.run("document.body.offsetHeight")
        return time.monotonic() - start_s

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """One key, as the user's keyboard sends it."""
        codes = {"Tab": 9, "Enter": 13, "ArrowDown": 40}
        text = {"text": "\r"} if key == "Enter" else {}
        shared: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **shared, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **shared)

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def media(self, *, dark: bool = False, printed: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="print" if printed else "", features=[scheme])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def _hear(self, waiting_for: str) -> dict[str, Any]:
        """The next message; notes events."""
        deadline = time.monotonic() + self._answer_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_READ)
            while b"\0" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"Chromium said nothing about {waiting_for} for {self._answer_s:g} s")
                part = os.read(self._in, 1 << 20)
                if not part:
                    raise RuntimeError(f"Chromium ended while it was asked for {waiting_for}")
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        heard: dict[str, Any] = json.loads(line)
        told = heard.get("params", {})
        match heard.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Runtime.exceptionThrown":
                self.console.append(str(told["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.console.append(str(told["args"]))
            case "Log.entryAdded":
                self.console.append(told["entry"]["text"])
        return heard
