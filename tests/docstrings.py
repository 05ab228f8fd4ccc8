"""How much the docstrings of public functions say: `python tests/docstrings.py [TREE]` prints a table by room.

A public function is a function or method of `planc/` or `backends/` of which no part of the name is private.
Counted: those with a docstring; of those with arguments, those that name one (in backticks, or followed by a
colon); of those that return numbers, those with a unit in name or docstring; and those that cite a source,
themselves or in their module. The same is printed for those that other rooms use (`tests/room_interfaces.py`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.room_interfaces import arguments, room, used_elsewhere  # noqa: E402

UNIT = re.compile(
    r"\b(s|ms|seconds?|milliseconds?|bytes?|bits?|[KMGT]i?B|FLOPs?|tokens?|devices?|ranks?|hops?|steps?|microbatch(es)?"
    r"|layers?|share|fraction|ratio|percent|operations|parameters|elements|sequences|columns|lanes|counts?|number of"
    r"|how many|index)\b|%",
    re.IGNORECASE,
)
UNIT_OF_NAME = re.compile(
    r"_(s|bytes|gib|flops|tokens|ops|per_s|share|count|ranks|devices|ratio|intensity|columns|lanes)$"
)
SOURCE = re.compile(
    r"https?://|arXiv|\bet al\b|\bpaper\b|\bsection \d|\bequation\b|`docs/|`?[\w/]+\.md\b|`torch\.|`jax\."
)


@dataclass(frozen=True)
class Function:
    """A public function: where it is, and what its docstring says."""

    place: str
    name: str
    described: bool
    takes_arguments: bool
    names_argument: bool
    returns_number: bool
    has_unit: bool
    has_source: bool
    used_elsewhere: bool


@dataclass(frozen=True)
class Figures:
    """Counts over functions; the second of a pair is how many of them could."""

    functions: int
    described: int
    arguments: tuple[int, int]
    units: tuple[int, int]
    sources: int

    def shares(self) -> dict[str, float]:
        """The shares (0 to 1) of functions that are described, name an argument, give a unit and cite a source."""
        return {
            "described": self.described / max(self.functions, 1),
            "arguments": self.arguments[0] / max(self.arguments[1], 1),
            "units": self.units[0] / max(self.units[1], 1),
            "sources": self.sources / max(self.functions, 1),
        }


def source_files(tree: Path) -> Iterator[Path]:
    """Python files of `planc/` and `backends/` under `tree`, links not followed."""
    for top in ("planc", "backends"):
        for path in sorted((tree / top).rglob("*.py")):
            if path.resolve().relative_to(tree.resolve()).parts[0] == top:
                yield path


def public_functions(tree: Path) -> list[Function]:
    """Every public function of `tree`."""
    modules = {str(path.relative_to(tree)): ast.parse(path.read_text()) for path in source_files(tree)}
    used = used_elsewhere(modules)
    found = []
    for place, module in modules.items():
        cited = bool(SOURCE.search(ast.get_docstring(module) or ""))
        for name, node in _defined(module.body, ""):
            found.append(_measured(place, name, node, cited=cited, used=(place, name) in used))
    return found


def _defined(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _defined(node.body, f"{prefix}{node.name}.")


def _measured(
    place: str, name: str, node: ast.FunctionDef | ast.AsyncFunctionDef, *, cited: bool, used: bool
) -> Function:
    text = ast.get_docstring(node) or ""
    given = arguments(node)
    returned = ast.unparse(node.returns) if node.returns else ""
    return Function(
        place=place,
        name=name,
        described=bool(text),
        takes_arguments=bool(given),
        names_argument=any(re.search(rf"`{a}`|\b{a}:", text) for a in given),
        returns_number=bool(re.search(r"\b(int|float)\b", returned)),
        has_unit=bool(UNIT.search(text) or UNIT_OF_NAME.search(name)),
        has_source=cited or bool(SOURCE.search(text)),
        used_elsewhere=used,
    )


def figures(functions: Iterable[Function]) -> Figures:
    """The counts over `functions`."""
    all_of = list(functions)
    with_arguments = [f for f in all_of if f.takes_arguments]
    numbers = [f for f in all_of if f.returns_number]
    return Figures(
        functions=len(all_of),
        described=sum(f.described for f in all_of),
        arguments=(sum(f.names_argument for f in with_arguments), len(with_arguments)),
        units=(sum(f.has_unit for f in numbers), len(numbers)),
        sources=sum(f.has_source for f in all_of),
    )


def main(tree: Path) -> None:
    functions = public_functions(tree)
    by_room: dict[str, list[Function]] = {}
    for function in functions:
        by_room.setdefault(room(function.place), []).append(function)
    columns = ("functions", "docstring", "names an argument", "unit of a number", "source")
    print(f"| room | {' | '.join(columns)} | {' | '.join(f'used elsewhere: {c}' for c in columns[:4])} |")
    print(f"|---|{'--:|' * 9}")
    for name, part in [*sorted(by_room.items()), ("all", functions)]:
        f = figures(part)
        print(f"| {name} | {_counts(f)} | {f.sources} | {_counts(figures(f for f in part if f.used_elsewhere))} |")


def _counts(f: Figures) -> str:
    return f"{f.functions} | {f.described} | {f.arguments[0]} of {f.arguments[1]} | {f.units[0]} of {f.units[1]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
