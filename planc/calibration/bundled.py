"""Load bundled figures from the comparison with published runs; `make docs` in a checkout writes them."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def bundled(name: str) -> Any:
    """Load the JSON file `name` from the package's data folder."""
    return json.loads(files(__package__).joinpath("data").joinpath(name).read_text())
