"""Turns a module of a program into the text for one plan: tests on the plan's facts are folded, dead code drops out.

A program module is ordinary Python whose variants are `if FACTS.name:`, `a if FACTS.name else b` and
`FACTS.name and ...`, over the fields of a frozen dataclass. It imports, runs and is checked as it stands. In comments
and docstrings `FACTS.name` stands for the text of that fact; a comment that becomes empty is dropped. A parameter
annotated `Annotated[T, FACTS.name]` and its arguments exist only if the fact holds; its default is the module's alone.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from planc.backends.common.source_writer import wrapped
from planc.diag.quoting import python_string

Edit = tuple[int, int, bytes]
"""Bytes of a source from, to, and what replaces them."""
MARK = re.compile(r"FACTS\.(\w+)")
BROKEN = re.compile(r"(?m)^(.*[(\[{])\n +([^#\n]*[^,\n])\n *([)\]}].*)$")
"""A line in brackets of its own, without the comma that keeps it there."""
LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.Dict)
"""Expressions that need no brackets."""
UNKNOWN = object()


def specialise(package: str, name: str, facts: Any, entries: Iterable[str], width: int) -> list[str]:
    """Return the definitions of the module `name` of `package` that `entries` need, in its order, if the plan has
    these `facts`. Lines have at most `width` columns."""
    return specialised(_source(package, name), facts, entries, width)


def specialised(source: bytes, facts: Any, entries: Iterable[str], width: int) -> list[str]:
    """Do what `specialise` does for the text of a module."""
    module = _Specialiser(source, _parsed(source), facts)
    found, new = dict[str, str](), set(entries)
    while new:
        found |= {name: module.text(name) for name in new}
        used = {n.id for name in new for n in ast.walk(ast.parse(found[name])) if isinstance(n, ast.Name)}
        new = (used & {*module.nodes}) - {*found}
    return [_joined(found[name], width) for name in module.nodes if name in found]


@cache
def _source(package: str, name: str) -> bytes:
    return files(package).joinpath(f"{name}.py").read_bytes()


@cache
def _parsed(source: bytes) -> ast.Module:
    return ast.parse(source)


class _Specialiser:
    def __init__(self, source: bytes, tree: ast.Module, facts: Any) -> None:
        self.source, self.facts = source, facts
        self.starts = [0, *(m.end() for m in re.finditer(rb"\n", source))]
        self.absent = {d.name: self._absent(d) for d in ast.walk(tree) if isinstance(d, ast.FunctionDef)}
        self.nodes = {name: node for node in tree.body if (name := _defined(node))}

    def text(self, name: str) -> str:
        """Return the text of a definition of the module, with the comments above it."""
        return _comments(self._block([self.nodes[name]])[0].decode(), self.facts)

    def _absent(self, function: ast.FunctionDef) -> set[int | str | None]:
        """Return names and positions, counted without `self`, of the parameters that the plan's function lacks."""
        arguments = [a for a in function.args.args if a.arg != "self"]
        return {key for i, a in enumerate(arguments) if self._is_absent(a) for key in (i, a.arg)}

    def _is_absent(self, argument: ast.arg) -> bool:
        return (needs := _needs(argument)) is not None and not self._value(_elements(needs)[1])

    def _value(self, node: ast.expr) -> Any:
        """Return the value of an expression of facts and constants alone; UNKNOWN for others."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.BoolOp):
            values, decides = [self._value(v) for v in node.values], isinstance(node.op, ast.Or)
            if any(v is not UNKNOWN and bool(v) == decides for v in values):
                return decides
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        if not names or any(n.id != "FACTS" for n in names):
            return UNKNOWN
        return eval(compile(ast.Expression(node), "<facts>", "eval"), {"FACTS": self.facts})

    def _at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def _start(self, node: Any) -> int:
        first = node.decorator_list[0].lineno if getattr(node, "decorator_list", None) else node.lineno
        return self._at(first, 0 if isinstance(node, ast.stmt) else node.col_offset)

    def _end(self, node: Any) -> int:
        """The end of a node; of a statement, that of its last line with its comment."""
        if isinstance(node, ast.stmt):
            return self.starts[node.end_lineno or 0]
        return self._at(node.end_lineno, node.end_col_offset)

    def _text(self, start: int, end: int, edits: Iterable[Edit]) -> bytes:
        pieces, at = list[bytes](), start
        for begin, stop, new in sorted(edits):
            pieces += [self.source[at:begin], new]
            at = stop
        return b"".join((*pieces, self.source[at:end]))

    def _block(self, body: Sequence[ast.stmt]) -> tuple[bytes, bool]:
        """Return the text of statements with what stands above each, and whether what follows is never reached."""
        pieces, start = list[bytes](), self._above(body[0])
        for node in body:
            lead, start = self.source[start : self._start(node)], self._end(node)
            text, leaves = self._statement(node)
            pieces += [lead, text] if text else []
            if leaves:
                return b"".join(pieces), True
        return b"".join(pieces), False

    def _above(self, node: ast.stmt) -> int:
        """Return the start of the comments and empty lines above a statement."""
        line = bisect_left(self.starts, self._start(node))
        while line and self.source[self.starts[line - 1] : self.starts[line]].lstrip()[:1] in (b"", b"#"):
            line -= 1
        return self.starts[line]

    def _statement(self, node: ast.stmt) -> tuple[bytes, bool]:
        if not isinstance(node, ast.If) or (value := self._value(node.test)) is UNKNOWN:
            return self._text(self._start(node), self._end(node), self._edits(node)), isinstance(node, LEAVES)
        body = node.body if value else node.orelse
        if not body:
            return b"", False
        if _is_elif(node, body):
            text, leaves = self._statement(body[0])
            return re.sub(rb"^( *)elif\b", rb"\1if", text), leaves
        text, leaves = self._block(body)
        return re.sub(rb"(?m)^    ", b"", text), leaves

    def _edits(self, node: ast.AST) -> Iterator[Edit]:
        """Yield the edits inside a node."""
        if isinstance(node, ast.expr) and (edit := self._expression(node)) is not None:
            yield edit
            return
        gone = list[Any]()
        if isinstance(node, ast.Call):
            row, absent = [*node.args, *node.keywords], self.absent.get(_called(node), set())
            gone = [a for i, a in enumerate(row) if (a.arg if isinstance(a, ast.keyword) else i) in absent]
            yield from _without([(self._start(a), self._end(a), a in gone) for a in row])
        if isinstance(node, ast.arguments):
            yield from self._parameters(node)
            return
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield from self._branch(node, name, value)
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and child not in gone:
                    yield from self._edits(child)

    def _branch(self, node: ast.AST, name: str, body: list[ast.stmt]) -> Iterator[Edit]:
        """Yield the edit of a block of a compound statement; an `else` without statements goes."""
        first, end = body[0], self._end(body[-1])
        indent = b" " * first.col_offset
        if name == "orelse" and _is_elif(node, body):
            assert isinstance(first, ast.If)
            if (value := self._value(first.test)) is UNKNOWN:
                yield from ((self._start(first), end, self._statement(first)[0]),)
                return
            chosen = first.body if value else first.orelse
            if chosen and not _is_elif(first, chosen):
                yield self._start(first), end, indent + b"else:\n" + self._block(chosen)[0]
            else:
                yield self._start(first), end, self._statement(chosen[0])[0] if chosen else b""
            return
        text, _ = self._block(body)
        if name == "orelse" and not text:
            yield self._end(node.body[-1]), end, b""  # type: ignore[attr-defined]
        else:
            yield self._above(first), end, text or indent + b"pass\n"

    def _expression(self, node: ast.expr) -> Edit | None:
        """Return the edit that folds an expression of facts; None if it has none at its top."""
        start, end = self._start(node), self._end(node)
        if isinstance(node, ast.IfExp) and (value := self._value(node.test)) is not UNKNOWN:
            chosen = node.body if value else node.orelse
            return *(self._bracketed(start, end) if isinstance(chosen, ATOMS) else (start, end)), self._inside(chosen)
        if isinstance(node, ast.Constant):
            return None
        if (value := self._value(node)) is not UNKNOWN:
            return start, end, (python_string(value) if isinstance(value, str) else repr(value)).encode()
        if isinstance(node, ast.BoolOp):
            rest = [v for v in node.values if self._value(v) is UNKNOWN]
            if len(rest) < len(node.values):
                word = b" and " if isinstance(node.op, ast.And) else b" or "
                return start, end, word.join(self._inside(v) for v in rest)
        return None

    def _bracketed(self, start: int, end: int) -> tuple[int, int]:
        """Widen to the brackets right round an expression if they are not those of a call."""
        before = self.source[start - 2 : start]
        alone = before[1:] == b"(" and self.source[end : end + 1] == b")" and not re.match(rb"[\w\])]", before)
        return (start - 1, end + 1) if alone else (start, end)

    def _inside(self, node: ast.expr) -> bytes:
        return self._text(self._start(node), self._end(node), self._edits(node))

    def _parameters(self, node: ast.arguments) -> Iterator[Edit]:
        defaults = [None] * (len(node.args) - len(node.defaults)) + node.defaults
        ends = [self._end(value or a) for a, value in zip(node.args, defaults, strict=True)]
        rows = zip(node.args, ends, strict=True)
        yield from _without([(self._start(a), end, self._is_absent(a)) for a, end in rows])
        for argument, end in zip(node.args, ends, strict=True):
            if (needs := _needs(argument)) is not None and not self._is_absent(argument):
                yield self._start(needs), end, self._inside(_elements(needs)[0])


def _without(row: Sequence[tuple[int, int, bool]]) -> Iterator[Edit]:
    """Yield the edits that leave out some of a row with commas between: (start, end, leave out)."""
    for i, (start, end, gone) in enumerate(row):
        if gone and i:
            yield row[i - 1][1], end, b""
        elif gone:
            yield start, row[1][0] if len(row) > 1 else end, b""


def _defined(node: ast.stmt) -> str:
    """Return the name that a statement of a module defines: a function, a class or a constant."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return target.id if isinstance(target, ast.Name) else ""
    return getattr(node, "name", "")


