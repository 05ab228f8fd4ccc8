"""The shipped parser tables: those of the grammar, and as good as tables built anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lark import Lark

from planc.diag.span import Source
from planc.syntax import tables
from planc.syntax.lines import HEADERS, logical_lines

ROOT = Path(__file__).resolve().parents[2]
GRAMMAR = ROOT / "grammar" / "plan.lark"
PLANS = sorted(p for p in (ROOT / "plans").rglob("*.plan"))


def test_the_tables_are_the_grammars() -> None:
    """Walk both automata at once, from each start: the same tokens, the same shifts, the same rules."""
    from lark.parsers.lalr_analysis import Shift

    made_from = json.loads((ROOT / "grammar" / tables.NAME).read_text())["made_from"]
    assert made_from == tables.origin(GRAMMAR.read_text()), "python -m planc.syntax.tables"
    built, shipped = (
        p.parser.parser._parse_table for p in (Lark(GRAMMAR.read_text(), **tables.OPTIONS), tables.parser())
    )
    pending = [(built.start_states[name], shipped.start_states[name]) for name in built.start_states]
    seen: dict[int, int] = {}
    while pending:
        left, right = pending.pop()
        if left in seen:
            assert seen[left] == right
            continue
        seen[left] = right
        ours, theirs = built.states[left], shipped.states[right]
        assert ours.keys() == theirs.keys()
        for token, (action, argument) in ours.items():
            other, found = theirs[token]
            assert action is other
            if action is Shift:
                pending.append((argument, found))
            else:
                assert argument == found
    assert len(seen) == len(set(seen.values())) == len(shipped.states) > 200


def test_sentences_of_every_plan_parse_as_with_tables_built_anew() -> None:
    built, shipped = Lark(GRAMMAR.read_text(), **tables.OPTIONS), tables.parser()
    sentences = 0
    for path in PLANS:
        for line in logical_lines(Source.of(path.name, path.read_text())):
            start = "header" if line.text.split()[0] in HEADERS else "sentence"
            found, wanted = shipped.parse(line.text, start=start), built.parse(line.text, start=start)
            assert found == wanted
            assert [t.meta.__dict__ for t in found.iter_subtrees()] == [t.meta.__dict__ for t in wanted.iter_subtrees()]
            sentences += 1
    assert sentences > 300


@pytest.mark.parametrize("change", ["another grammar", "another lark", "no JSON", "absent"])
def test_tables_of_something_else_are_not_used(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the parser is built from the grammar: slower, and right."""
    (tmp_path / "plan.lark").write_text(GRAMMAR.read_text())
    data: dict[str, Any] = json.loads((ROOT / "grammar" / tables.NAME).read_text())
    if change == "another grammar":
        (tmp_path / "plan.lark").write_text(GRAMMAR.read_text() + "\n// changed\n")
    if change == "another lark":
        data["made_from"]["lark"] = "0.0"
    if change != "absent":
        (tmp_path / tables.NAME).write_text("{" if change == "no JSON" else json.dumps(data))
    monkeypatch.setattr(tables, "files", lambda _package: tmp_path)
    monkeypatch.setattr(Lark, "_load_from_dict", None)
    parser = tables.parser.__wrapped__()
    assert parser.parse("plan tiny", start="header").data == "plan"
