"""MaxText: JAX on TPUs, and on GPUs with cuDNN's attention (`attention=cudnn_flash_te`).

XLA overlaps tensor-parallel transfers with windowed einsums on TPUs; on GPUs the published scripts turn on its
collective matmul. The casts around the loss are fused, and the logits' gradient overwrites the logits. A recomputed
block and the logits are not in memory at the same time. A loop over layers gathers the parameters of one block at a
time. A token's weights multiply what its experts made, so that the backward of a recomputed block makes it again
(`RoutedMoE.unpermute` and `dense_matmul` of src/maxtext/layers/moe.py).
"""

from planc.ir.policy import AMPERE, BLACKWELL, Policy

QKV = ("attention.q", "attention.k", "attention.v")
POLICIES: dict[str, tuple[str, ...]] = {
    "full": (),
    "none": (),
    "save_qkv_proj": QKV,
    "save_out_proj": ("attention.out",),
    "save_dot_except_mlp": (*QKV, "attention.out"),
    "save_dot_except_mlpwi": (*QKV, "attention.out", "ffn.down"),
    "save_dot_with_context_except_mlp": (*QKV, "attention.core", "attention.out"),
    "qkv_proj_offloaded": QKV,
}
"""Policies of rematerialisation that keep named products of a block, and the ops of a plan that these are; `none` is
no policy, so that nothing is kept (src/maxtext/layers/decoders.py, get_remat_policy)."""
CUSTOM = {
    "query_proj": ("attention.q",),
    "key_proj": ("attention.k",),
    "value_proj": ("attention.v",),
    "qkv_proj": QKV,
    "out_proj": ("attention.out",),
    "context": ("attention.core",),
    "mlpwi_0": ("ffn.gate",),
    "mlpwi_1": ("ffn.up",),
    "mlpwi": ("ffn.gate", "ffn.up"),
    "mlpwo": ("ffn.down",),
    "moe_mlpwi_0": ("moe.gate",),
    "moe_mlpwi_1": ("moe.up",),
    "moe_mlpwo": ("moe.down",),
}
"""Tensors that `remat_policy=custom` places one by one, and the ops that make them."""
GPUS = (*AMPERE, "h100", "h200", "h800", *BLACKWELL)

POLICY = Policy(
    name="maxtext",
    title="MaxText",
    matmuls="xla",
    kernel_on=dict.fromkeys(GPUS, "cudnn"),
    tp_overlap="async_matmul",
    prefetched=1,
    loss="in_place",
    sums_live_sets=False,
    tp_overlap_torus="windowed_einsum",
    expert_tile_rows=512,
    weighs_outputs=True,
)
