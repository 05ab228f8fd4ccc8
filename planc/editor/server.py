"""The language server: receives open texts, and sends diagnostics and answers, over standard input and output.

Answers are computed from the current texts, so a request never sees an outdated check. If planc itself fails on a text,
the client gets a log message, and the server continues. Checks run in another thread than the loop that answers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from lsprotocol import types as lsp
from pygls import uris
from pygls.lsp.server import LanguageServer
from pygls.workspace.position_codec import PositionCodec

from planc.diag.diagnostic import Diagnostic
from planc.diag.span import Span
from planc.editor.completion import Replacement, complete
from planc.editor.definition import definition
from planc.editor.diagnostics import quick_fix, shown
from planc.editor.hover import hover
from planc.editor.opened import EditorSettings, Opened, open_file
from planc.editor.positions import Positions
from planc.editor.symbols import symbols
from planc.editor.work import Work
from planc.files import MAX_TEXT_BYTES, read_text
from planc.ir.target import NO_TARGET, TARGETS
from planc.language.imports import MAX_BYTES
from planc.language.modernize import modernize
from planc.syntax.fmt import format_text
from planc.version import __version__

DELAY_S = 0.15
"""A change is checked if no other follows within this time."""
PATIENCE_S = 0.8
"""A request that has not started by then gets an empty answer; so does a hover, a definition or a completion of a long
text that takes longer."""
LONG_PATIENCE_S = 10.0
"""The time limit of other requests."""
LONG_TEXT = 20_000
"""Characters above which a text counts as long."""
Answer = TypeVar("Answer")

COMPLETIONS = {
    "verb": lsp.CompletionItemKind.Keyword,
    "keyword": lsp.CompletionItemKind.Keyword,
    "name": lsp.CompletionItemKind.Value,
    "unit": lsp.CompletionItemKind.Unit,
    "code": lsp.CompletionItemKind.Constant,
    "file": lsp.CompletionItemKind.File,
}


class PlanServer(LanguageServer):
    """The state of the language server: the open texts, and the latest results for each.

    planc runs in its own thread, so the loop that serves the client is never blocked for long. In that thread, requests
    take precedence over checks, and a check that is outdated when it starts reads the newest text.
    """

    def __init__(self) -> None:
        super().__init__("planc", __version__, text_document_sync_kind=lsp.TextDocumentSyncKind.Full)
        self.settings = EditorSettings()
        self._work = Work()
        self._looked: dict[str, tuple[object, Opened]] = {}
        """By open file: the open texts it was read from, and the result."""
        self._found: dict[str, dict[str, list[lsp.Diagnostic]]] = {}
        """By open file: the findings of its check, by the file they are in."""
        self._checked: dict[str, Opened] = {}
        self._changed: set[str] = set()
        """Files to check once typing pauses."""
        self._waiting: asyncio.TimerHandle | None = None

    # Texts.

    def texts(self) -> Texts:
        """Return the current open texts."""
        documents = self.workspace.text_documents
        return Texts(
            {_resolved(uri): (uri, doc.source) for uri, doc in documents.items()}, self.workspace.position_codec
        )

    def look(self, uri: str, texts: Texts) -> Opened | None:
        """Return the checked file at `uri`; None if it is not open in `texts`. Call it in planc's thread."""
        text = texts.text(_resolved(uri))
        if text is None:
            return None
        last = self._looked.get(uri)
        if last is not None and last[0] == _read_from(last[1], texts):
            return last[1]
        opened = open_file(_path(uri), text, texts.by_path(), self.settings)
        self._looked[uri] = (_read_from(opened, texts), opened)
        return opened

    def forget(self) -> None:
        """Drop all results of checks, since files on disk may have changed."""
        self._looked.clear()

    async def answer(self, uri: str, work: Callable[[Opened, Texts], Answer], patience_s: float) -> Answer | None:
        """Return the result of `work` on the open file at `uri`. None if the file is not open, is too large to be a
        plan or has changed, or if `work` takes too long (`patience_s` for a long text)."""
        asked = self.workspace.text_documents.get(uri)
        if asked is None or len(asked.source) > MAX_BYTES:
            return None
        version, texts = asked.version, self.texts()

        def run() -> Answer | None:
            opened = self.look(uri, texts)
            return None if opened is None else work(opened, texts)

        def is_stale() -> bool:
            now = self.workspace.text_documents.get(uri)
            return now is None or now.version != version

        running_s = patience_s if len(asked.source) > LONG_TEXT else LONG_PATIENCE_S
        return await self._work.ask(run, is_stale, PATIENCE_S, running_s)

    # Findings.

    def check_soon(self, uri: str | None = None) -> None:
        """Check the file at `uri` (None: every open file), and those that read it, once typing pauses."""
        self._changed |= set(self.workspace.text_documents) if uri is None else {uri, *self._readers(uri)}
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = asyncio.get_running_loop().call_later(DELAY_S, self._check_changed)

    def check_now(self, uri: str) -> None:
        """Check the file at `uri`, and those that read it, as soon as planc is idle."""
        for one in (uri, *self._readers(uri)):
            self._work.check(one, self._check)

    def _readers(self, uri: str) -> list[str]:
        path = _resolved(uri)
        return [other for other, (_, opened) in list(self._looked.items()) if other != uri and path in opened.read]

    def _check_changed(self) -> None:
        for uri in sorted(self._changed):
            self._work.check(uri, self._check)
        self._changed.clear()

    def close(self, uri: str) -> None:
        """Remove the diagnostics that the check of the file at `uri` found."""
        self._looked.pop(uri, None)
        self._checked.pop(uri, None)
        self._publish(self._found.pop(uri, {}))

    async def _check(self, uri: str) -> None:
        """Check the newest text at `uri` and publish the diagnostics, unless it is changed or closed meanwhile."""
        texts, last = self.texts(), self._checked.get(uri)

        def run() -> tuple[Opened, dict[str, list[lsp.Diagnostic]]] | None:
            opened = self.look(uri, texts)
            if opened is None or opened is last:
                return None
            found: dict[str, list[lsp.Diagnostic]] = {uri: []}
            place = _places(opened, texts)
            for finding in opened.diagnostics:
                found.setdefault(place(finding.span).uri, []).append(shown(finding, place))
            return opened, found

        try:
            result = await self._work.run(run)
        except Exception as error:
            self.window_log_message(lsp.LogMessageParams(lsp.MessageType.Error, f"{uri}: {error!r}"))
            return
        if result is None or self.texts().text(_resolved(uri)) != texts.text(_resolved(uri)):
            return
        self._checked[uri], found = result
        before, self._found[uri] = self._found.get(uri, {}), found
        self._publish({**before, **found})

    def _publish(self, touched: dict[str, list[lsp.Diagnostic]]) -> None:
        """Send the client the diagnostics of all checks that lie in the files `touched`, without duplicates."""
        for uri in touched:
            every: dict[object, lsp.Diagnostic] = {}
            for found in self._found.values():
                every |= {_key(d): d for d in found.get(uri, []) if _key(d) not in every}
            self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, list(every.values())))


