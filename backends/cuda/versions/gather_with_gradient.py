"""torch 2.13 renamed the functional all-gather that has a gradient."""

from __future__ import annotations

from planc.backends.common.version import Difference
from planc.ir.sharding import Sharded


def gathers_sequences(sharded: Sharded) -> bool:
    """True if `sharded` all-gathers attention's keys and values over context-parallel ranks."""
    from planc.backends.cuda.analysis.context import gathers
    from planc.backends.cuda.analysis.roles import AxisRoles

    return gathers(AxisRoles(sharded))


DIFFERENCE = Difference(
    since=(2, 13),
    what="`all_gather_tensor_autograd` of the functional collectives is named `all_gather_single_autograd`; the old "
    "name is kept with a FutureWarning",
    reference="https://github.com/pytorch/pytorch/pull/186125",
    handled="programs with `use cp` call the name of their version",
    shown_by="tests/cuda/test_versions.py",
    concerns=gathers_sequences,
    fails_before="has no all_gather_single_autograd",
)
