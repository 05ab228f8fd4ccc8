"""Traffic of an editor with the language server: texts that change, questions, odd params, broken frames."""

from __future__ import annotations

import io
import json
import logging
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planc.editor.server as servers
from tests.fuzz.edits import edited, made
from tests.fuzz.inputs import make as damaged
from tests.fuzz.kinds import Kind
from tests.fuzz.near import bases, near

Message = dict[str, Any]
QUESTIONS = ("hover", "definition", "completion", "formatting", "documentSymbol", "codeAction")
OTHERS = ("shutdown", "exit", "initialize", "$/cancelRequest", "textDocument/rename", "workspace/didChangeWatchedFiles")
HEADERS = (
    "Content-Length: 0\r\n\r\n", "Content-Length: 10\r\n\r\n{}", "Content-Length: -1\r\n\r\n", "\r\n\r\n", "x" * 50,
    "Content-Length: 2\r\n\r\n{}", "Content-Length: 4\r\n\r\n\x00\xff\xfe[",
    "Content-Length: 9\r\nContent-Length: 2\r\n\r\n[]",
    "content-length: 2\r\n\r\n{}", "Content-Type: x\r\nContent-Length: 4\r\n\r\nnull", "Content-Length: 3\r\n\r\n[1]",
)  # fmt: skip
UNINITIALISED = "has the server been initialized?"
"""Answer of pygls to questions that come before `initialize`."""
LAST = "last"
"""The id of a question at the end, which must be answered whatever was sent before."""


def make(seed: int, index: int) -> bytes:
    """A session of a few files: two of three have odd values or missing parts, some have broken frames."""
    rng = random.Random(f"{seed}:{index}")
    messages = list(_session(rng))
    edits = made(rng, messages) + (made(rng, messages) if rng.random() < 0.5 else []) if rng.random() < 0.67 else []
    found = [m for m in edited(messages, edits) if m is not None]
    if rng.random() < 0.1:
        found.insert(rng.randrange(len(found) + 1), {"raw": rng.choice(HEADERS)})
    return json.dumps(found).encode()


