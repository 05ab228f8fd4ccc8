"""Turns a module of a program into the text for one plan: tests on the plan's facts are folded, dead code drops out.

A program module is ordinary Python whose variants are `if FACTS.name:`, `a if FACTS.name else b` and
`FACTS.name and ...`, over the fields of a frozen dataclass. It imports, runs and is checked as it stands. In comments
and docstrings `FACTS.name` stands for the text of that fact; a comment that becomes empty is dropped. A parameter
annotated `Annotated[T, FACTS.name]` and its arguments exist only if the fact holds; its default is the module's alone.

A local name that is set to a choice, `name = a if FACTS.name else b`, is put where it is used: once, or as often as it
is used if it is a name, a constant or a tuple. What is set and never used goes. `getattr(x, FACTS.path)` is `x.path`.
`with a if FACTS.name else nullcontext():` is `with a:` or no `with`.
"""

from __future__ import annotations

import ast
import operator
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import Any, cast

from planc.backends.common.source_writer import wrapped
from planc.diag.quoting import python_string

Edit = tuple[int, int, bytes]
"""Bytes of a source from, to, and what replaces them."""
MARK = re.compile(r"FACTS\.(\w+)")
BROKEN = re.compile(r"(?m)^(.*[(\[{])\n((?: +[^#\n]*[^,(\[{\n]\n)+?) *([)\]}].*)$")
"""Lines in brackets of their own, without commas that keep them there."""
LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
PLAIN = (ast.Name, ast.Attribute, ast.Constant, ast.Tuple)
ATOMS = (*PLAIN, ast.Call, ast.Subscript, ast.List, ast.Dict, ast.ListComp)
"""Expressions that need no brackets."""
TIGHT = (*ATOMS, ast.Compare, ast.BinOp, ast.UnaryOp)
"""Those that need none between `and` and `or`."""
OPERATORS = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Attribute, ast.Subscript, ast.Starred)
COMPARED = {ast.Gt: operator.gt, ast.Lt: operator.lt, ast.Eq: operator.eq, ast.NotEq: operator.ne}
UNKNOWN = object()


def specialise(package: str, name: str, facts: Any, entries: Iterable[str], width: int) -> list[str]:
    """Return the definitions of the module `name` of `package` that `entries` need, in its order, if the plan has
    these `facts`. Lines have at most `width` columns."""
    return specialised(_read(package, name), facts, entries, width)


def specialised(source: bytes, facts: Any, entries: Iterable[str], width: int) -> list[str]:
    """Do what `specialise` does for `source`, the text of a module."""
    module = _Module(source, *_parsed(source), facts)
    found, new = dict[str, str](), set(entries)
    while new:
        texts = {name: module.definition(name) for name in new}
        found |= {name: text for name, (text, _) in texts.items()}
        used = {name for _, names in texts.values() for name in names}
        new = {key for key in module.nodes if key in used or key.rpartition(".")[0] in found} - {*found}
    return [_joined(found[name], width) for name in module.nodes if name in found]


@cache
def _read(package: str, name: str) -> bytes:
    return files(package).joinpath(f"{name}.py").read_bytes()


@cache
def _parsed(source: bytes) -> tuple[ast.Module, frozenset[int], list[ast.FunctionDef]]:
    """Return the tree of a module, the `id` of each node that names facts or calls what has fewer parameters for some
    facts (all else stays as it is), and these functions."""
    tree, marked = ast.parse(source), set[int]()
    functions = [d for d in ast.walk(tree) if isinstance(d, ast.FunctionDef) and any(map(_needs, d.args.args))]
    conditional = {d.name for d in functions}

    def mark(node: ast.AST) -> bool:
        found = (isinstance(node, ast.Name) and node.id == "FACTS") or (
            isinstance(node, ast.Call) and _called(node) in conditional
        )
        for child in ast.iter_child_nodes(node):
            found |= mark(child)
        if found:
            marked.add(id(node))
        return found

    mark(tree)
    return tree, frozenset(marked), functions


