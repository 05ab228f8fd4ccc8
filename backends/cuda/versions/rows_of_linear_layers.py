"""Before torch 2.12, a linear layer cannot keep a sequence sharded."""

from __future__ import annotations

from planc.backends.common.version import Difference
from planc.ir.sharding import Sharded


def divided_rows(sharded: Sharded) -> bool:
    """True if a linear layer in `sharded` works on a shard of the sequence, such as a router under `use sp`."""
    from planc.backends.cuda.analysis.styles import boundaries

    return any(b.linear and any(b.needed(i).dim == 1 for i in range(len(b.o.op.inputs))) for b in boundaries(sharded))


DIFFERENCE = Difference(
    since=(2, 12),
    what="a linear layer on a DTensor whose sequence is divided flattens batch and sequence; before, that is the error "
    '"Attempted to flatten multiple dimensions"',
    reference="https://github.com/pytorch/pytorch/pull/166483",
    handled="refused for 2.11: experts and latent attention under `use sp`, and `shard sequence over AXIS in ffn`",
    shown_by="tests/cuda/test_versions.py",
    concerns=divided_rows,
    fails_before="cannot keep a sequence divided in a linear layer",
    refused="a linear layer on a part of each sequence fails there",
)