def _session(rng: random.Random) -> Iterator[Message]:
    params = {"processId": None, "rootUri": None, "capabilities": {}, "initializationOptions": {"target": "xla"}}
    yield {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    yield {"jsonrpc": "2.0", "method": "initialized", "params": {}}
    opened: list[str] = []
    for number in range(1, rng.randint(3, 9)):
        name = rng.choice(("a", "a", "b", "own"))
        uri = f"FOLDER/{name}.plan"
        if uri not in opened:
            opened.append(uri)
            yield _told("didOpen", {"textDocument": _document(uri, number, _text(rng))})
        elif rng.random() < 0.35:
            change = {"text": _text(rng)}
            yield _told("didChange", {"textDocument": {"uri": uri, "version": number}, "contentChanges": [change]})
        elif rng.random() < 0.15:
            yield _told(rng.choice(("didClose", "didSave")), {"textDocument": {"uri": uri}})
        elif rng.random() < 0.1:
            yield {
                "jsonrpc": "2.0",
                "id": number,
                "method": rng.choice(OTHERS),
                "params": rng.choice((None, {}, {"id": 1})),
            }
        else:
            yield _question(rng, uri, number)


def _told(method: str, params: Message) -> Message:
    return {"jsonrpc": "2.0", "method": f"textDocument/{method}", "params": params}


def _document(uri: str, version: int, text: str) -> Message:
    return {"uri": uri, "languageId": "planc", "version": version, "text": text}


def _question(rng: random.Random, uri: str, number: int) -> Message:
    """A request with everything that any of them wants."""
    place = {
        "line": rng.choice((0, 1, 2, 3, 5, 8, 20, 2**31 - 1)),
        "character": rng.choice((0, 1, 6, 10, 14, 30, 2**31 - 1)),
    }
    params = {
        "textDocument": {"uri": uri}, "position": place, "range": {"start": place, "end": place},
        "context": {"diagnostics": []}, "options": {"tabSize": 4, "insertSpaces": True},
    }  # fmt: skip
    method = f"textDocument/{rng.choice(QUESTIONS)}"
    wanted = {
        "hover": ("position",),
        "definition": ("position",),
        "completion": ("position",),
        "formatting": ("options",),
    }
    keys = wanted.get(method.partition("/")[2], ("range", "context") if method.endswith("Action") else ())
    return {
        "jsonrpc": "2.0", "id": number, "method": method,
        "params": {key: value for key, value in params.items() if key == "textDocument" or key in keys},
    }  # fmt: skip


def _text(rng: random.Random) -> str:
    """A plan in any state of being written."""
    share = rng.random()
    if share < 0.5:
        return near(rng)
    if share < 0.8:
        text = rng.choice(bases())
        return text[: rng.randrange(len(text))]
    return damaged(7, rng.randrange(10**6)).decode("utf-8", "replace")


class Answers(io.BytesIO):
    """Keeps what was written when it is closed."""

    def close(self) -> None:
        """Nothing: the server closes its output when it exits."""


def run(data: bytes, folder: Path, index: int) -> tuple[str, ...]:
    """Serve the session: it ends, nothing of planc failed inside, and a last question is answered."""
    text = json.dumps(json.loads(data)).replace("FOLDER", folder.as_uri())
    messages = [m for m in json.loads(text) if isinstance(m, dict)]
    asked = {"jsonrpc": "2.0", "id": LAST, "method": "textDocument/documentSymbol"}
    asked["params"] = {"textDocument": {"uri": f"{folder.as_uri()}/a.plan"}}  # type: ignore[assignment]
    whole = b"".join(map(_frame, [*messages, asked]))
    server, answers, failed = servers.make_server(), Answers(), list[BaseException]()
    server.report_server_error = lambda error, source: failed.append(error)  # type: ignore[method-assign]
    server.start_io(io.BytesIO(whole), answers)
    found = list(_frames(answers.getvalue()))
    _nothing_failed(found, failed)
    methods = [m.get("method") for m in messages]
    if (
        UNINITIALISED in answers.getvalue().decode("utf-8", "replace")
        or any("raw" in m for m in messages)
        or "exit" in methods
        or "shutdown" in methods
    ):
        return ("out of order",)
    assert any(m.get("id") == LAST for m in found), "the last question is not answered"
    results = sum("result" in m for m in found)
    published = sum(m.get("method") == "textDocument/publishDiagnostics" for m in found)
    return "answered", *(("with findings",) if published else ()), *(("with results",) if results > 2 else ())


def _frame(message: Message) -> bytes:
    if isinstance(message.get("raw"), str):
        return str(message["raw"]).encode("latin-1", "replace")
    body = json.dumps(message).encode()
    return f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def _frames(data: bytes) -> Iterator[Message]:
    """The messages of the server, each whole."""
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
        assert len(rest) >= length, "a message was cut short"
        yield json.loads(rest[:length])
        data = rest[length:]


def _nothing_failed(found: list[Message], failed: list[BaseException]) -> None:
    """No exception of planc's own code: wrong params are refused before they reach it."""
    logged = [m["params"]["message"] for m in found if m.get("method") == "window/logMessage"]
    assert not logged, f"planc failed inside: {logged[0].partition(': ')[2][:60]}"
    errors = [*(m["error"] for m in found if "error" in m), *(vars(e) for e in failed)]
    for error in errors:
        data = error.get("data")
        trace = "".join(data["traceback"]) if isinstance(data, dict) and "traceback" in data else ""
        if "/planc/" in trace and UNINITIALISED not in error["message"]:
            raise AssertionError(f"planc failed inside: {error['message'][:40]} {_last_of(trace)}")


def _last_of(trace: str) -> str:
    """The innermost place in planc, by file and function."""
    return re.findall(r'/planc/(\S+)", line \d+, in (\w+)', trace)[-1:].__repr__()


def warm() -> None:
    logging.getLogger("pygls").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    servers.DELAY_S = 0.0
    near(random.Random(0))
    damaged(7, 3)


KIND = Kind(
    "editor",
    ".json",
    "items",
    20_000,
    make,
    run,
    warm,
    deep=("answered", "with findings", "with results", "out of order"),
)
