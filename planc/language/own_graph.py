"""Reads a machine that the user describes as a graph of links, in a hardware file with these sentences.

graph  NAME of CHIP                                    declares the machine for `cluster NAME`
fabric NAME = KIND(NUMBER = ..., LINK = ...)           a rack, rail, fat_tree, dragonfly or torus
points NAME, NAME as KIND [in NODE]                    single chips, switches, cards, hosts or sockets
wire   NAMES to NAMES over LINK [x LINKS] [at SHARE]   links each point on the left with each on the right
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from planc.diag.diagnostic import Related
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span
from planc.graph.from_parts import MOST_LINKS, GraphBuilder, links_of, links_of_graph
from planc.graph.links import MachineLinks
from planc.graph.soundness import KINDS, LINKS, MAY_BE_ZERO, NUMBERS, mistake_of_part, mistake_of_whole
from planc.ir.hardware import Chip, GraphPart, Link, OwnGraph, PartKind, Points, Wire
from planc.language.draft import Draft
from planc.language.verbs.hardware import Declared, declared_name, read_chip, read_link
from planc.language.verbs.measured import check_owners, with_chip_tables
from planc.syntax.tree import Node, Sentence, Word

SAME_AS = {"up": "out", "local": "out"}
"""The link that is used if one is not given."""


@dataclass(frozen=True)
class ReadGraph:
    """A machine that a hardware file describes as a graph of links. `chips` is the total number of its chips."""

    chip: Chip
    link: Link
    """The fastest link of a chip."""
    graph: OwnGraph
    units: int
    """Number of nodes or racks; 1 if their numbers of chips differ."""
    chips: int


def read_graph(sentence: Sentence, declared: Declared, draft: Draft) -> ReadGraph | None:
    """Return the machine that the `graph` sentence and the other sentences of its file (`declared`) describe. None
    (reported) if one of these sentences has a mistake."""
    before = len(draft.diagnostics)
    reader = _GraphReader(declared, draft)
    if len(declared.names("graph")) > 1:
        second = [s for s in declared.sentences if s.verb == "graph"][1]
        draft.report("E1416", second.span, "a second graph in one file", help="write each graph in a file of its own")
        return None
    chip_word = sentence.node.words("NAME")[1]
    chip_sentence = declared.find("chip", chip_word.text)
    if chip_sentence is None:
        draft.unknown(chip_word, declared.names("chip"), "a chip of this hardware file")
    chip = read_chip(chip_sentence, draft) if chip_sentence else None
    chip = with_chip_tables(chip, declared, draft) if chip else None
    check_owners(declared, draft, routed=True)
    graph = reader.graph()
    if len(draft.diagnostics) > before or chip is None:
        return None
    if chip.devices > 1:
        draft.report(
            "E1417", chip_word.span, f"`{chip.name}` is {chip.devices} devices, and a graph's chips are one each"
        )
        return None
    links = links_of_graph(declared_name(sentence), graph)
    if (mistake := mistake_of_whole(links)) is not None:
        joined = _wire_of(reader, {*mistake.points}) if mistake.code == "E1404" else None
        span = joined or reader.spans.get("".join(mistake.points[:1]), sentence.span)
        draft.report(mistake.code, span, mistake.message, help=mistake.help)
        return None
    return _machine(chip, graph, links)


def _machine(chip: Chip, graph: OwnGraph, links: MachineLinks) -> ReadGraph:
    sizes: dict[int, int] = {}
    for v in links.devices:
        sizes[links.vertices[v].unit] = sizes.get(links.vertices[v].unit, 0) + 1
    alike = len({*sizes.values()}) == 1 and -1 not in sizes
    first = links.devices[0]
    used = {links.kinds[c.kind].name for c in links.cables if min(c.source, c.target) == first}
    near = [link for link in graph.links if link.name in used] or list(graph.links)
    fastest = max(near, key=lambda link: link.bandwidth_bytes_per_s)
    return ReadGraph(chip, fastest, graph, len(sizes) if alike else 1, len(links.devices))


class _GraphReader:
    def __init__(self, declared: Declared, draft: Draft) -> None:
        self.declared, self.draft = declared, draft
        self.links: dict[str, Link] = {}
        self.spans: dict[str, Span] = {}
        """The place where each regular part (rack, fat tree, ...) or vertex is declared, by name."""
        self.parts: set[str] = set()
        self.count = 0

    def graph(self) -> OwnGraph:
        """Return the graph of the file's `fabric`, `points` and `wire` sentences. Mistakes are reported."""
        for s in self.declared.sentences:
            if s.verb == "link" and (link := read_link(s, self.draft)) is not None:
                self.links[link.name] = link
                if link.links:
                    self.draft.report("E0103", s.span, "`links` are of a node; in a graph a `wire` joins two chips")
        parts = tuple(p for s in self._of("fabric") if (p := self._part(s)) is not None)
        points = tuple(one for s in self._of("points") if (one := self._points(s)) is not None)
        alone = (
            len(parts) == 1 and not points and not any(self._of("wire"))
        )  # no name of a regular part by itself is there twice
        for part in parts if self.count <= MOST_LINKS and not alone else ():
            span = self.spans[part.name]
            builder = GraphBuilder("", OwnGraph(links=(*self.links.values(),), parts=(part,), points=(), wires=()))
            for vertex in builder.build().vertices:
                self._declare(vertex.name, span)
        wires = tuple(w for s in self._of("wire") if (w := self._wire(s)) is not None)
        return OwnGraph(links=(*self.links.values(),), parts=parts, points=points, wires=wires)

    def _of(self, verb: str) -> Iterator[Sentence]:
        yield from (s for s in self.declared.sentences if s.verb == verb)

    def _declare(self, name: str, span: Span) -> None:
        first = self.spans.setdefault(name, span)
        if first is not span:
            self.draft.report(
                "E1403", span, f"`{name}` is there twice: a chip would be counted as two",
                related=(Related(first, "first here"),),
            )  # fmt: skip

    def _point_of(self, part: str) -> str:
        return next((name for name in self.spans if name.startswith(f"{part}.")), f"{part}.switch")

    def _link(self, word: Word) -> str | None:
        if word.text in self.links:
            return word.text
        if not any(s.verb == "link" and declared_name(s) == word.text for s in self.declared.sentences):
            legal = ", ".join(self.links)
            self.draft.report("E1413", word.span, f"`{word.text}` is not a link of this file", help=f"legal: {legal}")
        return None

    def _counted(self, cables: int, span: Span) -> bool:
        self.count += cables
        if self.count <= MOST_LINKS:
            return True
        self.draft.report(
            "E1410", span, f"the graph has more than {MOST_LINKS:,} links",
            help="write links between the same two ends as one wire with `x N`",
        )  # fmt: skip
        return False

    # Parts.

    def _part(self, sentence: Sentence) -> GraphPart | None:
        name, call = sentence.node.words("NAME")[0], sentence.node.node("call")
        assert call is not None
        word = call.words()[0]
        if word.text not in NUMBERS:
            legal = ", ".join(NUMBERS)
            self.draft.report("E1406", word.span, f"`{word.text}` is not a kind of part", help=f"legal: {legal}")
            return None
        self._declare(name.text, sentence.span)
        self.parts.add(name.text)
        numbers, links, shape = self._arguments(call, word.text)
        if numbers is None:
            return None
        missing = [n for n, value in NUMBERS[word.text].items() if value is None and n not in numbers]
        missing += [n for n in LINKS[word.text] if n not in links and SAME_AS.get(n, n) not in links]
        missing += ["shape"] if word.text == "torus" and not shape else []
        if missing:
            self.draft.report("E1407", call.span, f"a {word.text} needs {', '.join(missing)}")
            return None
        part = self._filled(name.text, word.text, numbers, links, shape)
        return part if self._adds_up(part, call) and self._counted(links_of(part), call.span) else None

    def _filled(
        self, name: str, kind: str, numbers: dict[str, int], links: dict[str, str], shape: tuple[int, ...]
    ) -> GraphPart:
        every = {n: numbers.get(n, value or 0) for n, value in NUMBERS[kind].items()}
        if "leaf" in every:
            every["leaf"] = every["leaf"] or every["nodes"]
            every["cards"] = every["cards"] or every["chips"]
        joined = {n: links.get(n) or links[SAME_AS[n]] for n in LINKS[kind]}
        assert kind in get_args(PartKind)
        return GraphPart(name=name, kind=kind, numbers=every, links=joined, shape=shape)  # type: ignore[arg-type]

    def _adds_up(self, part: GraphPart, call: Node) -> bool:
        mistake = mistake_of_part(part)
        if mistake is not None:
            self.draft.report(mistake.code, call.span, mistake.message, help=mistake.help)
        return mistake is None

    def _arguments(self, call: Node, kind: str) -> tuple[dict[str, int] | None, dict[str, str], tuple[int, ...]]:
        numbers: dict[str, int] = {}
        links: dict[str, str] = {}
        shape: tuple[int, ...] = ()
        args = call.node("args")
        wrong = False
        for arg in args.nodes("named") if args else ():
            word, value = arg.parts
            assert isinstance(word, Word)
            if word.text in LINKS[kind]:
                name = self._link(next(iter(value.all_words())) if isinstance(value, Node) else value)
                links |= {word.text: name} if name else {}
                wrong |= name is None
            elif word.text in NUMBERS[kind]:
                number = self.draft.integer(value, minimum=0 if word.text in MAY_BE_ZERO else 1)
                numbers |= {word.text: number} if number is not None else {}
                wrong |= number is None
            elif word.text == "shape" and kind == "torus" and isinstance(value, Word) and value.kind == "SHAPE":
                shape = tuple(int(n) for n in value.text.split("x") if len(n) < 7)
            else:
                legal = ", ".join((*NUMBERS[kind], *LINKS[kind], *(("shape",) if kind == "torus" else ())))
                self.draft.report("E1408", arg.span, f"a {kind} has no `{word.text}`", help=f"legal: {legal}")
                wrong = True
        if shape and 0 in shape:
            self.draft.report("E1414", call.span, "a length of the shape is 0")
            wrong = True
        return (None if wrong else numbers), links, shape

    # Points and wires.

    def _points(self, sentence: Sentence) -> Points | None:
        kind = sentence.node.words("NAME")[0]
        if kind.text not in KINDS:
            self.draft.report(
                "E1409", kind.span, f"`{kind.text}` is not a kind of point", help=f"legal: {', '.join(KINDS)}"
            )
            return None
        within = sentence.node.node("within")
        names = sentence.names()
        for word in names:
            self._declare(word.text, word.span)
        return Points(names=tuple(w.text for w in names), kind=kind.text, unit=within.words()[0].text if within else "")

    def _wire(self, sentence: Sentence) -> Wire | None:
        ends, others = (sentence.names(i) for i in (0, 1))
        unknown = [w for w in (*ends, *others) if w.text not in self.spans or w.text in self.parts]
        for word in unknown if self.count <= MOST_LINKS else ():
            help = f"`{word.text}` is a part: name a point of it, such as {self._point_of(word.text)}"
            self.draft.report(
                "E1402", word.span, f"no point is called `{word.text}`", help=help if word.text in self.parts else ""
            )
        for word in [w for w in ends if w.text in {o.text for o in others}]:
            self.draft.report("E1405", word.span, f"`{word.text}` is joined with itself")
        link = self._link(sentence.node.words("NAME")[0])
        times, left = sentence.node.node("times"), sentence.node.node("left")
        count = self.draft.integer(times.parts[0]) if times else 1
        share = self.draft.quantity(left.parts[0], "share") if left else 1.0
        if share is not None and left is not None and not 0 < share <= 1:
            self.draft.report("E1412", left.span, "what is left of a link is above 0 % and at most 100 %")
        if link is None or count is None or share is None or unknown:
            return None
        self._counted(len(ends) * len(others), sentence.span)
        return Wire(
            ends=tuple(w.text for w in ends), others=tuple(w.text for w in others), link=link, links=count, share=share
        )  # fmt: skip


def _wire_of(reader: _GraphReader, names: set[str]) -> Span | None:
    """Return the location of the last `wire` sentence that joins the two points in `names`; None if there is none."""
    found = [
        s.span for s in reader.declared.sentences if s.verb == "wire"
        and names <= {w.text for i in (0, 1) for w in s.names(i)}
    ]  # fmt: skip
    return found[-1] if found else None
