"""Reads Slurm's topology.conf or topology.yaml: a tree of switches with nodes, or blocks of nodes.

The formats: https://slurm.schedmd.com/topology.conf.html and topology.yaml.html. Nodes and link bandwidths are those of
a machine of planc's library. A switch's uplink has the bandwidth of all nodes below it together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source
from planc.interop.document import UnreadableError
from planc.interop.formats.yaml import read_yaml
from planc.interop.topologies.hardware_text import HardwareText, lines_of, wrong
from planc.ir.hardware import Cluster

MOST_NODES = 20_000
"""Maximum number of nodes of a file."""
MOST_CHARACTERS = 255
"""Maximum length of a node's name, that of a domain name (RFC 1035)."""
MOST_LEVELS = 32
"""Maximum number of switch levels; a network has a few."""


@dataclass(frozen=True)
class Switch:
    """A switch or block in the text, with the names of the nodes and switches directly below it."""

    name: str
    line: int
    nodes: tuple[str, ...]
    switches: tuple[str, ...]


def looks_so(text: str) -> bool:
    """True if `text` is a topology of Slurm: it names switches or blocks."""
    return re.search(r"^[^\S\n]*(?:-\s*)?(?:SwitchName\s*=|BlockName\s*=|topology\s*:)", text, re.M | re.I) is not None


def read(source: Source, machine: Cluster) -> HardwareText:
    """Returns the cluster in `source` as a hardware file. Its nodes are those of `machine`."""
    switches = [*(_of_yaml(source) if re.search(r"^[^\S\n]*-\s*topology\s*:", source.text, re.M) else _of_conf(source))]
    by_name: dict[str, Switch] = {}
    for switch in switches:
        if switch.name in by_name:
            raise wrong(source, "E1425", switch.line, f"the switch `{switch.name}` is there twice", switch.name)
        by_name[switch.name] = switch
    if not any(s.nodes for s in switches):
        raise wrong(source, "E1424", max(1, len(source.lines)), "no switch has nodes")
    parents = _parents(source, by_name)
    _no_circles(source, by_name, parents)
    return _written(source, machine, by_name, parents)


def _of_conf(source: Source) -> Iterator[Switch]:
    budget = iter(range(MOST_NODES))
    for n, line in lines_of(source):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        pairs = {}
        for word in text.split():
            name, equals, value = word.partition("=")
            if not equals or not value:
                raise wrong(
                    source, "E1424", n, f"`{word[:40]}` is not NAME=VALUE", word, help="the line may be cut short"
                )
            pairs[name.lower()] = value
        if "blocksizes" in pairs:
            continue
        if (switch := pairs.get("switchname") or pairs.get("blockname")) is None:
            raise wrong(source, "E1424", n, "the line names no SwitchName and no BlockName")
        nodes = tuple(hosts(source, n, pairs.get("nodes", ""), budget))
        yield Switch(switch, n, nodes, tuple(hosts(source, n, pairs.get("switches", ""), budget)))


def _of_yaml(source: Source) -> Iterator[Switch]:
    """Yields the switches and blocks of the first topology of the file."""
    try:
        fields = read_yaml(Source.of(source.file, "all:\n" + source.text)).fields
    except UnreadableError as error:
        raise wrong(source, "E1424", 1, str(error)) from None
    lists = fields["all"].value if "all" in fields else ()
    first = _mapping(lists[0] if isinstance(lists, tuple) and lists else ())
    rows = _mapping(first.get("tree")).get("switches") or _mapping(first.get("block")).get("blocks") or ()
    if not isinstance(rows, tuple) or not rows:
        raise wrong(source, "E1424", 1, "the first topology has neither switches of a tree nor blocks")
    budget = iter(range(MOST_NODES))
    last_words = {words[-1]: n for n, text in reversed([*lines_of(source)]) if (words := text.split("#")[0].split())}
    for row in map(_mapping, rows):
        name = str(row.get("switch") or row.get("block") or "")
        line = last_words.get(name, 1)
        if not name:
            raise wrong(source, "E1424", line, "a switch or block has no name")
        nodes = tuple(hosts(source, line, str(row.get("nodes") or ""), budget))
        yield Switch(name, line, nodes, tuple(hosts(source, line, str(row.get("children") or ""), budget)))


def _mapping(value: object) -> dict[str, Any]:
    """Returns a mapping from alternating names and values, the YAML reader's form of one; {} for another value."""
    if not isinstance(value, tuple) or len(value) % 2:
        return {}
    return {str(name): one for name, one in zip(value[::2], value[1::2], strict=True)}


