"""Pydantic's share of the nouns: reading them back from JSON, strictly.

Nouns are plain frozen dataclasses, because building pydantic models would double the start-up of every
check. What comes from outside is validated here: unknown fields and wrong types are errors.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from planc.ir.field_types import shortened

T = TypeVar("T")


class Frozen(BaseModel):
    """A model for files that people write or exchange. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, field by field."""
        return self.model_dump(mode="json")


def first_mistake(error: ValueError) -> str:
    """The first mistake of values from a file, from the `error` of reading them: `mesh.axes.0.name: ... is not a
    name`."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    place = ".".join(shortened(part).strip("'") for part in first["loc"])
    return f"{place}: {first['msg'].removeprefix('Value error, ')}"


def read(kind: type[T], data: Any) -> T:
    """`data` as a noun of this kind. Raises pydantic.ValidationError when it is not one."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    noun: T = _ADAPTERS[kind].validate_python(data)
    return noun


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
"""Pydantic's readers of nouns, by type. Making one takes longer than reading with it."""
