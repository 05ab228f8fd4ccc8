"""A page read by a parser: elements that are open, text, addresses, numbers. What a browser would make of it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "input", "rect", "line", "circle", "path", "link", "img", "hr"}
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass
class Element:
    """An element's tag and attributes."""

    tag: str
    attributes: dict[str, str]


@dataclass
class Read(HTMLParser):
    """Contents of a page. `wrong` are tags that are closed without having been opened, or not closed."""

    elements: list[Element] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    text: str = ""
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """`data-value` of cells by their table and `data-key`."""
    sections: Counter[str] = field(default_factory=Counter)
    """Characters of text and pictures of each section."""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(made)
        if "data-value" in made.attributes:
            table = next((e.attributes["data-table"] for e in reversed(self._open) if "data-table" in e.attributes), "")
            key = made.attributes.get("data-key", "")
            self.values.setdefault((table, key), []).append(float(made.attributes["data-value"]))
        if tag not in VOID:
            self._open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self._open or self._open[-1].tag != tag:
            self.wrong.append(tag)
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if any(e.tag in ("style", "script", "title") for e in self._open):
            return
        self.text += data
        for e in self._open:
            if e.tag == "section":
                self.sections[e.attributes["id"]] += len(data.strip())

    def of(self, tag: str) -> list[Element]:
        """Elements of a tag."""
        return [e for e in self.elements if e.tag == tag]

    def numbers(self) -> set[float]:
        """Numbers of the text; those in milliseconds in seconds too."""
        found = [
            (float(m[0].replace(",", "")), self.text[m.end() :].startswith(" ms")) for m in NUMBER.finditer(self.text)
        ]
        return {number for number, _ in found} | {number / 1e3 for number, in_ms in found if in_ms}


def read(html: str) -> Read:
    """A page, read to its end."""
    page = Read()
    page.feed(html)
    page.close()
    page.wrong += [e.tag for e in page._open]
    return page
