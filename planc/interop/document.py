"""A foreign configuration file as it was read: its fields, each with its value and its place."""

from __future__ import annotations

from typing import Literal, TypeAlias

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source, Span

Format = Literal["flags", "yaml", "json", "toml", "assignments"]
FORMATS: tuple[Format, ...] = ("flags", "yaml", "json", "toml", "assignments")
Scalar: TypeAlias = str | int | float | bool | None
FieldValue: TypeAlias = Scalar | tuple["FieldValue", ...]


@dataclass(frozen=True)
class Given:
    """A field that a file sets: its value (a list becomes a tuple), and the place of the value or of the flag."""

    value: FieldValue
    span: Span
    certain: bool = True
    """False for a flag in a branch of a script of which only the shell knows whether it is run."""


@dataclass(frozen=True)
class Left:
    """Words of a file that are of no field, and their place.

    They are `unread`: of commands, variables and branches that the command is not made from. `loose` ones stand where a
    flag would, and no command takes them; which words `open` ones are, only the shell knows; `unknown` ones are no
    flags of the launcher before them; `twice` stands a field that is given again.
    """

    text: str
    span: Span
    kind: Literal["unread", "loose", "open", "unknown", "twice"]
    words: int = 1


@dataclass(frozen=True)
class Document:
    """The fields of one file, by dotted path (`training.seq_len`), in the order of the file.

    Flags of a command line go by their names without the leading dashes, with underscores. Values of flags and of
    `key=value` are text; those of YAML, JSON and TOML have the type that the format gives them.
    """

    file: str
    format: Format
    fields: dict[str, Given]
    source: Source
    program: tuple[str, ...] = ()
    """Words of a command line before the first flag: what is started, and how (`torchrun`, `pretrain_gpt.py`)."""
    launcher: dict[str, Given] | None = None
    """Flags of torchrun or of another launcher that stand before the program."""
    left: tuple[Left, ...] = ()
    """Words that the fields are not read from."""
    others: tuple[dict[str, Given], ...] = ()
    """Flags of the other commands of a script."""
    taken: frozenset[str] = frozenset()
    """Variables and arguments of a script whose values the command line gives."""
    unfound: tuple[str, ...] = ()
    """Files that a script reads and that are not given beside it."""
    words: int = 0
    """Words of a script, comments left out."""

    def whole(self) -> Span:
        """The place of a finding about the whole file: no text is marked."""
        return Span(self.file, 1, 1, 1, 1)


class UnreadableError(ValueError):
    """The text is not of its format; `span` is the place where it stops being so."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.span = span


MAX_FIELDS = 20_000
"""More fields than any configuration has: a file with more is refused."""
MAX_DEPTH = 40
"""Levels of nesting that are read."""
