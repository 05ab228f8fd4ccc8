"""Reads values of the IR from JSON with pydantic: unknown fields and wrong types are errors.

The values are plain frozen dataclasses, because building pydantic models would double the start-up time of every check.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from planc.ir.field_types import shortened

T = TypeVar("T")


class Frozen(BaseModel):
    """Base of pydantic models for files that people write or exchange. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return self.model_dump(mode="json")


def first_mistake(error: ValueError) -> str:
    """Return the first mistake in `error`, the failure to read a file: `mesh.axes.0.name: ... is not a name`."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    place = ".".join(shortened(part).strip("'") for part in first["loc"])
    return f"{place}: {first['msg'].removeprefix('Value error, ')}"


def read(kind: type[T], data: Any) -> T:
    """Return the JSON value `data` as a value of type `kind`. Raises pydantic.ValidationError if it is invalid."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    noun: T = _ADAPTERS[kind].validate_python(data)
    return noun


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
"""Pydantic adapters by type. Building one takes longer than reading with it."""
