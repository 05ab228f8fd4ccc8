"""The parser, from LALR tables that are data in the package. `python -m planc.syntax.tables` writes them anew.

Building the tables takes a third of `planc check`, so they are made once, when the grammar changes, and shipped as
JSON beside it. No cache is read: whoever could write one could choose what the parser does.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lark import Lark, __version__
from lark.grammar import Rule
from lark.lexer import TerminalDef

NAME = "plan.tables.json"
OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "lexer": "contextual",
    "start": ["header", "sentence"],
    "propagate_positions": True,
    "maybe_placeholders": False,
}


@cache
def parser() -> Lark:
    """The parser of the plan language: from the shipped tables, or built when they are of another grammar or lark."""
    grammar = _text("plan.lark")
    found = _shipped()
    if found.get("made_from") != origin(grammar):
        return Lark(grammar, **OPTIONS)
    loaded: Lark = Lark._load_from_dict(found["data"], found["memo"])  # type: ignore[no-untyped-call]
    return loaded  # as the parsers do that lark generates


def _shipped() -> dict[str, Any]:
    """The shipped tables; {} where there are none."""
    try:
        found: dict[str, Any] = json.loads(_text(NAME), object_pairs_hook=_numbered)
    except (OSError, ValueError):
        return {}
    return found


def _text(name: str) -> str:
    return files("planc.grammar").joinpath(name).read_text(encoding="utf-8")


def tables(grammar: str) -> str:
    """The tables of a grammar as JSON. States are numbered anew at each call; the automaton is the same."""
    data, memo = Lark(grammar, **OPTIONS).memo_serialize([TerminalDef, Rule])
    return json.dumps({"made_from": origin(grammar), "data": data, "memo": memo}, separators=(",", ":")) + "\n"


def origin(grammar: str) -> dict[str, str]:
    """The grammar and the lark that tables are made from."""
    return {"grammar_sha256": hashlib.sha256(grammar.encode()).hexdigest(), "lark": __version__}


def _numbered(pairs: list[tuple[str, Any]]) -> dict[str | int, Any]:
    """A JSON object with its integer keys as they were."""
    return {int(key) if key.isdigit() else key: value for key, value in pairs}


def main() -> None:
    """Write the tables beside the grammar, unless they are of this grammar already."""
    from planc.files import write_atomically

    grammar = _text("plan.lark")
    if _shipped().get("made_from") != origin(grammar):
        write_atomically(Path(str(files("planc.grammar").joinpath("plan.lark"))).with_name(NAME), tables(grammar))


if __name__ == "__main__":
    main()
