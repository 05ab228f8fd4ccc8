"""Base class for the data of pages, and the type of the views (sections) of a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from planc.costing.costed import CostedPlan
from planc.diag.fast_dataclass import dataclass
from planc.driver import Examined
from planc.picture.marks import Picture


class PageView(NamedTuple):
    """A view (section) of a page: its name for `--view`, its heading, and the function that draws its picture."""

    name: str
    heading: str
    picture: Callable[[Any, float], Picture | None] | None = None


class Data(BaseModel):
    """Data of a view: frozen, without extra keys. Names carry units as in the report's JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


@dataclass(frozen=True, kw_only=True)
class PageSubject:
    """A checked and costed plan that a page describes, and the command line that writes the page."""

    examined: Examined
    costed: CostedPlan
    command: str

    @property
    def exposed_stage(self) -> int:
        """The slowest pipeline rank, which determines the time of the step."""
        return self.costed.slowest
