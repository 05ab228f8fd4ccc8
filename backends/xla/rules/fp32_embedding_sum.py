"""The TPU compiler sums the output of a vocab-sharded lookup, and the gradient of a table, in the table's fp32.

The program casts the rows after the lookup, but the all-reduce over the shards comes before the cast. Read from fsdp 16
> tp 4 on v5p, with and without sequence parallelism. An output that is sharded after the sum is gathered again in the
compute dtype (fsdp 64 > tp 4, v5p). The gradient adds up the rows of equal tokens in fp32, and is summed so although
the plan reduces in bf16 (llama3_8b over fsdp 64, qwen3_30b_a3b over fsdp 16 > ep 4, v5p).
"""

from __future__ import annotations

from planc.backends.xla.rules.rule import Rows, in_dtype, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "fp32_embedding_sum"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) != "tpu":
        return rows
    lookups = [o for o in sharded.ops["first"] if o.op.kind == "embedding"]
    found = {o.op.output for o in lookups if o.partial}
    if sharded.plan.store_dtype("params") == "fp32":
        found |= {p for o in lookups for p in o.op.params}
    return tuple(
        in_dtype(row, NAME, "fp32") if _is_sum_in_16_bits(row) and row.tensor in found else row for row in rows
    )


def _is_sum_in_16_bits(row: Collective) -> bool:
    sums = row.carries in ("activation", "grad") and row.section == "first" and row.op != "all_gather"
    return sums and row.dtype != "fp32"
