"""NeMo: Megatron-Core; its launcher's configurations set `ub_tp_comm_overlap`."""

from dataclasses import replace

from planc.frameworks import megatron

POLICY = replace(
    megatron.POLICY,
    name="nemo",
    title="NeMo",
    tp_overlap="async_matmul",
)
