"""Lists the fields of a system for the documentation: how planc treats each field, and which sentences it affects."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal

from planc.diag.fast_dataclass import dataclass
from planc.interop.document import FieldValue
from planc.interop.fields import Field
from planc.interop.system import System

VERBS = {
    "framework": "realise",
    "model": "model",
    "sequences": "batch",
    "sequence_tokens": "batch",
    "microbatch": "batch",
    "cluster": "cluster",
    "devices": "mesh",
    "pp": "split",
    "replica": "mesh",
    "shard": "mesh",
    "cp": "mesh",
    "tp": "shard",
    "ep": "view",
    "etp": "view",
    "order": "mesh",
    "zero": "store",
    "zero_over_cp": "store",
    "whole_grads": "store",
    "gather": "gather",
    "sp": "use sp",
    "heads_over_tp": "shard",
    "vocab_over_tp": "shard",
    "cp_method": "attention.core",
    "cp_balance": "attention.core",
    "experts_over": "view",
    "schedule": "split",
    "chunks": "split",
    "stages": "split",
    "route": "route",
    "optimizer": "optimizer",
    "precision": "compute",
    "stored": "store",
    "recompute": "recompute",
    "kernel": "attention.core",
    "quantized": "quantize",
    "offloaded": "offload",
    "overlaps": "overlap",
    "compiled": "compile",
    "loss_chunks": "loss",
}
"""The sentence of each setting."""


@dataclass(frozen=True)
class FieldRow:
    """A field of a system, for a table. `becomes` names the verbs of the sentences that a read field affects, or says
    why the field is refused or has no effect. `written` is True if an export sets the field."""

    name: str
    default: FieldValue
    treatment: Literal["read", "noted", "refused"]
    becomes: str
    written: bool


def rows(system: System) -> tuple[FieldRow, ...]:
    """Returns the fields of `system`, in the order of its table. A name with `*` stands for all fields that match."""
    settings = settings_of_fields(system)

    def row(field: Field) -> FieldRow:
        verbs = dict.fromkeys(VERBS[s] for s in settings.get(field.name, ()))
        becomes = ", ".join(f"`{verb}`" for verb in verbs) if field.treatment == "read" else field.why
        written = any(name in system.writes for name in (field.name, *field.aliases))
        return FieldRow(field.name, field.default, field.treatment, becomes, written)

    return tuple(row(field) for field in system.fields)


def settings_of_fields(system: System) -> dict[str, tuple[str, ...]]:
    """Returns the settings that each field of `system` decides: those whose reader names the field, directly or in a
    function that it calls."""
    found: dict[str, list[str]] = {}
    for setting, read in system.settings.items():
        words = set(_words(read, set()))
        named = {
            known.name
            for w in words
            if (known := system.known(system.calls.get(w, w).removeprefix("not "))) is not None
        }
        for field in system.fields:
            if field.name in named or _composed(field.name, words):
                found.setdefault(field.name, []).append(setting)
    return {name: tuple(settings) for name, settings in found.items()}


def _composed(name: str, words: set[str]) -> bool:
    """True if `name` consists of a prefix, one of `words` and a suffix, as code such as `f"parallelism.{kind}_degree"`
    builds it. Prefix and suffix are in `words` too, or empty."""
    ends = ["", *(w for w in words if len(w) > 2 and w[0] in "._" and name.endswith(w))]
    starts = ["", *(w for w in words if len(w) > 2 and w[-1] in "._" and name.startswith(w))]
    return any(name[len(a) : len(name) - len(b)] in words for a in starts for b in ends)


def _words(function: Any, seen: set[int]) -> Iterator[str]:
    """Yields the string constants in the code of a function, and of planc's functions that it calls.

    Functions of other packages are left out: `re`, for example, caches every pattern that a process has used.
    """
    if not isinstance(function, FunctionType) or id(function) in seen or not function.__module__.startswith("planc."):
        return
    seen.add(id(function))
    for code in _codes(function.__code__):
        yield from _texts(code.co_consts)
        for name in code.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType):
                for inner in code.co_names:
                    yield from _words(getattr(value, inner, None), seen)
            if isinstance(value, FunctionType):
                yield from _words(value, seen)
            elif isinstance(value, tuple | dict):
                yield from _texts(tuple(value))
            elif isinstance(value, str):
                yield value
    for cell in function.__closure__ or ():
        yield from _texts((cell.cell_contents,))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _codes(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | frozenset):
        for item in value:
            yield from _texts(item)
