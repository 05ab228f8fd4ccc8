"""`planc graph FILE`: the plan's machine as a graph of links; `-o` writes it in formats of other tools."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.common import add_set, output_path, print_json, refused
from planc.files import write_atomically

if TYPE_CHECKING:
    from planc.graph import MachineLinks
    from planc.ir.hardware import Cluster
    from planc.ir.plan import Plan

MOST_DEVICES = 32_768
"""Largest machine whose vertices are written one by one; of a larger one, equal nodes and switches are written once."""
SUFFIXES = (".graphml", ".dot", ".json", ".svg", ".plan")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="a plan; none with --from")
    about = "read a machine from another tool's text (nvidia-smi topo -m, NCCL's XML, Slurm's topology, jax.devices())"
    parser.add_argument("--from", dest="topology", metavar="TEXT", help=about)
    about = "the bundled machine that says what the text of --from leaves out, such as h100_node"
    parser.add_argument("--machine", metavar="NAME", help=about)
    about = "write .graphml, .dot, .json (networkx's node-link data), .svg (a picture with the axes); with --from .plan"
    parser.add_argument(
        "-o", dest="outputs", action="append", default=[], type=output_path(*SUFFIXES), metavar="FILE", help=about
    )
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from planc.diag.errors import PlanError
    from planc.driver import load
    from planc.graph import machine_links
    from planc.graph.from_cluster import merged_links
    from planc.graph.networks import exported, to_json

    if options.topology:
        return _read_topology(options)
    if options.file is None or any(path.suffix == ".plan" for path in options.outputs):
        print("planc graph: name a plan; -o FILE.plan goes with --from TEXT", file=sys.stderr)
        return 2
    try:
        plan = load(options.file, set=dict(options.set))
    except PlanError as error:
        return refused(error.diagnostics, options.format)
    cluster = plan.cluster
    merged = _is_merged(cluster)
    links = merged_links(cluster) if merged else machine_links(cluster)
    if merged and len(links.devices) > MOST_DEVICES:
        many = f"a slice has {len(links.devices):,} devices, and at most {MOST_DEVICES:,} are written one by one"
        print(f"planc graph: {options.file}: {many}", file=sys.stderr)
        return 2
    for path in options.outputs:
        write_atomically(path, _picture(plan, links) if path.suffix == ".svg" else exported(links, path.suffix))
    if options.format == "json":
        print_json(to_json(links))
    else:
        print("\n".join(lines(links)))
    return 0


def _is_merged(cluster: Cluster) -> bool:
    """True if equal parts of the machine are written once. A machine whose links a file writes is written as there."""
    return cluster.devices > MOST_DEVICES and cluster.own_graph is None


def _read_topology(options: argparse.Namespace) -> int:
    """Convert another tool's topology text to a hardware file, and write it if planc can read the result."""
    from planc.diag.errors import PlanError
    from planc.diag.span import Source
    from planc.interop.topologies import MACHINES, read_topology
    from planc.language.read_part import read_part
    from planc.syntax import parse_text

    if options.machine not in MACHINES or any(path.suffix != ".plan" for path in options.outputs):
        legal = f"one of {', '.join(MACHINES)}"
        print(f"planc graph: --from takes --machine, {legal}, and writes -o FILE.plan", file=sys.stderr)
        return 2
    name = options.outputs[0].stem if options.outputs else ""
    try:
        text, source = read_topology(Path(options.topology), options.machine, name)
    except PlanError as error:
        return refused(error.diagnostics, options.format)
    read = parse_text(text, "hardware")
    found = read_part(read).diagnostics if read.header else [*read.diagnostics]  # a machine of too many sentences
    if found:
        return refused(found, options.format, {"hardware": Source.of("hardware", text), source.file: source})
    for path in options.outputs:
        write_atomically(path, text)
    if not options.outputs:
        print(text, end="")
    return 0


def _picture(plan: Plan, links: MachineLinks) -> str:
    """Return an SVG of the machine. Mesh axes are shown only if the plan can be costed, and
    every vertex is written."""
    from planc.compare.what_if import routed
    from planc.driver import examine
    from planc.picture.marks import WIDE
    from planc.picture.render import sheet
    from planc.report.views.links import links_of, picture

    data = links_of(links, None if _is_merged(plan.cluster) else examine(routed(plan), targets=()).costed)
    return sheet(f"{links.name}: {data.summary}", [(f"{plan.name} on {links.name}", picture(data, WIDE))])


def lines(links: MachineLinks) -> Iterator[str]:
    """Yield lines with the number of vertices of each kind, and the number and bandwidth of links of each name."""
    from planc.cli.views.table import table

    kinds = Counter[str]()
    for v in links.vertices:
        kinds[v.kind] += v.copies
    yield f"{links.name}: {links.chips:,} devices; " + ", ".join(f"{n:,} {kind}" for kind, n in kinds.items())
    if links.chips > len(links.devices):
        yield f"more than {MOST_DEVICES:,}: equal parts are written once, with their number (`copies`)"
    counts: Counter[tuple[str, str, float, float, float]] = Counter()
    for cable in links.cables:
        kind = links.kinds[cable.kind]
        ends = "-".join(links.vertices[i].kind for i in (cable.source, cable.target))
        there, back = links.bytes_per_s(cable)
        count = int(cable.links) * links.copies_of(cable)
        counts[kind.name, ends, there / cable.links, back / cable.links, kind.latency_s] += count
    rows = [
        (name, ends, f"{count:,}", f"{there / 1e9:.4g}", f"{back / 1e9:.4g}", f"{latency_s * 1e6:.3g}")
        for (name, ends, there, back, latency_s), count in counts.items()
    ]
    yield from table(("link", "joins", "links", "GB/s there", "GB/s back", "us"), rows, left=2)
