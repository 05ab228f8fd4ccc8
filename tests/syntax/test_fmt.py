"""Formatting: idempotent, parse-equal, keeps every comment."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planc.syntax import parse_text
from planc.syntax.fmt import format_text
from tests.plans import BODY, HEAD, ROOT

FILES = sorted((ROOT / "plans").rglob("*.plan"))
MESSY = """plan   x
# a comment of its own

model llama3_8b   # which
shard heads,   ffn over tp #where
shard   sequence over tp in residual
store params over fsdp
mesh fsdp  8 >   tp 8
import "a  b.plan"
chip h(bf16 = 1 TFLOP/s,
   memory = 80 GiB)
modle  wrong   spacing
"""


def sentences(text: str) -> list[str]:
    return [s.text for s in parse_text(text, "x").sentences]


@pytest.mark.parametrize("text", [MESSY, HEAD + BODY, *(f.read_text() for f in FILES)])
def test_formatting_keeps_the_meaning_and_settles(text: str) -> None:
    once = format_text(text)
    assert format_text(once) == once
    assert sentences(once) == sentences(text)
    assert [c.strip() for c in once.split("#")[1:]] == [] or once.count("#") == text.count("#")


@given(st.lists(st.sampled_from([*MESSY.splitlines(), "", "  ", "# x", "mesh a ("]), max_size=12))
def test_any_lines_settle(lines: list[str]) -> None:
    once = format_text("\n".join(lines))
    assert format_text(once) == once


def test_columns() -> None:
    assert format_text(MESSY).splitlines()[3:7] == [
        "model     llama3_8b           # which",
        "shard     heads, ffn over tp  #where",
        "shard     sequence   over tp in residual",
        "store     params     over fsdp",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_bundled_files_are_formatted(path: Path) -> None:
    assert format_text(path.read_text()) == path.read_text()
