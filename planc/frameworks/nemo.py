"""NeMo: Megatron-Core; its launcher's configurations set `ub_tp_comm_overlap`."""

from planc.frameworks.framework import Framework
from planc.frameworks.megatron import VOCAB

FRAMEWORK = Framework(
    name="nemo",
    title="NeMo",
    kernel="cudnn",
    whole_blocks=True,
    tp_overlap="async_matmul",
    vocab_multiple=VOCAB,
)
