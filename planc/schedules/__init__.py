"""Pipeline schedules, one file each, found by scanning this folder. A file holds one `SCHEDULE`.

`planc.pipeline` has the types that schedules are written in, and runs them with seconds for each stage.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from planc.pipeline.schedule import Schedule


@cache
def schedules() -> dict[str, Schedule]:
    """Every schedule by the name that a plan gives it, in the order in which they are listed to users."""
    found: dict[str, Schedule] = {}
    for info in pkgutil.iter_modules(__path__):
        schedule: Schedule = importlib.import_module(f"{__name__}.{info.name}").SCHEDULE
        assert schedule.name not in found, schedule.name
        found[schedule.name] = schedule
    return dict(sorted(found.items(), key=lambda item: item[1].position))
