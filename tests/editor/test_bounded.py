"""The server answers whatever it is sent, and while it checks; what is no message does not end it badly."""

import asyncio
import io
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planc.editor.opened import EditorSettings, open_file
from planc.editor.transport import MOST_BYTES, FramingError, read_message
from planc.editor.work import Work
from tests.editor.client import Client
from tests.plans import BODY, HEAD

INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR = -32602, -32600, -32700
FILES = 40


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    client = Client(tmp_path_factory.mktemp("workspace"), stderr=subprocess.PIPE)
    client.initialize()
    yield client
    client.request("shutdown", None)
    assert client.answer("textDocument/hover")["error"]["code"] == INVALID_REQUEST
    client.notify("exit", None)
    assert client.process.wait(timeout=60) == 0
    assert client.process.stderr is not None and b"Traceback" not in client.process.stderr.read()


def place(path: Path, line: int, character: int) -> dict[str, Any]:
    return {"textDocument": {"uri": path.as_uri()}, "position": {"line": line, "character": character}}


@pytest.mark.launch
def test_a_request_is_answered_before_the_files_that_wait_are_checked(client: Client, tmp_path: Path) -> None:
    """Every opening checked all files before the next message was read."""
    paths = [tmp_path / f"{i}.plan" for i in range(FILES)]
    for number, path in enumerate(paths):
        text = HEAD + BODY + f"# {number}\n"
        document = {"uri": path.as_uri(), "languageId": "planc", "version": 1, "text": text}
        client.notify("textDocument/didOpen", {"textDocument": document})
    while (answer := client.ask("hover", paths[-1], 1, 2)) is None:
        pass  # the very first check loads planc
    assert "`model NAME" in answer["contents"]["value"]
    checked = [path for path in paths if path.as_uri() in client.published]
    assert len(checked) < FILES
    assert client.findings(paths[0]) == client.findings(paths[FILES // 2]) == []


@pytest.mark.launch
def test_a_request_that_makes_no_sense_is_answered_with_an_error(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "odd.plan"
    client.open(path, HEAD + BODY)
    odd: list[Any] = [place(path, *at) for at in ((-1, 0), (0, -1), (2**40, 0))]
    for params in (*odd, {}, None, [], 7, {"position": {}}):
        for method in ("hover", "definition", "completion", "formatting", "codeAction", "documentSymbol"):
            if method in ("formatting", "codeAction", "documentSymbol") and isinstance(params, dict) and params:
                continue
            answer = client.answer(f"textDocument/{method}", params)
            assert answer["error"]["code"] == INVALID_PARAMS, (method, params, answer)
    assert client.ask("hover", path, 2**31 - 1, 2**31 - 1) is None
    assert client.answer("textDocument/nothing", {})["error"]["code"] == -32601
    assert client.ask("hover", path, 1, 2)["contents"]["value"]


@pytest.mark.launch
def test_what_is_no_message_is_answered_and_the_next_one_is_read(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "framing.plan"
    client.open(path, HEAD + BODY)
    bodies = {
        b"{": PARSE_ERROR,
        b"\xff\xfe": PARSE_ERROR,
        b"[" * 100_000: PARSE_ERROR,
        b"[]": INVALID_REQUEST,
        b"7": INVALID_REQUEST,
        b'{"id": null, "method": "shutdown", "jsonrpc": "2.0"}': INVALID_REQUEST,
        b'{"id": [1], "method": "shutdown", "jsonrpc": "2.0"}': INVALID_REQUEST,
        b'{"method": 7}': INVALID_REQUEST,
    }
    for body, code in bodies.items():
        client.send_bytes(b"content-length: %d\r\nContent-Type: x\r\n\r\n" % len(body) + body)
        assert client.answer_to(None)["error"]["code"] == code, body[:80]
    client.send_bytes(b"no header\r\nContent-Length: -5\r\nContent-Length: five\r\n\r\n\r\n")
    client.notify("textDocument/didOpen", {"textDocument": 5})
    assert client.ask("hover", path, 1, 2)["contents"]["value"]


@pytest.mark.launch
def test_changes_of_5_mb_while_a_check_runs_are_answered(client: Client, tmp_path: Path) -> None:
    """None is waited for: a request that comes between is answered, and the last text is the one that counts."""
    path, other = tmp_path / "large.plan", tmp_path / "other.plan"
    client.open(other, HEAD + BODY)
    client.open(path, HEAD + BODY)
    for version, line in enumerate(("# a comment\n", "use fsdp over fsdp\n", "model [model [\n", ""), 2):
        text = HEAD + BODY + line * (5_000_000 // max(len(line), 1) if line else 0)
        identity = {"uri": path.as_uri(), "version": version}
        client.notify("textDocument/didChange", {"textDocument": identity, "contentChanges": [{"text": text}]})
        assert "error" not in client.answer("textDocument/hover", place(other, 1, 2))
    while client.findings(path, len(client.published[path.as_uri()])):
        client.findings(path, len(client.published[path.as_uri()]) + 1)
    while (answer := client.ask("hover", other, 1, 2)) is None:
        pass  # the check goes on
    assert "`model NAME" in answer["contents"]["value"]


@pytest.mark.launch
def test_a_message_beyond_the_bound_ends_the_server_with_an_answer(tmp_path: Path) -> None:
    client = Client(tmp_path, stderr=subprocess.PIPE)
    client.initialize()
    client.send_bytes(b"Content-Length: 99999999999\r\n\r\n{")
    error = client.answer_to(None)["error"]
    assert error["code"] == INVALID_REQUEST and "99,999,999,999 bytes" in error["message"]
    assert client.process.wait(timeout=60) == 1
    assert client.process.stderr is not None and client.process.stderr.read() == b""


def test_frames_are_read_one_by_one() -> None:
    stream = io.BytesIO(b"x\nContent-Length: 2\r\n\r\n{}CONTENT-LENGTH:1\r\nA: b\r\n\r\n7Content-Length: 9\r\n\r\n{")
    assert [read_message(stream) for _ in range(4)] == [b"{}", b"7", None, None]
    for bad in (b"Content-Length: %d\r\n\r\n" % (MOST_BYTES + 1), b"x" * 5_000):
        with pytest.raises(FramingError):
            read_message(io.BytesIO(bad))


def test_requests_go_before_checks_and_a_check_waits_once() -> None:
    order: list[str] = []

    async def use() -> None:
        work, first = Work(), asyncio.Event()

        async def check(uri: str) -> None:
            if uri == "first":
                await first.wait()
            order.append(uri)

        work.check("first", check)
        for uri in ("a", "b", "a"):
            work.check(uri, check)
        one = work.ask(lambda: order.append("one"), lambda: False, 9, 9)
        stale = work.ask(lambda: order.append("stale"), lambda: True, 9, 9)
        asked = asyncio.gather(one, stale)
        await asyncio.sleep(0.01)
        first.set()
        await asked
        while len(order) < 4:
            await asyncio.sleep(0)
        work.check("a", check)
        while len(order) < 5:
            await asyncio.sleep(0)

    asyncio.run(use())
    assert order == ["first", "one", "a", "b", "a"]


def test_a_request_whose_turn_does_not_come_is_not_begun() -> None:
    begun: list[str] = []

    async def use() -> None:
        work, end = Work(), asyncio.Event()

        async def check(_: str) -> None:
            await end.wait()

        work.check("a", check)
        await asyncio.sleep(0)
        await work.ask(lambda: begun.append("late"), lambda: False, 0, 9)
        end.set()
        assert await work.ask(lambda: 7, lambda: False, 9, 9) == 7

    asyncio.run(use())
    assert begun == []


def test_a_text_that_is_too_large_for_a_plan_is_not_read(tmp_path: Path) -> None:
    opened = open_file(tmp_path / "a.plan", "x\n" * 600_000, {}, EditorSettings())
    assert [d.code for d in opened.diagnostics] == ["E0105"] and not opened.sentences


def test_a_request_that_is_cancelled_as_its_turn_comes_ends_at_once() -> None:
    """As when the client goes while a question is in flight: the server waited 10 seconds for an answer of nobody."""

    async def left() -> set[asyncio.Task[None]]:
        work, asked = Work(), list[asyncio.Task[None]]()

        def goes() -> bool:
            """Called in the moment in which the turn has come."""
            asked[0].cancel()
            assert work._draining is not None
            work._draining.cancel()
            return False

        asked.append(asyncio.create_task(work.ask(lambda: None, goes, 60, 60)))
        return (await asyncio.wait(asked, timeout=5))[1]

    assert asyncio.run(left()) == set()
