"""An axis of one rank is no axis: drawn plans with one inserted, and drawn sentences over it."""

from __future__ import annotations

from pathlib import Path

from planc.driver import check, search
from tests.random_plans.axis_of_one import hold
from tests.random_plans.run import drawn_of

HEAD = """plan eight
model llama3_8b
batch 128 x 8192 tokens microbatch 1
cluster 2 x h100_node
mesh {mesh}
use fsdp over fsdp
{rest}compute bf16 reduce fp32
recompute none
"""


def test_it_changes_no_answer(tmp_path: Path) -> None:
    """Not one of check, cost, target, lower, diff, place and search: programs are the same, but for its name in their
    mesh. And a search with a free axis is never slower than without it."""
    held = [hold(seed, drawn_of(seed), tmp_path, thorough=seed % 4 == 0) for seed in range(8)]
    assert sum(held) >= 6


def test_what_was_mended_holds(tmp_path: Path) -> None:
    """W0601 tries the orders of the axes that have several ranks, however many there are of one."""
    assert hold(3179, drawn_of(3179), tmp_path, thorough=False)


def test_a_free_axis_of_one_rank_is_the_fastest(tmp_path: Path) -> None:
    """And a pipeline, a ring and an overlap over it are none."""
    path = tmp_path / "eight.plan"
    path.write_text(HEAD.format(mesh="fsdp 16", rest=""))
    alone = check(path).step
    path.write_text(HEAD.format(mesh="fsdp ? > cp ?", rest="use cp over cp\n"))
    found = search(path)
    assert alone is not None and [c.label for c in found][:2] == ["fsdp 16, cp 1", "fsdp 8, cp 2"]
    assert found[0].time_s == alone.time_s
    over = "use cp over x as ring\noverlap x as dual_batch\nsplit layers over x as dualpipe\n"
    path.write_text(HEAD.format(mesh="x 1 > fsdp 16", rest=over))
    report = check(path)
    assert (report.step, report.target) == (alone, "cuda") and not report.diagnostics