def hosts(source: Source, line: int, text: str, budget: Iterator[int]) -> Iterator[str]:
    """Yields the names in a host list such as `tux[0-3,12],login1`. `text` is the list, on line `line` of `source`.
    Each name takes a number from `budget`, that of the whole file."""
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text):
        matched = re.fullmatch(r"([^\[\]]*)(?:\[([\d,\-]+)\]([^\[\]]*))?", part)
        if matched is None:
            raise wrong(source, "E1424", line, f"`{part[:40]}` is no list of hosts", part[:40])
        head, ranges, tail = matched.groups()
        if len(part) > MOST_CHARACTERS and len(head) + len(tail or "") > MOST_CHARACTERS:
            raise wrong(source, "E1424", line, f"`{part[:40]}` is longer than a host's name", part[:40])
        if ranges is None:
            yield head
            continue
        for one in ranges.split(","):
            low, dash, high = one.partition("-")
            if not low.isdigit() or (dash and not high.isdigit()) or len(low) > 9 or len(high) > 9:
                raise wrong(source, "E1424", line, f"`{one[:40]}` is no range of numbers", one[:40])
            for number in range(int(low), int(high or low) + 1):
                if next(budget, None) is None:
                    raise wrong(source, "E1424", line, f"more than {MOST_NODES:,} hosts are described", part[:40])
                yield f"{head}{number:0{len(low)}d}{tail or ''}"


def _parents(source: Source, by_name: dict[str, Switch]) -> dict[str, str]:
    """Returns the switch above each switch, by name. Raises PlanError if a node or a switch is below two switches."""
    parents: dict[str, str] = {}
    node_of: dict[str, str] = {}
    for switch in by_name.values():
        for below in switch.switches:
            if below not in by_name:
                raise wrong(source, "E1424", switch.line, f"no line describes the switch `{below}`", below)
            if below in parents:
                message = f"`{below}` is below `{parents[below]}` and `{switch.name}`"
                raise wrong(source, "E1425", switch.line, message, below)
            parents[below] = switch.name
        for node in switch.nodes:
            if node in node_of:
                message = (
                    f"the node `{node}` is below `{node_of[node]}` and `{switch.name}`: it would be counted as two"
                )
                raise wrong(source, "E1425", switch.line, message, node)
            node_of[node] = switch.name
    return parents


def _no_circles(source: Source, by_name: dict[str, Switch], parents: dict[str, str]) -> None:
    for switch in by_name.values():
        seen, at = {switch.name}, switch.name
        while (above := parents.get(at)) is not None:
            if above in seen:
                raise wrong(source, "E1426", switch.line, f"the switch `{above}` is below itself", switch.name)
            seen.add(above)
            if len(seen) > MOST_LEVELS:
                message = f"more than {MOST_LEVELS} switches are above each other"
                raise wrong(source, "E1424", switch.line, message, switch.name)
            at = above


def _written(source: Source, machine: Cluster, by_name: dict[str, Switch], parents: dict[str, str]) -> HardwareText:
    found = HardwareText(source, machine, "read from a topology of Slurm")
    link, level = machine.link, machine.levels[0] if machine.levels else None
    near = found.link(link.name, link.bandwidth_bytes_per_s, link.latency_s, link.efficiency)
    bytes_per_s, latency_s = (level.bandwidth_bytes_per_s, level.latency_s) if level else (50e9, 8e-6)
    net = found.link("network", bytes_per_s, latency_s, level.efficiency if level else 1.0)
    each = found.link("card", bytes_per_s / machine.shape[0], latency_s, level.efficiency if level else 1.0)
    below: dict[str, int] = {}
    names = {s.name: found.point(f"sw_{s.name}", "leaf" if s.nodes else "spine", "", s.line) for s in by_name.values()}
    for switch in by_name.values():
        for node in switch.nodes:
            inside = found.point(f"{node}_switch", "switch", node, switch.line)
            for i in range(machine.shape[0]):
                gpu = found.point(f"{node}_gpu{i}", "chip", node, switch.line)
                found.wire(gpu, inside, near)
                found.wire(gpu, names[switch.name], each)
        at: str | None = switch.name
        while at is not None:
            below[at] = below.get(at, 0) + len(switch.nodes)
            at = parents.get(at)
    for name, above in parents.items():
        found.wire(names[name], names[above], net, max(1, below.get(name, 1)))
    tops = [name for name in by_name if name not in parents]
    if len(tops) > 1:  # blocks, or trees side by side: one network joins them
        top = found.point("network", "spine", "", 1)
        for name in tops:
            found.wire(names[name], top, net, max(1, below.get(name, 1)))
    return found
