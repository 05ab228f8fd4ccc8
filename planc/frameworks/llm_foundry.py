"""llm-foundry (MosaicML): Composer and FSDP1, attention in Triton.

Its tables of A100 are from before torch 2.0 (scripts/train/benchmarking/README.md), whose checkpoint runs a block to
its end; those of H100 are from after. The loss is flash-attn's fused cross entropy (`loss_fn: fused_crossentropy`).
"""

from planc.frameworks.framework import AMPERE, Framework

FRAMEWORK = Framework(name="llm_foundry", title="llm-foundry", kernel="triton", whole_blocks_on=AMPERE, loss="gradient")
