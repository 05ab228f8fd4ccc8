"""Hostile strings in whole files that planc writes: graphs, hardware files, plans, presets, pages, notebooks.

Each check gives some strings to the writer, reads what it wrote with the language's own parser, and returns those that
are not data there. `tests/fuzz/strings.py` runs them.
"""

from __future__ import annotations

import json
import re
import tomllib
import typing
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from itertools import chain, cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from pydantic import BaseModel

from planc.diag.errors import PlanError
from planc.diag.quoting import printable, python_comment
from planc.diag.span import Source
from planc.driver import examine
from planc.graph.links import Cable, LinkKind, MachineLinks, Vertex
from planc.graph.networks import exported
from planc.interop.topologies.hardware_text import HardwareText
from planc.interop.topologies.read import bundled, chip_sentence
from planc.picture.notebook import Shown, bundle
from planc.picture.render import clean
from planc.report.plan_page import PlanPage, plan_page
from planc.report.render import as_json, html, picture_file
from planc.syntax import parse_text
from planc.syntax.fmt import format_text
from planc.trainer.preset.compiled import toml_string
from tests.graph.test_field_machines import written_on

ROOT = Path(__file__).parents[2]


# Machine graphs.


def links_called(texts: list[str]) -> MachineLinks:
    """A machine whose points, links and name are called so."""
    points = tuple(Vertex(f"{n} {text}", "switch") for n, text in enumerate(texts))
    cables = tuple(Cable(0, n, n) for n in range(1, len(texts)))
    kinds = tuple(LinkKind(text, 1e9, 1e-6) for text in texts)
    return MachineLinks(name=texts[0], vertices=points, cables=cables, kinds=kinds)


def dot_graph(texts: list[str]) -> list[str]:
    """By the lexer of Graphviz (lib/cgraph/scan.l): in a quoted ID `\\"` is a quote, and `\\\\` stays as it is."""
    token = re.compile(r'"((?:\\"|\\\\|[^"\\])*)"|(--|[{}\[\];=]|[A-Za-z_]\w*)|(\s+)')
    text, at = exported(links_called(texts), ".dot"), 0
    ids, marks = list[str](), list[str]()
    while at < len(text):
        one = token.match(text, at)
        if one is None:
            return texts
        at = one.end()
        if one[1] is not None:
            ids.append(one[1].replace('\\"', '"').replace("\\\\", "\\"))
        elif one[2]:
            marks.append(one[2])
    names = [f"{n} {printable(text)}" for n, text in enumerate(texts)]
    edges = [(names[0], names[n], f"{printable(texts[n])} 1 GB/s") for n in range(1, len(texts))]
    wanted = [printable(texts[0]), *names, *chain.from_iterable(edges)]
    shape = ["graph", "{"] + ["[", "kind", "=", "switch", "]", ";"] * len(texts)
    shape += ["--", "[", "label", "=", "]", ";"] * len(edges) + ["}"]
    return [] if (ids, marks) == (wanted, shape) else texts


def graphml(texts: list[str]) -> list[str]:
    root = ElementTree.fromstring(exported(links_called(texts), ".graphml"))
    (graph,) = [e for e in root if e.tag.endswith("}graph")]
    nodes = [e.attrib["id"] for e in graph if e.tag.endswith("}node")]
    links = {d.text for e in graph if e.tag.endswith("}edge") for d in e if d.attrib["key"] == _key_of(root, "link")}
    wanted = [f"{n} {printable(text)}" for n, text in enumerate(texts)]
    return [] if nodes == wanted and links == {printable(t) or None for t in texts[1:]} else texts


def _key_of(root: ElementTree.Element, name: str) -> str:
    return next(e.attrib["id"] for e in root if e.attrib.get("attr.name") == name)


# Texts of the language.


@cache
def _machine() -> tuple[Any, str]:
    return bundled("h100_node"), chip_sentence("h100_node", "h100")


def hardware_file(texts: list[str]) -> list[str]:
    """A machine of another tool's text, whose hosts are called so: the sentences that are wanted, and no other."""
    machine, chip = _machine()
    wrong = []
    for text in texts:
        found = HardwareText(Source.of("t", text), machine, text)
        try:
            ends = [found.point(name, "chip", text, 1) for name in (text, f"{text}{text}x", "plain")]
        except PlanError:
            continue  # two names that are one
        found.wire(ends[0], ends[1], found.link("near", 1e9, 1e-6))
        read = parse_text(found.text("machine", chip), "m.plan")
        verbs = [s.verb for s in read.sentences]
        if read.diagnostics or verbs != ["chip", "link", "graph", "points", "wire"]:
            wrong.append(text)
    return wrong


def plan_comments(texts: list[str]) -> list[str]:
    """Comments of an imported plan, which name a stranger's settings: read as comments, and kept by `planc fmt`."""
    lines = [f"let n{i} = 1  # {python_comment(text)}\n" for i, text in enumerate(texts)]
    text = "plan x\n" + "".join(f"# {python_comment(t)}\n" for t in texts) + "".join(lines)
    for shown in (text, format_text(text)):
        read = parse_text(shown, "x.plan")
        if read.diagnostics or [s.verb for s in read.sentences] != ["let"] * len(texts):
            return texts
    return []


