"""Loads the parser from LALR tables that are data of the package. `python -m planc.syntax.tables` writes the tables.

Computing the tables takes a third of the time of `planc check`, so they are computed only when the grammar changes, and
are shipped as JSON beside it. No cache on disk is read: anyone who can write to such a cache could change what the
parser does.
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
    """Return the parser of the plan language, from the shipped tables. If these are of another grammar or another
    version of lark, the tables are computed."""
    grammar = _text("plan.lark")
    found = _shipped()
    if found.get("made_from") != origin(grammar):
        return Lark(grammar, **OPTIONS)
    loaded: Lark = Lark._load_from_dict(found["data"], found["memo"])  # type: ignore[no-untyped-call]
    return loaded  # as the parsers do that lark generates


def _shipped() -> dict[str, Any]:
    """Return the LALR tables that the package contains; {} if their file is missing or invalid."""
    try:
        found: dict[str, Any] = json.loads(_text(NAME), object_pairs_hook=_numbered)
    except (OSError, ValueError):
        return {}
    return found


def _text(name: str) -> str:
    return files("planc.grammar").joinpath(name).read_text(encoding="utf-8")


def tables(grammar: str) -> str:
    """Return the LALR tables of `grammar` as JSON. Each call may number the states of the automaton differently."""
    data, memo = Lark(grammar, **OPTIONS).memo_serialize([TerminalDef, Rule])
    return json.dumps({"made_from": origin(grammar), "data": data, "memo": memo}, separators=(",", ":")) + "\n"


def origin(grammar: str) -> dict[str, str]:
    """Return the inputs of the LALR tables: the SHA-256 of the `grammar`, and the version of lark."""
    return {"grammar_sha256": hashlib.sha256(grammar.encode()).hexdigest(), "lark": __version__}


def _numbered(pairs: list[tuple[str, Any]]) -> dict[str | int, Any]:
    """Return the (key, value) `pairs` of a JSON object as a dict whose numeric keys are integers."""
    return {int(key) if key.isdigit() else key: value for key, value in pairs}


def main() -> None:
    """Write the tables beside the grammar, unless the file has the tables of this grammar already."""
    from planc.files import write_atomically

    grammar = _text("plan.lark")
    if _shipped().get("made_from") != origin(grammar):
        write_atomically(Path(str(files("planc.grammar").joinpath("plan.lark"))).with_name(NAME), tables(grammar))


if __name__ == "__main__":
    main()
