"""Describes the fields of a system's configuration: the default of each, and how planc treats it."""

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

    `name` is the spelling in the file; in the names of refused fields, and of rules for the user's modules, `*` matches
    any text. `default` is the system's value if the file does not set the field. A `read` field decides a setting. A
    `noted` field affects neither layout, memory nor time as planc counts them. A `refused` field affects them, but no
    sentence of a plan expresses it, so any value but `default` is an error. `why` says what a noted or refused field
    does.
    """

    name: str
    default: FieldValue = None
    treatment: Treatment = "read"
    why: str = ""
    aliases: tuple[str, ...] = ()
    """Other spellings of the same field."""
    off: str = ""
    """How memory and time are off if this refused field is left out; "" if nothing useful is left without it."""


def field_tables(system: str) -> dict[str, tuple[Field, ...]]:
    """Returns the tables of fields in the TOML file of `system`, by table name.

    Each row of a table describes the fields in its `names` (separated by blanks), which share its `default` (None if it
    has none) and the reason why they are `noted` or `refused`. A flag with the default false takes no value; a field
    whose default is a list takes several.
    """
    tables = package_table("planc.interop.systems", f"{system}.toml")
    return {name: tuple(field for row in rows for field in _fields(**row)) for name, rows in tables.items()}


def _fields(
    *, names: str, default: Any = None, noted: str = "", refused: str = "", aliases: Sequence[str] = (), off: str = ""
) -> Iterator[Field]:
    assert not (noted and refused) and (refused or not off), names
    treatment: Treatment = "noted" if noted else "refused" if refused else "read"
    value = tuple(default) if isinstance(default, list) else default
    return (Field(name, value, treatment, noted or refused, tuple(aliases), off) for name in names.split())


@dataclass(frozen=True, kw_only=True)
class FieldTable:
    """The fields of a system, and the functions that read its settings from them.

    `fields` has every known field of the system; any other field in a file is an error.
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
        """Returns the field with the spelling `name` in a file; None if the system has no such field."""
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
    """Finds a field of a system by its exact spelling, or else by the first pattern (a name with `*`) that matches."""

    by_name: Mapping[str, Field]
    patterns: Sequence[Field]
    one_of: re.Pattern[str]
    """All patterns in one, a group each."""

    def of(self, name: str) -> Field | None:
        if name in self.by_name:
            return self.by_name[name]
        found = self.one_of.fullmatch(name) if self.patterns else None
        return self.patterns[found.lastindex - 1] if found and found.lastindex else None
