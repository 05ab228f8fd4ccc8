"""The published JSON schemas (draft 2020-12), one file for each format. `docs/schemas.py` generates them."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def names() -> list[str]:
    """Return the formats that have a schema, such as `planc.report/1`."""
    found = (f.name.removesuffix(".json") for f in files(__name__).iterdir() if f.name.endswith(".json"))
    return sorted(name.replace("-", "/") for name in found)


def schema(format: str) -> dict[str, Any]:
    """Return the JSON schema of `format`, one of `names`."""
    read: dict[str, Any] = json.loads(files(__name__).joinpath(file_name(format)).read_text())
    return read


def file_name(format: str) -> str:
    """Return the file name of a format: `planc.report-1.json` for `planc.report/1`."""
    return f"{format.replace('/', '-')}.json"
