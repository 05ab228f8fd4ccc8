"""Reads the hardware declarations (`chip`, `link`, `node`, `network`, `torus`).

A hardware file is a flat list of declarations. A node or torus names its chip and its link; the file's `network`
sentence connects several nodes or tori.
"""

from __future__ import annotations

from typing import TypedDict

from planc.diag.fast_dataclass import dataclass
from planc.ir import field_types
from planc.ir.field_types import Within
from planc.ir.hardware import OPS, RATES, WIDE_RATES, Chip, Level, Link
from planc.language.draft import Draft
from planc.syntax.tree import Node, Sentence, Word

CHIP: dict[str, tuple[str, float | None]] = {
    "memory": ("memory", None),
    "memory_bandwidth": ("bandwidth", None),
    "matmul_efficiency": ("share", 0.8),
    "attention_efficiency": ("share", 0.4),
    "memory_efficiency": ("share", 0.85),
    "launch": ("time", 4e-6),
    "runtime": ("memory", 1.5 * 2**30),
    "fragmentation": ("share", 0.04),
    "communicator": ("memory", 0.0),
    "devices": ("count", 1),
    "host_bandwidth": ("bandwidth", 16e9),
    "host_memory": ("memory", 0.0),
    "die_bandwidth": ("bandwidth", None),
    "cores": ("count", 0),
    "core_lanes": ("count", 0),
    "float8_efficiency": ("share", None),
    "float4_efficiency": ("share", None),
    "te_speed": ("count", 1.0),
    "xla_speed": ("count", 1.0),
    "torch_2_1_speed": ("count", 1.0),
    "dispatch": ("time", 0.0),
    "matmul_depth": ("count", 0),
    "matmul_tail": ("share", 0.0),
    "contention": ("share", 0.0),
    "step": ("time", 0.0),
    "failures": ("count", 0.0),
}
"""Fields of a chip: their quantity, and their default (None: mandatory, or derived from others). Host memory is behind
PCIe gen3 x16 unless the file says otherwise."""

BY_OP: dict[str, tuple[str, float | None]] = {f"{op}_efficiency": ("share", None) for op in OPS}

LINK: dict[str, tuple[str, float | None]] = {
    **BY_OP,
    "call": ("time", 0.0),
    "bandwidth": ("bandwidth", None),
    "latency": ("time", None),
    "efficiency": ("share", 1.0),
    "in_network_reduction": ("count", 1.0),
    "half_size": ("memory", 0.0),
    "shared": ("count", 1),
    "switches": ("count", 0),
    "links": ("count", 0),
    "back_bandwidth": ("bandwidth", None),
    "failures": ("count", 0.0),
}
LEVEL: dict[str, tuple[str, float | None]] = {
    **BY_OP,
    "call": ("time", 0.0),
    "latency": ("time", 8e-6),
    "efficiency": ("share", 1.0),
    "oversubscription": ("count", 1.0),
    "in_network_reduction": ("count", 1.0),
    "half_size": ("memory", 0.0),
    "ports": ("count", 0),
    "rails": ("count", 1),
}
TORUS: dict[str, tuple[str, float | None]] = {
    "wrap": ("list", None),
    "host": ("count", 1),
    "whole_cubes": ("count", 0),
}


@dataclass(frozen=True)
class Declared:
    """The declarations of one hardware file, by verb and name."""

    sentences: tuple[Sentence, ...]

    def find(self, verb: str, name: str) -> Sentence | None:
        """Return the sentence with `verb` that declares `name`; None if no sentence does."""
        return next((s for s in self.sentences if s.verb == verb and declared_name(s) == name), None)

    def names(self, *verbs: str) -> list[str]:
        """Return the names that sentences with any of `verbs` declare, in the order of the file."""
        return [declared_name(s) for s in self.sentences if s.verb in verbs]

    def used_by(self, machine: Sentence) -> list[Sentence]:
        """Return the declarations that the node or torus `machine` needs: its chip, its link, itself, the network, and
        their tables of measured rates."""
        chip, link = (word.text for word in machine.node.words("NAME")[-2:])
        network = next((s for s in self.sentences if s.verb == "network"), None)
        parts = [self.find("chip", chip), self.find("link", link), machine, network]
        levels = [level.words()[0].text for level in network.node.nodes("level")] if network else []
        owners = {chip, link, *levels}
        tables = [s for s in self.sentences if s.verb == "measured" and s.node.words("NAME")[1].text in owners]
        return [*(s for s in parts if s is not None), *tables]


def declared_name(sentence: Sentence) -> str:
    """Return the name that `sentence`, a hardware declaration, declares."""
    call = sentence.node.node("call") if sentence.verb != "fabric" else None
    return (call or sentence.node).words()[0].text


