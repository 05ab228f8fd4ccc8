"""Write Python source that `ruff format` does not change, from templates, calls and comments; for all backends."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from planc.diag.quoting import python_comment
from planc.ir.base import Cause

WIDTH = 110
INDENT = "    "
CLOSING = {"(": ")", "{": "}", "[": "]"}
DEFINED = re.compile(r"(?m)^(?:def|class) (\w+)|^(\w+)(?:: .+?)? = ")
"""Top-level definitions of a file: functions, classes and constants."""


def file_of(head: Iterable[str], functions: Iterable[str], width: int = WIDTH) -> str:
    """Join the parts of a file: one blank line between parts of `head`, two between `functions`; skip empty parts.

    Asserts that no name is defined twice, since the parts come from different passes. A line that is longer than
    `width`, because of names of the plan, is split.
    """
    parts = ("\n\n".join(t for t in head if t), *(f.strip("\n") for f in functions if f))
    text = "\n\n\n".join(parts) + "\n"
    twice = [name for name, n in Counter(f or c for f, c in DEFINED.findall(text)).items() if n > 1]
    assert not twice, f"a program defines {', '.join(twice)} twice"
    return re.sub(rf"(?m)^.{{{width + 1},}}$", lambda found: _split(found[0], width), text)


def _split(line: str, width: int) -> str:
    """Split a line of code, or a docstring's first line, that exceeds `width`; return other lines unchanged."""
    indent = line[: -len(line.lstrip())]
    if line.startswith(f'{indent}"""'):
        # A long word is not broken: that may cut an escape of an odd name in two.
        return textwrap.fill(
            line.strip(), width, initial_indent=indent, subsequent_indent=indent, break_long_words=False
        )
    if len(line) <= width or (found := _brackets(line)) is None:
        return line
    begin, *commas, end = found
    pieces = [line[a + 1 : b].strip() for a, b in pairwise((begin, *commas, end))]
    inside = [f"{indent}{INDENT}{', '.join(pieces)}"]
    if (not _is_call(line, begin) and len(pieces) > 1) or len(inside[0]) > width:
        inside = [_split(f"{indent}{INDENT}{piece},", width) for piece in pieces]
    return "\n".join((line[: begin + 1], *inside, indent + line[end:]))


def _is_call(line: str, begin: int) -> bool:
    return line[begin] != "{" and re.match(r"[\w\])]", line[begin - 1]) is not None


def _brackets(line: str) -> list[int] | None:
    """Return the positions in `line` of an opening bracket, its commas and its closing bracket, at which to split: the
    brackets of a function's parameters, else the last outermost brackets. None if there are none."""
    found, depth = list[list[int]](), 0
    for mark in re.finditer(r'"(?:\\.|[^"\\])*"|#|[(\[{,)\]}]', line):
        if mark[0] == "#":
            return None
        if mark[0] in CLOSING:
            found += [[mark.start()]] if depth == 0 else []
            depth += 1
        elif depth == 1 and mark[0][0] != '"':
            found[-1].append(mark.start())
        depth -= mark[0] in CLOSING.values()
    if depth or not found:
        return None
    return found[0 if line.lstrip().startswith("def ") else -1]


def fill(template: str, **pieces: str) -> str:
    """Replace each `<name>` in `template` by its text in `pieces`, and wrap comments to the width.

    A name alone on its line may be replaced by several lines, indented as the name; an empty text removes the line.
    Raises KeyError if a name is not in `pieces`.
    """
    text: list[str] = []
    for line in textwrap.dedent(template).strip("\n").split("\n"):
        alone = re.fullmatch(r"( *)<(\w+)>", line)
        if alone is None:
            text += wrapped(re.sub(r"<([a-z]\w*)>", lambda m: pieces[m[1]], line))
        elif pieces[alone[2]]:
            for piece_line in _unwrapped(pieces[alone[2]]).split("\n"):
                text += wrapped(alone[1] + piece_line if piece_line else "")
    return "\n".join(text)


def _unwrapped(piece: str) -> str:
    """Join each wrapped comment of `piece` into one line, so that it can be wrapped again at another indentation."""
    return re.sub(r"(?m)(?<=.)\n *#   (?=\S)", " ", piece)


def wrapped(line: str) -> list[str]:
    """Wrap `line` if it is a comment that is too long; return other lines unchanged."""
    indent, mark, text = line.partition("# ")
    if len(line) <= WIDTH or not mark or indent.strip():
        return [line]
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ", break_long_words=False
    )


def call(head: str, arguments: Sequence[str], tail: str = "", depth: int = 0) -> str:
    """Format `head(arguments)tail` on one line if it fits at `depth` indents, else with one argument per line."""
    opened = head if head[-1] in CLOSING else head + "("
    closing = CLOSING[opened[-1]]
    one = opened + ", ".join(arguments) + closing + tail
    if len(one) + len(INDENT) * depth <= WIDTH:
        return one
    return opened + "\n" + "".join(f"{INDENT}{a},\n" for a in arguments) + closing + tail


def tuple_of(items: Sequence[str]) -> str:
    """Return the source text of a tuple, from the source texts of its `items` (at least one)."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def lines_of_tuple(head: str, items: Sequence[str], tail: str = "") -> list[str]:
    """Format the tuple `head(items)tail` with one item per line; a single item stays on the line of `head`."""
    if len(items) == 1:
        return [f"{head}{tuple_of(items)}{tail}"]
    return [f"{head}(", *(f"{INDENT}{item}," for item in items), f"){tail}"]


def because(cause: Cause | None, note: str = "") -> str:
    """Return a comment that cites the plan's sentence `cause`, then `note`; either may be missing (None, "").

    "" if both are missing. `fill` wraps the comment.
    """
    place = cause.comment() if cause is not None else ""
    return f"# {python_comment(': '.join(t for t in (place, note) if t))}" if note or place else ""


def lines(*parts: str) -> str:
    """Join `parts` as lines, without the empty ones."""
    return "\n".join(p for p in parts if p)


def comment(text: str, indent: int = 0) -> list[str]:
    """Return `text` as comment lines, wrapped to the width."""
    prefix = INDENT * indent + "# "
    return textwrap.wrap(python_comment(text), WIDTH, initial_indent=prefix, subsequent_indent=prefix + "  ")


def beside(code: str, note: str, depth: int = 0) -> list[str]:
    """Return `code` with the comment `note` after it, or above it if the line is too long at `depth` indents."""
    if not note:
        return [code]
    line = f"{code}  # {python_comment(note)}"
    if len(line) + len(INDENT) * depth <= WIDTH:
        return [line]
    indent = len(code) - len(code.lstrip())
    return [*comment(note, indent // len(INDENT)), code]


def causes(found: Iterable[Cause | None], indent: int = 0) -> list[str]:
    """Return the plan's sentences in `found` as comment lines, without duplicates, indented by `indent` levels."""
    note = dict.fromkeys(c.comment() for c in found if c is not None)
    return [line for text in note for line in comment(text, indent)]
