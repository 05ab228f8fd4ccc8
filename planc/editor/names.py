"""Descriptions of names for hovers: the kind of the name, and a fact about it, such as the size of an axis."""

from __future__ import annotations

from collections.abc import Callable

from planc.catalog import build_model, model_names
from planc.diag.quoting import markdown_block, markdown_code
from planc.editor.opened import Opened
from planc.language import library
from planc.language.draft import NameLookup
from planc.language.units import UNITS
from planc.language.verbs.hardware import Declared
from planc.picture.units import count

MOST = 24
"""Number of legal names that are shown."""


def describe(lookup: NameLookup, opened: Opened) -> str:
    """Return one paragraph about a name, in Markdown."""
    name = lookup.word.text
    if name not in lookup.legal and not lookup.what.startswith("a parameter"):
        return f"{markdown_code(name)} is not {lookup.what}; legal: {_list(lookup.legal)}"
    fact = next((tell(name, opened) for what, tell in FACTS.items() if lookup.what.startswith(what)), "")
    return f"{markdown_code(name)}: {lookup.what}{fact or f'. Others: {_list(n for n in lookup.legal if n != name)}'}"


def _list(names: object) -> str:
    shown = [markdown_code(str(n)) for n in names]  # type: ignore[attr-defined]
    return (", ".join(shown[:MOST]) + (", ..." if len(shown) > MOST else "")) or "none"


def _axis(name: str, opened: Opened) -> str:
    report = opened.checked.report if opened.checked else None
    for axis in (report.axes if report else None) or ():
        if axis.name == name:
            of = f" of the view {axis.view}" if axis.view else ""
            return f"{of}, {axis.size} devices, stride {axis.stride}; its groups cross `{axis.level}`"
    size = (report.mesh if report and report.mesh else {}).get(name)
    return f", {size} devices" if size else ""


def _dim(name: str, opened: Opened) -> str:
    plan = opened.checked.plan if opened.checked else None
    length = plan.model.sizes.get(name) if plan else None
    return f"; {length:,} in {plan.model.name}" if plan and length else ""


def _number(name: str, opened: Opened) -> str:
    for sentence in opened.sentences:
        if sentence.verb == "let" and sentence.node.words("NAME")[0].text == name:
            return f": {markdown_code(sentence.text)}"
    return ""


def _layout(name: str, opened: Opened) -> str:
    files = [f for f in opened.files() if f.header and f.header.verb == "layout" and f.header.text.split()[1] == name]
    if not files and name in library.layouts():
        files = [library.layout_file(name)]
    return f"\n{markdown_block(files[0].source.text.strip(), 'plan')}" if files else ""


def _machine(name: str, opened: Opened) -> str:
    declared = [Declared(f.sentences) for f in opened.files()]
    if name in library.machines():
        declared.append(Declared(library.hardware_file(library.machines()[name]).sentences))
    for one in declared:
        if found := one.find("node", name) or one.find("torus", name):
            words = {w.text for w in found.node.all_words()}
            parts = [s.text for s in one.sentences if s is found or _declares(s.text, words)]
            return "\n" + markdown_block("\n".join(parts), "plan")
    return ""


def _declares(sentence: str, names: set[str]) -> bool:
    verb, _, rest = sentence.partition(" ")
    return verb in ("chip", "link") and rest.partition("(")[0] in names


def _model(name: str, opened: Opened) -> str:
    if name not in model_names():
        return ""
    model = build_model(name)
    sizes = ", ".join(f"{dim} {n:,}" for dim, n in model.sizes.items())
    return f", {count(model.parameters)} parameters: {sizes}"


def _unit(name: str, opened: Opened) -> str:
    """Return the factor of a unit as text. `B` has two: bytes of memory and billions of tokens."""
    kinds = [kind for kind, units in UNITS.items() if name in units]
    return "; " + " or ".join(f"{UNITS[kind][name]:,.10g}" for kind in kinds) + " in plain numbers"


FACTS: dict[str, Callable[[str, Opened], str]] = {
    "an axis": _axis,
    "a dim": _dim,
    "a size": _dim,
    "a number that": _number,
    "a layout": _layout,
    "a node or torus": _machine,
    "a model": _model,
    "a unit": _unit,
}
"""The fact to add, by the readers' description of a looked-up name (its first words)."""
