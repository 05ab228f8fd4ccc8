"""Reads old spellings of the plan language as the current ones, each with a warning (W0116) that `planc fmt` can fix.

The grammar's rules for old spellings are called `old_...`. For each rule, one function here returns the current syntax
nodes and adds the warning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest

from planc.diag.diagnostic import Diagnostic, Edit, Fix
from planc.diag.span import Span
from planc.syntax.tree import Node, Word

CODE = "W0116"
UNLISTED = {"shard": "FOR", "replicate": "FOR", "store": "IN", "use": "IN"}
"""The keyword that a verb's sentences took before, by terminal: never offered."""


def old_spelling(span: Span, old: str, new: str, why: str) -> Diagnostic:
    """Return the warning W0116 for `old` at `span`, with the edit that replaces it by `new`; `why` begins the help."""
    return Diagnostic(
        CODE,
        f"`{old}` is an old spelling",
        span,
        label=f"now `{new}`",
        help=f"{why}; `planc fmt` rewrites it",
        fix=Fix(f"write `{new}`", (Edit(span, new),), safe=True),
    )


def modernized(node: Node, found: list[Diagnostic]) -> Node:
    """Return the tree of `node` in the current spelling; add a warning (W0116) to `found` for each old spelling."""
    parts: list[Node | Word] = []
    for part in node.parts:
        if isinstance(part, Word):
            parts.append(part)
        elif part.kind in STAGES:
            parts += STAGES[part.kind](part, found)
        else:
            parts.append(modernized(part, found))
    if any(new is not old for new, old in zip_longest(parts, node.parts)):
        node = replace(node, parts=tuple(parts))
    return SENTENCES.get(node.kind, _unchanged)(node, found)


def offered(verb: str, terminal: str) -> bool:
    """True if a sentence with this `verb` may have `terminal` in its current spelling, so that it may be suggested."""
    return not terminal.startswith("OLD_") and UNLISTED.get(verb) != terminal


def _unchanged(node: Node, found: list[Diagnostic]) -> Node:
    return node


def _param_to_let(node: Node, found: list[Diagnostic]) -> Node:
    found.append(old_spelling(node.parts[0].span, "param", "let", "`let` names a number, `params` are weights"))
    return replace(node, kind="let", parts=node.parts[1:])


def _attention(node: Node, found: list[Diagnostic]) -> Node:
    span = node.parts[0].span.to(node.parts[1].span)
    found.append(old_spelling(span, "attention core", "attention.core", "an op has one name in every sentence"))
    return replace(node, kind="attention", parts=node.parts[2:])


def _for_to_in(node: Node, found: list[Diagnostic]) -> Node:
    why = "`in` says where in the computation, `for` whose state"
    found.append(old_spelling(node.parts[0].span, "for", "in", why))
    return replace(node, kind="in", parts=node.parts[1:])


def _in_to_for(node: Node, found: list[Diagnostic]) -> Node:
    why = "`for` says whose state, `in` where in the computation"
    found.append(old_spelling(node.parts[0].span, "in", "for", why))
    return replace(node, kind="for", parts=node.parts[1:])


def _same_stages(node: Node, found: list[Diagnostic]) -> list[Node]:
    """Read the old `9 x 2`, two stages of nine layers, as `2 x 9 layers`."""
    size, count = node.words("INT")
    new = f"{count.text} x {size.text} layers"
    found.append(old_spelling(node.span, f"{size.text} x {count.text}", new, COUNT_FIRST))
    return [Node("same_stages", (count, size), node.span)]


def _repeated_stage(node: Node, found: list[Diagnostic]) -> list[Node]:
    """Read the old `embed + 7 x 2` as two stages of seven layers each, the first of them with the embedding."""
    times = node.words("INT")[-1]
    ends = [w for part in node.nodes("part") for w in part.words("NAME")]
    numbers = [int(w.text[:7]) for part in node.nodes("part") for w in part.words("INT")]
    count, size = int(times.text[:7]), Word("INT", str(sum(numbers)), node.span)
    if count == 1:
        stages = [Node("stage", tuple(node.nodes("part")), node.span)]
    else:
        plain = Node("same_stages", (Word("INT", str(count - len(ends)), node.span), size), node.span)
        before = [_stage(node, w, size) for w in ends if w.text != "head"]
        after = [_stage(node, w, size) for w in ends if w.text == "head"]
        stages = [*before, *([plain] if count > len(ends) else []), *after]
    new = ", ".join(_text(stage) for stage in stages)
    found.append(old_spelling(node.span, f"{' '.join(_words(node))} x {times.text}", new, COUNT_FIRST))
    return stages


COUNT_FIRST = "a count stands before what it counts"


def _stage(node: Node, end: Word, size: Word) -> Node:
    words = (size, end) if end.text == "head" else (end, size)
    return Node("stage", tuple(Node("part", (w,), node.span) for w in words), node.span)


def _words(node: Node) -> list[str]:
    return [w for i, part in enumerate(node.nodes("part")) for w in (["+"] if i else []) + [part.words()[0].text]]


def _text(stage: Node) -> str:
    if stage.kind == "same_stages":
        count, size = stage.words()
        return f"{count.text} x {size.text} layers"
    return " ".join(_words(stage))


SENTENCES: dict[str, Callable[[Node, list[Diagnostic]], Node]] = {
    "old_let": _param_to_let,
    "old_attention": _attention,
    "old_in": _for_to_in,
    "old_for": _in_to_for,
}
STAGES: dict[str, Callable[[Node, list[Diagnostic]], list[Node]]] = {
    "old_same_stages": _same_stages,
    "old_stage": _repeated_stage,
}
"""Old spellings of one stage stand for several."""
