"""Fields of a system: each with its default and what planc does with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, Literal

from planc.diag.fast_dataclass import dataclass
from planc.files import package_table
from planc.interop.document import Document, FieldValue

Treatment = Literal["read", "noted", "refused"]


@dataclass(frozen=True)
class Field:
    """A field of a system's configuration.

    `name` is as the file spells it. Fields that are refused, and rules for modules of the user's own, may have a `*`
    for any part of a name; what changes nothing is known by its name alone.
    `default` is the value that the system takes where the file says nothing. `read` fields decide a setting; `noted`
    ones change neither layout, memory nor time as planc counts them; `refused` ones do, and planc has no sentence for
    them: any value but `default` is an error. `why` says what the field does, for the last two.
    """

    name: str
    default: FieldValue = None
    treatment: Treatment = "read"
    why: str = ""
    aliases: tuple[str, ...] = ()
    """Other spellings of the same field."""


def field_tables(system: str) -> dict[str, tuple[Field, ...]]:
    """The tables of fields in the file of a `system`, in order, by their names.

    Each row has `names`, with blanks between them, that share the rest: a `default`, and in `noted` or `refused` why
    the fields are not read. A flag whose default is false takes no value, one with a list several; without a default
    there is None.
    """
    tables = package_table("planc.interop.systems", f"{system}.toml")
    return {name: tuple(field for row in rows for field in _fields(**row)) for name, rows in tables.items()}


def _fields(
    *, names: str, default: Any = None, noted: str = "", refused: str = "", aliases: Sequence[str] = ()
) -> Iterator[Field]:
    assert not (noted and refused), names
    treatment: Treatment = "noted" if noted else "refused" if refused else "read"
    value = tuple(default) if isinstance(default, list) else default
    return (Field(name, value, treatment, noted or refused, tuple(aliases)) for name in names.split())


@dataclass(frozen=True, kw_only=True)
class FieldTable:
    """The fields of a system, as far as its values are read by their names.

    `fields` lists every field that the system has, as far as planc knows them: a field of a file that is none of these
    is refused by name.
    """

    name: str
    title: str
    version: str
    """The release or commit whose defaults these are."""
    fields: tuple[Field, ...]
    settings: Mapping[str, Callable[[Any], Any]]
    """The way in which each setting follows from the fields."""
    prepared: Callable[[Document], Document] | None = None
    """A document as the system's files have it to one whose fields have the names of `fields`: for files that hold
    them under another name."""
    calls: Mapping[str, str] = field(default_factory=dict)
    """Names by which another system's settings, used for this one too, call fields of this one: `not NAME` for a field
    that says the opposite, the empty text for one that this system has not."""

    def known(self, name: str) -> Field | None:
        """The field that a file spells `name`; None for one that planc does not know."""
        return self._spellings.of(name)

    @cached_property
    def _spellings(self) -> Spellings:
        named = [(n, f) for f in self.fields for n in (f.name, *f.aliases) if "*" not in n]
        assert len(dict(named)) == len(named), f"{self.name}: a field is listed twice"
        patterns = [f for f in self.fields if "*" in f.name]
        one_of = "|".join(f"({'.*'.join(map(re.escape, f.name.split('*')))})" for f in patterns)
        return Spellings(dict(named), patterns, re.compile(one_of, re.DOTALL))


@dataclass(frozen=True)
class Spellings:
    """The fields of a system by their spellings, and those that go by a pattern: the first that matches counts."""

    by_name: Mapping[str, Field]
    patterns: Sequence[Field]
    one_of: re.Pattern[str]
    """All patterns in one, a group each."""

    def of(self, name: str) -> Field | None:
        """The field that is spelled `name`."""
        if name in self.by_name:
            return self.by_name[name]
        found = self.one_of.fullmatch(name) if self.patterns else None
        return self.patterns[found.lastindex - 1] if found and found.lastindex else None
