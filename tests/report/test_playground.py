"""The playground in a headless browser: every command answers, a link brings its plan back, nothing is asked elsewhere.

Run by `make playground`, which builds it first; the pictures lie in build/pages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.plans import ROOT
from tests.report.browser import PHONE, Browser, Page, browser, executable
from tests.report.test_plan_page import EVIL

BUILT = ROOT / "build" / "playground" / "html"
PICTURES = ROOT / "build" / "pages"
LOAD_S, ANSWER_S = 120.0, 60.0
"""Longest times on a busy machine; the figures of a quiet one are in docs/measured/ledger.toml."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason="no chromium on this machine: `apt-get install chromium`"),
    pytest.mark.skipif(not (BUILT / "index.html").exists(), reason="`make playground` builds it"),
]
HOSTILE = f"plan x\nmodel {EVIL}\n"


class Handler(SimpleHTTPRequestHandler):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given, directory=str(BUILT))

    def log_message(self, *_: object) -> None:
        """Nothing is said."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/index.html"
    server.shutdown()


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with browser() as made:
        yield made


def until(tab: Page, condition: str, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while not tab.evaluate(f"!!({condition})"):
        assert time.monotonic() < end_s, (condition, tab.errors, tab.evaluate("document.body.innerText"))
        time.sleep(0.1)


def opened(started: Browser, address: str, *, dark: bool = False, width: int = 1000) -> Page:
    """The page, its first check answered."""
    tab = started.page()
    tab.call(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    )
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    tab.call("Page.navigate", url=address)
    until(tab, "document.body && document.body.dataset.state === 'done'", LOAD_S)
    return tab


def answer(tab: Page, command: str) -> tuple[int, str]:
    """Status and text of a command."""
    tab.evaluate(f"document.getElementById('{command}').click()")
    until(tab, f"document.body.dataset.state === 'done' && document.body.dataset.command === '{command}'", ANSWER_S)
    status, text = tab.evaluate("[+document.body.dataset.status, document.getElementById('answer').textContent]")
    return status, text


def write(tab: Page, area: str, text: str) -> None:
    tab.evaluate(f"document.getElementById('{area}').value = {json.dumps(text)}")


def silent(tab: Page, address: str) -> None:
    """Nothing was logged or refused, and nothing was asked of another server."""
    assert tab.errors == [] and tab.dialogs == []
    assert all(request.startswith((address.rpartition("/")[0], "blob:", "about:")) for request in tab.requests)


def test_every_command_answers_as_planc_does(started: Browser, address: str) -> None:
    tab = opened(started, address)
    PICTURES.mkdir(parents=True, exist_ok=True)
    tab.screenshot(PICTURES / "playground_light.png")
    tiny = (ROOT / "plans/tiny.plan").read_text()
    assert tab.evaluate("document.getElementById('plan').value") == tiny
    command = [sys.executable, "-m", "planc.cli", "check", "plans/tiny.plan"]
    expected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert answer(tab, "check") == (0, expected)
    status, text = answer(tab, "cost")
    assert status == 0 and "matmul of ffn" in text
    write(tab, "plan", tiny.replace("model     llama_tiny", "model llama_tiny"))
    assert answer(tab, "fmt")[0] == 0 and tab.evaluate("document.getElementById('plan').value") == tiny
    write(tab, "other", tiny.replace("fsdp 2 > tp 2", "fsdp 1 > tp 4"))
    status, text = answer(tab, "diff")
    assert "fsdp 1 > tp 4" in text and status in (0, 1)
    write(tab, "plan", tiny.replace("fsdp 2 > tp 2", "fsdp ? > tp ?"))
    status, text = answer(tab, "search")
    assert status == 0 and "layouts decided" in text and "fsdp 2, tp 2" in text
    status, text = answer(tab, "report")
    assert status == 1 and "E" in text  # nothing may be free in a report
    write(tab, "plan", tiny)
    status, text = answer(tab, "report")
    assert status == 0 and "tiny" in text and not tab.evaluate("document.getElementById('page').hidden")
    time.sleep(1.0)
    tab.screenshot(PICTURES / "playground_report.png")
    silent(tab, address)


def test_a_link_brings_its_plan_and_a_check_takes_less_than_a_second(started: Browser, address: str) -> None:
    tab = opened(started, address, dark=True)
    write(tab, "plan", (ROOT / "plans/llama3_70b_h100.plan").read_text())
    answer(tab, "check")
    until(tab, "location.hash.length > 100", ANSWER_S)
    link = tab.evaluate("location.href")
    again = opened(started, link, width=PHONE)
    assert again.evaluate("document.getElementById('plan').value") == (ROOT / "plans/llama3_70b_h100.plan").read_text()
    answer(again, "check")
    seconds = float(again.evaluate("document.body.dataset.seconds"))
    print(f"check of llama3_70b_h100 in {seconds:.2f} s")
    shown = again.evaluate("document.getElementById('answer').textContent").splitlines()
    assert max(map(len, shown)) <= 50  # as on a terminal of the page's columns
    assert again.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    again.screenshot(PICTURES / "playground_phone.png")
    tab.screenshot(PICTURES / "playground_dark.png")
    silent(tab, address)
    silent(again, address)


def test_a_hostile_plan_and_a_damaged_link_run_nothing(started: Browser, address: str) -> None:
    tab = opened(started, f"{address}#plan=!!!")
    write(tab, "plan", HOSTILE)
    for command in ("check", "cost", "report"):
        answer(tab, command)
    assert tab.evaluate("document.querySelectorAll('pre *, img, object').length") == 0
    silent(tab, address)


def test_every_plan_of_the_tree_is_checked_as_on_this_python(started: Browser, address: str, tmp_path: Path) -> None:
    """Python 3.14 of Pyodide gives the answers of this Python, plan by plan."""
    tab = opened(started, address)
    for path in sorted((ROOT / "plans").glob("*.plan")):
        write(tab, "plan", path.read_text())
        here = tmp_path / "plan.plan"
        here.write_text(path.read_text())
        command = [sys.executable, "-m", "planc.cli", "check", "plan.plan"]
        expected = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert answer(tab, "check") == (expected.returncode, expected.stdout), path.name
    silent(tab, address)