def arguments(args: Node | None, fields: dict[str, tuple[str, float | None]], draft: Draft) -> dict[str, float]:
    """Return the numbers in the brackets of a declaration, by field name, in SI units or bytes.

    `fields` maps the name of each legal field to (quantity, default). An omitted field has its default, or is left out
    if its default is None.
    """
    values: dict[str, float] = {}
    for arg in args.nodes("named") if args else ():
        word, value = arg.parts
        assert isinstance(word, Word)
        name = draft.one_of(word, fields, "a field here")
        if name and fields[name][0] != "list":
            number = draft.quantity(value, fields[name][0])
            if number is not None and is_physical(name, fields[name][0], number, value, draft):
                values[name] = number
    return {k: v for k, (_, v) in fields.items() if v is not None} | values


MAY_BE_ZERO = (
    *("latency", "launch", "runtime", "fragmentation", "communicator", "host_memory", "half_size", "whole_cubes"),
    *("matmul_depth", "matmul_tail", "contention", "step", "dispatch", "call"),
)


WHOLE = ("devices", "cores", "core_lanes", "shared", "switches", "links", "ports", "rails", "host", "whole_cubes")
COUNTED = {"matmul_depth": field_types.DEPTH, "failures": field_types.YEARLY}
"""Numbers without a unit that are neither integers nor ratios."""


def range_of(name: str, kind: str) -> Within:
    """Return the legal range (SI units) of the hardware field `name`. `kind` is its quantity, such as "share" (a
    fraction).

    >>> range_of("memory_efficiency", "share").holds(0.0), range_of("contention", "share").holds(0.0)
    (False, True)
    """
    may_be_zero = name in MAY_BE_ZERO
    if kind == "count":
        whole = field_types.COUNT if may_be_zero else field_types.POSITIVE
        return whole if name in WHOLE else COUNTED.get(name, field_types.FACTOR)
    if kind == "share":
        return field_types.SHARE_OR_NONE if may_be_zero else field_types.SHARE
    if kind == "memory":
        return field_types.BYTES_OR_NONE if may_be_zero else field_types.BYTES
    return {"time": field_types.SECONDS, "bandwidth": field_types.BYTES_PER_S, "compute": field_types.FLOPS_PER_S}[kind]


def is_physical(name: str, kind: str, number: float, value: Node | Word, draft: Draft) -> bool:
    """True if `number` (SI units) is legal for the hardware field `name`: a fraction is at most 1, a divisor is not 0.

    `kind` is the field's quantity. An illegal number is reported at `value`, the part of the text with the number.
    """
    legal = range_of(name, kind)
    part = name in WHOLE and number != int(number)
    if legal.holds(number) and not part:
        return True
    if kind == "share" and number > 1:
        wanted = "at most 100 %"
    elif part:
        wanted = "a whole number"
    elif number <= 0:
        wanted = "0 or more" if name in MAY_BE_ZERO else "above 0"
    else:
        wanted = f"from {legal.minimum:g} to {legal.most:g}{SI_UNITS[kind]}"
    draft.report("E0103", value.span, f"{name} must be {wanted}")
    return False


SI_UNITS = {"memory": " B", "bandwidth": " B/s", "compute": " FLOP/s", "time": " s", "share": "", "count": ""}


def read_chip(sentence: Sentence, draft: Draft) -> Chip | None:
    call = sentence.node.node("call")
    assert call is not None
    fields: dict[str, tuple[str, float | None]] = {**CHIP, **dict.fromkeys(RATES, ("compute", None))}
    values = arguments(call.node("args"), fields, draft)
    written = {w.text for w in call.all_words()}
    missing = [f for f in ("memory", "memory_bandwidth") if f not in values]
    wide = [rate for rate in WIDE_RATES if rate in values]
    if any(f in written for f in missing) or (not missing and written & set(WIDE_RATES) and not wide):
        return None  # it is there, and its mistake is reported
    if missing or not wide:
        wanted = ", ".join(missing) or "a rate such as bf16"
        draft.report("E0103", sentence.span, f"chip `{declared_name(sentence)}` lacks {wanted}")
        return None
    return Chip(
        name=declared_name(sentence),
        flops_per_s={r: values[r] for r in RATES if r in values},
        memory_bytes=values["memory"],
        memory_bandwidth_bytes_per_s=values["memory_bandwidth"],
        devices=int(values["devices"]),
        matmul_efficiency=values["matmul_efficiency"],
        attention_efficiency=values["attention_efficiency"],
        memory_efficiency=values["memory_efficiency"],
        launch_s=values["launch"],
        runtime_bytes=values["runtime"],
        runtime_fraction=values["fragmentation"],
        communicator_bytes=values["communicator"],
        host_bandwidth_bytes_per_s=values["host_bandwidth"],
        host_memory_bytes=values["host_memory"],
        die_bandwidth_bytes_per_s=values.get(
            "die_bandwidth", max(field_types.BYTES_PER_S.minimum, values["memory_bandwidth"] / 2)
        ),
        cores=int(values["cores"]),
        core_lanes=int(values["core_lanes"]),
        narrow_efficiency={d: values[f"{d}_efficiency"] for d in ("float8", "float4") if f"{d}_efficiency" in values},
        te_speed=values["te_speed"],
        xla_speed=values["xla_speed"],
        torch_2_1_speed=values["torch_2_1_speed"],
        dispatch_s=values["dispatch"],
        matmul_depth=float(values["matmul_depth"]),
        matmul_tail=values["matmul_tail"],
        contention=values["contention"],
        step_s=values["step"],
        failures_per_year=values["failures"],
    )


