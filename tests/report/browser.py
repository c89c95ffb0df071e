"""A headless Chromium, spoken to in its DevTools protocol over two pipes: no port, and no package but the browser."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
WAIT_S = 120.0


def find() -> str | None:
    """The browser's program."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A browser with one page."""

    def __init__(self, program: str) -> None:
        """Starts it with a profile of its own."""
        self.profile = tempfile.mkdtemp(prefix="millrace-report-")
        self.messages = 0
        self.unread = b""
        self.complaints: list[str] = []
        to_browser, self.out = os.pipe()
        self.inp, from_browser = os.pipe()
        # A container has no user namespaces for the sandbox, and little shared memory. The page is our own.
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={self.profile}", "--no-first-run", "about:blank"]

        def pipes() -> None:
            # The protocol's descriptors are 3 and 4. First away from there, in case that the pipes are just these.
            high = [os.dup(to_browser), os.dup(from_browser)]
            high = [os.dup(high[0]), os.dup(high[1])] if min(high) < 5 else high
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.child = subprocess.Popen(
            [program, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=pipes,
            pass_fds=(3, 4, to_browser, from_browser),
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """Ends it, and removes its profile."""
        try:
            self.session = None
            self.call("Browser.close")
            self.child.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.child.kill()
            self.child.wait()
        os.close(self.out)
        os.close(self.inp)
        # Its children may write to the profile for a moment longer.
        for _ in range(20):
            shutil.rmtree(self.profile, ignore_errors=True)
            if not Path(self.profile).exists():
                return
            time.sleep(0.1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Has the browser do something, and waits for its answer."""
        self.messages += 1
        message: dict[str, Any] = {"id": self.messages, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.messages:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])

    def receive(self) -> dict[str, Any]:
        """The next message. What a page complains of is kept."""
        deadline = time.monotonic() + WAIT_S
        while b"\0" not in self.unread:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.inp], [], [], left)[0], "the browser says nothing"
            more = os.read(self.inp, 1 << 20)
            assert more, "the browser has gone"
            self.unread += more
        text, _, self.unread = self.unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"])[:2000])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            if parameters.get("type") != "Document":
                self.complaints.append(f"it asks for {parameters['request']['url'][:200]}")
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"it opens a dialogue: {parameters['message']}")
            self.messages += 1
            answer = {"id": self.messages, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            os.write(self.out, json.dumps(dict(answer, sessionId=self.session)).encode() + b"\0")
        return message

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        said = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def media(self, scheme: str, kind: str = "") -> None:
        """Light or dark; on a screen, or as `print`."""
        self.call(
            "Emulation.setEmulatedMedia", media=kind, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def width(self, pixels: int, height: int = 900) -> None:
        """The window's size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=pixels, height=height, deviceScaleFactor=1, mobile=False
        )

    def open(self, path: Path) -> None:
        """Opens a file, and waits until it is loaded."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + WAIT_S
        while self.evaluate("location.href + document.readyState") != path.resolve().as_uri() + "complete":
            assert time.monotonic() < deadline, "the page is not loaded"
            time.sleep(0.05)

    def settle(self) -> None:
        """Waits until what has changed has been laid out and drawn."""
        frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"
        self.evaluate(frame)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """The page as a picture: all of it, or what the window shows."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self, path: Path) -> None:
        """The page as it is printed."""
        data = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)["data"]
        path.write_bytes(base64.b64decode(data))
