"""NeMo: Megatron-Core, with `ub_tp_comm_overlap` set by its launcher's configurations."""

from dataclasses import replace

from planc.frameworks import megatron

POLICY = replace(
    megatron.POLICY,
    name="nemo",
    title="NeMo",
    tp_overlap="async_matmul",
)
