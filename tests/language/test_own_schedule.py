"""`as csv("FILE")`: schedules of one's own, and what is wrong with them, cell by cell."""

from pathlib import Path

import pytest

from planc.driver import check, load
from planc.ir.target import Target
from planc.pipeline.csv_schedule import normal, read
from planc.pipeline.split import action_lists
from tests.schedules.splits import split_of

PLAN = """plan example
model     llama3_8b
batch     16 x 8192 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 2 > fsdp 4
use       fsdp over fsdp
compute   fp32
split     layers over pp as csv("own.csv")
recompute blocks
"""
GOOD = """0F0,0F1,,0B0,0F2,0B1,0F3,0B2,,0B3
,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3
"""


def found(folder: Path, rows: str, plan: str = PLAN) -> list[tuple[str, str, int, int]]:
    """(code, message, line, column) of every error."""
    (folder / "own.csv").write_text(rows)
    (folder / "example.plan").write_text(plan)
    return [
        (d.code, d.message, d.span.line, d.span.column)
        for d in check(folder / "example.plan").diagnostics
        if d.code.startswith("E")
    ]


def test_a_schedule_of_one_s_own_is_what_it_says(tmp_path: Path) -> None:
    """These rows are 1F1B's: the same step to the last bit, with fewer words kept than written."""
    assert found(tmp_path, GOOD) == []
    mine = load(tmp_path / "example.plan")
    (tmp_path / "other.plan").write_text(PLAN.replace('csv("own.csv")', "1f1b"))
    theirs = check(tmp_path / "other.plan", target="none")  # torch runs no schedule of one's own
    report = check(tmp_path / "example.plan", target="none")
    assert (report.step, report.memory) == (theirs.step, theirs.memory)
    assert mine.split is not None
    assert mine.split.order[1] == "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3"
    assert set(mine.sources) == {"example.plan", "own.csv"}


@pytest.mark.parametrize("name", ["interleaved_zero_bubble", "zbv", "dualpipev", "interleaved_1f1b"])
def test_bundled_schedules_written_out_are_read_back(name: str) -> None:
    """Stages may lie anywhere; actions that run together stay together."""
    lists = action_lists(split_of(name, 4), 4, 8)
    rows = []
    for actions in lists:
        cells, joined = [], ""
        for a in actions:
            cells += [] if a.overlaps_next else [f"({joined};{a.text})OVERLAP_F_B" if joined else a.text]
            joined = a.text if a.overlaps_next else ""
        rows.append(",".join(cells))
    table, problems = read("\n".join(rows) + "\n")
    assert problems == []
    assert action_lists(split_of("csv", 4, 2, normal(table)), 4, 8) == lists


@pytest.mark.parametrize(
    ("old", "new", "code", "message", "line", "column"),
    [
        ("0F1,", "0X1,", "E0411", "`0X1` is not an action", 1, 5),
        ("0F1,", "0F١,", "E0411", "`0F١` is not an action", 1, 5),
        ("1B3", "1B2", "E0411", "1B2 runs again: 1B2 is at line 2, column 22", 2, 30),
        ("1B3", "1I3", "E0411", "1W3 is nowhere", 2, 1),
        (",1B3", "", "E0411", "1B3 is nowhere", 2, 1),
        (",1F0", ",0F0", "E0411", "stage 0 is on rank 0 and on rank 1", 2, 2),
        ("1", "7", "E0411", "there is a stage 7 and no stage 1", 2, 2),
        ("0F0,0F1,", "0F0,0B0,", "E0411", "0B0 runs again: 0B0 is at line 1, column 5", 1, 10),
        ("\n,", "\n1F9,\n", "E0411", "the file has 3 rows and the pipeline 2 ranks", 3, 1),
        (GOOD.split("\n")[1], ",,", "E0411", "rank 1 has no action", 2, 1),
    ],
)
def test_a_mistake_is_named_where_it_is(
    tmp_path: Path, old: str, new: str, code: str, message: str, line: int, column: int
) -> None:
    rows = GOOD.replace(old, new, 1) if old != "1" else "0F0,0B0\n,7F0,7B0\n"
    assert found(tmp_path, rows) == [(code, message, line, column)]


def test_a_circle_is_named_with_its_ranks_and_actions(tmp_path: Path) -> None:
    """Rank 0 wants its first gradient before it sends microbatch 1; rank 1 wants microbatch 1 first."""
    rows = GOOD.replace("0F0,0F1,,0B0", "0F0,,0B0,0F1").replace("1F0,1B0,1F1", "1F0,1F1,1B0")
    [(code, message, line, column)] = found(tmp_path, rows)
    assert (code, line, column) == ("E0412", 1, 6)
    assert message == (
        "the schedule deadlocks: rank 0 waits at 0B0 for 1B0 of rank 1; rank 1 waits at 1F1 for 0F1 of rank 0"
    )


def test_the_microbatches_are_those_of_the_file(tmp_path: Path) -> None:
    [(code, message, line, _)] = found(tmp_path, GOOD, PLAN.replace("16 x", "32 x"))
    assert (code, line) == ("E0402", 8)
    assert message == "csv over 2 ranks needs the 4 listed microbatches; the plan has 8"


@pytest.mark.parametrize(
    ("name", "code"),
    [('"none.csv"', "E0104"), ('"../own.csv"', "E0111"), ('"."', "E0104"), ("7", "E0108"), ('"big.csv"', "E0104")],
)
def test_a_file_that_cannot_be_had(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / "big.csv").write_text("," * 1_000_001)
    assert [c for c, *_ in found(tmp_path, GOOD, PLAN.replace('"own.csv"', name))] == [code]


def test_findings_in_one_file_are_bounded(tmp_path: Path) -> None:
    assert len(found(tmp_path, "x,\n" * 10_000)) == 20


METHODS = ('csv("own.csv")', "zbv", "dualpipe", "dualpipev", "interleaved_zero_bubble", "circular")


@pytest.mark.parametrize("target", ["cuda", "xla"])
@pytest.mark.parametrize("method", METHODS)
def test_targets_refuse_what_they_cannot_run(tmp_path: Path, target: Target, method: str) -> None:
    (tmp_path / "own.csv").write_text(GOOD)
    text = PLAN.replace('csv("own.csv")', method)
    if target == "cuda":  # whose replays of blocks need a backward in one part
        text = text.replace("recompute blocks", "recompute attention.core").replace(
            "llama3_8b", "llama3_8b(layers = 8)"
        )
    (tmp_path / "example.plan").write_text(text)
    report = check(tmp_path / "example.plan", target=target)
    runs = {"xla": {"circular"}, "cuda": {"zbv", "dualpipev", "interleaved_zero_bubble"}}
    refused = set() if method in runs[target] else {"E0901"}
    assert {d.code for d in report.diagnostics if d.code.startswith("E")} == refused
