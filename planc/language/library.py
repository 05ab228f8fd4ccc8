"""The bundled library: hardware files, found by the nodes and tori that they declare, and layouts, found by name."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from planc.syntax import Tree, parse_text

_NODE = re.compile(r"^node\s+(\w+)\s*=\s*(\d+)\s*x\s*(\w+)", re.MULTILINE)
_DECLARES = re.compile(r"^(?:node|torus)\s+(\w+)", re.MULTILINE)


@cache
def machines() -> dict[str, str]:
    """Return for every bundled node or torus, by name, the name of the hardware file that declares it."""
    found = {}
    for item in sorted(_folder("hardware"), key=lambda f: f.name):
        for name in _DECLARES.findall(item.read_text()):
            found[name] = item.name
    return found


@cache
def nodes_of(chip: str) -> dict[str, int]:
    """Return the number of chips of each bundled node type that has this `chip`, by the node's name; {} for an unknown
    chip."""
    declared = {m[1]: (int(m[2]), m[3]) for f in _folder("hardware") for m in _NODE.finditer(f.read_text())}
    return {name: chips for name, (chips, of) in declared.items() if of == chip}


@cache
def chips_of(node: str) -> int:
    """Return the number of chips of the bundled node type `node`; 0 for any other name."""
    return next((int(m[2]) for f in _folder("hardware") for m in _NODE.finditer(f.read_text()) if m[1] == node), 0)


@cache
def layouts() -> tuple[str, ...]:
    """Return the names of the bundled layouts."""
    return tuple(sorted(item.name.removesuffix(".plan") for item in _folder("layouts")))


@cache
def hardware_file(name: str) -> Tree:
    """Return the bundled hardware file `name` (such as `h100.plan`), parsed."""
    return _parsed("hardware", name)


def machine_text(name: str) -> str:
    """Return the text of the bundled hardware file that declares the node or torus `name`. Raises KeyError if none
    does."""
    return files("planc.plans").joinpath("hardware").joinpath(machines()[name]).read_text()


@cache
def layout_file(name: str) -> Tree:
    """Return the bundled layout `name`, parsed."""
    return _parsed("layouts", f"{name}.plan")


def _folder(name: str) -> list[Traversable]:
    folder = files("planc.plans").joinpath(name)
    return [item for item in folder.iterdir() if item.name.endswith(".plan")]


def _parsed(folder: str, name: str) -> Tree:
    text = files("planc.plans").joinpath(folder).joinpath(name).read_text()
    parsed = parse_text(text, f"plans/{folder}/{name}")
    assert not parsed.diagnostics, parsed.diagnostics
    return parsed
