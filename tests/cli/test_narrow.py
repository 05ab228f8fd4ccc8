"""Tables on a narrow terminal: no line wider than it, no figure lost; unchanged where output goes elsewhere."""

import re
import sys

import pytest

from planc.cli import main
from planc.cli.views.table import fitted, table
from tests.plans import ROOT

PLAN = "plans/llama3_70b_h100.plan"
COMMANDS = {
    "check": ["check", PLAN],
    "cost": ["cost", PLAN, "--explain"],
    "diff": ["diff", PLAN, "plans/llama3_70b_v5p.plan"],
}


def said(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    main(COMMANDS[command])
    return capsys.readouterr().out


def cells(text: str) -> set[str]:
    return set(re.findall(r"[^\s:;]*\d[^\s:;]*", text))


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("command", ["check", "cost", "diff"])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_lost(
    command: str,
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    piped = said(command, capsys)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert said(command, capsys) == piped
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    narrow = said(command, capsys)
    assert "\033" not in narrow
    assert max(map(len, piped.splitlines())) > columns
    assert max(map(len, narrow.splitlines())) <= columns
    assert cells(narrow) >= cells(piped)


HEADS = ("", "layout", "step", "GiB", "than the next")
ROWS = [("1", "fsdp 8", "1.2 s", "40.1", "faster by 3 %: less to send"), ("2", "tp 8", "1.3 s", "9.0", "")]


def test_a_table_that_fits_is_as_it_was() -> None:
    assert table(HEADS, ROWS, left=2, left_last=True, columns=80) == table(
        HEADS, ROWS, left=2, left_last=True, columns=0
    )


def test_prose_wraps_beside_the_figures() -> None:
    assert table(HEADS, ROWS, left=2, left_last=True, columns=44) == [
        "   layout   step   GiB  than the next",
        "1  fsdp 8  1.2 s  40.1  faster by 3 %: less",
        "                        to send",
        "2  tp 8    1.3 s   9.0",
    ]


def test_columns_stand_below_each_other_with_the_names_of_their_rows() -> None:
    assert table(HEADS, ROWS, left=2, left_last=True, columns=20) == [
        "   layout   step",
        "1  fsdp 8  1.2 s",
        "2  tp 8    1.3 s",
        "",
        "   layout   GiB",
        "1  fsdp 8  40.1",
        "2  tp 8     9.0",
        "1  fsdp 8: faster by",
        "  3 %: less to send",
    ]


def test_a_row_is_a_paragraph_where_its_names_are_too_wide() -> None:
    assert table(HEADS, ROWS[:1], left=2, left_last=True, columns=14) == [
        "1  layout fsdp",
        "  8",
        "  step 1.2 s",
        "  GiB 40.1",
        "  faster by 3",
        "  %: less to",
        "  send",
    ]


def test_bars_are_left_out_before_figures_are() -> None:
    rows = [("compute", "1.2 s", "#" * 30), ("bubble", "0.3 s", "#" * 8)]
    assert table(("", "time", ""), rows, left_last=True, columns=30) == [
        "          time",
        "compute  1.2 s",
        "bubble   0.3 s",
    ]


def test_prose_is_wrapped_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "80 % interval of the first: 1.1 s to 1.3 s, from 65 runs"
    assert list(fitted([line])) == [line]
    monkeypatch.setattr("planc.cli.views.table.terminal_columns", lambda: 30)
    assert list(fitted([line, "short"])) == ["80 % interval of the first:", "  1.1 s to 1.3 s, from 65 runs", "short"]
