"""Before torch 2.12, strided shards cannot be redistributed."""

from __future__ import annotations

from planc.backends.common.version import Difference
from planc.ir.sharding import Sharded


def divided_inside(sharded: Sharded) -> bool:
    """True if `sharded` has a strided shard at a linear layer, as with `shard head_dim over AXIS`."""
    from planc.backends.cuda.analysis.styles import boundaries

    return any(
        b.weight.inner or b.made.inner or any(b.needed(i).inner for i in range(len(b.o.op.inputs)))
        for b in boundaries(sharded)
    )


DIFFERENCE = Difference(
    since=(2, 12),
    what="a `_StridedShard` that is no order of mesh dimensions can be redistributed; before, that is the error "
    '"unable to be interpreted into a corresponding shard_order"',
    reference="https://github.com/pytorch/pytorch/pull/179208",
    handled="refused for 2.11: `shard head_dim over AXIS`",
    shown_by="tests/cuda/test_versions.py",
    concerns=divided_inside,
    fails_before="cannot move a tensor that is divided inside a dimension",
    refused="a tensor that is divided inside a dimension cannot be moved there",
)
