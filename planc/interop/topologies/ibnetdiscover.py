"""Reads the InfiniBand network that `ibnetdiscover` prints: switches, the hosts' adapters, and the rate of every link.

Each link is listed twice, at the switch (`Switch`) or adapter (`Ca`) of both ends (ibnetdiscover's manual page,
infiniband-diags). The text does not list GPUs: each host has those of a node of planc's library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source
from planc.interop.topologies.hardware_text import HardwareText, lines_of, wrong
from planc.ir.hardware import Cluster

HEADER = re.compile(r'(Switch|Ca|Rt)\s+\d{1,4}\s+"([^"]{1,80})"\s*#\s*"([^"]{0,120})"', re.ASCII)
PORT = re.compile(r'\[(\d{1,4})\](?:\([0-9a-fA-F]+\))?\s+"([^"]{1,80})"\[(\d{1,4})\]', re.ASCII)
QUOTED = re.compile(r'"[^"]*"')
RATE = re.compile(r"(?<!\w)(\d{1,2})x(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)(?!\w)", re.ASCII)
LANE_GBIT_PER_S = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64,
    "EDR": 25.0, "HDR": 50.0, "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
"""Data rate of one lane, one way, after encoding (InfiniBand Trade Association, InfiniBand roadmap)."""
IN_SWITCH = "Aggregation Node"
"""Part of the description of a switch's own adapter, for in-network reduction."""
HOP_S = 2e-6
BITS = 8


@dataclass(frozen=True)
class Port:
    """One end of a link: its port `number`, the GUID of the other end (`peer`) and the port there, and the bandwidth in
    one direction."""

    number: int
    peer: str
    peer_number: int
    line: int
    bytes_per_s: float


@dataclass(frozen=True)
class Adapter:
    """A switch or a host's adapter, with its connected ports by number."""

    kind: str
    guid: str
    described: str
    line: int
    ports: dict[int, Port]


def looks_so(text: str) -> bool:
    """True if `text` is the output of `ibnetdiscover`: it has a line of a switch or of an adapter."""
    return re.search(r'^(?:Switch|Ca)\s+\d+\s+"', text, re.M) is not None


def read(source: Source, machine: Cluster) -> HardwareText:
    """Returns the network in `source` as a hardware file. Each host has the GPUs of a node of `machine`."""
    adapters: dict[str, Adapter] = {}
    for adapter in _adapters(source):
        if adapter.guid in adapters:
            raise wrong(source, "E1425", adapter.line, f"`{adapter.guid}` is there twice", adapter.guid)
        adapters[adapter.guid] = adapter
    _both_ends(source, adapters)
    found = HardwareText(source, machine, "read from ibnetdiscover")
    wanted = {g: a for g, a in adapters.items() if a.kind != "Rt" and (a.kind != "Ca" or IN_SWITCH not in a.described)}
    cards = [a for a in wanted.values() if a.kind == "Ca"]
    if not cards:
        raise wrong(source, "E1424", max(1, len(source.lines)), "no host has a card", help="the text may be cut short")
    names = _hosts(found, cards)
    near = {port.peer for card in cards for port in card.ports.values()}
    for guid, adapter in wanted.items():
        if adapter.kind == "Switch":
            kind = "leaf" if guid in near else "spine"
            names[guid] = found.point(f"sw_{guid.removeprefix('S-')}", kind, "", adapter.line)
    links: dict[tuple[str, str], list[float]] = {}
    for guid, port in ((g, p) for g, a in wanted.items() for p in a.ports.values()):
        if port.peer in wanted and guid < port.peer:
            links.setdefault((guid, port.peer), []).append(port.bytes_per_s)
    for (guid, peer), rates in links.items():
        found.wire(names[guid], names[peer], found.link("infiniband", min(rates), HOP_S), len(rates))
    return found


def _adapters(source: Source) -> Iterator[Adapter]:
    """Yields the switches, adapters and routers of `source`, in order."""
    at: Adapter | None = None
    for n, line in lines_of(source):
        if re.match(r"Switch\s|Ca\s|Rt\s", line):
            matched = HEADER.match(line)
            if matched is None:
                raise wrong(source, "E1424", n, "the line names no node", help="the text may be cut short")
            at = Adapter(matched[1], matched[2], matched[3], n, {})
            yield at
        elif line.startswith("["):
            if at is None:
                raise wrong(source, "E1424", n, "a port is below no switch and no card")
            port = _port(source, n, line)
            if port.number in at.ports:
                raise wrong(source, "E1425", n, f"port {port.number} of `{at.guid}` is there twice")
            at.ports[port.number] = port


def _port(source: Source, n: int, line: str) -> Port:
    matched, rate = PORT.match(line), RATE.search(QUOTED.sub("", line.partition("#")[2]))
    if matched is None or rate is None:
        message = "the line is no port with its peer and its rate, such as 4xHDR"
        raise wrong(source, "E1424", n, message, help="the text may be cut short")
    bytes_per_s = int(rate[1]) * LANE_GBIT_PER_S[rate[2]] * 1e9 / BITS
    if not bytes_per_s:
        raise wrong(source, "E1424", n, f"a link of {rate[0]} carries nothing", rate[0])
    return Port(int(matched[1]), matched[2], int(matched[3]), n, bytes_per_s)


def _both_ends(source: Source, adapters: dict[str, Adapter]) -> None:
    """Raises PlanError unless each link is listed at both of its ends; otherwise the text is incomplete."""
    for adapter in adapters.values():
        for port in adapter.ports.values():
            peer = adapters.get(port.peer)
            if peer is None:
                raise wrong(source, "E1424", port.line, f"no line describes `{port.peer}`", port.peer)
            back = peer.ports.get(port.peer_number)
            if back is None or (back.peer, back.peer_number) != (adapter.guid, port.number):
                message = f"port {port.peer_number} of `{port.peer}` does not lead back here"
                raise wrong(source, "E1424", port.line, message, port.peer, help="the text may be cut short")


def _hosts(found: HardwareText, cards: list[Adapter]) -> dict[str, str]:
    """Adds the vertices of each host, which is named by the first word of an adapter's description. Returns the vertex
    of each adapter by GUID.

    The GPUs of a host are connected as in a node of the library's machine; each adapter serves an equal block of GPUs.
    """
    machine, names = found.machine, dict[str, str]()
    of_host: dict[str, list[Adapter]] = {}
    for card in cards:
        of_host.setdefault((card.described.split() or [card.guid])[0], []).append(card)
    link, chips = machine.link, machine.shape[0]
    near = found.link(link.name, link.bandwidth_bytes_per_s, link.latency_s, link.efficiency)
    pcie = found.link("pcie", machine.chip.host_bandwidth_bytes_per_s, HOP_S)
    for host, mine in of_host.items():
        inside = found.point(f"{host}_switch", "switch", host, mine[0].line)
        for number, card in enumerate(mine):
            names[card.guid] = found.point(f"{host}_card{number}", "nic", host, card.line)
        cards_of_gpus = [number * len(mine) // chips for number in range(chips)]
        for number, card_number in enumerate(cards_of_gpus):
            gpu = found.point(f"{host}_gpu{number}", "chip", host, mine[0].line)
            found.wire(gpu, inside, near)
            found.wire(gpu, names[mine[card_number].guid], pcie)
        for number in {*range(len(mine))} - {*cards_of_gpus}:  # of more cards than GPUs
            found.wire(names[mine[number].guid], inside, pcie)
    return names