@dataclass(frozen=True)
class Texts:
    """The open texts at one time, by resolved path: each with the URI that the client uses for it."""

    open: Mapping[Path, tuple[str, str]]
    codec: PositionCodec

    def text(self, path: Path) -> str | None:
        found = self.open.get(path)
        return None if found is None else found[1]

    def by_path(self) -> dict[Path, str]:
        return {path: text for path, (_, text) in self.open.items()}

    def positions(self, text: str) -> Positions:
        return _positions(text, self.codec)

    def positions_in(self, opened: Opened, file: str) -> Positions:
        """Return the positions in `file`, a file name in a span: in its open text, or else in its text on disk."""
        path = opened.where(file)
        text = self.text(path.resolve())
        return self.positions(_read(path) if text is None else text)

    def location(self, opened: Opened, span: Span) -> lsp.Location:
        return self.location_in(opened.where(span.file), span, self.positions_in(opened, span.file))

    def location_in(self, path: Path, span: Span, positions: Positions) -> lsp.Location:
        """Return the location of `span` in the file at `path`. An open file keeps the name that the client gave it."""
        known = self.open.get(path.resolve())
        return lsp.Location(known[0] if known else path.resolve().as_uri(), positions.range(span))


@lru_cache(maxsize=16)
def _positions(text: str, codec: PositionCodec) -> Positions:
    return Positions(text, codec)


def _places(opened: Opened, texts: Texts) -> Callable[[Span], lsp.Location]:
    """Return a function that converts a span to the client's location, and reads each file once."""
    positions: dict[str, Positions] = {}

    def place(span: Span) -> lsp.Location:
        if span.file not in positions:
            positions[span.file] = texts.positions_in(opened, span.file)
        return texts.location_in(opened.where(span.file), span, positions[span.file])

    return place


def _key(d: lsp.Diagnostic) -> object:
    start, end = d.range.start, d.range.end
    return d.code, d.message, start.line, start.character, end.line, end.character


def _path(uri: str) -> Path:
    """Return the path of a URI. A file that was never saved counts as a file in the working folder."""
    path = uris.to_fs_path(uri)
    unsaved = Path.cwd() / (re.sub(r"\W", "_", uri)[-100:] + ".plan")
    return Path(path) if path and "\0" not in path else unsaved


@lru_cache(maxsize=1000)
def _resolved(uri: str) -> Path:
    """Return the path of a URI with links resolved; cached, since every key press needs it."""
    return _path(uri).resolve()


def _read_from(opened: Opened, texts: Texts) -> dict[Path, str | None]:
    """Return the open texts that a check depends on, by path; None for a file that is not open."""
    return {path: texts.text(path) for path in opened.read}


