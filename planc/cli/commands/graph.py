"""`planc graph FILE`: the plan's machine as a graph of links; `-o` writes it for other tools."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import add_set, print_json, refused
from planc.files import write_atomically

if TYPE_CHECKING:
    from planc.graph import MachineLinks

SUFFIXES = (".graphml", ".dot", ".json")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    about = "write .graphml, .dot or .json (networkx's node-link data)"
    parser.add_argument("-o", dest="outputs", action="append", default=[], type=_output, metavar="FILE", help=about)
    add_set(parser)


def _output(text: str) -> Path:
    path = Path(text)
    if path.suffix not in SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {', '.join(SUFFIXES)}")
    return path


def run(options: argparse.Namespace) -> int:
    from planc.diag.errors import PlanError
    from planc.driver import load
    from planc.graph import machine_links
    from planc.graph.networks import exported, to_json

    try:
        plan = load(options.file, set=dict(options.set))
    except PlanError as error:
        return refused(error.diagnostics, options.format)
    links = machine_links(plan.cluster)
    for path in options.outputs:
        write_atomically(path, exported(links, path.suffix))
    if options.format == "json":
        print_json(to_json(links))
    else:
        print("\n".join(_lines(links)))
    return 0


def _lines(links: MachineLinks) -> Iterator[str]:
    """How many vertices of each kind, and how many links of each name, with what one of them carries."""
    from planc.cli.views.table import table

    kinds = Counter(v.kind for v in links.vertices)
    yield f"{links.name}: {len(links.devices):,} devices; " + ", ".join(f"{n:,} {kind}" for kind, n in kinds.items())
    counts: Counter[tuple[str, str, float, float, float]] = Counter()
    for cable in links.cables:
        kind = links.kinds[cable.kind]
        ends = "-".join(links.vertices[i].kind for i in (cable.source, cable.target))
        there, back = links.bytes_per_s(cable)
        counts[kind.name, ends, there / cable.links, back / cable.links, kind.latency_s] += int(cable.links)
    rows = [
        (name, ends, f"{count:,}", f"{there / 1e9:.4g}", f"{back / 1e9:.4g}", f"{latency_s * 1e6:.3g}")
        for (name, ends, there, back, latency_s), count in counts.items()
    ]
    yield from table(("link", "joins", "links", "GB/s there", "GB/s back", "us"), rows, left=2)
