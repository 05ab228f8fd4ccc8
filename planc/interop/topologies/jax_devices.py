"""Reads the list that `print(jax.devices())` prints on TPUs as a torus, by the coordinates of the chips."""

from __future__ import annotations

import re
from math import prod

from planc.diag.span import Source
from planc.interop.topologies.hardware_text import HardwareText, wrong
from planc.ir.hardware import Cluster

DEVICE = re.compile(r"TpuDevice\(([^()]*(?:\([^()]*\)[^()]*)?)\)", re.ASCII)
COORDINATES = re.compile(r"coords=\((\d{1,5}(?:,\s*\d{1,5}){0,2}),?\)", re.ASCII)
CUBE = 4
"""Rings consist of whole 4x4x4 cubes: dimensions divisible by 4 wrap around (public scaling book, tpus.md)."""


def looks_so(text: str) -> bool:
    """True if `text` is a list printed by `jax.devices()` on TPUs."""
    return "TpuDevice(" in text


def shape(source: Source) -> tuple[int, ...]:
    """Returns the lengths of the torus whose chips `source` lists. A chip with two cores is listed twice. Raises
    PlanError if chips are missing."""
    at: dict[tuple[tuple[int, ...], str, str], int] = {}
    rest = DEVICE.sub("", source.text)
    if "TpuDevice(" in rest:
        raise wrong(source, "E1424", len(source.lines), "the list ends within a device", help="copy the whole list")
    line, counted = 1, 0
    for matched in DEVICE.finditer(source.text):
        line += source.text.count("\n", counted, matched.start())
        counted = matched.start()
        coordinates = COORDINATES.search(matched[1])
        if coordinates is None:
            raise wrong(source, "E1424", line, "a device has no coords", matched[0][:40])
        place = tuple(int(n) for n in coordinates[1].split(","))
        core = re.search(r"core_on_chip=(\d+)", matched[1])
        piece = re.search(r"slice_index=(\d+)", matched[1])
        key = place, core[1] if core else "0", piece[1] if piece else "0"
        if key in at:
            raise wrong(source, "E1425", line, f"two devices are at {place}, core {key[1]}", matched[0][:40])
        at[key] = line
    cores, pieces = {key[1] for key in at}, {key[2] for key in at}
    if len(pieces) > 1:
        raise wrong(source, "E1424", 1, f"the devices are of {len(pieces)} slices: give the list of one")
    dims = {len(place) for place, _, _ in at}
    if len(dims) != 1:
        raise wrong(source, "E1424", 1, "the devices have different numbers of coordinates")
    lengths = tuple(1 + max(place[d] for place, _, _ in at) for d in range(dims.pop()))
    if prod(lengths) * len(cores) != len(at):
        message = f"{len(at)} devices do not fill {'x'.join(map(str, lengths))} chips of {len(cores)} cores"
        raise wrong(source, "E1426", max(1, len(source.lines)), message, help="the list may be cut short")
    return lengths


def read(source: Source, machine: Cluster) -> HardwareText:
    """Returns the TPU slice in `source` as a torus. Its links have the bandwidth and latency of those of `machine`."""
    lengths, link = shape(source), machine.link
    found = HardwareText(source, machine, f"read from jax.devices(): {'x'.join(map(str, lengths))}")
    name = found.link("ici", link.bandwidth_bytes_per_s, link.latency_s, link.efficiency)
    places: dict[tuple[int, ...], str] = {}
    for number in range(prod(lengths)):
        rest, place = number, []
        for length in reversed(lengths):
            place.append(rest % length)
            rest //= length
        at = tuple(reversed(place))
        places[at] = found.point("at_" + "_".join(map(str, at)), "switch", "slice0", 1)
        chip = found.point("chip_" + "_".join(map(str, at)), "chip", "slice0", 1)
        found.wire(chip, places[at], name, 2 * len(lengths))
    for at, one in places.items():
        for d, length in enumerate(lengths):
            after = (*at[:d], (at[d] + 1) % length, *at[d + 1 :])
            if length > 1 and (at[d] + 1 < length or (length > 2 and length % CUBE == 0)):
                found.wire(one, places[after], name)
    return found
