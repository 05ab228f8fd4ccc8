"""A cluster with as many devices as the mesh has ranks: of the catalog, or of a hardware file beside the plan."""

from __future__ import annotations

from functools import cache
from math import ceil, prod

from planc.ir.hardware import RATES
from planc.language import library
from planc.language.draft import Draft as Reading
from planc.language.units import UNITS
from planc.language.verbs.cluster import read as read_cluster
from planc.language.verbs.hardware import CHIP, LEVEL, LINK, MAY_BE_ZERO, WHOLE
from planc.syntax import parse_text
from tests.random_plans.layouts import need_gib
from tests.random_plans.pieces import Dice, Draft, divisors

Fields = dict[str, tuple[str, float | None]]


@cache
def machine(name: str) -> tuple[str, int, int, int, float]:
    """Kind, chips or dims of the shape, devices of a chip, width of the innermost level, and a device's GiB."""
    for example in ("", "(4x4)", "(4x4x4)"):
        reading = Reading()
        for sentence in parse_text(f"plan x\ncluster {name}{example}\n", "x.plan").sentences:
            read_cluster(sentence, reading)
        if reading.cluster is not None:
            cluster = reading.cluster
            count = cluster.shape[0] if cluster.kind == "node" else len(cluster.shape)
            chip = cluster.chip
            return cluster.kind, count, chip.devices, cluster.levels[0].width, chip.memory_bytes / chip.devices / 2**30
    raise AssertionError(name)


def draw(draft: Draft) -> str:
    """The `cluster` sentence."""
    dice, devices = draft.dice, draft.devices
    if draft.small:
        return _counted(dice, devices, "cpu_local")
    if dice.chance(0.12):
        return _own(draft)
    for _ in range(20):
        name = dice.choice(sorted(library.machines()))
        kind, count, per_chip, width, gib = machine(name)
        if devices % per_chip or (gib < 1.3 * need_gib(draft) and dice.chance(0.9)):
            continue
        found = (
            _nodes(dice, devices, name, count, width)
            if kind == "node"
            else _torus(dice, devices // per_chip, name, count)
        )
        if found:
            return found
    return _counted(dice, devices, "cpu_local")


def _counted(dice: Dice, count: int, call: str) -> str:
    if count == 1 and dice.chance(0.5):
        return f"cluster {call}"
    return f"cluster {count} x {call}"


def _nodes(dice: Dice, devices: int, name: str, chips: int, width: int) -> str:
    """Whole nodes, or some chips of each."""
    legal = [1, *divisors(devices, chips)]
    used = chips if chips in legal and dice.chance(0.8) else dice.choice(legal)
    count = devices // used
    if count > 4 * width:
        return ""
    text = _counted(dice, count, name if used == chips else f"{name}({used})")
    if count > 1 and dice.chance(0.1):
        units = dice.randint(ceil(count / width), count)
        text += f" over {units} leaves"
    return text


def _torus(dice: Dice, chips: int, name: str, dims: int) -> str:
    """One slice or several, of lengths whose product is the number of chips."""
    slices = dice.choice([1, 1, 1, *divisors(chips, 4)])
    left, shape = chips // slices, []
    for _ in range(dims - 1):
        length = dice.choice([1, *divisors(left, 32)])
        shape.append(length)
        left //= length
    shape.append(left)
    if left > 64:
        return ""
    dice.shuffle(shape)
    assert prod(shape) * slices == chips
    return _counted(dice, slices, f"{name}({'x'.join(map(str, shape))})")


def _own(draft: Draft) -> str:
    """A hardware file beside the plan."""
    dice, devices = draft.dice, draft.devices
    pair = 2 if devices % 2 == 0 and dice.chance(0.2) else 1
    chips = devices // pair
    dtypes = ["fp32", "bf16", *dice.some(RATES[2:], 0, 3)]
    rates = ", ".join(f"{r} = {_quantity(dice, 'compute', 60 + 400 * (r != 'fp32'))}" for r in dtypes)
    chip = f"chip mine({rates}, memory = {_quantity(dice, 'memory', 80)}"
    chip += f", memory_bandwidth = {_quantity(dice, 'bandwidth', 2000)}"
    left_out = ("memory", "memory_bandwidth", "devices")
    chip += _fields(dice, {n: f for n, f in CHIP.items() if n not in left_out}, 4)
    chip += f", devices = {pair})" if pair > 1 else ")"
    link = f"link wire(bandwidth = {_quantity(dice, 'bandwidth', 200)}, latency = {_quantity(dice, 'time', 2)}"
    whole = 0 if chips <= 4096 and dice.chance(0.3) else dice.choice([d for d in (1, 2, 4, 8) if chips % d == 0])
    said = ("bandwidth", "latency", *(() if whole else ("links",)))
    link += _fields(dice, {n: f for n, f in LINK.items() if n not in said}, 3) + ")"
    levels = [_level(dice, name, width, speed) for name, width, speed in (("leaf", 64, 50), ("spine", 512, 25))]
    network = f"network net = {' > '.join(levels[: dice.randint(1, 2)])}"
    if not whole:
        wrap = f"wrap = [{dice.choice((2, 4))}, {dice.choice((2, 4, 16))}]"
        facts = f"({wrap}{dice.choice(('', ', host = 4', ', whole_cubes = 1', ', host = 2, whole_cubes = 0'))})"
        body, cluster = f"torus ring = mine over wire {facts}", _torus(dice, chips, "ring", 2)
    else:
        body, cluster = f"node box = {whole} x mine over wire", _counted(dice, chips // whole, "box")
    draft.files["own_hardware.plan"] = "\n".join(("hardware own_hardware", chip, link, body, network)) + "\n"
    draft.say('import "own_hardware.plan"')
    return cluster or f"cluster {chips} x ring(1x1)"


def _level(dice: Dice, name: str, width: int, speed: float) -> str:
    args = _fields(dice, LEVEL, 3).removeprefix(", ")
    return f"{name} {width} at {_quantity(dice, 'bandwidth', speed)}" + (f" ({args})" if args else "")


def _fields(dice: Dice, legal: Fields, most: int) -> str:
    """Some optional fields, each in a unit of its kind."""
    return "".join(f", {n} = {_value(dice, n, legal[n][0])}" for n in dice.some(sorted(legal), 0, most))


def _value(dice: Dice, name: str, kind: str) -> str:
    if name in MAY_BE_ZERO and dice.chance(0.2):
        return "0" if kind == "count" else f"0 {dice.choice([u for u in UNITS[kind] if u])}"
    if kind == "count":
        return str(dice.choice((1, 2, 4, 8))) if name in WHOLE else str(dice.choice((1, 2, "1.5")))
    return _quantity(dice, kind, {"share": 70, "time": 3, "memory": 0.3, "bandwidth": 50}.get(kind, 1))


STANDARD = {"memory": 2.0**30, "bandwidth": 1e9, "compute": 1e12, "time": 1e-6, "share": 0.01}


def _quantity(dice: Dice, kind: str, about: float) -> str:
    """About so many GiB, GB/s, TFLOP/s, microseconds or percent, in some unit of that kind."""
    value = about * dice.uniform(0.5, 1.4) * STANDARD[kind]
    unit, factor = dice.choice([(u, f) for u, f in UNITS[kind].items() if 1e-3 < value / f < 1e9])
    number = value / factor
    return f"{number:.3f} {unit}" if number < 100 else f"{round(number)} {unit}"