def _read(path: Path) -> str:
    try:
        return read_text(path, MAX_TEXT_BYTES)
    except (OSError, ValueError):
        return ""


def settings(options: Any) -> EditorSettings:
    """Return the settings in `options`, such as `{"target": "xla", "set": {"nodes": 8}}`; anything else is ignored."""
    given = options if isinstance(options, dict) else {}
    target, values = given.get("target"), given.get("set")
    whole = {n: v for n, v in values.items() if type(v) is int and 0 <= v <= 10**12} if isinstance(values, dict) else {}
    return EditorSettings(target if target in (*TARGETS, NO_TARGET) else None, whole)


def make_server() -> PlanServer:
    """Return a server with all features; `start_io` runs it."""
    server = PlanServer()
    _texts(server)
    _register_requests(server)
    return server


def _texts(server: PlanServer) -> None:
    """Register the handlers for opening, changing, saving and closing texts."""

    @server.feature(lsp.INITIALIZE)
    def initialize(params: lsp.InitializeParams) -> None:
        server.settings = settings(params.initialization_options)

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        server.check_now(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        server.check_soon(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: lsp.DidSaveTextDocumentParams) -> None:
        server.forget()
        server.check_soon()

    @server.feature(lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def files_changed(params: lsp.DidChangeWatchedFilesParams) -> None:
        server.forget()
        server.check_soon()

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        server.close(params.text_document.uri)


def _register_requests(server: PlanServer) -> None:
    """Register the client's requests about an open text. Each runs in planc's thread, ahead of checks."""

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    async def on_hover(params: lsp.HoverParams) -> lsp.Hover | None:
        def work(opened: Opened, texts: Texts) -> lsp.Hover | None:
            positions = texts.positions(opened.text)
            answer = hover(opened, *positions.place_at(positions.offset(params.position)))
            if answer is None:
                return None
            return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, answer[0]), positions.range(answer[1]))

        return await server.answer(params.text_document.uri, work, PATIENCE_S)

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    async def on_definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        def work(opened: Opened, texts: Texts) -> lsp.Location | None:
            positions = texts.positions(opened.text)
            found = definition(opened, *positions.place_at(positions.offset(params.position)))
            return texts.location_in(*found, texts.positions_in(opened, str(found[0]))) if found else None

        return await server.answer(params.text_document.uri, work, PATIENCE_S)

    @server.feature(
        lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[" ", ",", "(", "=", '"', ":"])
    )
    async def on_completion(params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        def work(opened: Opened, texts: Texts) -> list[lsp.CompletionItem]:
            positions = texts.positions(opened.text)
            offset = positions.offset(params.position)
            found = complete(opened, offset, texts.by_path(), server.settings)
            return [_item(c, n, offset, positions) for n, c in enumerate(found)]

        return await server.answer(params.text_document.uri, work, PATIENCE_S) or []

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    async def on_formatting(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit]:
        def work(opened: Opened, texts: Texts) -> list[lsp.TextEdit]:
            written = format_text(modernize(opened.path, opened.text))
            return [] if written == opened.text else [lsp.TextEdit(texts.positions(opened.text).whole(), written)]

        return await server.answer(params.text_document.uri, work, LONG_PATIENCE_S) or []

    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    async def on_symbols(params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        def work(opened: Opened, texts: Texts) -> list[lsp.DocumentSymbol]:
            return symbols(opened, texts.positions(opened.text))

        return await server.answer(params.text_document.uri, work, LONG_PATIENCE_S) or []

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix])
    )
    async def on_code_action(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        def work(opened: Opened, texts: Texts) -> list[lsp.CodeAction]:
            return _actions(opened, texts, params)

        return await server.answer(params.text_document.uri, work, LONG_PATIENCE_S) or []


def _item(candidate: Replacement, number: int, offset: int, positions: Positions) -> lsp.CompletionItem:
    replaced = lsp.Range(positions.position(candidate.start), positions.position(offset))
    return lsp.CompletionItem(
        label=candidate.text,
        kind=COMPLETIONS[candidate.kind],
        detail=candidate.about or None,
        sort_text=f"{number:04}",  # clients sort by it: this keeps planc's order
        filter_text=candidate.text,
        text_edit=lsp.TextEdit(replaced, candidate.text),
    )


def _actions(opened: Opened, texts: Texts, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    """Return the fixes of diagnostics that touch the requested range."""
    place = _places(opened, texts)

    def touches(finding: Diagnostic) -> bool:
        at, wanted = place(finding.span), params.range
        return at.uri == params.text_document.uri and at.range.start <= wanted.end and wanted.start <= at.range.end

    return [
        quick_fix(d, d.fix, place, lambda span: texts.positions_in(opened, span.file))
        for d in opened.diagnostics
        if d.fix is not None and touches(d)
    ]