def read_link(sentence: Sentence, draft: Draft) -> Link | None:
    call = sentence.node.node("call")
    assert call is not None
    values = arguments(call.node("args"), LINK, draft)
    written = {w.text for w in call.all_words()}
    if {"bandwidth", "latency"} - set(values) <= written and not {"bandwidth", "latency"} <= set(values):
        return None  # its mistake is reported
    if not {"bandwidth", "latency"} <= set(values):
        draft.report("E0103", sentence.span, f"link `{declared_name(sentence)}` lacks bandwidth or latency")
        return None
    return Link(
        name=declared_name(sentence),
        bandwidth_bytes_per_s=values["bandwidth"],
        **_transfers(values),
        shared=int(values["shared"]),
        switches=int(values["switches"]),
        links=int(values["links"]),
        back_bandwidth_bytes_per_s=values.get("back_bandwidth", 0.0),
        failures_per_year=values["failures"],
    )


def read_levels(sentence: Sentence | None, draft: Draft) -> tuple[Level, ...]:
    """Return the network levels (tiers, such as rail and spine) that `sentence`, a `network`, declares, innermost
    first; () for None."""
    return tuple(
        level
        for node in (sentence.node.nodes("level") if sentence else ())
        if (level := _level(node, draft)) is not None
    )


def _level(node: Node, draft: Draft) -> Level | None:
    name, width, speed = node.parts[0], node.parts[1], node.parts[2]
    assert isinstance(name, Word)
    count = draft.integer(width)
    bandwidth = draft.quantity(speed, "bandwidth")
    values = arguments(node.node("args"), LEVEL, draft)
    if count is None or bandwidth is None or not is_physical("bandwidth", "bandwidth", bandwidth, speed, draft):
        return None
    return Level(
        name=name.text,
        width=count,
        bandwidth_bytes_per_s=bandwidth,
        **_transfers(values),
        oversubscription=values["oversubscription"],
        ports=int(values["ports"]),
        rails=int(values["rails"]),
    )


class _Transfers(TypedDict):
    """The fields about transfers that a link and a network level have in common."""

    latency_s: float
    efficiency: float
    in_network_reduction: float
    half_bytes: float
    call_s: float
    op_efficiency: dict[str, float]


def _transfers(values: dict[str, float]) -> _Transfers:
    return _Transfers(
        latency_s=values["latency"],
        efficiency=values["efficiency"],
        in_network_reduction=values["in_network_reduction"],
        half_bytes=values["half_size"],
        call_s=values["call"],
        op_efficiency=_by_op(values),
    )


def _by_op(values: dict[str, float]) -> dict[str, float]:
    return {op: values[f"{op}_efficiency"] for op in OPS if f"{op}_efficiency" in values}


def torus_facts(sentence: Sentence, draft: Draft) -> dict[str, float]:
    """Return two numbers of a `torus` sentence: `host` (chips per host) and `whole_cubes` (1 if optical switches join
    whole cubes)."""
    return arguments(sentence.node.node("args"), dict(TORUS), draft)


def wraps(shape: tuple[int, ...], multiples: list[int], *, whole_cubes: bool) -> tuple[bool, ...]:
    """Return for each dim of a torus True if it wraps around: if its length is divisible by the entry of `multiples`.

    With `whole_cubes` (optical switches join whole cubes), either all dims wrap or none does.
    """
    each = tuple(n % m == 0 for n, m in zip(shape, multiples, strict=True))
    return tuple(all(each) for _ in each) if whole_cubes else each


def wrap_multiples(sentence: Sentence, draft: Draft) -> list[int]:
    """Return the numbers of `wrap = [4, 4, 4]`, one per torus dim. A dim wraps around if its length is divisible by its
    number."""
    args = sentence.node.node("args")
    for arg in args.nodes("named") if args else ():
        word, value = arg.parts
        if isinstance(word, Word) and word.text == "wrap" and isinstance(value, Node):
            return [n for part in value.parts if (n := draft.integer(part)) is not None]
    return []
