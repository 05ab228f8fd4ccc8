"""The TextMate grammar colours what planc reads: each word of the bundled plans has the scope of its kind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from lark.lexer import PatternStr

from planc.checks import rules
from planc.syntax import parse_text
from planc.syntax.lines import HEADERS, VERBS, logical_lines
from planc.syntax.tables import parser
from tests.plans import ROOT

FOLDER = ROOT / "docs" / "editor"
GRAMMAR: dict[str, Any] = json.loads((FOLDER / "planc.tmLanguage.json").read_text())
PACKAGE: dict[str, Any] = json.loads((FOLDER / "package.json").read_text())
PLANS = {str(p.relative_to(ROOT)): p.read_text() for p in sorted((ROOT / "plans").rglob("*.plan"))}
EXAMPLES = {f"{code}, mended": rule.page.good for code, rule in rules().items() if rule.page.good}

SCOPES: dict[str, str | tuple[str, ...]] = {
    "INT": "constant.numeric",
    "FLOAT": "constant.numeric",
    "SHAPE": "constant.numeric.shape",
    "UNIT": "keyword.other.unit",
    "NAME": ("variable.other", "entity.name.type", "entity.name.selector"),
    "METHOD": "entity.name.function",
    "STRING": "string.quoted",
    "CODE": "constant.other.code",
    "CMP": "keyword.operator",
    "FREE": "keyword.operator",
    "GLOB": "entity.name.selector",
}
"""Kinds of words in planc's grammar, and the scopes they may have."""


KEYWORDS = {
    t.pattern.value
    for t in parser().terminals
    if isinstance(t.pattern, PatternStr) and t.pattern.value.isalpha() and not t.name.startswith("OLD_")
} - set(VERBS)
"""A name may be written like one (`per microbatch`): line by line, TextMate cannot tell."""


def patterns() -> Iterator[tuple[re.Pattern[str], dict[int, str]]]:
    """The rules in order: the regex, and the scope of the match (0) and of its groups."""
    for include in GRAMMAR["patterns"]:
        rule = GRAMMAR["repository"][include["include"].removeprefix("#")]
        scopes = {int(n): capture["name"] for n, capture in rule.get("captures", {}).items()}
        yield re.compile(rule["match"]), scopes | ({0: rule["name"]} if "name" in rule else {})


RULES = list(patterns())


def coloured(line: str) -> list[str]:
    """The scope of each character, as TextMate gives it: the leftmost match, the first rule among equals."""
    scopes, at = [""] * len(line), 0
    while True:
        found = [(m.start(), n, m) for n, (regex, _) in enumerate(RULES) if (m := regex.search(line, at)) and m.group()]
        if not found:
            return scopes
        _, n, match = min(found, key=lambda f: f[:2])
        for group, scope in sorted(RULES[n][1].items()):
            start, end = match.span(group)
            scopes[start:end] = [scope] * (end - start)
        at = match.end()


def wrongly_coloured(text: str) -> list[str]:
    """Words and comments of a file whose scope is not that of their kind."""
    file = parse_text(text, "a.plan")
    scopes = [coloured(line) for line in file.source.lines]
    wrong = []
    for sentence in filter(None, (file.header, *file.sentences)):
        place = sentence.span
        if not scopes[place.line - 1][place.column - 1].startswith("keyword.control"):
            wrong.append(f"{place.line}: the verb of {sentence.text}")
        for word in sentence.node.all_words():
            here = set(scopes[word.span.line - 1][word.span.column - 1 : word.span.end_column - 1])
            named_like_it = word.kind == "NAME" and word.text in KEYWORDS and here == {"keyword.other.planc"}
            if not named_like_it and not all(scope.startswith(SCOPES[word.kind]) for scope in here):
                wrong.append(f"{word.span.line}: {word.kind} {word.text} is {here}")
    for line in logical_lines(file.source):
        if line.comment and scopes[line.number - 1][-1] != "comment.line.number-sign.planc" and "\n" not in line.text:
            wrong.append(f"{line.number}: {line.comment}")
    return wrong


@pytest.mark.parametrize("name", [*PLANS, *EXAMPLES])
def test_every_word_has_the_scope_of_its_kind(name: str) -> None:
    assert wrongly_coloured({**PLANS, **EXAMPLES}[name]) == []


def test_a_wrong_colour_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    number = next(n for n, (_, scopes) in enumerate(RULES) if "constant.numeric.planc" in scopes.values())
    monkeypatch.setattr("tests.editor.test_grammar.RULES", [*RULES[:number], *RULES[number + 1 :]])
    assert wrongly_coloured("plan a\nmesh tp 8 # 8\n") == ["2: INT 8 is {''}"]


def alternatives(rule: str, marker: str) -> set[str]:
    """The words of the regex's group that holds `marker`."""
    pattern = GRAMMAR["repository"][rule]["match"].replace("\\.", ".")
    groups = re.findall(r"\((?:\?:)?((?:[\w.]+\|)+\w+)\)", pattern)
    return next(set(g.split("|")) for g in groups if marker in g.split("|"))


def test_verbs_and_keywords_are_those_of_the_grammar() -> None:
    keywords = KEYWORDS - {"layers"}  # a dim, too
    assert alternatives("header", "plan") == set(HEADERS), "bring docs/editor/planc.tmLanguage.json up to date"
    assert alternatives("verb", "shard") == set(VERBS) - set(HEADERS) - {"on"}
    assert alternatives("keyword", "over") == keywords | {"on"}
    assert alternatives("number", "over") == keywords


def test_the_extension_names_files_that_are_there() -> None:
    (language,), (grammar,) = PACKAGE["contributes"]["languages"], PACKAGE["contributes"]["grammars"]
    named = [PACKAGE["main"], language["configuration"], grammar["path"]]
    assert [path for path in named if not (FOLDER / path).is_file()] == []
    assert grammar["scopeName"] == GRAMMAR["scopeName"]
    assert language["extensions"] == [f".{ending}" for ending in GRAMMAR["fileTypes"]]
    json.loads((FOLDER / language["configuration"]).read_text())


def test_the_extension_reads_the_settings_it_declares() -> None:
    read = set(re.findall(r'settings\.get\("(\w+)"\)', (FOLDER / "extension.js").read_text()))
    assert {f"planc.{name}" for name in read} == set(PACKAGE["contributes"]["configuration"]["properties"])
