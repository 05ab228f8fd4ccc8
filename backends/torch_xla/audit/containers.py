"""Finds lists, dicts and sets that outlive a step and that a step changes.

The source of every function that runs is searched for statements that change a container. A container outlives the step
if it is the same object in two consecutive steps.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, MutableMapping, MutableSequence, MutableSet
from types import CodeType, FrameType, TracebackType
from typing import Any

from torch import nn

from planc.backends.torch_xla.audit.places import Place, is_watched
from planc.diag.fast_dataclass import dataclass

CONTAINERS = (
    *(MutableSequence, MutableMapping, MutableSet),
    *(nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict),
)
CHANGING = frozenset(
    {
        *("append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove", "discard"),
        *("clear", "update", "setdefault", "add", "sort", "reverse"),
    }
)


@dataclass(frozen=True)
class Site:
    """A statement that changes a container, as `self.seen.append(x)`: path ("self", "seen"), how ".append(...)"."""

    path: tuple[str, ...]
    line: int
    how: str


class Containers:
    """A context manager, entered once for each step, that records the containers which each statement changes."""

    def __init__(self) -> None:
        self._steps: list[dict[tuple[CodeType, Site], list[Any]]] = []
        self._sites: dict[int, tuple[CodeType, tuple[Site, ...]]] = {}
        """By the id of the code: hashing a code object reads all of it at every call."""

    def __enter__(self) -> Containers:
        self._steps.append({})
        sys.setprofile(self._called)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.setprofile(None)

    def outliving(self) -> Iterator[tuple[Place, Site]]:
        """Yields the statements that changed the same container in both of the last two steps, with file and line."""
        before, last = self._steps[-2:]
        for (code, site), objects in last.items():
            kept = {id(o) for o in before.get((code, site), [])}
            if any(id(o) in kept for o in objects):
                yield Place(code.co_filename, site.line, code.co_qualname), site

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Records, when a function returns, the containers that it changes: local containers still exist then."""
        if event != "return":
            return
        code = frame.f_code
        if id(code) not in self._sites:
            self._sites[id(code)] = code, sites(code) if is_watched(code) else ()
        for site in self._sites[id(code)][1]:
            found = _value_of_path(site.path, frame)
            if isinstance(found, CONTAINERS):
                self._steps[-1].setdefault((code, site), []).append(found)


def sites(code: CodeType) -> tuple[Site, ...]:
    """Returns the statements in the source of `code` that change something in place; () without source."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return ()
    return tuple(Site(path, first + line - 1, how) for path, line, how in _changes(tree))


def _changes(tree: ast.AST) -> Iterator[tuple[tuple[str, ...], int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            yield from _attribute_path(node.func.value, node.lineno, f".{node.func.attr}(...)")
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            for target in _targets(node):
                if isinstance(target, ast.Subscript):
                    yield from _attribute_path(target.value, target.lineno, "[...] = ...")
                elif isinstance(node, ast.AugAssign):
                    yield from _attribute_path(target, target.lineno, " += ...")


def _targets(node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete) -> list[ast.expr]:
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else node.targets


def _attribute_path(node: ast.expr, line: int, how: str) -> Iterator[tuple[tuple[str, ...], int, str]]:
    """Yields the path of an expression that is a name with attributes; nothing for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        yield (node.id, *reversed(names)), line, how


_ABSENT = object()


def _value_of_path(path: tuple[str, ...], frame: FrameType) -> Any:
    """Returns the value that `path` has in a function's `frame`; local and closure variables come before globals."""
    value = frame.f_locals.get(path[0], frame.f_globals.get(path[0], _ABSENT))
    for name in path[1:]:
        value = getattr(value, name, _ABSENT)
    return value
