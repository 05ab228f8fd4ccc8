"""Checks a layout or hardware file without a plan."""

from __future__ import annotations

from planc.ir.base import Cause
from planc.ir.mesh import Mesh
from planc.language.draft import Draft
from planc.language.verbs import readers
from planc.language.verbs.hardware import Declared, read_chip, read_levels, read_link, wrap_multiples
from planc.language.verbs.measured import check_owners, with_chip_tables, with_link_tables
from planc.language.verbs.price import price
from planc.language.verbs.use import expand
from planc.syntax import Tree
from planc.syntax.tree import Sentence

IN_LAYOUTS = ("shard", "replicate", "store", "gather", "split", "recompute")
"""Verbs of a layout that are read here; others depend on the plan that uses it."""


def read_part(file: Tree) -> Draft:
    """Return a draft with all diagnostics about `file`, a layout or hardware file, including those of the parser."""
    assert file.header is not None
    draft = Draft(diagnostics=list(file.diagnostics))
    if file.header.verb == "hardware":
        _hardware(Declared(file.sentences), draft)
    else:
        _layout(file, file.header, draft)
    return draft


def _hardware(declared: Declared, draft: Draft) -> None:
    graph = next((s for s in declared.sentences if s.verb == "graph"), None)
    if graph is not None:
        from planc.language.own_graph import read_graph

        read_graph(graph, declared, draft)
    else:
        _tables(declared, draft)
    for sentence in declared.sentences:
        if sentence.verb == "price":
            price(sentence, draft)
        elif sentence.verb in ("node", "torus"):
            chip, link = sentence.node.words("NAME")[-2:]
            draft.one_of(chip, declared.names("chip"), "a chip of the hardware files")
            draft.one_of(link, declared.names("link"), "a link of the hardware files")
            if sentence.verb == "torus":
                wrap_multiples(sentence, draft)


def _tables(declared: Declared, draft: Draft) -> None:
    for sentence in declared.sentences:
        if sentence.verb == "chip" and (chip := read_chip(sentence, draft)) is not None:
            with_chip_tables(chip, declared, draft)
        elif sentence.verb == "link" and (link := read_link(sentence, draft)) is not None:
            with_link_tables(link, declared, draft)
        elif sentence.verb == "network":
            for level in read_levels(sentence, draft):
                with_link_tables(level, declared, draft)
    check_owners(declared, draft)


def _layout(file: Tree, header: Sentence, draft: Draft) -> None:
    """Check a layout on a mesh that has its axes, each of size 2: the diagnostics do not depend on sizes."""
    axes = dict.fromkeys((w.text for w in header.names(0)), 2)
    draft.mesh = Mesh.of(axes, Cause(span=header.span, sentence=header.text))
    words = header.node.words("NAME", "METHOD")
    method = {words[1].text: [words[2]]} if len(words) > 2 else {}
    own = [s.renamed(method, s) if method else s for s in file.sentences]
    for sentence in expand(own, {}, draft):
        if sentence.verb in IN_LAYOUTS:
            readers()[sentence.verb][1](sentence, draft)
