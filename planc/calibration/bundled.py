"""Figures of the comparison with published runs that answers repeat; a checkout makes them (`make docs`)."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def bundled(name: str) -> Any:
    """The content of the JSON file `name` among this room's data."""
    return json.loads(files(__package__).joinpath("data").joinpath(name).read_text())
