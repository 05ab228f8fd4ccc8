"""Fitted parameters: fields of hardware files, each with its chips, prior and bounds.

`prior` is the value without data, and `spread` the standard deviation of its logarithm. Several chips may share one
parameter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeVar

from planc.diag.fast_dataclass import dataclass
from planc.ir.hardware import Chip, Cluster, Level, Link

Place = Literal["chip", "link", "network"]
NARROW = ("float8", "float4")
OPS = ("reduce_scatter", "all_reduce", "all_to_all")
"""Collectives with an efficiency of their own in addition to the network's bandwidth curve."""
FIELDS = {
    "launch": "launch_s",
    "dispatch": "dispatch_s",
    "step": "step_s",
    "half_size": "half_bytes",
    "latency": "latency_s",
    "call": "call_s",
}
"""Fields of the IR whose names differ from the language's."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One fitted parameter: the field `field` of a hardware file. `low` and `high` are physical bounds in `unit`."""

    name: str
    field: str
    chips: tuple[str, ...]
    prior: float
    why: str
    unit: str = "share"
    low: float = 0.05
    high: float = 0.95
    spread: float = 0.1
    place: Place = "chip"

    def put(self, cluster: Cluster, value: float) -> Cluster:
        """Return `cluster` with this parameter set to `value`; unchanged if its chip is not in `chips`."""
        if cluster.chip.name not in self.chips:
            return cluster
        name = FIELDS.get(self.field, self.field)
        if self.place == "link":
            return replace(cluster, link=_put_link(cluster.link, name, value))
        if self.place == "network":
            return replace(cluster, levels=tuple(_put_link(v, name, value) for v in cluster.levels))
        return replace(cluster, chip=_with_parameter(cluster.chip, name, value))

    def of(self, cluster: Cluster) -> float:
        """Return this parameter's value in `cluster`, in the parameter's `unit`."""
        place = {"chip": cluster.chip, "link": cluster.link, "network": cluster.levels[0] if cluster.levels else None}
        there = place[self.place]
        op = self.field.removesuffix("_efficiency")
        if op in OPS and isinstance(there, Link | Level):
            return there.op_efficiency.get(op, 1.0)
        return float(getattr(there, FIELDS.get(self.field, self.field)))


L = TypeVar("L", Link, Level)


def _put_link(link: L, name: str, value: float) -> L:
    op = name.removesuffix("_efficiency")
    change: dict[str, Any] = {"op_efficiency": {**link.op_efficiency, op: value}} if op in OPS else {name: value}
    return replace(link, **change)


def _with_parameter(chip: Chip, name: str, value: float) -> Chip:
    narrow = name.removesuffix("_efficiency")
    if narrow in NARROW:
        return replace(chip, narrow_efficiency={**chip.narrow_efficiency, narrow: value})
    change: dict[str, Any] = {name: value}
    return replace(chip, **change)


AMPERE = ("a100", "a100_40", "a800")
HOPPER = ("h100", "h200", "h800")
BLACKWELL, ULTRA = ("b200", "gb200"), ("b300", "gb300")
LATER = (*HOPPER, *BLACKWELL, *ULTRA)
GPUS = (*AMPERE, *LATER)
TPUS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
FAMILIES = {"Ampere": AMPERE, "Hopper": HOPPER, "Blackwell": (*BLACKWELL, *ULTRA), "TPUs": TPUS}


def family_of(chip: str) -> str:
    """Return "Ampere", "Hopper", "Blackwell" or "TPUs", the generation of `chip`; "" for any other chip."""
    return next((name for name, chips in FAMILIES.items() if chip in chips), "")
