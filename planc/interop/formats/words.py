"""Data types for a parsed shell script: words as written, words after expansion, and compound commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from planc.diag.span import Span


@dataclass(frozen=True, slots=True)
class WordPiece:
    """A part of a word in a script: its text without quotes, and its offset in the source (`at`; -1 if the interpreter
    assembled the word). `quoted` is True inside quotes."""

    text: str
    at: int
    quoted: bool = False
    expanded: bool = False
    """True for `$NAME`, `${...}`, `$(...)` and backticks, which a shell expands."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A word as written in a script. For an array, `NAME=(...)`, `items` are its elements."""

    pieces: tuple[WordPiece, ...]
    span: Span
    items: tuple[Written, ...] | None = None

    @property
    def text(self) -> str:
        """Returns the word without quotes, with variables unexpanded."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def plain(self) -> str:
        """Returns the word if no part is quoted or expanded, as in a keyword (`if`, `done`); else ""."""
        return "" if any(piece.quoted or piece.expanded for piece in self.pieces) else self.text


@dataclass(frozen=True, slots=True)
class ShellWord:
    """A word after expansion and without quotes, with its place in the script."""

    text: str
    span: Span
    quoted: bool = False
    certain: bool = True
    """False if only the shell knows whether the word is given, or with which value."""
    stands: Span | None = None
    """Place of the expansion (`$TP`) that stands for the word, if it is set elsewhere, at `span`."""


# What a script is made of.


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple command. `documents` are its here-documents."""

    words: tuple[Written, ...]
    documents: tuple[Written, ...] = ()


@dataclass(frozen=True, slots=True)
class Test:
    """A test `[[ ... ]]` with its words, or an arithmetic test `(( ... ))` as one word."""

    words: tuple[Written, ...]
    arithmetic: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """An `if` statement: (condition, body) of each branch, and the body of `else` (None: there is no `else`)."""

    branches: tuple[tuple[Steps, Steps], ...]
    otherwise: Steps | None


@dataclass(frozen=True, slots=True)
class ShellLoop:
    """A loop: `for NAME in ITEMS`, or a `while` or `until` loop, whose `name` and `items` are empty."""

    name: str
    items: tuple[Written, ...]
    condition: Steps
    body: Steps


@dataclass(frozen=True, slots=True)
class Case:
    """A statement `case WORD in PATTERNS) ... ;; esac`: (patterns, body) of each branch."""

    word: Written
    branches: tuple[tuple[tuple[Written, ...], Steps], ...]
    falls: bool = False
    """True if a branch continues with the next one (`;&`, `;;&`): then only the shell knows which of them run."""


@dataclass(frozen=True, slots=True)
class ShellGroup:
    """Commands in a group `{ ... }`, or in a subshell `( ... )`, which has its own variables (`own`)."""

    body: Steps
    own: bool


@dataclass(frozen=True, slots=True)
class Function:
    """A function definition `NAME() { ... }`; `words` are the words before the body."""

    words: tuple[Written, ...]
    body: Steps


Node: TypeAlias = Simple | Test | If | ShellLoop | Case | ShellGroup | Function


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """A pipeline of commands. `joined` is the operator before it: `&&`, `||`, or "" if it runs in any case."""

    joined: str
    negated: bool
    pipeline: tuple[Node, ...]


Steps: TypeAlias = tuple[PipelineStep, ...]
