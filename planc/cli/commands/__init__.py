"""The commands, one file each: `arguments(parser)`, and `run(options)`, which prints the answer and returns the exit
status."""

from __future__ import annotations

import importlib
import keyword
from types import ModuleType


def load_command(name: str) -> ModuleType:
    """Return the module of the command `name`. A name that is a Python keyword has an underscore at its end."""
    module = f"{name}_" if keyword.iskeyword(name) else name
    return importlib.import_module(f"{__name__}.{module}")
