"""All mistakes of a file are found in one run, and none that is a consequence of another."""

from pathlib import Path

import pytest

from planc.diag.edits import apply_edits
from tests.plans import HEAD, found

TWO_MORE = """plan example
model     llama3_8b
batch     60 x 8192 tokens microbatch 1
cluster   8 x h100_node
mesh      fsdp 8 > tp 4
use       fsdp over fsdp
use       tp   over tp
compute   fp32
"""
"""E0205 at line 3, E0203 at line 5."""


def codes_and_lines(folder: Path, text: str) -> list[tuple[str, int]]:
    return [(d.code, d.span.line) for d in found(folder, text) if d.severity == "error"]


@pytest.mark.parametrize(
    ("right", "wrong", "first"),
    [
        ("use       tp ", "usee      tp ", ("E0101", 7)),
        ("model     llama3_8b", "modle     llama3_8b", ("E0101", 2)),
        ("model     llama3_8b", "model     llama3-8b", ("E0102", 2)),
        ("model     llama3_8b", "model     Llama-3-8B", ("E0108", 2)),
        ("h100_node", "h100-node", ("E0102", 4)),
        ("h100_node", "h100node", ("E0108", 4)),
        ("use       fsdp", "use       fdsp", ("E0108", 6)),
        ("fsdp over fsdp", "fsdp ovr fsdp", ("E0102", 6)),
        ("tp   over tp", "tp   over tpp", ("E0108", 7)),
        ("plan example", "pla example", ("E0101", 1)),
        ("microbatch 1", "microbatc 1", ("E0102", 3)),
    ],
)
def test_a_misspelling_hides_nothing(tmp_path: Path, right: str, wrong: str, first: tuple[str, int]) -> None:
    assert codes_and_lines(tmp_path, TWO_MORE) == [("E0205", 3), ("E0203", 5)]
    text = TWO_MORE.replace(right, wrong)
    assert text != TWO_MORE
    seen = codes_and_lines(tmp_path, text)
    assert sorted(seen) == sorted({first, ("E0205", 3), ("E0203", 5)} - ({("E0205", 3)} if first[1] == 3 else set()))


@pytest.mark.parametrize("wrong", ["model     llama3-8b", "model     Llama-3-8B", "modle     llama3-8b"])
def test_the_edits_of_a_name_are_right(tmp_path: Path, wrong: str) -> None:
    text = TWO_MORE.replace("model     llama3_8b", wrong)
    edits = [e for d in found(tmp_path, text) if d.span.line == 2 and d.fix for e in d.fix.edits]
    assert apply_edits(text, edits) == TWO_MORE


def test_two_misspellings_of_one_sentence_are_found(tmp_path: Path) -> None:
    text = HEAD + "use fsdp over fsdp\nrecompute blocks\nshrad heads ovr tp\n"
    assert codes_and_lines(tmp_path, text) == [("E0101", 9), ("E0102", 9)]


def test_a_word_that_is_no_sentence_when_guessed_is_one_mistake(tmp_path: Path) -> None:
    assert codes_and_lines(tmp_path, HEAD + "use fsdp over fsdp\nuse tp over tp\nbogus line\n") == [("E0101", 9)]


@pytest.mark.parametrize(
    ("right", "wrong", "code"),
    [
        ("use tp over tp\n", "use tp over over tp\n", "E0102"),  # tp is idle now: E0204 would be a consequence
        ("use tp over tp\n", "xyzzy tp over tp\n", "E0101"),
        ("let n = 8\n", "let n 8\n", "E0102"),  # so is `n`, which is then unknown
        ("let n = 8\n", "xyzzy n = 8\n", "E0101"),
        ("mesh fsdp n > tp 8\n", "mesh fsdp n >> tp 8\n", "E0102"),  # and its axes
        ("model llama3_8b\n", "model quux\n", "E0108"),
    ],
)
def test_consequences_are_not_printed(tmp_path: Path, right: str, wrong: str, code: str) -> None:
    text = (
        "plan example\nlet n = 8\nmodel llama3_8b\nbatch 64 x 8192 tokens microbatch 1\ncluster n x h100_node\n"
        "mesh fsdp n > tp 8\ncompute fp32\nuse fsdp over fsdp\nuse tp over tp\nrecompute blocks\n"
    )
    assert [d.code for d in found(tmp_path, text)] == []
    assert [d.code for d in found(tmp_path, text.replace(right, wrong))] == [code]


def test_sizes_are_compared_though_a_sentence_cannot_be_read(tmp_path: Path) -> None:
    text = TWO_MORE.replace("use       tp ", "xyzzy     tp ").replace("fsdp 8", "fsdp 9")
    assert codes_and_lines(tmp_path, text) == [("E0203", 5), ("E0101", 7)]
