"""llm-foundry (MosaicML): Composer and FSDP1, attention in Triton.

Its table for A100s of 40 GB is of May 2023, on torch 1.13, whose checkpoint recomputes a block to its end. Those for
A100s of 80 GB and for H100s were measured again on torch 2.1 in October 2023 (its pull request 543 and the image that
scripts/train/benchmarking/sweep.sh names), except for one model in pure bf16. The loss is flash-attn's fused cross
entropy (`loss_fn: fused_crossentropy`). Composer's `DecoupledAdamW` runs an op for each product and sum
(composer/optim/decoupled_weight_decay.py): 2 passes over memory for weight decay, 10 for moments, 6 for the
denominator, 4 for the update. Clipping gradients by their norm takes 3 more (`gradient_clipping` of its scripts).
"""

from planc.ir.policy import Policy

POLICY = Policy(
    name="llm_foundry",
    title="llm-foundry",
    updates_on_host=True,
    matmuls="torch_2_1",
    kernel="triton",
    whole_blocks_on=("a100_40",),
    loss="gradient",
    update_passes=25,
)
