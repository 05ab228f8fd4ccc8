"""The language server: open texts in, findings and answers out, over standard input and output.

Answers are worked out from the texts as they stand, so a request never sees an old check. A text that
makes planc itself fail is logged with the client; the server goes on.
"""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls import uris
from pygls.lsp.server import LanguageServer

from planc import __version__
from planc.diag.diagnostic import Diagnostic
from planc.diag.span import Span
from planc.editor.completion import Candidate, complete
from planc.editor.definition import definition
from planc.editor.diagnostics import quick_fix, shown
from planc.editor.hover import hover
from planc.editor.opened import Opened, Settings, open_file
from planc.editor.positions import Positions
from planc.editor.symbols import symbols
from planc.files import MAX_TEXT_BYTES, read_text
from planc.ir.target import NO_TARGET, TARGETS
from planc.language.modernize import modernize
from planc.syntax.fmt import format_text

DELAY_S = 0.15
"""A change is checked when none has followed for so long."""

COMPLETIONS = {
    "verb": lsp.CompletionItemKind.Keyword,
    "keyword": lsp.CompletionItemKind.Keyword,
    "name": lsp.CompletionItemKind.Value,
    "unit": lsp.CompletionItemKind.Unit,
    "code": lsp.CompletionItemKind.Constant,
    "file": lsp.CompletionItemKind.File,
}


