"""torch 2.15 waits for each pipeline message in a separate action."""

from __future__ import annotations

from planc.backends.common.version import Difference

DIFFERENCE = Difference(
    since=(2, 15),
    what="schedules have actions WAIT_SEND_F and WAIT_SEND_B; a message that nothing waits for is an error",
    reference="https://github.com/pytorch/pytorch/pull/194121",
    handled="evaluation by a V schedule, which leaves the backward's actions out, keeps actions by their names: one "
    "text for all versions",
    shown_by="tests/cuda/test_versions.py",
)