class _Source:
    """Text, and where its nodes stand in it: an expression alone, a statement with its lines and what ends them."""

    def __init__(self, text: bytes) -> None:
        self.text, self.starts = text, [0, *(m.end() for m in re.finditer(rb"\n", text)), len(text)]

    def start(self, node: Any) -> int:
        """Return where a node begins: of a statement, its first line, that of a decorator too."""
        if isinstance(node, ast.stmt):
            return int(self.starts[min(n.lineno for n in (node, *getattr(node, "decorator_list", ()))) - 1])
        return int(self.starts[node.lineno - 1] + node.col_offset)

    def end(self, node: Any) -> int:
        """Return where a node ends."""
        if isinstance(node, ast.stmt):
            return self.starts[node.end_lineno or 0]
        return int(self.starts[node.end_lineno - 1] + node.end_col_offset)

    def of(self, node: ast.AST, edits: Iterable[Edit] = ()) -> bytes:
        """Return the text of a node after `edits`."""
        return self.edited(edits, self.start(node), self.end(node))

    def edited(self, edits: Iterable[Edit], start: int = 0, end: int | None = None) -> bytes:
        """Return the text from `start` to `end` after `edits`."""
        pieces = list[bytes]()
        for begin, stop, new in sorted(edits):
            pieces += [self.text[start:begin], new]
            start = stop
        return b"".join((*pieces, self.text[start:end]))

    def without(self, row: Sequence[Any], gone: Sequence[Any]) -> Iterator[Edit]:
        """Yield the edits that leave `gone` out of a `row` of nodes with commas between."""
        for i, node in enumerate(row):
            if node in gone and i:
                yield self.end(row[i - 1]), self.end(node), b""
            elif node in gone:
                yield self.start(node), self.start(row[1]) if len(row) > 1 else self.end(node), b""


