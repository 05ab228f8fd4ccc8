"""Base class of the IR's values (frozen dataclasses), and `Cause`, the sentence of a plan that a value comes from."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from typing import Any, ClassVar

from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import python_comment
from planc.ir.field_types import Line, Place


class Value:
    """Base of the frozen dataclasses of the IR."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields to pickle; cached results are left out."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, without rarely used fields that have their default (LEFT_OUT)."""
        plain: dict[str, Any] = asdict(self, dict_factory=_plain_dict)  # type: ignore[call-overload]
        return plain


def _plain_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: _lists(value) for name, value in pairs if name not in LEFT_OUT or value != LEFT_OUT[name]}


LEFT_OUT = {
    "own_graph": None,
    "changes": (),
    "tables": (),
    "back_bandwidth_bytes_per_s": 0.0,
    "fixed": (),
    "own_code": (),
    "code_line": "",
    "code_why": "",
    "multiply_adds": (),
    "unseen": (),
    "frozen": False,
    "freeze": None,
    "lora": None,
    "chunked_loss": None,
}
"""Fields that most plans do not use, with the value at which the JSON omits them."""


def _lists(value: Any) -> Any:
    """Return the value with tuples converted to lists at any depth."""
    if isinstance(value, list | tuple):
        return [_lists(v) for v in value]
    if isinstance(value, dict):
        return {k: _lists(v) for k, v in value.items()}
    return value


@dataclass(frozen=True, kw_only=True)
class Cause(Value):
    """The sentence that a value comes from. `via` is the `use` sentence if a layout wrote it."""

    span: Place
    sentence: Line
    via: Line = ""

    def comment(self) -> str:
        """Return this cause as a comment in emitted code: file name, line and sentence."""
        return f"{plain_name(self.span.file)}:{self.span.line}  {python_comment(self.via or self.sentence)}"


def sentence_of(cause: Cause) -> str:
    """Return the sentence of `cause` on one line. For a sentence that a layout wrote, return the `use` sentence."""
    return " ".join((cause.via or cause.sentence).split())


def plain_name(file: str) -> str:
    """Return the file name in the path `file`, made safe for emitted code: at most 80 characters.

    All characters but letters, digits and `_.+-` become underscores, so that a file name cannot inject code.
    """
    return re.sub(r"[^\w.+-]", "_", file.rsplit("/", 1)[-1], flags=re.ASCII)[:80]
