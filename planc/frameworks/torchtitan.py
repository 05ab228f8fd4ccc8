"""torchtitan: torch's own parallelism (FSDP2, DTensor, pipelining).

It uses cuDNN's attention only on Blackwell (torchtitan/models/attention.py: from compute capability 10.0 on). Selective
checkpointing saves the output of every second `mm` and of flash attention, but not of cuDNN's attention
(torchtitan/distributed/activation_checkpoint.py). The script for one node sets the allocator's `expandable_segments`
(run_train.sh); the script for several nodes does not (multinode_trainer.slurm).
"""

from planc.ir.model import Model
from planc.ir.policy import BLACKWELL, Policy

EVERY_OTHER = ("ffn.swiglu", "attention.k", "attention.out", "ffn.up")
"""Ops of a block: the activation between its products, and every other product, counted from the first."""


def by_list(model: Model, kernel: str) -> tuple[str, ...]:
    """Return the ops of `model` that selective checkpointing recomputes: norms, rotary embeddings, adds, the activation
    and every second matmul of a block; the attention core if `kernel` is cuDNN's; all ops between the router and the
    sum of the experts' outputs, because the list of saved ops has no grouped matmul (`_grouped_mm`)."""
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
    updates_on_host=True,
)
