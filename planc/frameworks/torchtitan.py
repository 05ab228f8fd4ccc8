"""torchtitan: torch's own parallelism (FSDP2, DTensor, pipelining).

It prefers cuDNN's attention on Blackwell alone (torchtitan/models/attention.py: from compute capability 10.0 on). Its
selective checkpointing keeps every other `mm` and flash attention, not cuDNN's
(torchtitan/distributed/activation_checkpoint.py). Its script for one node lets the allocator's segments grow
(run_train.sh, `expandable_segments`), that for several does not (multinode_trainer.slurm).
"""

from planc.ir.model import Model
from planc.ir.policy import BLACKWELL, Policy

EVERY_OTHER = ("ffn.swiglu", "attention.k", "attention.out", "ffn.up")
"""Ops of a block: the activation between its products, and every other product, counted from the first."""


def by_list(model: Model, kernel: str) -> tuple[str, ...]:
    """The ops of `model` that torch's list of saved ops leaves out: norms, sums and every other product of a block,
    counted from the first; attention's core where its `kernel` is cuDNN's. No grouped product is on the list
    (`_grouped_mm`), nor what orders tokens by expert: all between the router and the sum runs again."""
    cheap = [op.name for op in model.block_ops if op.kind in ("norm", "rope", "add")]
    known = {op.name for op in model.block_ops}
    products = [n for n in EVERY_OTHER if n in known]
    products += [op.name for op in model.block_ops if op.region in ("experts", "dispatch")]
    return (*cheap, *products, *(("attention.core",) if kernel == "cudnn" else ()))


POLICY = Policy(
    name="torchtitan",
    spread=0.1,
    title="torchtitan",
    kernel_on=dict.fromkeys(BLACKWELL, "cudnn"),
    selective=by_list,
    compiles="blocks, loss",
    lost_across_nodes=0.1,
)
