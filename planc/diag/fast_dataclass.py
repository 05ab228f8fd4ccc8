"""Dataclasses that load fast: their methods are shared functions rather than text compiled for each class.

`planc check` defines about a hundred dataclasses before it reads a plan, and compiling six methods for each took a
third of its start-up. Type checkers see the standard decorator, and `dataclasses.fields`, `replace` and `asdict` work.
Classes with `slots=True` have many instances, and keep their compiled methods.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, **options: Any) -> Any:
        """`dataclasses.dataclass` with the methods below for what it would compile."""
        if options.get("slots") or options.get("order"):
            return dataclasses.dataclass(cls, **options)

        def build(cls: type) -> type:
            return _fast_class(cls, options)

        return build if cls is None else build(cls)


def _fast_class(cls: type, options: dict[str, Any]) -> type:
    own = vars(cls)
    cls.__doc__ = cls.__doc__ or cls.__name__  # else a signature is worked out for it
    rest = {"init": False, "eq": False, "repr": False, "frozen": False}
    made: Any = dataclasses.dataclass(**{**options, **rest})(cls)
    shared: dict[str, Any] = {"__init__": _init(made), "__repr__": _repr}
    if options.get("eq", True):
        eq, of_fields = _comparison(made)
        shared |= {"__eq__": eq, "__hash__": of_fields if options.get("frozen") else None}
    if options.get("frozen"):
        shared |= {"__setattr__": _refuse, "__delattr__": _refuse}
    for name, method in shared.items():
        if name not in own:
            setattr(made, name, method)
    return cls


def _init(made: Any) -> Any:
    """Return the `__init__` of the dataclass `made`. Fields are passed by name, or by position unless keyword-only."""
    fields = [f for f in dataclasses.fields(made) if f.init]
    names = frozenset(f.name for f in fields)
    places = tuple(f.name for f in fields if not f.kw_only)
    missing = dataclasses.MISSING
    defaults = {f.name: f.default for f in fields if f.default is not missing}
    factories = {f.name: f.default_factory for f in fields if f.default_factory is not missing}

    def init(self: Any, *args: Any, **given: Any) -> None:
        if args:
            given.update(zip(places, args, strict=False))
        space = self.__dict__
        space.update(defaults)
        for name, factory in factories.items():
            if name not in given:
                space[name] = factory()
        space.update(given)
        if len(space) != len(names) or len(args) > len(places) or not names >= given.keys():
            lacking = ", ".join(sorted(names - space.keys())) or "nothing"
            unknown = ", ".join(sorted(given.keys() - names)) or "nothing"
            raise TypeError(f"{made.__qualname__}() lacks {lacking}, does not take {unknown}")
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    return init


def _refuse(self: Any, name: str, *_value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change {name!r}")


def _comparison(made: Any) -> tuple[Any, Any]:
    """Return `__eq__` and `__hash__` of the dataclass `made`, which use its compared fields."""
    names = [f.name for f in dataclasses.fields(made) if f.compare]
    compared: Any = attrgetter(*names) if names else lambda value: ()

    def eq(self: Any, other: object) -> Any:
        if self is other:
            return True
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def of_fields(self: Any) -> int:
        return hash(compared(self))

    return eq, of_fields


def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({shown})"
