"""NeMo: Megatron-Core; its launcher's configurations set `ub_tp_comm_overlap`."""

from dataclasses import replace

from planc.frameworks import megatron

FRAMEWORK = replace(
    megatron.FRAMEWORK,
    name="nemo",
    title="NeMo",
    tp_overlap="async_matmul",
)
