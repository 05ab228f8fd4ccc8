"""A parsed configuration file of another system: its fields, each with value and place (file, line, columns)."""

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
    """A field that a file sets. A list becomes a tuple (`value`); `span` is the place of the value or of the flag."""

    value: FieldValue
    span: Span
    certain: bool = True
    """False for a flag in a branch of a script if only the shell knows whether the branch runs."""
    places: tuple[tuple[Span, Span], ...] = ()
    """Places of each word of a flag, the flag first: where the word stands, and where its text is set."""


@dataclass(frozen=True)
class Left:
    """Words of a file that set no field, with their place (`span`). `words` is their number.

    Their `kind`: `unread` words belong to other commands, variables or branches than the chosen command; `loose` words
    belong to no command; the value of `open` words is known only to the shell; `unknown` words are not flags of the
    launcher; `twice` is a field that is set again later.
    """

    text: str
    span: Span
    kind: Literal["unread", "loose", "open", "unknown", "twice"]
    words: int = 1


@dataclass(frozen=True)
class Document:
    """The fields of one file, by dotted path (`training.seq_len`), in file order.

    Command-line flags are named without leading dashes, with underscores. Values of flags and of `key=value` are text;
    values of YAML, JSON and TOML have the types of their format.
    """

    file: str
    format: Format
    fields: dict[str, Given]
    source: Source
    program: tuple[str, ...] = ()
    """Words of a command line before the first flag: the program and its launcher (`torchrun`, `pretrain_gpt.py`)."""
    launcher: dict[str, Given] | None = None
    """Flags of torchrun or another launcher, before the program."""
    left: tuple[Left, ...] = ()
    """Words that no field is read from."""
    others: tuple[dict[str, Given], ...] = ()
    """Flags of the other commands of a script."""
    taken: frozenset[str] = frozenset()
    """Variables and arguments of a script whose values come from the command line."""
    unfound: tuple[str, ...] = ()
    """Files that a script reads and that were not given."""
    words: int = 0
    """Number of words of a script, without comments."""
    assumed: tuple[str, ...] = ()
    """Variables and arguments that tests of a script were decided without."""

    def whole(self) -> Span:
        """Returns the start of the file, as the place of a diagnostic about the whole file."""
        return Span(self.file, 1, 1, 1, 1)


class UnreadableError(ValueError):
    """The text does not have the expected format; `span` is the place of the first error."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.span = span


MAX_FIELDS = 20_000
"""Maximum number of fields; a file with more is refused."""
MAX_DEPTH = 40
"""Maximum nesting depth."""
