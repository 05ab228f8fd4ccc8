"""llm-foundry (MosaicML): Composer and FSDP1, attention in Triton.

Its table of A100s of 40 GB is of May 2023, on torch 1.13, whose checkpoint runs a block to its end. Those of A100s of
80 GB and of H100s were measured again on torch 2.1 in October 2023 (its pull request 543 and the image that
scripts/train/benchmarking/sweep.sh names), but for the one model that stayed in pure bf16. The loss is flash-attn's
fused cross entropy (`loss_fn: fused_crossentropy`). Composer's `DecoupledAdamW` is an op for each product and sum
(composer/optim/decoupled_weight_decay.py: weight decay 2 passes, moments 10, denominator 6, update 4), and gradients
are clipped by their norm before (3; `gradient_clipping` of its scripts).
"""

from planc.ir.policy import Policy

POLICY = Policy(
    name="llm_foundry",
    title="llm-foundry",
    kernel="triton",
    whole_blocks_on=("a100_40",),
    loss="gradient",
    update_passes=25,
)
