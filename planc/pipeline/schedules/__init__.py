"""Pipeline schedules, one per file, each a `SCHEDULE`. `planc.pipeline` defines their types and simulates them."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from planc.pipeline.schedule import Schedule


@cache
def schedules() -> dict[str, Schedule]:
    """Return every schedule by its name in plans, in the order for lists that users see."""
    found: dict[str, Schedule] = {}
    for info in pkgutil.iter_modules(__path__):
        schedule: Schedule = importlib.import_module(f"{__name__}.{info.name}").SCHEDULE
        assert schedule.name not in found, schedule.name
        found[schedule.name] = schedule
    return dict(sorted(found.items(), key=lambda item: item[1].position))
