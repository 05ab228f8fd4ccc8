"""Types of the fields that planc reads from files; each accepts only values that planc itself could have written.

A plain `str` field would let a compiled plan carry any text into the programs that planc emits. The checks run only
when a file is read, so constructing values in Python stays fast.
"""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING, Annotated, Any

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import GetCoreSchemaHandler

MAX_COUNT = 10**15
"""Largest integer of a compiled plan; products of two sizes stay far below the largest integer that a float represents
exactly."""
MAX_QUANTITY = 1e40
"""Largest magnitude of a quantity in SI units."""
MAX_LINE = 20_100
"""Longest line of text: a sentence has at most 20,000 characters, plus the scope of a layout."""

NAME = r"[a-zA-Z_]\w*(\.[a-zA-Z_]\w*)*"
"""The grammar's NAME."""
METHOD = r"[0-9]+[a-zA-Z_]\w*"
"""The grammar's METHOD."""
GLOB = r"[A-Za-z_*][\w*\[\]\-]*(\.[\w*\[\]\-]+)*"
"""The grammar's GLOB."""


@dataclass(frozen=True)
class Matching:
    """Type of a text that matches `pattern` as a whole, of at most `longest` characters."""

    pattern: str
    kind: str
    longest: int = 200

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return _after_validator(self.check, source, handler)

    def check(self, value: str) -> str:
        if len(value) > self.longest or not re.fullmatch(self.pattern, value) or not value.isprintable():
            raise ValueError(f"{shortened(value)} is not {self.kind}")
        return value


@dataclass(frozen=True)
class OneLine:
    """Type of a printable text without line breaks, control or bidirectional characters."""

    kind: str = "one printable line"
    longest: int = MAX_LINE

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return _after_validator(self.check, source, handler)

    def check(self, value: str) -> str:
        if len(value) > self.longest or not value.isprintable():
            raise ValueError(f"{shortened(value)} is not {self.kind}")
        return value


