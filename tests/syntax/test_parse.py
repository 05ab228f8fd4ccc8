"""Sentences are parsed one by one: every mistake is met, once, at its place."""

from typing import Any

import pytest

from planc.diag.span import Source
from planc.syntax import parse_text
from planc.syntax.lines import logical_lines


def parsed(text: str) -> Any:
    return parse_text(text, "x.plan")


def test_every_mistake_of_a_file_is_reported_once() -> None:
    text = "plan x\nmodle llama\nmesh fsdp 8\nshard heads ovr tp\nbatch 5\nexpect memory 72 GiB\n"
    found = parsed(text).diagnostics
    assert [(d.code, d.span.line) for d in found] == [("E0101", 2), ("E0102", 4), ("E0102", 5), ("E0102", 6)]


def test_a_mistake_does_not_hide_the_sentences_around_it() -> None:
    verbs = [s.verb for s in parsed("plan x\nmesh a 2\n???\nmesh b 2\n").sentences]
    assert verbs == ["mesh", "mesh"]


def test_columns_count_code_points_and_ignore_comments() -> None:
    (d,) = parsed('plan x\nimport "ü.plan"  over # ö\n').diagnostics
    assert (d.span.line, d.span.column, d.span.end_column) == (2, 18, 22)


def test_brackets_carry_a_sentence_over_lines() -> None:
    text = "plan x\nchip h(bf16 = 1 TFLOP/s,\n  memory = 80 GiB)\nmesh a 2\n"
    file = parsed(text)
    assert [s.verb for s in file.sentences] == ["chip", "mesh"] and not file.diagnostics
    assert file.sentences[0].span.end_line == 3


def test_an_open_bracket_ends_at_the_next_sentence() -> None:
    file = parsed("plan x\nchip h(bf16 = 1 TFLOP/s,\nmesh a 2\n")
    assert [d.span.line for d in file.diagnostics] == [2] and [s.verb for s in file.sentences] == ["mesh"]


def test_an_axis_may_be_called_like_a_verb() -> None:
    file = parsed("plan x\nmesh model 8 > batch 2 > x 2\nshard heads over model\n")
    assert not file.diagnostics
    assert [w.text for w in file.sentences[1].names(1)] == ["model"]


def test_a_typing_mistake_in_a_keyword_carries_an_edit() -> None:
    (d,) = parsed("plan x\nshard heads ovr tp\n").diagnostics
    assert d.fix is not None and d.fix.edits[0].text == "over"


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "   \n\t\n"])
def test_a_file_without_sentences_is_one_mistake(text: str) -> None:
    assert [d.code for d in parsed(text).diagnostics] == ["E0106"]


def test_deep_nesting_is_a_diagnostic() -> None:
    (d,) = parsed("plan x\nlet a = " + "(1+" * 3000 + "1" + ")" * 3000 + "\n").diagnostics
    assert d.code == "E0102"


def test_a_long_sum_is_a_diagnostic() -> None:
    (d,) = parsed("plan x\nlet a = " + "1+" * 3000 + "1\n").diagnostics
    assert d.code == "E0102"


def test_comments_are_kept_with_their_line() -> None:
    lines = list(logical_lines(Source.of("x", 'plan x # one\nimport "a#b.plan" # two\n')))
    assert [line.comment for line in lines] == ["# one", "# two"]
    assert '"a#b.plan"' in lines[1].text
