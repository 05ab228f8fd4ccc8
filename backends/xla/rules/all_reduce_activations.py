"""With one sequence per rank, the TPU compiler all-reduces an activation and slices it: twice the bytes.

The plan has a reduce-scatter along the sequence. Read from matmuls on v5p, v5e and v6e over 4 to 16 ranks: a result of
[2, 512, 1024] per rank is a reduce-scatter, one of [1, 512, 1024] or [1, 8192, 4096] an all-reduce and a slice. So is
the output of a vocab-sharded lookup. On v5p and v6e a program has the option `use_minor_sharding_for_major_trivial_
input`, which keeps the reduce-scatters: 5.23 GB for 10.47 over tp in two layers of Llama 70B (fsdp 64 > tp 4, v5p).
Keys that a kernel's shard_map gathers explicitly are not affected: their gradients stay reduce-scattered, as read from
two layers of Llama 8B on v5p (fsdp 2 > cp 2, splash attention).
"""

from __future__ import annotations

from planc.backends.xla.analysis.attention import runs_splash
from planc.backends.xla.analysis.compiler_options import scatters_one_sequence
from planc.backends.xla.analysis.pipeline import pipelined
from planc.backends.xla.rules.rule import Rows, changed, platform
from planc.ir.collective import Collective
from planc.ir.sharding import Sharded

NAME = "all_reduce_activations"


def apply(sharded: Sharded, rows: Rows) -> Rows:
    if platform(sharded) != "tpu" or sharded.plan.batch.microbatch_sequences > 1 or scatters_one_sequence(sharded):
        return rows
    by_hand = {name for o in sharded.attentions for name in o.op.whole_of} if runs_splash(sharded) else set()
    at_once = {"first"} if pipelined(sharded.plan) else set()  # tokens of all microbatches are looked up before it
    return tuple(
        changed(row, NAME, op="all_reduce") if _scatters(row, by_hand) and row.section not in at_once else row
        for row in rows
    )


def _scatters(row: Collective, by_hand: set[str]) -> bool:
    return row.carries == "activation" and row.op == "reduce_scatter" and row.tensor not in by_hand
