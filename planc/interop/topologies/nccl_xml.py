"""Reads NCCL's topology (`NCCL_TOPO_DUMP_FILE`): sockets, PCIe switches, GPUs, NVLinks and NICs of one host.

Elements and attributes: NCCL, src/graph/xml.cc. The bandwidth of a PCIe link is GT/s x width / 8 bytes/s. The bandwidth
of an NVLink is 25 GB/s in each direction, or 50 GB/s from compute capability 10.0 (sm 100) on. A NIC gives its speed in
Mbit/s.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from planc.diag.span import Source
from planc.interop.topologies.hardware_text import HardwareText, wrong
from planc.interop.topologies.nvidia_smi import NVLINK_BYTES_PER_S, SOCKETS_BYTES_PER_S
from planc.ir.hardware import Cluster

MOST_DEPTH = 32
MOST_SOCKETS = 64
NVSWITCH = "0x068000"
"""The PCI class of an NVSwitch."""


def looks_so(text: str) -> bool:
    """True if `text` is a dump of NCCL's topology: it has the element `system`."""
    return re.search(r"<system\b", text[:2000]) is not None


def read(source: Source, machine: Cluster) -> HardwareText:
    """Returns the host in `source` as a hardware file. NVLink's latency and efficiency are those of `machine`."""
    root = tree_of(source)
    found = HardwareText(source, machine, "read from a topology of NCCL")
    gpus: dict[str, str] = {}
    sockets = root.findall("cpu")
    if not sockets:
        raise wrong(source, "E1424", 1, "the system has no cpu")
    if len(sockets) > MOST_SOCKETS:
        raise wrong(source, "E1424", 1, f"{len(sockets):,} cpus: at most {MOST_SOCKETS} are in a host")
    for number, cpu in enumerate(sockets):
        socket = found.point(
            f"cpu{cpu.get('numaid', number)}", "socket", "host0", line_of(source, cpu.get("numaid", ""))
        )
        for other in [p for p, (kind, _) in found.points.items() if kind == "socket" and p != socket]:
            found.wire(other, socket, found.link("upi", SOCKETS_BYTES_PER_S, 2e-6))
        for child in cpu:
            _branch(found, child, socket, gpus, 1)
    if not gpus:
        raise wrong(source, "E1424", 1, "the system has no gpu")
    _nvlinks(found, root, gpus)
    return found


def tree_of(source: Source) -> Any:
    """Returns the root element of the XML in `source`.

    Raises PlanError for invalid XML, for elements that are nested too deep, and for entity declarations, by which a
    short text can expand to gigabytes.
    """
    depth, parser = 0, expat.ParserCreate()

    def opened(_name: str, _attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError("elements are nested too deep")

    def closed(_name: str) -> None:
        nonlocal depth
        depth -= 1

    def declared(*_: object) -> None:
        raise ValueError("it declares entities or a document type, which NCCL writes none of")

    parser.StartElementHandler, parser.EndElementHandler = opened, closed
    parser.StartDoctypeDeclHandler = declared
    try:
        parser.Parse(source.text.encode(), True)
        return ElementTree.fromstring(source.text)
    except (expat.ExpatError, ValueError) as error:
        line = getattr(error, "lineno", 1) or 1
        raise wrong(source, "E1424", line, f"it is not XML: {error}", help="copy the whole file") from None


def _branch(found: HardwareText, element: Any, above: str, gpus: dict[str, str], depth: int) -> None:
    """Adds the PCI element `element` (switch, GPU or NIC) and all below it to the socket or switch `above`."""
    bus = element.get("busid", "")
    line = line_of(found.source, bus)
    if element.tag == "nic":
        _cards(found, element, above, found.link("pcie", _pcie_bytes_per_s("", ""), 2e-6, 0.8))
        return
    if element.tag != "pci":
        return
    pcie = found.link(
        "pcie", _pcie_bytes_per_s(element.get("link_speed", ""), element.get("link_width", "")), 2e-6, 0.8
    )
    gpu, nic = element.find("gpu"), element.find("nic")
    if gpu is not None:
        name = found.point(f"gpu{gpu.get('dev', len(gpus))}", "chip", "host0", line)
        if bus in gpus:
            raise wrong(found.source, "E1425", line, f"two GPUs are at {bus}", bus)
        gpus[bus] = name
        found.wire(name, above, pcie)
    elif nic is not None:
        _cards(found, nic, above, pcie)
    else:
        switch = found.point(f"pci_{bus}", "switch", "host0", line)
        found.wire(switch, above, pcie)
        for child in element:
            _branch(found, child, switch, gpus, depth + 1)


def _cards(found: HardwareText, nic: Any, above: str, pcie: str) -> None:
    for net in nic.findall("net"):
        name = net.get("name") or f"net{net.get('dev', '0')}"
        found.wire(found.point(name, "nic", "host0", line_of(found.source, name)), above, pcie)


def _nvlinks(found: HardwareText, root: Any, gpus: dict[str, str]) -> None:
    link = found.machine.link
    for element in root.iter("pci"):
        gpu, mine = element.find("gpu"), gpus.get(element.get("busid", ""))
        if gpu is None or mine is None:
            continue
        each = NVLINK_BYTES_PER_S * (2 if whole(gpu.get("sm", "0")) >= 100 else 1)
        total = sum(whole(n.get("count", "0")) for n in gpu.findall("nvlink"))
        for nvlink in gpu.findall("nvlink"):
            count, target = whole(nvlink.get("count", "0")), nvlink.get("target", "")
            if not count:
                continue
            if nvlink.get("tclass") == NVSWITCH:
                if "nvswitch" not in found.points:
                    found.point("nvswitch", "switch", "host0", 1)
                found.wire(mine, "nvswitch", found.link("nvlink", total * each, link.latency_s, link.efficiency))
            elif target in gpus and gpus[target] != mine:
                found.wire(mine, gpus[target], found.link("nvlink", each, link.latency_s, link.efficiency), count)


def _pcie_bytes_per_s(speed: str, width: str) -> float:
    """Returns the bytes per second of a PCIe link, one way; the defaults ("") are 16 GT/s (generation 4) and 16 lanes.

    >>> _pcie_bytes_per_s("32.0 GT/s PCIe", "16") / 1e9
    64.0
    """
    rate = re.match(r"\d{1,4}(?:\.\d{1,3})?", speed)
    return float(rate[0] if rate else 16) * 1e9 * (whole(width) or 16) / 8


def whole(text: str) -> int:
    """Returns `text` as a non-negative integer; 0 if it is none.

    >>> whole("16"), whole("-1")
    (16, 0)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def line_of(source: Source, word: str) -> int:
    """Returns the number of the first line of `source` with `word` in quotes; 1 if there is none."""
    return _first_lines(source.text).get(word, 1)


@lru_cache(maxsize=2)
def _first_lines(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        for value in re.findall(r'"([^"]*)"', line):
            found.setdefault(value, number)
    return found
