"""The TPU compiler sums the output of a vocab-sharded lookup in fp32, the dtype of the embedding.

The program casts the rows after the lookup, but the all-reduce over the shards comes before the cast. Read from fsdp 16
> tp 4 on v5p, with and without sequence parallelism. An output that is sharded after the sum is gathered again in the
compute dtype (fsdp 64 > tp 4, v5p).
"""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, in_dtype, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "fp32_embedding_sum"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) != "tpu":
        return rows
    found = {o.op.output for o in sharded.ops["first"] if o.op.kind == "embedding" and o.partial}
    return tuple(
        in_dtype(row, NAME, "fp32") if _is_embedding_in_16_bits(row) and row.tensor in found else row for row in rows
    )


def _is_embedding_in_16_bits(row: Collective) -> bool:
    sums = row.carries == "activation" and row.section == "first" and row.op != "all_gather"
    return sums and row.dtype != "fp32"
