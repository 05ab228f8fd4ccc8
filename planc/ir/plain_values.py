"""Reads values of the IR from JSON by the types of their fields. Pydantic does the same, but is slow to import."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def read_noun(kind: type[T], value: Any) -> T:
    """Return the JSON value `value` as a frozen dataclass of type `kind`. Raises ValueError for unknown or missing
    fields, wrong types, and values that `planc.ir.field_types` does not accept.

    >>> from planc.ir.model import Run
    >>> read_noun(Run, {"section": "block", "layers": 3})
    Run(section='block', layers=3)
    """
    noun: T = _read(kind, value, kind.__name__)
    return noun


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        found = _read(args[0], value, where)
        for mark in args[1:]:
            found = mark.check(found)
        return found
    if origin is Literal:
        return _if(any(value == a and type(value) is type(a) for a in args), value, where)
    if origin in (Union, UnionType):
        return _first(args, value, where)
    if origin is tuple:
        _if(isinstance(value, list), value, where)
        kinds = [args[0]] * len(value) if args[1:] == (...,) else args
        _if(len(kinds) == len(value), value, where)
        return tuple(_read(k, v, where) for k, v in zip(kinds, value, strict=True))
    if origin is dict:
        _if(isinstance(value, dict), value, where)
        return {_read(args[0], k, where): _read(args[1], v, where) for k, v in value.items()}
    if is_dataclass(kind):
        return _dataclass(kind, value, where)
    if kind is float:
        return _if(type(value) in (int, float), value, where)
    return _if(type(value) is kind, value, where)


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    _if(isinstance(value, dict), value, where)
    known = {f.name: f for f in fields(kind)}
    needed = {n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    if wrong := sorted((set(value) - set(known)) | (needed - set(value))):
        raise ValueError(f"{where}: the field {wrong[0][:60]!r} is unknown or missing")
    hints = _hints(kind)
    return kind(**{name: _read(hints[name], v, f"{where}.{name}") for name, v in value.items()})


def _first(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """Return `value` as the first of the types `kinds` that accepts it."""
    for kind in kinds:
        if kind is NoneType:
            if value is None:
                return None
            continue
        try:
            return _read(kind, value, where)
        except ValueError:
            continue
    return _if(False, value, where)


def _if(right: bool, value: Any, where: str) -> Any:
    if not right:
        raise ValueError(f"{where}: {str(value)[:60]!r} is of another type")
    return value


def _hints(kind: Any) -> dict[str, Any]:
    if kind not in _KNOWN:
        _KNOWN[kind] = get_type_hints(kind, include_extras=True)
    return _KNOWN[kind]


_KNOWN: dict[Any, dict[str, Any]] = {}
"""Cached types of the fields of each dataclass."""