def _is_elif(node: ast.AST, body: Sequence[ast.stmt]) -> bool:
    return isinstance(node, ast.If) and body is node.orelse and body[0].col_offset == node.col_offset


def _needs(argument: ast.arg) -> ast.Subscript | None:
    """Return the annotation `Annotated[T, FACTS.name]` of a parameter; None if it has another one."""
    match argument.annotation:
        case ast.Subscript(value=ast.Name(id="Annotated")) as annotation:
            return annotation
    return None


def _elements(annotation: ast.Subscript) -> list[ast.expr]:
    assert isinstance(annotation.slice, ast.Tuple)
    return annotation.slice.elts


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _comments(text: str, facts: Any) -> str:
    """Fill the facts into comments and docstrings: all that still names facts; drop comments that are empty then."""
    filled = list[str]()
    for line in text.strip("\n").split("\n"):
        new = MARK.sub(lambda found: str(getattr(facts, found[1])), line)
        if new == line or new.strip() != "#":
            filled += wrapped(new) if new != line else [line]
    return "\n".join(filled)


def _joined(text: str, width: int) -> str:
    """Put what stands in brackets on the line of the brackets where it fits now, as a formatter does."""

    def one_line(found: re.Match[str]) -> str:
        line = "".join(found.groups())
        return line if len(line) <= width else found[0]

    return BROKEN.sub(one_line, text)
