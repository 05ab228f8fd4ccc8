"""Data types for a shell script: words as written, words as a command gets them, and compound commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from planc.diag.span import Span


@dataclass(frozen=True, slots=True)
class WordPiece:
    """A piece of a written word: its text without quotes, its offset in the source (`at`; -1 for an assembled word),
    and True if it is quoted."""

    text: str
    at: int
    quoted: bool = False
    expanded: bool = False
    """True for `$NAME`, `${...}`, `$(...)` and backticks, which a shell expands."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A word as written in a script. `items` are the words of an array, `NAME=(...)`."""

    pieces: tuple[WordPiece, ...]
    span: Span
    items: tuple[Written, ...] | None = None

    @property
    def text(self) -> str:
        """Returns the word without quotes, with variables unexpanded."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def plain(self) -> str:
        """Returns the word if none of it is quoted or expanded, which a reserved word requires; else ""."""
        return "" if any(piece.quoted or piece.expanded for piece in self.pieces) else self.text


@dataclass(frozen=True, slots=True)
class ShellWord:
    """A word that a command gets, without quotes, and its place."""

    text: str
    span: Span
    quoted: bool = False
    certain: bool = True
    """False if only the shell knows whether the word is given, or with which value."""


# What a script is made of.


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple command. `documents` are its here-documents."""

    words: tuple[Written, ...]
    documents: tuple[Written, ...] = ()


@dataclass(frozen=True, slots=True)
class Test:
    """`[[ ... ]]`, or `(( ... ))` with its text as the only word."""

    words: tuple[Written, ...]
    arithmetic: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """`if`: branches with their conditions, and the commands after `else` (None without an `else`)."""

    branches: tuple[tuple[Steps, Steps], ...]
    otherwise: Steps | None


@dataclass(frozen=True, slots=True)
class ShellLoop:
    """A loop: `for NAME in ITEMS`, or `while` or `until`, which have neither name nor items."""

    name: str
    items: tuple[Written, ...]
    condition: Steps
    body: Steps


@dataclass(frozen=True, slots=True)
class Case:
    """`case WORD in PATTERNS) ... ;; esac`."""

    word: Written
    branches: tuple[tuple[tuple[Written, ...], Steps], ...]
    falls: bool = False
    """True if a branch continues with the next one (`;&`, `;;&`): then only the shell knows which of them run."""


@dataclass(frozen=True, slots=True)
class ShellGroup:
    """`{ ... }`, or `( ... )`, whose variables are local: then `own` is True."""

    body: Steps
    own: bool


@dataclass(frozen=True, slots=True)
class Function:
    """`NAME() { ... }`."""

    words: tuple[Written, ...]
    body: Steps


Node: TypeAlias = Simple | Test | If | ShellLoop | Case | ShellGroup | Function


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """A pipeline, and the operator that joins it to the previous pipeline: `&&`, `||`, or "" if it runs in any case."""

    joined: str
    negated: bool
    pipeline: tuple[Node, ...]


Steps: TypeAlias = tuple[PipelineStep, ...]
