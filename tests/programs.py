"""Modules of emitted programs, run as they stand with the facts of a variant."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any


def variant(package: str, name: str, tables: dict[str, object] | None = None, **facts: Any) -> Any:
    """The module `name` of `package`, executed anew with such facts, and the others as they are by default; `tables`
    are names of a program that it has otherwise."""
    own: Any = import_module(f"{package}.facts")
    spec = find_spec(f"{package}.{name}")
    assert spec and spec.loader
    module, usual = module_from_spec(spec), own.FACTS
    try:
        own.FACTS = type(usual)(**facts)
        spec.loader.exec_module(module)
    finally:
        own.FACTS = usual
    assert {*(tables or {})} <= {*vars(module)}, "the module has no such names"
    vars(module).update(tables or {})
    return module
