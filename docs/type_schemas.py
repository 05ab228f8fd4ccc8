"""The JSON schemas of types: an object of a dataclass has exactly its fields, with units in the descriptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from planc.diag.diagnostic import Diagnostic, Severity
from planc.diag.span import Span
from planc.ir.audit import AuditRow, AxisWire, CompilerReport, MatmulFlops, PeakMemory, Total
from planc.ir.collective import Collective
from planc.ir.report import TimedCollective
from planc.trainer.receipt.divergence import Diagnosis

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TRUTH: Schema = {"type": "boolean"}
ANY: Schema = {}
PLAIN: dict[Any, Schema] = {str: TEXT, int: WHOLE, float: NUMBER, bool: TRUTH, NoneType: {"type": "null"}, Any: ANY}
UNITS = {
    "tokens_per_s_per_device": "tokens/s on one device",
    "tokens_per_s": "tokens/s",
    "flops_per_s": "FLOP/s",
    "bytes_per_s": "bytes/s",
    "costed_per_s_without_bounds": "layouts/s",
    "interruptions_per_day": "interruptions a day",
    "model_flops_per_token": "FLOPs a token",
    "tflops_per_device": "TFLOP/s on one device",
    "sha256": "sha256, in hexadecimal",
    "_gib": "GiB",
    "_bytes": "bytes",
    "_s": "s",
    "seconds": "s",
    "mfu": "share of the dense peak",
    "relative": "predicted over observed, less one",
    "error": "predicted over measured, less one",
    "bytes": "bytes",
}
"""End of a key, and the unit of its value; the first that fits."""


def described(name: str, schema: Schema) -> Schema:
    """The schema of a key with the unit that the key's name ends in."""
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    holds_numbers = schema != TEXT or name.endswith("sha256")
    return {**schema, "description": unit} if unit and holds_numbers and "description" not in schema else schema


def exactly(**keys: Schema) -> Schema:
    """An object of exactly these keys."""
    properties = {name: described(name, schema) for name, schema in keys.items()}
    return {"type": "object", "properties": properties, "required": list(keys), "additionalProperties": False}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def array(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def by_name(schema: Schema) -> Schema:
    """An object whose keys are names."""
    return {"type": "object", "additionalProperties": schema}


def one_of(literal: Any) -> Schema:
    return {"enum": list(get_args(literal))}


def of_type(hint: Any) -> Schema:
    """The schema of a field with this type."""
    if hint in OWN:
        return OWN[hint]()
    if hint in PLAIN:
        return PLAIN[hint]
    if is_dataclass(hint):
        return exactly(**of_fields(hint))
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return of_type(args[0])
    if origin is Literal:
        return one_of(hint)
    if origin in (Union, UnionType):
        return {"anyOf": [of_type(arg) for arg in args]}
    if origin is dict:
        return by_name(of_type(args[1]))
    assert origin in (tuple, list) and (args[-1] is Ellipsis or len({str(arg) for arg in args}) == 1), hint
    return array(of_type(args[0]))


def of_fields(kind: Any, *names: str) -> dict[str, Schema]:
    """Every field of a dataclass, or those of these names."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: of_type(hints[name]) for name in names or [f.name for f in fields(kind)]}


# Types whose JSON is another one than their fields.


def diagnostic() -> Schema:
    """The JSON of `Diagnostic.to_json`."""
    place = of_fields(Span)
    edits = array(exactly(**place, text=TEXT))
    return exactly(
        **{"code": TEXT, "severity": one_of(Severity), "message": TEXT, **place, "help": TEXT},
        related=array(exactly(**place, message=TEXT)),
        fix=nullable(exactly(title=TEXT, safe=TRUTH, edits=edits)),
    )


def _collective() -> Schema:
    row = of_fields(
        Collective,
        *("op", "group_size", "stage", "phase", "tensor", "dtype", "count"),
    )
    timed = of_fields(TimedCollective, "time_s", "exposed_s", "level", "algorithm")
    cause = exactly(file=TEXT, line=WHOLE, sentence=TEXT)
    return exactly(
        **row,
        axis=TEXT,
        payload_bytes=NUMBER,
        wire_bytes=NUMBER,
        **timed,
        realised_by=nullable(TEXT),
        cause=nullable(cause),
    )


def _audit_row() -> Schema:
    return exactly(**of_fields(AuditRow), difference=of_type(Total))


def _peak() -> Schema:
    return exactly(**of_fields(PeakMemory), relative=NUMBER)


def _matmuls() -> Schema:
    return exactly(**of_fields(MatmulFlops), relative=NUMBER)


def _wire() -> Schema:
    return exactly(**of_fields(AxisWire), relative=nullable(NUMBER))


def compiler() -> Schema:
    """The JSON of `CompilerReport.to_json`."""
    found = of_fields(CompilerReport)
    return exactly(**{"estimated_cycles" if name == "cycles" else name: schema for name, schema in found.items()})


def _diagnosis() -> Schema:
    group = exactly(tensor=TEXT, norms=array(NUMBER))
    return exactly(
        **{**of_fields(Diagnosis, "gradients_known", "groups_apart"), "first_group": nullable(group)},
        lines=by_name(array(ANY)),
    )


OWN: dict[Any, Callable[[], Schema]] = {
    Diagnostic: diagnostic,
    TimedCollective: _collective,
    AuditRow: _audit_row,
    PeakMemory: _peak,
    MatmulFlops: _matmuls,
    AxisWire: _wire,
    CompilerReport: compiler,
    Diagnosis: _diagnosis,
}
