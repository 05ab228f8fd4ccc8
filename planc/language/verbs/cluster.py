"""`cluster COUNT x NODE [over COUNT leaves]` or `cluster [COUNT x] TORUS(SHAPE)`: the devices that run the plan. NODE
or TORUS is declared in a hardware file."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from planc.ir.field_types import BYTES_PER_S
from planc.ir.hardware import Chip, Cluster, Level, Link
from planc.language import library
from planc.language.draft import Draft
from planc.language.verbs.hardware import (
    Declared,
    declared_name,
    read_chip,
    read_levels,
    read_link,
    torus_facts,
    wrap_multiples,
    wraps,
)
from planc.language.verbs.measured import check_owners, with_chip_tables, with_link_tables
from planc.language.verbs.price import of_hardware
from planc.syntax.lines import MACHINE
from planc.syntax.tree import Node, Sentence, Word

VERBS = ("cluster",)
ORDER = 1


def read(sentence: Sentence, draft: Draft) -> None:
    """Add the cluster to `draft`. A hardware file declares its node type, torus or graph of links."""
    call = sentence.node.node("call")
    assert call is not None
    first = sentence.node.parts[0]
    count = 1 if first is call else draft.integer(first)
    word = call.words()[0]
    if _stray_parts(draft):
        return
    own = Declared(tuple(draft.hardware)).names("node", "torus", "graph")
    if word.text not in own and (advice := _part_of_node(word.text, count)):
        draft.report("E0108", word.span, f"`{word.text}` is a chip, and a cluster has nodes", help=advice)
        return
    name = draft.one_of(word, [*own, *library.machines()], "a node or torus of any hardware file")
    if name is None:
        return
    if (graph := Declared(tuple(draft.hardware)).find("graph", name)) is not None:
        _own_graph(sentence, graph, draft)
        return
    declared = _declaring(name, draft)
    machine = declared.find("node", name) or declared.find("torus", name)
    assert machine is not None
    parts = _machine_parts(machine, declared, draft)
    shape = _shape(machine, call, draft)
    if count is None or parts is None or shape is None:
        return
    chip, link, levels = parts
    if count > 1 and not declared.names("network"):
        draft.report(
            "E0107",
            sentence.span,
            f"{count} x `{name}` need a network, and its hardware file has no `network` sentence",
            help="such as: network ib = leaf 32 at 400 GB/s",
        )
        return
    torus = machine.verb == "torus"
    if not torus:
        levels = _of_used(machine, shape[0], levels, draft)
    spread = _spread_over_units(sentence, levels, count, draft)
    if spread is None:
        return
    draft.price = of_hardware([*draft.hardware, *declared.sentences], draft)
    priced = [s for s in (*draft.hardware, *declared.sentences) if s.verb == "price"][:1]
    draft.machine = [*declared.used_by(machine), *priced]
    facts = torus_facts(machine, draft) if torus else {"host": float(shape[0]), "whole_cubes": 0.0}
    draft.cluster = Cluster(
        kind="torus" if torus else "node",
        name=name,
        count=count,
        chip=chip,
        link=link,
        shape=shape,
        wrap=wraps(shape, wrap_multiples(machine, draft), whole_cubes=bool(facts["whole_cubes"])) if torus else (),
        host_chips=int(facts["host"]),
        levels=spread,
        sources=(machine.span.file,),
        cause=draft.cause(sentence),
    )


def _part_of_node(chip: str, used: int | None) -> str:
    """Return help on how to write `used` chips of this type as a cluster; "" if no bundled node has the chip."""
    for node, whole in library.nodes_of(chip).items():
        if used and (used <= whole or used % whole == 0):
            said = f"{ceil(used / whole)} x {node}" + (f"({used})" if used < whole else "")
            return f"write `cluster {said}`: `{node}` has {whole} of them, and `{node}(N)` uses N"
    return ""


def _stray_parts(draft: Draft) -> bool:
    """Return True (reported) if a file has `fabric`, `points` or `wire` sentences, but no `graph` sentence."""
    files = {s.span.file for s in draft.hardware if s.verb == "graph"}
    stray = [s for s in draft.hardware if s.verb in ("fabric", "points", "wire") and s.span.file not in files]
    for s in stray[:1]:
        draft.report("E1420", s.span, f"`{s.verb}` in a file without a graph", help="such as: graph pod of h100")
    return bool(stray)


def _own_graph(sentence: Sentence, graph: Sentence, draft: Draft) -> None:
    call = sentence.node.node("call")
    if call is None or sentence.node.parts[0] is not call or call.node("args") or sentence.node.node("spread"):
        name = declared_name(graph)
        draft.report("E1419", sentence.span, f"`{name}` is a whole machine", help=f"write: cluster {name}")
        return
    from planc.language.own_graph import read_graph

    declared = Declared(tuple(s for s in draft.hardware if s.span.file == graph.span.file))
    found = read_graph(graph, declared, draft)
    if found is None:
        return
    draft.price = of_hardware(declared.sentences, draft)
    draft.machine = [s for s in declared.sentences if s.verb in (*MACHINE, "price")]
    each = found.chips // found.units
    draft.cluster = Cluster(
        kind="node",
        name=declared_name(graph),
        count=found.units,
        chip=found.chip,
        link=found.link,
        shape=(each,),
        host_chips=each,
        sources=(graph.span.file,),
        cause=draft.cause(sentence),
        own_graph=found.graph,
    )


def _spread_over_units(
    sentence: Sentence, levels: tuple[Level, ...], count: int, draft: Draft
) -> tuple[Level, ...] | None:
    """Return the network levels (tiers, innermost first) after `over COUNT leaves`, which places the nodes in equal
    groups under this number of leaf switches. None (reported) for a mistake."""
    clause = sentence.node.node("spread")
    if clause is None:
        return levels
    part, name = clause.parts
    units = draft.integer(part)
    assert isinstance(name, Word)
    if units is None:
        return None
    if not levels or name.text not in ("leaves", levels[0].name):
        legal = ["leaves", levels[0].name] if levels else []
        draft.unknown(name, legal, "the innermost level of this cluster's network")
        return None
    if not ceil(count / levels[0].width) <= units <= count:
        draft.report(
            "E0103",
            part.span,
            f"{count} nodes do not lie in {units} units of {levels[0].width} nodes",
            help=f"from {ceil(count / levels[0].width)} to {count}",
        )
        return None
    return (replace(levels[0], width=ceil(count / units)), *levels[1:])


def _declaring(name: str, draft: Draft) -> Declared:
    own = Declared(tuple(draft.hardware))
    if own.find("node", name) or own.find("torus", name):
        return own
    return Declared(library.hardware_file(library.machines()[name]).sentences)


def _machine_parts(machine: Sentence, declared: Declared, draft: Draft) -> tuple[Chip, Link, tuple[Level, ...]] | None:
    chip_word, link_word = list(machine.node.words("NAME"))[-2:]
    chip_sentence, link_sentence = (
        declared.find("chip", chip_word.text),
        declared.find("link", link_word.text),
    )
    asked = chip_sentence is None and machine.verb == "node"
    advice = _part_of_node(chip_word.text, draft.integer(machine.node.parts[1])) if asked else ""
    if advice:
        what = f"`{chip_word.text}` is a chip of a bundled file, which a file of your own does not see"
        draft.report("E0108", chip_word.span, what, help=advice)
        return None
    if chip_sentence is None:
        draft.unknown(chip_word, declared.names("chip"), "a chip of the hardware files")
    if link_sentence is None:
        draft.unknown(link_word, declared.names("link"), "a link of the hardware files")
    if chip_sentence is None or link_sentence is None:
        return None
    chip, link = read_chip(chip_sentence, draft), read_link(link_sentence, draft)
    network = next((s for s in declared.sentences if s.verb == "network"), None)
    if chip is None or link is None:
        return None
    if link.links and machine.verb == "torus":
        draft.report("E0103", link_sentence.span, "`links` are of a node; a torus's link joins two neighbours")
        return None
    levels = read_levels(network, draft)
    check_owners(declared, draft)
    return (
        with_chip_tables(chip, declared, draft),
        with_link_tables(link, declared, draft),
        tuple(with_link_tables(level, declared, draft) for level in levels),
    )


def _of_used(machine: Sentence, used: int, levels: tuple[Level, ...], draft: Draft) -> tuple[Level, ...]:
    """Return the network levels of a node that uses only `used` of its chips. Its bandwidth to the network shrinks in
    proportion."""
    whole = draft.integer(machine.node.parts[1]) or used
    share = used / whole
    return tuple(
        replace(
            level,
            bandwidth_bytes_per_s=max(BYTES_PER_S.minimum, level.bandwidth_bytes_per_s * share),
            rails=ceil(level.rails * share),
        )
        for level in levels
    )


def _shape(machine: Sentence, call: Node, draft: Draft) -> tuple[int, ...] | None:
    """Return the number of chips per node (64 for `gb200_nvl72(64)`), or the lengths of the torus. None (reported) for
    a mistake."""
    args = call.node("args")
    if machine.verb == "node":
        whole = draft.integer(machine.node.parts[1])
        used = draft.integer(args.parts[0]) if args is not None and len(args.parts) == 1 else whole
        if whole is None or used is None:
            return None
        if used > whole or (args is not None and len(args.parts) != 1):
            name = call.words()[0].text
            draft.report("E0103", call.span, f"`{name}` has {whole} chips", help=f"`{name}(N)` uses N of them, or all")
            return None
        return (used,)
    shape = args.words("SHAPE") if args else []
    wanted = len(wrap_multiples(machine, draft))
    sizes = [int(n) for n in shape[0].text.split("x") if len(n) < 7] if shape else []
    if len(sizes) != wanted or 0 in sizes:
        span = args.span if args else call.span
        example = "x".join(["4"] * wanted)
        draft.report(
            "E0103",
            span,
            f"a torus needs a shape of {wanted} lengths of at least 1",
            help=f"such as {call.words()[0].text}({example})",
        )
        return None
    return tuple(sizes)
