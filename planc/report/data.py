"""Base class of the pages' data, and the type from which the views of a page are derived."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from planc.costing.costed import CostedPlan
from planc.diag.fast_dataclass import dataclass
from planc.driver import Examined
from planc.picture.marks import Picture


class PageView(NamedTuple):
    """A view of a page: its name for `--view`, its heading, and its picture, if it has one."""

    name: str
    heading: str
    picture: Callable[[Any, float], Picture | None] | None = None


class Data(BaseModel):
    """Data of a view: frozen, without extra keys. Names carry units as in the report's JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


@dataclass(frozen=True, kw_only=True)
class PageSubject:
    """The subject of a page: a plan that was checked and costed, and the command line that writes the page."""

    examined: Examined
    costed: CostedPlan
    command: str

    @property
    def exposed_stage(self) -> int:
        """The slowest pipeline rank, whose seconds are those of the step."""
        return self.costed.slowest
