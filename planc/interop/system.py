"""A system: how its files are read into a setup, and written from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.interop.document import Document, Format
from planc.interop.fields import FieldTable
from planc.interop.setup import TrainingSetup
from planc.interop.values import Values

Setting = Callable[[Values], Any]
"""How a setting of the TrainingSetup follows from a system's fields. The fields that it looks at are recorded, and
named beside the sentence."""
Writer = Callable[[TrainingSetup], Any]
"""A field's value for a setup; `OMIT` where the file does not name it."""


class Omit:
    """The one value `OMIT`: the field is not written."""


OMIT = Omit()


def unless(default: object, value: object) -> object:
    """`value`, or OMIT where it is the `default` that the system takes anyway."""
    return OMIT if value == default else value


def when(condition: object, value: object = True) -> object:
    """`value` under a `condition`, and OMIT otherwise."""
    return value if condition else OMIT


@dataclass(frozen=True, kw_only=True)
class System(FieldTable):
    """A system whose configuration is read, written or both.

    `settings` maps each field of TrainingSetup that the system's files decide to the function that reads it; what is
    missing there has the setup's own default.
    """

    formats: tuple[Format, ...]
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
    beside: Mapping[str, Writer] = field(default_factory=dict)
    """Settings that its file has no field for and that a reader is told by `--set`: name and value, `OMIT` for none."""
    asserts: Callable[[Values], None] | None = None
    """Records a finding for settings that the system itself stops at."""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """Settings that the system cannot say, with the reason: an export of a plan that needs one is refused."""
