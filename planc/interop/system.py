"""Describes a system: how planc converts its files to a TrainingSetup, and a TrainingSetup to its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.interop.document import Document, FieldValue, Format
from planc.interop.fields import FieldTable
from planc.interop.setup import TrainingSetup
from planc.interop.values import Values

Setting = Callable[[Values], Any]
"""Reads a setting of the TrainingSetup from a system's fields. The fields it reads are recorded, and named in the
sentence's comment."""
Writer = Callable[[TrainingSetup], Any]
"""Returns a field's value for a setup; `OMIT` if the file does not set it."""


class Omit:
    """The type of `OMIT`, which a field's writer returns so that the exported file does not set the field."""


OMIT = Omit()


def unless(default: object, value: object) -> object:
    """Returns `value` for a field of an exported file; OMIT if it is the system's `default`, which needs no line."""
    return OMIT if value == default else value


def when(condition: object, value: object = True) -> object:
    """Returns `value` for a field of an exported file if `condition` is true, else OMIT."""
    return value if condition else OMIT


@dataclass(frozen=True, kw_only=True)
class System(FieldTable):
    """A training system whose configuration planc reads, writes, or both.

    `settings` has a reader for each field of TrainingSetup that the system's files decide; the other fields keep their
    defaults.
    """

    formats: tuple[Format, ...]
    settings: Mapping[str, Setting]
    recognises: Callable[[Document], bool]
    """True if the document can only belong to this system."""
    batch_words: tuple[str, ...] = ()
    """The system's fields for the batch, for the printed batch arithmetic."""
    writes: Mapping[str, Writer] = field(default_factory=dict)
    """The writer of each field that an export sets."""
    text: Callable[[Mapping[str, Any], TrainingSetup], str] | None = None
    """Returns the text of the file with these fields; None for a system that is only read."""
    ending: str = ""
    """Extension of the exported file."""
    fitted: Callable[[Mapping[str, Any], Mapping[str, FieldValue]], Mapping[str, Any]] | None = None
    """Returns the fields of an export as they are for a file that has these values: None for those to write."""
    beside: Mapping[str, Writer] = field(default_factory=dict)
    """Settings without a field in its file, which a reader gets by `--set`: name and value, `OMIT` for none."""
    asserts: Callable[[Values], None] | None = None
    """Records a finding for settings that the system itself rejects."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Settings that the system cannot express, with the reason: an export of a plan that needs one is refused."""
