"""One file per command: `ARGUMENTS` it takes and `run`, which prints and returns the exit status."""

from __future__ import annotations

import importlib
import keyword
from types import ModuleType


def load_command(name: str) -> ModuleType:
    """The module of the command `name`, with `arguments(parser)` and `run(options)`.

    A name that is a word of Python has a module with an underscore.
    """
    module = f"{name}_" if keyword.iskeyword(name) else name
    return importlib.import_module(f"{__name__}.{module}")
