"""Base of the report's data, and what the views are made from."""

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
    """Data of a view: frozen, without further keys. Names carry units as in the report's JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


@dataclass(frozen=True, kw_only=True)
class PageSubject:
    """A plan that was examined and costed, and how the page came about."""

    examined: Examined
    costed: CostedPlan
    command: str

    @property
    def exposed_stage(self) -> int:
        """The pipeline rank whose seconds are the step's."""
        return self.costed.slowest
