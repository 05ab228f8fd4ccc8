"""Document symbols: the header with its sentences below it, and the axes below the mesh."""

from __future__ import annotations

from lsprotocol.types import DocumentSymbol, SymbolKind

from planc.diag.span import Span
from planc.editor.definition import declared
from planc.editor.opened import Opened
from planc.editor.positions import Positions
from planc.syntax.tree import Sentence

KINDS = {"let": SymbolKind.Variable, "mesh": SymbolKind.Array, "view": SymbolKind.Array}
KINDS |= dict.fromkeys(("chip", "link", "node", "network", "torus", "graph", "fabric"), SymbolKind.Class)


def symbols(opened: Opened, positions: Positions) -> list[DocumentSymbol]:
    """Return the symbols of the file `opened`: its header, with the sentences as children, or the sentences alone."""
    sentences = [_sentence(s, positions) for s in opened.file.sentences]
    header = opened.file.header
    if header is None:
        return sentences
    last = opened.file.sentences[-1].span if opened.file.sentences else header.span
    whole = positions.range(header.span.to(max(header.span, last)))
    named = positions.range(header.span)
    return [DocumentSymbol(header.text, SymbolKind.Module, whole, named, children=sentences)]


def _sentence(sentence: Sentence, positions: Positions) -> DocumentSymbol:
    here = positions.range(sentence.span)
    kind = KINDS.get(sentence.verb, SymbolKind.Property)
    axes = [d for d in declared(sentence) if d[0] == "axis"]
    children = [_axis(name, span, positions) for _, name, span in axes]
    return DocumentSymbol(sentence.text, kind, here, here, children=children)


def _axis(name: str, span: Span, positions: Positions) -> DocumentSymbol:
    here = positions.range(span)
    return DocumentSymbol(name, SymbolKind.Number, here, here)
