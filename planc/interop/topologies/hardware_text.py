"""Writes a hardware file from the devices and links that a reader finds in another tool's text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import python_comment
from planc.diag.span import Source, Span
from planc.ir.hardware import Cluster

MOST_POINTS = 100_000
"""Maximum number of points in a text."""


@dataclass(frozen=True, kw_only=True)
class LinkText:
    """A type of link in the hardware file. `bytes_per_s` is its bandwidth in one direction."""

    name: str
    bytes_per_s: float
    latency_s: float
    efficiency: float = 1.0

    def sentence(self) -> str:
        """Returns the sentence that declares this type of link."""
        more = f", efficiency = {self.efficiency * 100:g} %" if self.efficiency != 1 else ""
        facts = f"bandwidth = {self.bytes_per_s / 1e9:g} GB/s, latency = {self.latency_s * 1e6:g} us{more}"
        return f"link      {self.name}({facts})"


class HardwareText:
    """A hardware file in the making: the vertices (points) and links (wires) that were found in the text `source`."""

    def __init__(self, source: Source, machine: Cluster, title: str) -> None:
        self.source, self.machine, self.title = source, machine, title
        self.links: dict[str, LinkText] = {}
        self._links_of: dict[str, dict[tuple[float, float], str]] = defaultdict(dict)
        """By the wanted name, the names that bandwidths and latencies have."""
        self.points: dict[str, tuple[str, str]] = {}
        """The kind and the node of each point, by name."""
        self.wires: dict[tuple[str, str], tuple[str, int]] = {}

    def point(self, name: str, kind: str, unit: str, line: int) -> str:
        """Adds a vertex called `name` to the node `unit`, and returns its name in the hardware file. Raises PlanError
        at `line` if the name is taken."""
        plain = plain_word(name)
        if plain in self.points:
            raise wrong(self.source, "E1425", line, f"`{name}` is there twice: it would be counted as two", name)
        if len(self.points) >= MOST_POINTS:
            raise wrong(self.source, "E1424", line, f"more than {MOST_POINTS:,} points are described")
        node = plain_word(unit) if unit else ""
        self.points[plain] = kind, node
        return plain

    def link(self, name: str, bytes_per_s: float, latency_s: float, efficiency: float = 1.0) -> str:
        """Returns the name of a link type with this bandwidth and latency: `name`, or `name_2`, ... if the name is
        taken by a type with other values."""
        known = self._links_of[name]
        chosen = known.setdefault((bytes_per_s, latency_s), f"{name}_{len(known) + 1}" if known else name)
        if chosen not in self.links:
            self.links[chosen] = LinkText(
                name=chosen, bytes_per_s=bytes_per_s, latency_s=latency_s, efficiency=efficiency
            )
        return chosen

    def wire(self, one: str, other: str, link: str, count: int = 1) -> None:
        """Adds `count` links of the type `link` between two vertices, unless they are connected already."""
        if (other, one) not in self.wires:
            self.wires.setdefault((one, other), (link, count))

    def text(self, name: str, chip: str) -> str:
        """Returns the hardware file of the machine `name`. `chip` is the sentence that declares its chip."""
        lines = [f"hardware {name}", f"# {python_comment(self.title)}", chip]
        lines += [link.sentence() for link in self.links.values()]
        lines.append(f"graph     {name} of {self.machine.chip.name}")
        groups: dict[tuple[str, str], list[str]] = defaultdict(list)
        for point, kind_and_unit in self.points.items():
            groups[kind_and_unit].append(point)
        chips_first = sorted(groups.items(), key=lambda group: group[0][0] != "chip")
        for (kind, unit), names in chips_first:
            lines.append(f"points    {', '.join(names)} as {kind}{f' in {unit}' if unit else ''}")
        joined: dict[tuple[str, str, int], list[str]] = defaultdict(list)
        for (one, other), (name_of_link, count) in self.wires.items():
            joined[other, name_of_link, count].append(one)
        for (other, name_of_link, count), ones in joined.items():
            times = f" x {count}" if count > 1 else ""
            lines.append(f"wire      {', '.join(ones)} to {other} over {name_of_link}{times}")
        return "\n".join(lines) + "\n"


def plain_word(name: str) -> str:
    """Returns `name` with characters that are illegal in a name of a plan replaced by underscores.

    >>> plain_word("node-01.rack2"), plain_word("0000:15:00.0")
    ('node_01_rack2', 'x0000_15_00_0')
    """
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)[:80]
    return plain if plain[:1].isalpha() else f"x{plain}"


def line_span(source: Source, line: int, word: str = "") -> Span:
    """Returns the place of `word` in line `line` of `source`; the start of the line if the word is not in it."""
    column = max(0, source.line(line).find(word)) if word else 0
    return Span(source.file, line, column + 1, line, column + 1 + max(1, len(word)))


def wrong(source: Source, code: str, line: int, message: str, word: str = "", help: str = "") -> PlanError:
    """Returns a PlanError to raise: a diagnostic with `code` and `message` at `word` in a `line` of `source`."""
    return PlanError([Diagnostic(code, message, line_span(source, line, word), help=help)])


def lines_of(source: Source) -> Iterable[tuple[int, str]]:
    """Returns the non-empty lines of `source`, each with its number."""
    return ((n, line) for n, line in enumerate(source.lines, 1) if line.strip())