class _Module(_Source):
    """A program module: folds the tests on `facts`."""

    def __init__(
        self,
        text: bytes,
        tree: ast.Module,
        marked: frozenset[int],
        conditional: Iterable[ast.FunctionDef],
        facts: Any,
    ) -> None:
        super().__init__(text)
        self.marked, self.facts, self.chosen = marked, facts, set[str]()
        self.absent = {d.name: self._absent(d) for d in conditional}
        self.nodes = {name: node for node in tree.body if (name := _defined(node))}

    def definition(self, name: str) -> tuple[str, set[str]]:
        """Return the text of a definition of the module, with the comments above it, and the names in it."""
        self.chosen, node = set(), self.nodes[name]
        text, tree = self._block([node])[0].strip(b"\n"), cast(ast.AST, node)
        if id(node) in self.marked:
            tree = ast.parse(text)
            changes = bool(self.chosen or any(self.absent.values()) or re.search(rb"\*[(\[]", text))
            while changes and (shorter := _in_place(tree, text, self.chosen)) != text:
                text, tree = shorter, ast.parse(shorter)
        return _comments(text.decode(), self.facts), {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}

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
        if id(node) not in self.marked:
            return UNKNOWN
        match node:
            case ast.BoolOp(op=op, values=operands):
                values, decides = [self._value(v) for v in operands], isinstance(op, ast.Or)
                for value in takewhile(lambda v: v is not UNKNOWN, values):
                    if bool(value) == decides:
                        return value
                if any(v is not UNKNOWN and bool(v) == decides for v in values):
                    return decides
                return UNKNOWN if UNKNOWN in values else values[-1]
            case ast.Attribute(value=ast.Name(id="FACTS"), attr=name):
                return getattr(self.facts, name)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return UNKNOWN if (value := self._value(operand)) is UNKNOWN else not value
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                values = [self._value(left), self._value(right)]
                return UNKNOWN if UNKNOWN in values else COMPARED[type(op)](*values)
        return UNKNOWN

    def _block(self, body: Sequence[ast.stmt]) -> tuple[bytes, bool]:
        """Return the text of statements with what stands above each, and whether what follows is never reached."""
        pieces, start, gap = list[bytes](), self._above(body[0]), False
        for node in body:
            lead, start = self.text[start : self.start(node)], self.end(node)
            text, leaves = self._statement(node)
            gap |= lead[:1] == b"\n"
            if text:  # one empty line, where any statement up to here had one
                above = b"\n" if gap and lead[:1] != b"\n" and text[:1] != b"\n" else b""
                lead = lead if pieces or node is body[0] else lead.lstrip(b"\n")
                pieces += [above if pieces else b"", lead, text.lstrip(b"\n") if lead[:1] == b"\n" else text]
                gap = False
            if leaves:
                return b"".join(pieces), True
        return b"".join(pieces), False

    def _above(self, node: ast.stmt) -> int:
        """Return the start of the comments and empty lines above a statement."""
        line = bisect_left(self.starts, self.start(node))
        while line and self.text[self.starts[line - 1] : self.starts[line]].lstrip()[:1] in (b"", b"#"):
            line -= 1
        return self.starts[line]

    def _statement(self, node: ast.stmt) -> tuple[bytes, bool]:
        if isinstance(node, ast.With) and self._inside(node.items[0].context_expr) == b"nullcontext()":
            text, leaves = self._block(node.body)
            return re.sub(rb"(?m)^    ", b"", text), leaves
        if not isinstance(node, ast.If) or (value := self._value(node.test)) is UNKNOWN:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
                known = self._value(node.value.test) is not UNKNOWN
                self.chosen |= {t.id for t in node.targets if known and isinstance(t, ast.Name)}
            return self.of(node, self._edits(node)), _leaves(node)
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
        if id(node) not in self.marked:
            return
        if isinstance(node, ast.expr) and (edit := self._expression(node)) is not None:
            yield edit
            return
        gone = list[Any]()
        if isinstance(node, ast.Call):
            row, absent = [*node.args, *node.keywords], self.absent.get(_called(node), set())
            gone = [a for i, a in enumerate(row) if (a.arg if isinstance(a, ast.keyword) else i) in absent]
            yield from self.without(row, gone)
        if isinstance(node, ast.arguments):
            yield from self._parameters(node)
            return
        if isinstance(node, ast.comprehension):
            gone = [test for test in node.ifs if self._value(test) is True]
            yield from self.without([node.iter, *node.ifs], gone)
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield self._branch(node, name, value)
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and child not in gone:
                    yield from self._edits(child)

    def _branch(self, node: ast.AST, name: str, body: list[ast.stmt]) -> Edit:
        """Return the edit of a block of a compound statement; an `else` without statements goes."""
        first, end = body[0], self.end(body[-1])
        indent = b" " * first.col_offset
        if name == "orelse" and _is_elif(node, body):
            assert isinstance(first, ast.If)
            value = self._value(first.test)
            chosen = first.body if value else first.orelse
            if value is UNKNOWN or not chosen or _is_elif(first, chosen):
                return self.start(first), end, self._statement(first)[0]
            return self.start(first), end, indent + b"else:\n" + self._block(chosen)[0]
        text, _ = self._block(body)
        if name == "orelse" and not text:
            return self.end(node.body[-1]), end, b""  # type: ignore[attr-defined]
        return self._above(first), end, text or indent + b"pass\n"

    def _expression(self, node: ast.expr) -> Edit | None:
        """Return the edit that folds an expression of facts; None if it has none at its top."""
        start, end = self.start(node), self.end(node)
        if isinstance(node, ast.IfExp) and (value := self._value(node.test)) is not UNKNOWN:
            chosen = node.body if value else node.orelse
            return *(self._bracketed(start, end) if isinstance(chosen, ATOMS) else (start, end)), self._inside(chosen)
        match node:
            case ast.Constant():
                return None
            case ast.Call(func=ast.Name(id="getattr"), args=[whole, ast.Attribute(value=ast.Name(id="FACTS")) as path]):
                return start, end, self._inside(whole) + f".{self._value(path)}".encode()
        if isinstance(value := self._value(node), str | int | float | tuple | None):
            return start, end, _written(value).encode()
        if isinstance(node, ast.BoolOp):
            rest = [v for v in node.values if self._value(v) is UNKNOWN]
            if len(rest) < len(node.values):
                word = b" and " if isinstance(node.op, ast.And) else b" or "
                texts = [(self._inside(v), len(rest) == 1 or isinstance(v, TIGHT)) for v in rest]
                return start, end, word.join(text if tight else b"(" + text + b")" for text, tight in texts)
        return None

    def _bracketed(self, start: int, end: int) -> tuple[int, int]:
        """Widen to the brackets right round an expression if they are not those of a call."""
        before = self.text[start - 2 : start]
        alone = before[1:] == b"(" and self.text[end : end + 1] == b")" and not re.match(rb"[\w\])]", before)
        return (start - 1, end + 1) if alone else (start, end)

    def _inside(self, node: ast.expr) -> bytes:
        return self.of(node, self._edits(node))

    def _parameters(self, node: ast.arguments) -> Iterator[Edit]:
        """Yield the edits that make `Annotated[T, ...] = default` the plain type, or leave the parameter out."""
        defaults = [None] * (len(node.args) - len(node.defaults)) + node.defaults
        ends = [self.end(default or a) for a, default in zip(node.args, defaults, strict=True)]
        for i, argument in enumerate(node.args):
            if (needs := _needs(argument)) is None:
                continue
            if not self._is_absent(argument):
                yield self.start(needs), ends[i], self._inside(_elements(needs)[0])
            elif i:
                yield ends[i - 1], ends[i], b""
            else:
                yield self.start(argument), self.start(node.args[1]) if len(node.args) > 1 else ends[0], b""


