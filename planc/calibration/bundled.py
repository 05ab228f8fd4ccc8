"""Load the JSON files that ship in `calibration/data`: `make docs` derives them from published training runs."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def bundled(name: str) -> Any:
    """Return the parsed content of the file `name` in `calibration/data`."""
    return json.loads(files(__package__).joinpath("data").joinpath(name).read_text())