class PlanServer(LanguageServer):
    """The open texts, what was last found in each, and the client."""

    def __init__(self) -> None:
        super().__init__("planc", __version__, text_document_sync_kind=lsp.TextDocumentSyncKind.Full)
        self.settings = Settings()
        self._looked: dict[str, tuple[object, Opened]] = {}
        """By open file: the open texts it was read from, and what came of it."""
        self._found: dict[str, dict[str, list[lsp.Diagnostic]]] = {}
        """By open file: what its check found, by the file it was found in."""
        self._checked: dict[str, Opened] = {}
        self._waiting: asyncio.TimerHandle | None = None

    # Texts.

    def texts(self) -> dict[Path, str]:
        """Every open text by resolved path."""
        return {_resolved(uri): doc.source for uri, doc in self.workspace.text_documents.items()}

    def look(self, uri: str) -> Opened | None:
        """The open file at `uri` as it stands; None when it is not open."""
        document = self.workspace.text_documents.get(uri)
        if document is None:
            return None
        texts = self.texts()
        last = self._looked.get(uri)
        if last is not None and last[0] == _read_from(last[1], texts):
            return last[1]
        opened = open_file(_path(uri), document.source, texts, self.settings)
        self._looked[uri] = (_read_from(opened, texts), opened)
        return opened

    def forget(self) -> None:
        """Files on disk may have changed."""
        self._looked.clear()

    def positions(self, text: str) -> Positions:
        return Positions(text, self.workspace.position_codec)

    def positions_in(self, opened: Opened, file: str) -> Positions:
        """The places of `file`, a name that a span has: open, read for the plan, or on disk."""
        path = opened.where(file)
        text = self.texts().get(path.resolve())
        return self.positions(_read(path) if text is None else text)

    def location(self, opened: Opened, span: Span) -> lsp.Location:
        path = opened.where(span.file)
        return self.location_in(path, span, self.positions_in(opened, span.file))

    def location_in(self, path: Path, span: Span, positions: Positions) -> lsp.Location:
        """The place of `span` as the client names it: a file it has open keeps the client's name."""
        open_uris = {_resolved(uri): uri for uri in self.workspace.text_documents}
        return lsp.Location(open_uris.get(path.resolve()) or path.resolve().as_uri(), positions.range(span))

    # Findings.

    def check_soon(self) -> None:
        """Check every open file once the typing pauses: a file may be part of another."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = asyncio.get_running_loop().call_later(DELAY_S, self.check_all)

    def check_all(self) -> None:
        for uri in list(self.workspace.text_documents):
            try:
                self._check(uri)
            except Exception as error:
                self.window_log_message(lsp.LogMessageParams(lsp.MessageType.Error, f"{uri}: {error!r}"))

    def close(self, uri: str) -> None:
        """Take back the findings of the check of the file at `uri`."""
        self._looked.pop(uri, None)
        self._checked.pop(uri, None)
        self._publish(self._found.pop(uri, {}))

    def _check(self, uri: str) -> None:
        opened = self.look(uri)
        if opened is None or opened is self._checked.get(uri):
            return
        self._checked[uri] = opened
        found: dict[str, list[lsp.Diagnostic]] = {uri: []}
        for finding in opened.diagnostics:
            where = self.location(opened, finding.span).uri
            found.setdefault(where, []).append(shown(finding, lambda span: self.location(opened, span)))
        before, self._found[uri] = self._found.get(uri, {}), found
        self._publish({**before, **found})

    def _publish(self, touched: dict[str, list[lsp.Diagnostic]]) -> None:
        """Send what all checks together found in these files, each finding once."""
        for uri in touched:
            every: list[lsp.Diagnostic] = []
            for found in self._found.values():
                every += [d for d in found.get(uri, []) if d not in every]
            self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, every))


def _path(uri: str) -> Path:
    """The path of a URI; a file that was never saved counts as one in the working folder."""
    path = uris.to_fs_path(uri)
    unsaved = Path.cwd() / (re.sub(r"\W", "_", uri)[-100:] + ".plan")
    return Path(path) if path and "\0" not in path else unsaved


@lru_cache(maxsize=1000)
def _resolved(uri: str) -> Path:
    """The path with its links followed; read from the disk once, for it is needed at every key."""
    return _path(uri).resolve()


def _read_from(opened: Opened, texts: dict[Path, str]) -> dict[Path, str | None]:
    """The open texts that a check depends on."""
    return {path: texts.get(path) for path in opened.read}


def _read(path: Path) -> str:
    try:
        return read_text(path, MAX_TEXT_BYTES)
    except (OSError, ValueError):
        return ""


def settings(options: Any) -> Settings:
    """The settings in `options`, like `{"target": "xla", "set": {"nodes": 8}}`; anything else is left out."""
    given = options if isinstance(options, dict) else {}
    target, values = given.get("target"), given.get("set")
    whole = {n: v for n, v in values.items() if type(v) is int and 0 <= v <= 10**12} if isinstance(values, dict) else {}
    return Settings(target if target in (*TARGETS, NO_TARGET) else None, whole)


def make_server() -> PlanServer:
    """A server that answers everything planc can; `start_io` runs it."""
    server = PlanServer()
    _texts(server)
    _register_requests(server)
    return server


def _texts(server: PlanServer) -> None:
    """Opening, changing, saving and closing."""

    @server.feature(lsp.INITIALIZE)
    def initialize(params: lsp.InitializeParams) -> None:
        server.settings = settings(params.initialization_options)

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        server.check_all()

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        server.check_soon()

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: lsp.DidSaveTextDocumentParams) -> None:
        server.forget()
        server.check_all()

    @server.feature(lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def files_changed(params: lsp.DidChangeWatchedFilesParams) -> None:
        server.forget()
        server.check_soon()

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        server.close(params.text_document.uri)


def _register_requests(server: PlanServer) -> None:
    """Requests of a client about an open text."""

    def position_of(
        params: lsp.HoverParams | lsp.DefinitionParams | lsp.CompletionParams,
    ) -> tuple[Opened, Positions, int] | None:
        opened = server.look(params.text_document.uri)
        if opened is None:
            return None
        positions = server.positions(opened.text)
        return opened, positions, positions.offset(params.position)

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def on_hover(params: lsp.HoverParams) -> lsp.Hover | None:
        if (at := position_of(params)) is None:
            return None
        opened, positions, offset = at
        answer = hover(opened, *positions.place_at(offset))
        if answer is None:
            return None
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, answer[0]), positions.range(answer[1]))

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def on_definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        if (at := position_of(params)) is None:
            return None
        opened, positions, offset = at
        found = definition(opened, *positions.place_at(offset))
        return server.location_in(*found, server.positions_in(opened, str(found[0]))) if found else None

    @server.feature(
        lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=[" ", ",", "(", "=", '"', ":"])
    )
    def on_completion(params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        if (at := position_of(params)) is None:
            return []
        opened, positions, offset = at
        found = complete(opened, offset, server.texts(), server.settings)
        return [_item(c, n, offset, positions) for n, c in enumerate(found)]

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def on_formatting(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit]:
        opened = server.look(params.text_document.uri)
        written = format_text(modernize(opened.path, opened.text)) if opened else ""
        if opened is None or written == opened.text:
            return []
        return [lsp.TextEdit(server.positions(opened.text).whole(), written)]

    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def on_symbols(params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        opened = server.look(params.text_document.uri)
        return symbols(opened, server.positions(opened.text)) if opened else []

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix])
    )
    def on_code_action(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        opened = server.look(params.text_document.uri)
        return _actions(server, opened, params) if opened else []


def _item(candidate: Candidate, number: int, offset: int, positions: Positions) -> lsp.CompletionItem:
    """`sort_text` keeps planc's order."""
    replaced = lsp.Range(positions.position(candidate.start), positions.position(offset))
    return lsp.CompletionItem(
        label=candidate.text,
        kind=COMPLETIONS[candidate.kind],
        detail=candidate.about or None,
        sort_text=f"{number:04}",
        filter_text=candidate.text,
        text_edit=lsp.TextEdit(replaced, candidate.text),
    )


def _actions(server: PlanServer, opened: Opened, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    """The fixes of findings that touch the requested range."""

    def place(span: Span) -> lsp.Location:
        return server.location(opened, span)

    def touches(finding: Diagnostic) -> bool:
        at, wanted = place(finding.span), params.range
        return at.uri == params.text_document.uri and at.range.start <= wanted.end and wanted.start <= at.range.end

    return [
        quick_fix(d, d.fix, place, lambda span: server.positions_in(opened, span.file))
        for d in opened.diagnostics
        if d.fix is not None and touches(d)
    ]