def _in_place(tree: ast.AST, text: bytes, chosen: set[str]) -> bytes:
    """Return the text of a definition after one step: names of `chosen` in place, what is set and not used left out,
    `f(*(a, b))` as `f(a, b)` and `x[(a, b)]` as `x[a, b]`."""
    source, found = _Source(text), list[Edit]()
    for edits in _steps(tree, source, chosen):
        if all(end <= start or stop <= begin for begin, end, _ in edits for start, stop, _ in found):
            found += edits
    return source.edited(found)


def _steps(tree: ast.AST, source: _Source, chosen: set[str]) -> Iterator[list[Edit]]:
    """Yield the edits of each change that makes a definition shorter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from _inlined(node, source, chosen)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            if source.of(node.slice)[:1] == b"(":
                yield [(source.start(node.slice), source.end(node.slice), _items(source, node.slice))]
        elif isinstance(node, ast.Call | ast.Tuple | ast.List | ast.Set):
            row = [*node.args, *node.keywords] if isinstance(node, ast.Call) else node.elts
            for item in row:
                if isinstance(item, ast.Starred) and isinstance(item.value, ast.Tuple | ast.List):
                    spliced = [(source.start(item), source.end(item), _items(source, item.value))]
                    yield spliced if item.value.elts else [*source.without(row, [item])]


def _inlined(function: ast.FunctionDef, source: _Source, chosen: set[str]) -> Iterator[list[Edit]]:
    """Yield the edits that put what an assignment of a function sets in the places where it is used."""
    names, parents, taken = dict[str, list[ast.Name]](), dict[ast.AST, ast.AST](), set[str]()
    for parent in ast.walk(function):
        parents |= dict.fromkeys(ast.iter_child_nodes(parent), parent)
        if isinstance(parent, ast.Name):
            names.setdefault(parent.id, []).append(parent)
        elif isinstance(parent, ast.arg):
            taken.add(parent.arg)
    for name, places in names.items():
        stored = [n for n in places if isinstance(n.ctx, ast.Store)]
        node = parents[stored[0]] if len(stored) == 1 and name not in taken else None
        if not isinstance(node, ast.Assign):
            continue
        uses = [n for n in places if n is not stored[0]]
        if uses and (name not in chosen or not (len(uses) == 1 or isinstance(node.value, PLAIN))):
            continue
        value, tight = source.of(node.value), isinstance(node.value, ATOMS)
        texts = [(u, value if tight or not isinstance(parents[u], OPERATORS) else b"(" + value + b")") for u in uses]
        yield [(source.start(node), source.end(node), b""), *((source.start(u), source.end(u), v) for u, v in texts)]


def _items(source: _Source, row: ast.Tuple | ast.List) -> bytes:
    return b", ".join(source.of(item) for item in row.elts)


def _defined(node: ast.stmt) -> str:
    """Return the name that a statement of a module defines: a function, a class or a constant; `f.defvjp` of a call
    `f.defvjp(...)`, which comes with `f`."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return target.id if isinstance(target, ast.Name) else ""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func)
    return getattr(node, "name", "")


def _leaves(node: ast.stmt) -> bool:
    return isinstance(node, LEAVES) or (isinstance(node, ast.With) and _leaves(node.body[-1]))


def _is_elif(node: ast.AST, body: Sequence[ast.stmt]) -> bool:
    return isinstance(node, ast.If) and body is node.orelse and body[0].col_offset == node.col_offset


def _written(value: Any) -> str:
    """Return a fact as source."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_written, value))}{',' if len(value) == 1 else ''})"
    return python_string(value) if isinstance(value, str) else repr(value)


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
    for line in text.split("\n"):
        new = MARK.sub(lambda found: str(getattr(facts, found[1])), line)
        if new == line or new.strip() != "#":
            filled += wrapped(new)
    return "\n".join(filled)


def _joined(text: str, width: int) -> str:
    """Put what stands in brackets on the line of the brackets where it fits now, as a formatter does."""

    def one_line(found: re.Match[str]) -> str:
        inside = " ".join(part.strip() for part in found[2].splitlines()).replace(" .", ".")
        line = found[1] + inside + found[3]
        return line if len(line) <= width else found[0]

    return BROKEN.sub(one_line, text)
