"""Every rank's list is the one that torch's runtime would run."""

from typing import Any

import pytest

from planc.pipeline.split import action_lists
from tests.schedules.splits import split_of

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

MULTI = {
    "looped_bfs": "ScheduleLoopedBFS",
    "interleaved_1f1b": "ScheduleInterleaved1F1B",
    "interleaved_zero_bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
SINGLE = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}


class FakeStage:
    """A stage with the attributes that torch's schedules read before they run."""

    has_backward = True
    is_first = is_last = False
    submod = None

    def __init__(self, index: int, ranks: int, stages: int) -> None:
        self.stage_index, self.num_stages = index, stages
        self.group_size, self.group_rank, self.group = ranks, 0, None
        self.stage_index_to_group_rank = {s: s % ranks for s in range(stages)}
        self.device = "cpu"


def lists(name: str, ranks: int, chunks: int, microbatches: int) -> list[list[str]]:
    """torch's order, rank by rank, without idle time; actions that overlap one after the other."""
    stages = [FakeStage(c * ranks, ranks, ranks * chunks) for c in range(chunks)]
    if name in SINGLE:
        kind: Any = getattr(torch_schedules, SINGLE[name])
        order = kind(stages[0], microbatches, loss_fn=lambda *_: None)._get_pipeline_order()
    else:
        kind = getattr(torch_schedules, MULTI[name])
        order = kind(stages, microbatches, loss_fn=lambda *_: None).pipeline_order
    return [[text for a in order[rank] for text in _texts(a)] for rank in range(ranks)]


def _texts(action: Any) -> list[str]:
    if action is None or "REDUCE" in str(action):
        return []
    return [t for a in action.sub_actions or () for t in _texts(a)] or [str(action)]


CASES = [
    *((name, ranks, 1, m) for name in SINGLE for ranks, m in ((2, 2), (4, 8), (5, 12))),
    *((name, ranks, 2, m) for name in MULTI for ranks, m in ((2, 4), (4, 8), (4, 16), (3, 9))),
    *((name, 4, 3, 8) for name in ("looped_bfs", "interleaved_1f1b", "interleaved_zero_bubble")),
    ("interleaved_1f1b", 4, 2, 10),
    ("interleaved_1f1b", 4, 2, 3),
    ("interleaved_zero_bubble", 4, 3, 10),
    ("zbv", 4, 2, 3),
]


@pytest.mark.parametrize(("name", "ranks", "chunks", "microbatches"), CASES)
def test_lists_are_torch_s(name: str, ranks: int, chunks: int, microbatches: int) -> None:
    ours = action_lists(split_of(name, ranks, chunks), ranks, microbatches)
    theirs = lists(name, ranks, chunks, microbatches)
    compared = range(ranks - (name == "1f1b"))  # torch 2.13 lists the last rank's forwards from 1 on
    assert [[a.text for a in ours[rank]] for rank in compared] == [theirs[rank] for rank in compared]


def test_what_overlaps_in_torch_overlaps_here() -> None:
    """DualPipeV's pairs of a forward and a backward."""
    stages = [FakeStage(c * 4, 4, 8) for c in range(2)]
    order = torch_schedules.ScheduleDualPipeV(stages, 12, loss_fn=lambda *_: None).pipeline_order
    theirs = [[str(a.sub_actions[0]) for a in order[rank] if a.sub_actions] for rank in range(4)]
    ours = action_lists(split_of("dualpipev", 4), 4, 12)
    assert [[a.text for a in actions if a.overlaps_next] for actions in ours] == theirs
    assert sum(map(len, theirs)) > 0
