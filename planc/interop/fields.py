"""Describes the fields of a system: each with its default and how planc treats it."""

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

    `name` is the spelling in the file. Names of refused fields, and of rules for the user's own modules, may have a `*`
    for any part of a name. `default` is the system's value if the file does not set the field. A field that is `read`
    decides a setting. A field that is `noted` changes neither layout, memory nor time as planc counts them. A field
    that is `refused` does change them, but a plan has no sentence for it, so any value but `default` is an error. `why`
    says what a noted or refused field does.
    """

    name: str
    default: FieldValue = None
    treatment: Treatment = "read"
    why: str = ""
    aliases: tuple[str, ...] = ()
    """Other spellings of the same field."""


def field_tables(system: str) -> dict[str, tuple[Field, ...]]:
    """Returns the tables of fields in the TOML file of a `system`, by name, in order.

    All `names` of a row, separated by blanks, have the row's `default`, and in the tables `noted` and `refused` the
    row's reason why the fields are not read. A flag whose default is false takes no value; a field whose default is a
    list takes several values. A row without a default has the default None.
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
    """The fields of a system, and the functions that read its settings from the fields.

    `fields` lists every known field of the system; any other field in a file is an error that names the field.
    """

    name: str
    title: str
    version: str
    """The release or commit that the defaults are from."""
    fields: tuple[Field, ...]
    settings: Mapping[str, Callable[[Any], Any]]
    """The function that reads each setting from the fields."""
    prepared: Callable[[Document], Document] | None = None
    """Renames the fields of a document to the names in `fields`, for files that use other names."""
    calls: Mapping[str, str] = field(default_factory=dict)
    """Names under which another system's settings, reused for this one, call its fields: `not NAME` for a field with
    the opposite meaning, "" for one that this system lacks."""

    def known(self, name: str) -> Field | None:
        """Returns the field that a file spells `name`; None if the system has no such field."""
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
    """Finds the fields of a system, first by exact spelling, then by pattern; the first pattern that matches counts."""

    by_name: Mapping[str, Field]
    patterns: Sequence[Field]
    one_of: re.Pattern[str]
    """All patterns in one, a group each."""

    def of(self, name: str) -> Field | None:
        """Returns the field spelled `name`; None if the system has no such field."""
        if name in self.by_name:
            return self.by_name[name]
        found = self.one_of.fullmatch(name) if self.patterns else None
        return self.patterns[found.lastindex - 1] if found and found.lastindex else None
