"""Megatron-Bridge: Megatron-Core, with the overlaps of its recipes.

Its dense recipes set `tp_comm_overlap` (src/megatron/bridge/training/comm_overlap.py: on for tensor parallelism with
sequence parallelism).
"""

from planc.frameworks.framework import Framework
from planc.frameworks.megatron import VOCAB

FRAMEWORK = Framework(
    name="bridge",
    title="Megatron-Bridge",
    kernel="cudnn",
    whole_blocks=True,
    tp_overlap="async_matmul",
    vocab_multiple=VOCAB,
)
