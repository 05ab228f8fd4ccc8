"""Clusters of published runs as plan sentences, with the differences from the catalog that a row states."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.language import library
from tests.lab.published.row_fields import Fields, UnusedFieldError
from tests.lab.published.rows import Row

NODES = {
    "A100-40": "a100_40_node",
    "A100-80": "a100_node",
    "H100 SXM": "h100_node",
    "H200 SXM": "h200_node",
    "H800": "h800_node",
    "B200": "b200_node",
    "B200 (power limited)": "b200_node",
    "B300": "b300_node",
    "GB200 NVL72": "gb200_nvl72",
    "GB300 NVL72": "gb300_nvl72",
}
TORI = {"TPU v4": "tpu_v4", "TPU v5e": "tpu_v5e", "TPU v5p": "tpu_v5p", "TPU v6e": "tpu_v6e", "TPU 7x": "tpu_7x"}
FLAT = ("tpu_v5e", "tpu_v6e")
"""Tori of two dimensions."""
TWO_DEVICES = ("TPU 7x",)
"""Chips that are two framework devices."""
RACK = 64
"""GPUs of a rack of 72 that a job of whole eights uses."""


def cluster_words(row: Row) -> str:
    """The machines of a `cluster` sentence for `row`. GPUs come in whole nodes, in part of one, or in racks of 64."""
    if row.chip in TORI:
        torus = TORI[row.chip]
        slices = int(row.facts["hardware"].get("slices") or row.facts["parallel"].get("dcn_dp") or 1)
        if row.devices < slices:
            raise UnusedFieldError(f"hardware.slices {slices} (parallel.dcn_dp): more than hardware.n_devices")
        shape = "x".join(map(str, slice_shape(row.devices // slices, 2 if torus in FLAT else 3)))
        return f"{slices} x {torus}({shape})" if slices > 1 else f"{torus}({shape})"
    node = _node(row.chip)
    whole = RACK if row.chip.endswith("NVL72") else 8
    if row.devices <= whole:
        return f"1 x {node}({row.devices})"
    if row.devices % whole:
        raise UnusedFieldError(f"hardware.n_devices {row.devices}: no whole nodes of {whole}")
    used = f"({whole})" if whole == RACK else ""
    return f"{row.devices // whole} x {node}{used}"


def _node(chip: str) -> str:
    if chip not in NODES:
        raise UnusedFieldError(f"hardware.chip {chip!r}: none of {', '.join((*NODES, *TORI))}")
    return NODES[chip]


def slice_shape(chips: int, dims: int) -> tuple[int, ...]:
    """The most even torus of `chips` in `dims` dimensions: number of chips along each, shortest first; of whole cubes
    or squares of four where there is one."""
    fours = 4 if chips % 4**dims == 0 else 1
    found = [tuple(fours * n for n in shape) for shape in _factored(chips // fours**dims, dims)]
    return min(found, key=lambda shape: (sum(shape), shape[::-1]))


def _factored(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as a product of so many, in ascending order."""
    if parts == 1:
        yield (number,)
        return
    for first in range(1, round(number ** (1 / parts)) + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in _factored(number // first, parts - 1) if rest[0] >= first)


def machine_of_row(fields: Fields) -> str:
    """A hardware file with what the row in `fields` says of its own machines: memory, power, network; empty where the
    catalog's hold.

    Its names are the catalog's, whose machines it stands for.
    """
    row = fields.row
    detail = f"{row.facts['hardware'].get('detail', '')} {row.facts.get('notes', '')}"
    text = before = library.machine_text(TORI.get(row.chip) or _node(row.chip))
    if "2.4 TB/s" in detail:
        text = _with(text, "chip", memory_bandwidth="2400 GB/s", memory="96 GiB")
    for words, share in POWER.items():
        if words in detail:
            text = _slower(text, share ** (1 / 3))
    for words, bandwidth in NETWORKS.items():
        if words in detail:
            text = _with_network(text, f" at {bandwidth} GB/s")
    if printed := fields.hardware("network_gb_s_per_node"):
        text = _with_network(text, f" at {float(printed):g} GB/s")
    return "" if text == before else text


def _with(text: str, verb: str, **fields: str) -> str:
    """A hardware file with other values of fields of its `verb` sentences."""
    lines = text.splitlines()
    for name, value in fields.items():
        change = rf"\b{name} = [\d.]+ [A-Za-z/]+"
        lines = [re.sub(change, f"{name} = {value}", n) if n.startswith(f"{verb} ") else n for n in lines]
    return "\n".join(lines) + "\n"


def _with_network(text: str, rate: str) -> str:
    """A hardware file whose networks have another `rate`."""
    lines = [re.sub(r" at [\d.]+ GB/s", rate, n) if n.startswith("network ") else n for n in text.splitlines()]
    return "\n".join(lines) + "\n"


def _slower(text: str, share: float) -> str:
    """A hardware file whose chips compute at a share of their rates."""
    return re.sub(r"([\d.]+) TFLOP/s", lambda m: f"{float(m[1]) * share!r} TFLOP/s", text)


POWER = {"500 W cap": 500 / 700}
"""Power caps as a share of the data sheet's power. Dynamic power is C V^2 f and voltage follows the clock, so the clock
goes with the cube root of the power."""
NETWORKS = {"inter-node 800 Gb/s per node": 100, "1600 Gb/s node-to-node": 200, "GPUDirect-TCPX 4x200 Gb/s": 75.2}
"""Gigabytes per second out of a node, as rows print it. Of the 100 GB/s of Google's A3 High NCCL moves 71.4 over
GPUDirect-TCPX (all_gather_perf of two nodes, 512 MiB: GoogleCloudPlatform/cluster-toolkit,
examples/gke-a3-highgpu/multi-node-test-plan.md at 104708037), which is 75.2 times the efficiency of other networks."""
