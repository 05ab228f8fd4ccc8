"""DeepSpeed, with its own checkpoint function (deepspeed/runtime/activation_checkpointing/checkpointing.py).

With bf16 parameters and unsharded fp32 gradients its optimizer is BF16_Optimizer (deepspeed/runtime/bf16_optimizer.py):
a backward's bf16 gradients are added to fp32 ones, zeroed in place and never freed (`update_hp_grads`,
`clear_lp_grads`). ZeRO-1 and ZeRO-2 flatten a rank's gradients and cast them to fp32 for the update
(deepspeed/runtime/zero/stage_1_and_2.py, `step`). Gradients are reduced in flat buffers of 5e8 elements
(`reduce_bucket_size`; `MEMORY_OPT_ALLREDUCE_SIZE` of deepspeed/runtime/engine.py). GPT models have dropout 0.1 by
default (Megatron-DeepSpeed, megatron/arguments.py).

The runs of its pipeline engine that are published with layouts set CUDA_LAUNCH_BLOCKING=1 ("do not remove or the
training will hang", bigscience train/tr11-176B-ml/tr11-176B-ml.slurm): the host launches three to four kernels for an
op of a plan, 84 us each, and the device waits for each. `LAUNCH_WAIT_S` is the sum that fits these 118 rows, and
`LOST` the memory that their nvidia-smi shows beyond tensors, buffers and runtime, on top of the allocator's usual
share: flat tensors of the update for which no freed segment is large enough, and whatever else. Both numbers follow
from one publisher alone (BigScience).
"""

from planc.ir.policy import Policy

LAUNCH_WAIT_S = 300e-6
LOST = 0.2

POLICY = Policy(
    name="deepspeed",
    title="DeepSpeed",
    whole_blocks=True,
    keeps_outputs=("attention.core",),
    dropout=("gpt",),
    launch_wait_s=LAUNCH_WAIT_S,
    keeps_narrow_grads=True,
    bucket_elements=5e8,
    updates_in_fp32=True,
    updates_on_host=True,
    lost_across_nodes=LOST,
)
