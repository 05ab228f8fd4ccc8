"""A module of a program becomes the text of one plan: what its facts rule out goes, and comments and layout stay."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

from planc.backends.common.specialise import specialised

PROGRAMS = sorted(Path(__file__).parents[2].glob("backends/*/program"))


@dataclass(frozen=True)
class Facts:
    on: bool = True
    size: int = 4
    axis: str = "dp"
    cause: str = ""


def text(source: str, entry: str = "f", **facts: object) -> str:
    """The text of the definitions that `entry` needs."""
    return "\n\n\n".join(specialised(dedent(source).encode(), Facts(**facts), [entry], 80))  # type: ignore[arg-type]


BRANCHES = '''
def f(x: int) -> int:
    """Over FACTS.axis."""
    # Above the branch.
    if FACTS.on:
        # Inside.
        y = x + 1  # beside
    else:
        y = x - 1
    return y
'''


def test_a_branch_is_taken_with_its_comments() -> None:
    taken = "# Above the branch.", "# Inside.", "y = x + 1  # beside", "return y"
    assert text(BRANCHES).split("\n    ") == ["def f(x: int) -> int:", '"""Over dp."""', *taken]
    assert "y = x - 1\n    return y" in text(BRANCHES, on=False) and "Inside" not in text(BRANCHES, on=False)


@pytest.mark.parametrize(
    ("line", "on", "off"),
    [
        ("x = (a or b) and FACTS.on and c", "x = (a or b) and c", "x = False"),
        ("x = a if FACTS.on else b", "x = a", "x = b"),
        ("x = g((a if FACTS.on else b + 1), c)", "x = g(a, c)", "x = g((b + 1), c)"),
        ("x = c * (a + 1 if FACTS.on else b)", "x = c * (a + 1)", "x = c * b"),
        ("x = FACTS.on and a and b", "x = a and b", "x = False"),
        ("x = not FACTS.on or a", "x = a", "x = True"),
        ("x = FACTS.on and FACTS.size or 7", "x = 4", "x = 7"),
        ("x = g(FACTS.size, FACTS.axis)", 'x = g(4, "dp")', 'x = g(4, "dp")'),
        ("x = FACTS.size if FACTS.on and FACTS.size > 3 else 1", "x = 4", "x = 1"),
        ("# FACTS.cause\n    x = 1", "x = 1", "x = 1"),
    ],
)
def test_expressions_are_folded(line: str, on: str, off: str) -> None:
    source = f"def f(a, b, c):\n    {line}\n    x += 1\n    return x\n"
    for facts, expected in ((True, on), (False, off)):
        assert text(source, on=facts) == f"def f(a, b, c):\n    {expected}\n    x += 1\n    return x"


@pytest.mark.parametrize(
    ("source", "on", "off"),
    [
        ("if FACTS.on:\n    return 1\nreturn 2", "return 1", "return 2"),
        ("if a:\n    b()\nelif FACTS.on:\n    c()", "if a:\n    b()\nelse:\n    c()", "if a:\n    b()"),
        ("if FACTS.on:\n    b()\nelif a:\n    c()", "b()", "if a:\n    c()"),
        ("if a:\n    b()\nelse:\n    if FACTS.on:\n        c()", "if a:\n    b()\nelse:\n    c()", "if a:\n    b()"),
        ("if FACTS.on and a:\n    b()", "if a:\n    b()", ""),
        ("for i in a:\n    if FACTS.on:\n        b()", "for i in a:\n    b()", "for i in a:\n    pass"),
        (
            "if a:\n    b()\nelif FACTS.on:\n    c()\nelse:\n    d()",
            "if a:\n    b()\nelse:\n    c()",
            "if a:\n    b()\nelse:\n    d()",
        ),
    ],
)
def test_statements_are_folded(source: str, on: str, off: str) -> None:
    def function(body: str) -> str:
        return "def f(a):\n    start()\n" + "".join(f"    {line}\n" for line in body.splitlines())

    assert text(function(source), on=True) + "\n" == function(on)
    assert text(function(source), on=False) + "\n" == function(off)


@pytest.mark.parametrize(
    ("lines", "on", "off"),
    [
        (("y = a + 1 if FACTS.on else b", "x = g(y) * y"), "y = a + 1\n    x = g(y) * y", "x = g(b) * b"),
        (("y = a + 1 if FACTS.on else b", "x = c * y"), "x = c * (a + 1)", "x = c * b"),
        (("y = (a, b) if FACTS.on else (a,)", "x = g(*y)[y]"), "x = g(a, b)[a, b]", "x = g(a)[a]"),
        (("y = (a, b) if FACTS.on else c", "x = g(c[y], c)"), "x = g(c[a, b], c)", "x = g(c[c], c)"),
        (("x = g(a, *([b] if FACTS.on else []), c)",), "x = g(a, b, c)", "x = g(a, c)"),
        (("y = g(a)", "x = y if FACTS.on else a"), "y = g(a)\n    x = y", "x = a"),
        (("y = a", "x = g(y)"), "y = a\n    x = g(y)", "y = a\n    x = g(y)"),
    ],
)
def test_a_choice_stands_where_it_is_used(lines: tuple[str, ...], on: str, off: str) -> None:
    source = "def f(a, b, c):\n" + "".join(f"    {line}\n" for line in lines) + "    x += 1\n    return x\n"
    for facts, expected in ((True, on), (False, off)):
        assert text(source, on=facts) == f"def f(a, b, c):\n    {expected}\n    x += 1\n    return x"


PARAMETERS = """
def g(
    x: int, size: Annotated[int, FACTS.on] = 0
) -> int:
    return x

def f() -> int:
    return g(1, 2) + g(1, size=2)
"""


def test_a_parameter_and_its_arguments_go() -> None:
    assert (
        text(PARAMETERS, on=False) == "def g(x: int) -> int:\n    return x\n\n\ndef f() -> int:\n    return g(1) + g(1)"
    )
    assert "def g(x: int, size: int) -> int:" in text(PARAMETERS) and "g(1, 2) + g(1, size=2)" in text(PARAMETERS)


def test_only_what_is_needed_is_left_in_the_order_of_the_module() -> None:
    constant, h = "# Said of B.\nB = 2\n\n\n", "def h():\n    return B\n\n\n"
    source = f"{constant}def unused(): ...\n\n\n{h}def f():\n    return h() if FACTS.on else 1\n"
    assert text(source) == f"{constant}{h}def f():\n    return h()"
    assert text(source, on=False) == "def f():\n    return 1"


@pytest.mark.parametrize("folder", PROGRAMS, ids=lambda path: str(path.parent.name))
def test_program_modules_name_facts_that_there_are_and_each_fact_is_asked_for(folder: Path) -> None:
    asked = {
        node.attr
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "FACTS"
    } | {word for path in folder.glob("*.py") for word in re.findall(r"FACTS\.(\w+)", path.read_text())}
    facts = import_module(f"planc.backends.{folder.parent.name}.program.facts").FACTS
    used = {*re.findall(r"self\.(\w+)", (folder / "facts.py").read_text())}
    assert asked <= {*dir(facts), *(f.name for f in fields(facts))}
    assert {f.name for f in fields(facts)} <= asked | used
