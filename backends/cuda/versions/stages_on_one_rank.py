"""Before torch 2.12, a pipeline connects with a message to every neighbouring stage, even one on the same rank."""

from __future__ import annotations

from planc.backends.common.version import Difference
from planc.ir.sharding import Sharded


def neighbours_on_one_rank(sharded: Sharded) -> bool:
    """True if a rank in `sharded` has two consecutive stages, as in a V schedule."""
    from planc.backends.cuda.analysis.schedules import in_a_v

    return in_a_v(sharded.plan)


DIFFERENCE = Difference(
    since=(2, 12),
    what="the first step of a pipeline sends every stage's neighbours a message, also from a rank to itself, which "
    'gloo cannot send ("Pair is not connected"); since then no rank sends itself anything',
    reference="https://github.com/pytorch/pytorch/pull/160210, https://github.com/pytorch/pytorch/pull/177728",
    handled="programs for 2.11 with `zbv` or `dualpipev` leave those messages out (class `Stage`)",
    shown_by="tests/cuda/test_versions.py",
    concerns=neighbours_on_one_rank,
    fails_before="lets a rank send itself messages, and gloo cannot",
)
