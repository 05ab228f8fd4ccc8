"""Megatron-Bridge: Megatron-Core, with the overlaps of its recipes.

Its dense recipes set `tp_comm_overlap` (src/megatron/bridge/training/comm_overlap.py: on for tensor parallelism with
sequence parallelism). They keep and reduce gradients in bf16 (`grad_reduce_in_fp32 = False`), and fuse the loss by
Transformer Engine's kernel, whose gradient takes the place of the logits (`cross_entropy_fusion_impl = "te"`).
"""

from planc.frameworks.framework import Framework
from planc.frameworks.megatron import VOCAB, WORKSPACE_BYTES

FRAMEWORK = Framework(
    name="bridge",
    spread=0.1,
    title="Megatron-Bridge",
    kernel="cudnn",
    whole_blocks=True,
    tp_overlap="async_matmul",
    vocab_multiple=VOCAB,
    reduce="bf16",
    grads_as_reduced=True,
    loss="in_place",
    dropout=("gpt",),
    saves_narrow=True,
    saves_divided=True,
    keeps_outputs=("attention.core",),
    workspace_bytes=WORKSPACE_BYTES,
)
