"""Megatron-Bridge: Megatron-Core, with the overlaps of its recipes.

Its dense recipes set `tp_comm_overlap` (src/megatron/bridge/training/comm_overlap.py: on for tensor parallelism with
sequence parallelism). They store and reduce gradients in bf16 (`grad_reduce_in_fp32 = False`). The loss is Transformer
Engine's fused kernel, whose gradient overwrites the logits (`cross_entropy_fusion_impl = "te"`). A shared expert runs
while the dispatcher communicates (`moe_shared_expert_overlap`), with its input gathered separately from its matmul
(megatron/core/transformer/moe/shared_experts.py, `cached_fc1_input`). On Blackwell its recipes of models with experts
capture attention, router and preprocessing, or the whole step, as CUDA graphs; on H100s those in float8 do not
(scripts/performance/configs, `cuda_graph_scope`), and a step of Qwen3 30B-A3B took 29.2 s there, 20.0 s with them
(skills/nemo-mbridge-perf-cuda-graphs).
"""

from dataclasses import replace

from planc.frameworks import megatron
from planc.ir.policy import BLACKWELL

POLICY = replace(
    megatron.POLICY,
    name="bridge",
    title="Megatron-Bridge",
    spread=0.1,
    graphs_on=BLACKWELL,
    tp_overlap="async_matmul",
    shared_beside_dispatch=True,
    reduce="bf16",
    loss="in_place",
    fused_loss_copies=1.0,
    fused_loss_keeps=0.0,
)
