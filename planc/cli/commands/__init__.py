"""The commands, one file each: `arguments(parser)`, and `run(options)`, which prints the answer and returns the exit
status."""

from __future__ import annotations

import importlib
import keyword
from types import ModuleType


def load_command(name: str) -> ModuleType:
    """Return the module of the command `name`, with `arguments(parser)` and `run(options)`.

    For a Python keyword the module's name ends in an underscore.
    """
    module = f"{name}_" if keyword.iskeyword(name) else name
    return importlib.import_module(f"{__name__}.{module}")
