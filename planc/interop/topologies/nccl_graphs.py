"""Reads the GPU rings that NCCL's search found on a host (`NCCL_GRAPH_DUMP_FILE`), and the NICs that connect the host.

Each channel is a ring with `speedintra` GB/s between its GPUs and `speedinter` GB/s to its NICs. All GPUs are in every
channel, so a GPU's bandwidth is the sum over the channels. In the graph, each GPU has one link with that bandwidth, to
a switch that stands for all paths between GPUs. Elements and attributes: NCCL, src/graph/search.cc.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from planc.diag.span import Source
from planc.interop.topologies.hardware_text import HardwareText, wrong
from planc.interop.topologies.nccl_xml import tree_of, whole
from planc.ir.hardware import Cluster

RING = "4"
"""The ring pattern of NCCL's search."""
MOST_BYTES_PER_S = 1e14


def looks_so(text: str) -> bool:
    """True if `text` is a dump of NCCL's graphs: it has the element `graphs`."""
    return re.search(r"<graphs\b", text[:2000]) is not None


def read(source: Source, machine: Cluster) -> HardwareText:
    """Returns the host of the first ring in `source` as a hardware file. Latencies are those of `machine`."""
    root = tree_of(source)
    ring = next((graph for graph in root.findall("graph") if graph.get("pattern") == RING), None)
    if ring is None:
        raise wrong(source, "E1424", 1, "no graph has the pattern of a ring, 4")
    line = next((n for n, text in enumerate(source.lines, 1) if 'pattern="4"' in text), 1)
    channels = ring.findall("channel")
    if not channels or len(channels) != whole(ring.get("nchannels", "")):
        message = f"the ring has {len(channels)} channels, and says that it has {ring.get('nchannels', 'none')[:20]}"
        raise wrong(source, "E1424", line, message, help="copy the whole file")
    gpus = _gpus(source, channels, line)
    found = HardwareText(source, machine, "read from a graph of NCCL: what its search found")
    found.point("channels", "switch", "host0", line)
    intra = found.link(
        "channels", len(channels) * _bytes_per_s(source, ring, "speedintra", line), machine.link.latency_s
    )
    for gpu in gpus:
        found.wire(found.point(f"gpu{gpu}", "chip", "host0", line), "channels", intra)
    _cards(found, ring, channels, line)
    return found


def _gpus(source: Source, channels: list[Any], line: int) -> list[int]:
    """Returns the numbers of the GPUs, in order. Raises PlanError unless each channel has the same GPUs, each once."""
    first: list[str] = []
    for channel in channels:
        names = [gpu.get("dev", "") for gpu in channel.findall("gpu")]
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise wrong(
                source, "E1425", line, f"GPU {twice[0][:20]} is in one channel twice: it would be counted as two"
            )
        if not names or not all(name.isascii() and name.isdigit() and len(name) < 6 for name in names):
            raise wrong(source, "E1424", line, "a channel has no GPUs, or one without a number")
        first = first or sorted(names, key=int)
        if sorted(names, key=int) != first:
            raise wrong(source, "E1424", line, "two channels have different GPUs", help="copy the whole file")
    return [int(name) for name in first]


def _bytes_per_s(source: Source, ring: Any, name: str, line: int) -> float:
    """Returns the bandwidth in the attribute `name` of `ring`, for one channel."""
    text = ring.get(name, "")
    found = float(text) * 1e9 if re.fullmatch(r"\d{1,6}(?:\.\d{1,6})?", text) else 0.0
    if not 0 < found < MOST_BYTES_PER_S:
        raise wrong(source, "E1424", line, f"{name} is no bandwidth in GB/s", name)
    return found


def _cards(found: HardwareText, ring: Any, channels: list[Any], line: int) -> None:
    """Adds the NICs at the ends of the channels, each connected to the GPU next to it in its channel."""
    entered: Counter[tuple[str, str]] = Counter()
    left: Counter[tuple[str, str]] = Counter()
    for channel in channels:
        ends = [(element.tag, element.get("dev", "")) for element in channel if element.tag in ("net", "gpu")]
        for counted, near in ((entered, ends[:2]), (left, ends[:-3:-1])):
            (tag, card), (beside, gpu) = near if len(near) == 2 else (("", ""), ("", ""))
            if tag == "net" and beside == "gpu":
                counted[card, gpu] += 1
    pairs = sorted({*entered, *left})
    names = {card: found.point(f"net{card}", "nic", "host0", line) for card in dict.fromkeys(card for card, _ in pairs)}
    each = _bytes_per_s(found.source, ring, "speedinter", line) if pairs else 0.0
    for card, gpu in pairs:
        count = max(entered[card, gpu], left[card, gpu])
        found.wire(f"gpu{int(gpu)}", names[card], found.link("cards", each, 2e-6), count)
