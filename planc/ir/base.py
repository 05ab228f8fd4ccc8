"""What every noun shares: frozen, closed, and able to say which sentence it came from."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from planc.diag.span import Span


class Frozen(BaseModel):
    """A noun of the IR. Unknown fields are errors; nothing changes after construction."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, field by field."""
        return self.model_dump(mode="json")


class Cause(Frozen):
    """The sentence a thing comes from. `via` is the `use` sentence when a layout wrote it."""

    span: Span
    sentence: str
    via: str = ""

    def comment(self) -> str:
        """How emitted code names this cause: file name, line and sentence."""
        name = self.span.file.rsplit("/", 1)[-1]
        return f"{name}:{self.span.line}  {self.via or self.sentence}"
