"""Fields of a system: each with its default and what planc does with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from planc.diag.fast_dataclass import dataclass
from planc.interop.document import Document, FieldValue, Format

if TYPE_CHECKING:
    from planc.interop.setup import TrainingSetup
    from planc.interop.values import Values

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


def noted(why: str, *names: str, default: FieldValue = None) -> tuple[Field, ...]:
    """Fields that change neither layout, memory nor time; `why` says what they are for. Each of `names` may hold
    several names with blanks between them. A flag whose `default` is False takes no value, one with a tuple several."""
    return tuple(Field(name, default, "noted", why) for text in names for name in text.split())


def refused(name: str, default: FieldValue, why: str, *aliases: str) -> Field:
    """A field that changes layout, memory or time and that no sentence says: only its `default` is accepted."""
    return Field(name, default, "refused", why, aliases)


Setting = Callable[["Values"], Any]
"""How a setting of the TrainingSetup follows from a system's fields. The fields that it looks at are recorded, and
named beside the sentence."""
Writer = Callable[["TrainingSetup"], Any]
"""A field's value for a setup; `OMIT` where the file does not name it."""


class Omit:
    """The one value `OMIT`: the field is not written."""


OMIT = Omit()


@dataclass(frozen=True, kw_only=True)
class System:
    """A system whose configuration is read, written or both.

    `settings` maps each field of TrainingSetup that the system's files decide to the function that reads it; what is
    missing there has the setup's own default. `fields` lists every field that the system has, as far as planc knows
    them: a field of a file that is none of these is refused by name.
    """

    name: str
    title: str
    version: str
    """The release or commit whose defaults these are."""
    formats: tuple[Format, ...]
    fields: tuple[Field, ...]
    settings: Mapping[str, Setting]
    recognises: Callable[[Document], bool]
    """True for a document that is surely of this system."""
    batch_words: tuple[str, ...] = ()
    """The fields that hold the batch, in the system's own words, for the chain that is printed."""
    writes: Mapping[str, Writer] = field(default_factory=dict)
    """Each field that an export sets, and its value."""
    text: Callable[[Mapping[str, Any], TrainingSetup], str] | None = None
    """The text of the file with these fields set; None for a system that is only read."""
    ending: str = ""
    """Ending of the file that an export writes."""
    prepared: Callable[[Document], Document] | None = None
    """A document as the system's files have it to one whose fields have the names of `fields`: for files that hold
    them under another name."""
    calls: Mapping[str, str] = field(default_factory=dict)
    """Names by which another system's settings, used for this one too, call fields of this one: `not NAME` for a field
    that says the opposite, the empty text for one that this system has not."""
    beside: Mapping[str, Writer] = field(default_factory=dict)
    """Settings that its file has no field for and that a reader is told by `--set`: name and value, `OMIT` for none."""
    asserts: Callable[[Values], None] | None = None
    """Records a finding for settings that the system itself stops at."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Settings that the system cannot say, with the reason: an export of a plan that needs one is refused."""

    def known(self, name: str) -> Field | None:
        """The field that a file spells `name`; None for one that planc does not know."""
        return _spellings(self).of(name)


@dataclass(frozen=True)
class Spellings:
    """The fields of a system by their spellings, and those that go by a pattern: the first that matches counts."""

    system: System
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


_known: dict[int, Spellings] = {}
"""By the identity of a system, which is kept with them."""


def _spellings(system: System) -> Spellings:
    if id(system) not in _known:
        named = [(n, f) for f in system.fields for n in (f.name, *f.aliases) if "*" not in n]
        assert len(dict(named)) == len(named), f"{system.name}: a field is listed twice"
        patterns = [f for f in system.fields if "*" in f.name]
        one_of = "|".join(f"({'.*'.join(map(re.escape, f.name.split('*')))})" for f in patterns)
        _known[id(system)] = Spellings(system, dict(named), patterns, re.compile(one_of, re.DOTALL))
    return _known[id(system)]