@dataclass(frozen=True)
class Within:
    """Type of a finite number from `minimum` to `most`."""

    minimum: float
    most: float
    or_none: bool = False
    """True if 0 is allowed too, for fields that a sentence may omit."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return _after_validator(self.check, source, handler)

    def check(self, value: float) -> float:
        """Return `value` (bytes, seconds or the unit of its field). Raises ValueError if it is out of range."""
        if not self.holds(value):
            raise ValueError(f"{shortened(value)} is not a number from {self.minimum:g} to {self.most:g}")
        return value

    def holds(self, value: float) -> bool:
        """True if `value` is in the range; NaN is not."""
        return self.minimum <= value <= self.most or (self.or_none and value == 0)


@dataclass(frozen=True)
class OneOf:
    """Type of a text that is one of `words`."""

    words: tuple[str, ...]
    kind: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return _after_validator(self.check, source, handler)

    def check(self, value: str) -> str:
        if value not in self.words:
            raise ValueError(f"{shortened(value)} is not {self.kind}: {', '.join(w for w in self.words if w)}")
        return value


def shortened(value: object) -> str:
    """Return `value` as a Python literal of at most 60 characters, truncated, for an error message.

    An integer of more than 50 digits becomes the words "an integer", since it is slow to print.
    """
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**50 else "an integer"
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class InFile:
    """Type of a span (a range of a file's text) with a printable file name and bounded numbers."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return _after_validator(self.check, source, handler)

    def check(self, value: Span) -> Span:
        FILE_NAME.check(value.file)
        for number in (value.line, value.column, value.end_line, value.end_column):
            COUNT.check(number)
        return value


def _after_validator(check: Callable[[Any], Any], source: Any, handler: GetCoreSchemaHandler) -> Any:
    from pydantic import AfterValidator

    return AfterValidator(check).__get_pydantic_core_schema__(source, handler)


FILE_NAME = OneLine("a file's name", 4096)
COUNT = Within(0, MAX_COUNT)
POSITIVE = Within(1, MAX_COUNT)

# Ranges of machines, far on both sides of any that is built: predictions from such numbers stay finite. The language
# asks the same of a hardware file.
FLOPS_PER_S = Within(1, 1e24)
BYTES_PER_S = Within(1, 1e18)
BYTES = Within(1, 1e18)
BYTES_OR_NONE = Within(0, 1e18)
SECONDS = Within(0, 1e6)
SHARE = Within(1e-6, 1)
SHARE_OR_NONE = Within(0, 1)
FACTOR = Within(1e-3, 1e6)
"""A ratio, such as the speed-up by in-network reduction."""
OF_WHOLE = Within(1e-12, 1e6)
"""A measured rate relative to a declared one: small messages are slower, a gather of many members is faster than a
link."""
DEPTH = Within(0, 1e9)
"""A number of steps, not necessarily an integer."""
YEARLY = Within(1e-9, 1e9)
"""A number of events per year."""

Name = Annotated[str, Matching(NAME, "a name")]
NameOrEmpty = Annotated[str, Matching(f"({NAME})?", "a name")]
Method = Annotated[str, Matching(f"{NAME}|{METHOD}", "a name")]
MethodOrEmpty = Annotated[str, Matching(f"({NAME}|{METHOD})?", "a name")]
Glob = Annotated[str, Matching(GLOB, "a pattern of parameter names")]
_ATTRIBUTE = rf"(?!(?:{'|'.join(keyword.kwlist)}|__\w*)(?!\w))[A-Za-z_]\w*"
_PATH = rf"{_ATTRIBUTE}(\.({_ATTRIBUTE}|\*))*"
NameOrPath = Annotated[str, Matching(f"{NAME}|{_PATH}", "a name or a path of modules")]
ModulePath = Annotated[str, Matching(_PATH, "a path of modules")]
"""`*` stands for a layer index. No part is a keyword of Python or begins with `__`: programs name it."""
ModelName = Annotated[str, Matching(r"[A-Za-z0-9_.+-]+", "a model's name")]
"""A model's name; it may be the name of its config file."""
Currency = Annotated[str, Matching(r"[A-Z]{3}", "a currency's code")]
CurrencyOrEmpty = Annotated[str, Matching(r"([A-Z]{3})?", "a currency's code")]
Code = Annotated[str, Matching(r"[EWN][0-9]{4}", "a diagnostic's code")]
Digest = Annotated[str, Matching(r"[0-9a-f]{64}", "a SHA-256 sum")]
Line = Annotated[str, OneLine()]
FileName = Annotated[str, FILE_NAME]
Place = Annotated[Span, InFile()]
ScheduleRow = Annotated[str, Matching(r"[\w,;()]*", "a row of a schedule", 1_000_000)]

Count = Annotated[int, COUNT]
Positive = Annotated[int, POSITIVE]
Quantity = Annotated[float, Within(-MAX_QUANTITY, MAX_QUANTITY)]
NotNegative = Annotated[float, Within(0, MAX_QUANTITY)]
FlopsPerS = Annotated[float, FLOPS_PER_S]
BytesPerS = Annotated[float, BYTES_PER_S]
Bytes = Annotated[float, BYTES]
BytesOrNone = Annotated[float, BYTES_OR_NONE]
Seconds = Annotated[float, SECONDS]
Share = Annotated[float, SHARE]
ShareOrNone = Annotated[float, SHARE_OR_NONE]
Factor = Annotated[float, FACTOR]
OfWhole = Annotated[float, OF_WHOLE]
Depth = Annotated[float, DEPTH]
BytesPerSOrNone = Annotated[float, Within(BYTES_PER_S.minimum, BYTES_PER_S.most, or_none=True)]
YearlyOrNone = Annotated[float, Within(YEARLY.minimum, YEARLY.most, or_none=True)]
