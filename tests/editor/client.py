"""A client of the language server: JSON-RPC over the pipes of one `planc lsp` process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

Json = dict[str, Any]
PATIENCE_S = 120
"""A server that has not ended by then is ended: a test that waits in vain fails, and does not hang."""


class Client:
    """Sends a request and waits for its answer; keeps the findings that were published on the way."""

    def __init__(self, folder: Path, stderr: int | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "planc.cli", "lsp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=folder,
        )
        self._patience = threading.Timer(PATIENCE_S, self.process.kill)
        self._patience.start()
        self.published: dict[str, list[list[Json]]] = {}
        self.logged: list[Json] = []
        self._number = 0

    def request(self, method: str, params: Any) -> Any:
        message = self.answer(method, params)
        assert "error" not in message, message["error"]
        return message["result"]

    def answer(self, method: str, params: Any = None, **changed: Any) -> Json:
        """The whole answer of a request, which may be an error; `changed` replaces members of the request."""
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params, **changed})
        return self.answer_to(self._number)

    def answer_to(self, number: int | None) -> Json:
        """The next answer to the request of this number; None: to a message that could not be understood."""
        while True:
            message = self._receive()
            if "method" not in message and message.get("id") == number:
                return message

    def send_bytes(self, data: bytes) -> None:
        """Send `data` as it is, without a header."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def notify(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def initialize(self, **options: Any) -> Json:
        params = {"processId": None, "rootUri": None, "capabilities": {}, "initializationOptions": options}
        result: Json = self.request("initialize", params)
        self.notify("initialized", {})
        return result

    def open(self, path: Path, text: str) -> list[Json]:
        """Open a text under the name of a file, which need not be there; its findings."""
        document = {"uri": path.as_uri(), "languageId": "planc", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": document})
        return self.findings(path)

    def change(self, path: Path, text: str, version: int = 2) -> list[Json]:
        identity = {"uri": path.as_uri(), "version": version}
        before = len(self.published.get(path.as_uri(), []))
        self.notify("textDocument/didChange", {"textDocument": identity, "contentChanges": [{"text": text}]})
        return self.findings(path, before + 1)

    def findings(self, path: Path, number: int = 1) -> list[Json]:
        """Wait until findings have been published so often, and return the last ones."""
        while len(self.published.get(path.as_uri(), [])) < number:
            self._receive()
        return self.published[path.as_uri()][-1]

    def ask(self, what: str, path: Path, line: int = 0, character: int = 0, **more: Any) -> Any:
        """A request about a place of an open text (0-based, UTF-16)."""
        place = {"textDocument": {"uri": path.as_uri()}, "position": {"line": line, "character": character}}
        return self.request(f"textDocument/{what}", {**place, **more})

    def end(self) -> int:
        """Shut down as the protocol says; the exit status."""
        self.request("shutdown", None)
        self.notify("exit", None)
        status = self.process.wait(timeout=20)
        self._patience.cancel()
        return status

    def _send(self, message: Json) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.send_bytes(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def _receive(self) -> Json:
        assert self.process.stdout is not None
        length = 0
        while (line := self.process.stdout.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            length = int(value) if name.lower() == "content-length" else length
        assert length, "the server has gone"
        message: Json = json.loads(self.process.stdout.read(length))
        if message.get("method") == "textDocument/publishDiagnostics":
            self.published.setdefault(message["params"]["uri"], []).append(message["params"]["diagnostics"])
        if message.get("method") == "window/logMessage":
            self.logged.append(message["params"])
        return message
