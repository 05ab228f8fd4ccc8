"""Words of a shell script: as they are written, and as a command gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from planc.diag.span import Span


@dataclass(frozen=True, slots=True)
class WordPiece:
    """A stretch of a written word: its text without quotes, its offset in the source (-1 for a word that is put
    together), and how it is quoted."""

    text: str
    at: int
    quoted: bool = False
    expanded: bool = False
    """True for `$NAME`, `${...}`, `$(...)` and backticks, which a shell puts something in for."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A word as it stands in a script. `items` are the words of an array, `NAME=(...)`."""

    pieces: tuple[WordPiece, ...]
    span: Span
    items: tuple[Written, ...] | None = None

    @property
    def text(self) -> str:
        """The word without its quotes, with nothing put in."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def plain(self) -> str:
        """The word where none of it is quoted, as a word of the shell's own language is; else empty."""
        return "" if any(piece.quoted or piece.expanded for piece in self.pieces) else self.text


@dataclass(frozen=True, slots=True)
class ShellWord:
    """A word that a command gets, without its quotes, and its place."""

    text: str
    span: Span
    quoted: bool = False
    certain: bool = True
    """False for a word of which only the shell knows whether, or with which value, it is given."""


# What a script is made of.


@dataclass(frozen=True, slots=True)
class Simple:
    """A command of words. `documents` are texts that it reads, each after `<<`."""

    words: tuple[Written, ...]
    documents: tuple[Written, ...] = ()


@dataclass(frozen=True, slots=True)
class Test:
    """`[[ ... ]]`, or `(( ... ))` with its text as the only word."""

    words: tuple[Written, ...]
    arithmetic: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """Branches with their conditions, and the last one without."""

    branches: tuple[tuple[Steps, Steps], ...]
    otherwise: Steps | None


@dataclass(frozen=True, slots=True)
class ShellLoop:
    """`for NAME in ITEMS`; `while` and `until` have neither."""

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
    """True where a branch goes on to the next one (`;&`, `;;&`): which of them are run is left to the shell."""


@dataclass(frozen=True, slots=True)
class ShellGroup:
    """`{ ... }`, or `( ... )`, whose variables end with it."""

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
    """A pipeline, and how the one before it leads to it: `&&`, `||`, or nothing for always."""

    joined: str
    negated: bool
    pipeline: tuple[Node, ...]


Steps: TypeAlias = tuple[PipelineStep, ...]