# Presets.


def toml_text(texts: list[str]) -> list[str]:
    """The compiled plan in a preset, and a comment beside it."""
    kept = [re.sub("[\ud800-\udfff]", "\ufffd", t) for t in texts]
    rows = [f"a{n} = {toml_string(t)[0]}  # {python_comment(t)}\n" for n, t in enumerate(kept)]
    found = tomllib.loads("".join(rows))
    return [t for n, (t, k) in enumerate(zip(texts, kept, strict=True)) if found[f"a{n}"] != k]


# Pages.


class Tags(HTMLParser):
    """Tags and attributes of a page, with what is in its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.counts: dict[str, int] = {}
        self.addresses: list[str] = []
        self.others = 0
        self.raw: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self._inside = tag if tag in ("script", "style") else ""
        for name, value in attrs:
            self.attributes.add(name)
            if name in ("href", "src", "action", "xlink:href"):
                self.addresses.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw.append(data)

    def handle_comment(self, data: str) -> None:
        self.others += 1

    def unknown_decl(self, data: str) -> None:
        self.others += 1

    def handle_pi(self, data: str) -> None:
        self.others += 1


@cache
def _pages() -> tuple[PlanPage, ...]:
    """A page of a plan on a tower, and of one on a machine that is written as links."""
    with TemporaryDirectory() as folder:
        plans = (ROOT / "plans" / "tiny.plan", written_on(Path(folder), "l40s_two_sockets"))
        return tuple(plan_page(examine(plan), "planc report x") for plan in plans)


KEPT = ("format", "actions", "axes", "over", "kind", "slices")
"""Fields of a page that are no free text: they are looked up by, or packed."""


def filled(data: BaseModel, texts: Iterator[str]) -> BaseModel:
    """The data of a page with every text of it taken from `texts`."""
    hints = {name: info.annotation for name, info in type(data).model_fields.items()}
    new = {n: getattr(data, n) if n in KEPT else _filled(getattr(data, n), hint, texts) for n, hint in hints.items()}
    return data.model_copy(update=new)


def _filled(value: Any, hint: Any, texts: Iterator[str]) -> Any:
    if isinstance(value, BaseModel):
        return filled(value, texts)
    choices = typing.get_args(hint)
    if isinstance(value, tuple):
        inside = [typing.get_args(c)[0] for c in choices if typing.get_origin(c) is tuple]
        return tuple(_filled(v, [*inside, *choices, None][0], texts) for v in value)
    return next(texts) if isinstance(value, str) and (hint is str or str in choices) else value


ON_A_PAGE = 200
"""Strings that are put into one page: fewer than it has texts, so that each is on it."""


def report_page(texts: list[str]) -> list[str]:
    """Every text of a page is a stranger's: no tag, attribute, address, script or style beside those of a plain one."""
    pieces = [texts[at : at + ON_A_PAGE] for at in range(0, len(texts), ON_A_PAGE)]
    return [text for piece in pieces if not all(_is_plain(page, piece) for page in _pages()) for text in piece]


def _is_plain(original: PlanPage, texts: list[str]) -> bool:
    page, plain = (filled(original, cycle(some)) for some in (texts, ["a"]))
    assert isinstance(page, PlanPage) and isinstance(plain, PlanPage)
    shown = html(page)
    found, wanted = Tags(shown), Tags(html(plain))
    drawn = ElementTree.fromstring(picture_file(page) or "<svg/>")
    json.loads(as_json(page), parse_constant=_none)
    return (
        found.others == wanted.others and found.names <= wanted.names and found.attributes <= wanted.attributes
        and all(found.counts.get(tag) == wanted.counts.get(tag) for tag in ("script", "style", "meta", "table", "tr"))
        and all(address.startswith("#") for address in found.addresses)
        and [r for r in found.raw if "function" in r] == [r for r in wanted.raw if "function" in r]
        and {e.tag.rpartition("}")[2] for e in drawn.iter()} <= wanted.names | {"style", "title", "g", "svg", "tspan"}
        and clean(shown) == shown
    )  # fmt: skip


def _none(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def notebook(texts: list[str]) -> list[str]:
    """A value's title, table and code in a notebook, as HTML without script."""
    pieces = [texts[n : n + 4] for n in range(0, len(texts), 4)]
    wrong = []
    for piece in pieces:
        found, wanted = (Tags(_fragment(some)) for some in (piece, ["a"] * len(piece)))
        same = (found.others, found.counts, found.attributes, found.raw, found.addresses)
        if same != (wanted.others, wanted.counts, wanted.attributes, wanted.raw, wanted.addresses):
            wrong += piece
    return wrong


def _fragment(texts: list[str]) -> str:
    first, second, third, fourth = [*texts, "", "", ""][:4]
    shown = Shown(title=first, summary=second, heads=(third,), rows=((fourth,), (first,)), code=second)
    text: str = bundle(shown, {"value": first})["text/html"]
    return re.sub(r"<summary>\d+ lines", "<summary>1 lines", text)


PLACES = {
    "dot": dot_graph, "graphml": graphml, "hardware-files": hardware_file, "plan-comments": plan_comments,
    "toml": toml_text, "report-pages": report_page, "notebooks": notebook,
}  # fmt: skip
