"""Validation of JSON answers against their published schemas."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from planc.cli import schemas


@cache
def validator(format: str) -> Draft202012Validator:
    return Draft202012Validator(schemas.schema(format))


def valid(answer: dict[str, Any]) -> str:
    """The format of a JSON answer that agrees with its schema. Raises jsonschema.ValidationError."""
    format: str = answer["format"]
    validator(format).validate(answer)
    return format


def valid_text(text: str) -> str:
    """The format of what a command printed: one answer, or an array of answers of one format."""
    read = json.loads(text)
    (format,) = {valid(answer) for answer in (read if isinstance(read, list) else [read])}
    return format
