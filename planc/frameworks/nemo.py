"""NeMo: Megatron-Core; its launcher's configurations set `ub_tp_comm_overlap`."""

from planc.frameworks.framework import Framework
from planc.frameworks.megatron import VOCAB, WORKSPACE_BYTES

FRAMEWORK = Framework(
    name="nemo",
    spread=0.05,
    title="NeMo",
    kernel="cudnn",
    whole_blocks=True,
    tp_overlap="async_matmul",
    vocab_multiple=VOCAB,
    grads_as_reduced=True,
    loss="fp32_in_place",
    dropout=("gpt",),
    saves_narrow=True,
    saves_divided=True,
    keeps_outputs=("attention.core",),
    workspace_bytes=WORKSPACE_BYTES,
)
