"""The critical path, by networkx: as long as the step that the simulation gives, on every bundled plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.costing.costed import cost_plan
from planc.costing.step.critical_path import critical_path, longest_path
from planc.pipeline.actions import Action
from planc.pipeline.stage_times import stage_times
from planc.pipeline.timeline import timeline
from tests.plans import BUNDLED, FIELD, sharded_of


@pytest.mark.parametrize("path", [*BUNDLED, *FIELD], ids=lambda path: path.stem)
def test_the_path_is_as_long_as_the_step(path: Path, tmp_path: Path) -> None:
    costed = cost_plan(sharded_of(tmp_path, path.read_text()))
    parts = critical_path(costed)
    assert sum(p.seconds for p in parts) == pytest.approx(costed.step.time_s, rel=1e-9)
    assert all(p.seconds > 0 for p in parts)


def test_a_path_goes_over_the_slow_stage() -> None:
    """Two ranks of 1F1B; the second is three times as slow, so that the path enters it at once and leaves it last."""
    lists = [
        [Action("forward", 0, 0), Action("forward", 0, 1), Action("backward", 0, 0), Action("backward", 0, 1)],
        [Action("forward", 1, 0), Action("backward", 1, 0), Action("forward", 1, 1), Action("backward", 1, 1)],
    ]
    times = stage_times([1.0, 3.0], [2.0, 6.0], send_s=0.5)
    path = longest_path(lists, times)
    assert [(kind, rank) for kind, rank, *_ in path] == [
        ("forward", 0), ("send", 1), ("forward", 1), ("backward", 1), ("forward", 1), ("backward", 1), ("send", 0),
        ("backward", 0),
    ]  # fmt: skip
    assert sum(s for *_, s in path) == pytest.approx(timeline(lists, times).makespan_s) == 22.0
