"""A headless browser, spoken to over two pipes in its own protocol: what a page shows, logs and asks for.

Debian's `chromium` is enough. `python tests/report/browser.py PAGE.html FOLDER` writes screenshots of a page: light,
dark, at a telephone's width, and as it is printed.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60.0
PHONE = 390


def executable() -> str | None:
    """Path of a browser on this machine; None without one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(RuntimeError):
    """The browser has ended, or does not answer."""


@dataclass
class Page:
    """A tab. `errors` are messages of the console and refusals, `requests` the addresses that the page asked for."""

    browser: Browser
    session: str
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Answer of a command of the browser's protocol."""
        return self.browser.call(method, self.session, **params)

    def open(self, path: Path, *, dark: bool = False, width: int = 1000, height: int = 900, media: str = "") -> None:
        """Load a file and wait until it has drawn itself."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.evaluate(
            "new Promise(r => document.readyState === 'complete' ? r() : addEventListener('load', () => r()))"
        )
        self.evaluate("new Promise(r => setTimeout(() => requestAnimationFrame(() => r()), 250))")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def screenshot(self, to: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page, or of what is in sight."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        to.write_bytes(base64.b64decode(data["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12000), "scale": 1}}

    def pdf(self, to: Path) -> None:
        """Write the page as it is printed on A4."""
        data = self.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        to.write_bytes(base64.b64decode(data["data"]))


class Browser:
    """A browser process. It is ended with the context that started it."""

    def __init__(self, process: subprocess.Popen[bytes], read: int, write: int) -> None:
        self._process, self._read, self._write = process, read, write
        self._buffer, self._last = b"", 0
        self._pages: dict[str, Page] = {}

    def page(self) -> Page:
        """A new tab, whose console and requests are noted."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        return page

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come before it are noted."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        deadline = monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select([self._read], [], [], max(0.0, deadline - monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise BrowserError("the browser does not answer" if not ready else "the browser has ended")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        read: dict[str, Any] = json.loads(text)
        return read

    def _note(self, event: dict[str, Any]) -> None:
        page, method, params = self._pages.get(event.get("sessionId", "")), event.get("method"), event.get("params", {})
        if page is None:
            return
        if method == "Network.requestWillBeSent":
            page.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            page.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            page.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded":
            page.errors.append(params["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            page.dialogs.append(params["message"])
            page.call("Page.handleJavaScriptDialog", accept=False)


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless browser with a profile of its own, ended and removed afterwards."""
    path = executable()
    if path is None:
        raise BrowserError("no chromium on this machine")
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
        quiet = (
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-extensions",
        )
        words = [path, *options, *quiet, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash", *words],
            pass_fds=(to_read, from_write),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(process, from_read, to_write)
        finally:
            os.close(to_write)
            os.close(from_read)
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def pictures(source: Path, folder: Path) -> list[Path]:
    """Screenshots of a page, four of them, and its print."""
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as started:
        made = []
        for name, dark, width in (("light", False, 1000), ("dark", True, 1000), ("phone", False, PHONE)):
            page = started.page()
            page.open(source, dark=dark, width=width)
            made.append(folder / f"{source.stem}_{name}.png")
            page.screenshot(made[-1])
        made.append(folder / f"{source.stem}_print.pdf")
        page = started.page()
        page.open(source)
        page.pdf(made[-1])
    return made


if __name__ == "__main__":
    for written in pictures(Path(sys.argv[1]), Path(sys.argv[2])):
        print(written)
