"""Messages of the protocol over standard input and output, with size limits. Even invalid requests get an answer.

pygls reads the same frames, but allocates any size that a header states, and leaves invalid requests unanswered.
"""

from __future__ import annotations

import asyncio
import re
from typing import BinaryIO

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException
from pygls.io_ import StdoutWriter
from pygls.lsp.server import LanguageServer

from planc.files import parse_json

MOST_BYTES = 64_000_000
"""Limit on the size of a message (bytes)."""
MOST_HEADER = 4_096
"""Limit on the length of a header line (bytes)."""
_LENGTH = re.compile(rb"content-length:\s*(\d{1,20})\s*", re.IGNORECASE)


class FramingError(Exception):
    """Raised for a message or a header line that is too long, after which the next message cannot be found."""


def read_message(stream: BinaryIO) -> bytes | None:
    """Return the bytes of the next message of `stream`; None at its end.

    Lines that are not headers are skipped. Raises FramingError for a message of more than MOST_BYTES, without reading
    it, and for a line of more than MOST_HEADER bytes.
    """
    length: int | None = None
    while line := stream.readline(MOST_HEADER):
        if len(line) == MOST_HEADER and not line.endswith(b"\n"):
            raise FramingError(f"a line of more than {MOST_HEADER:,} bytes is no header")
        if (match := _LENGTH.fullmatch(line)) is not None:
            length = int(match[1])
        if length is not None and length > MOST_BYTES:
            raise FramingError(f"a message of {length:,} bytes, and at most {MOST_BYTES:,} are read")
        if length is not None and not line.strip():
            body = stream.read(length)
            return body if len(body) == length else None
    return None


def serve(server: LanguageServer, stdin: BinaryIO, stdout: BinaryIO) -> int:
    """Answer the messages of `stdin` on `stdout` with `server` until the client ends.

    Returns the exit status, the number of failures: 1 if the server could not continue, else 0.
    """
    server.protocol.set_writer(StdoutWriter(stdout))
    try:
        return asyncio.run(_serve(server, stdin))
    except (BrokenPipeError, KeyboardInterrupt):
        return 1
    except SystemExit as ended:  # how pygls takes an `exit`
        return int(ended.code or 0)
    finally:
        server.shutdown()  # type: ignore[no-untyped-call]


async def _serve(server: LanguageServer, stdin: BinaryIO) -> int:
    loop = asyncio.get_running_loop()
    while True:
        try:
            body = await loop.run_in_executor(server.thread_pool, read_message, stdin)
        except FramingError as error:
            _refuse(server, None, lsp.ErrorCodes.InvalidRequest, f"{error}; the server ends")
            return 1
        if body is None:
            return 0
        _take(server, body)


def _take(server: LanguageServer, body: bytes) -> None:
    """Handle one message; an invalid one is answered with an error, if it is a request."""
    try:
        data = parse_json(body)
    except ValueError:
        _refuse(server, None, lsp.ErrorCodes.ParseError, "the message is no JSON, or is nested too deeply")
        return
    number = data.get("id") if isinstance(data, dict) else None
    known = isinstance(number, (int, str)) and not isinstance(number, bool)
    request = isinstance(data, dict) and isinstance(data.get("method"), str)
    if not isinstance(data, dict) or data.get("jsonrpc") != "2.0" or ("id" in data and request and not known):
        why = "the message is no request, notification or answer of JSON-RPC 2.0"
        _refuse(server, number if known else None, lsp.ErrorCodes.InvalidRequest, why)
        return

    def answer(code: lsp.ErrorCodes, why: str) -> None:
        if known and request:
            _refuse(server, number, code, why)

    if server.protocol._shutdown and data.get("method") != lsp.EXIT:
        answer(lsp.ErrorCodes.InvalidRequest, "the server shuts down")
        return
    try:
        message = server.protocol.structure_message(data)
    except (JsonRpcException, RecursionError):
        answer(lsp.ErrorCodes.InvalidParams, f"{str(data.get('method'))[:100]} does not take these parameters")
        return
    try:
        server.protocol.handle_message(message)
    except BrokenPipeError:
        raise
    except Exception as error:
        answer(lsp.ErrorCodes.InternalError, repr(error)[:1_000])


def _refuse(server: LanguageServer, number: int | str | None, code: lsp.ErrorCodes, why: str) -> None:
    server.protocol._send_data({"jsonrpc": "2.0", "id": number, "error": {"code": int(code), "message": why}})
