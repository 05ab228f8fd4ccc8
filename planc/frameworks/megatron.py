"""Megatron-LM with Megatron-Core and Transformer Engine.

Transformer Engine prefers cuDNN's attention. Megatron has its own checkpoint function
(megatron/core/tensor_parallel/random.py). `--recompute-granularity selective` recomputes core attention unless modules
are named (`MODULES`). The vocabulary is padded to 128 times the tensor-parallel size
(`--make-vocab-size-divisible-by`). The loss makes one fp32 copy of the logits and works on it in place
(megatron/core/tensor_parallel/cross_entropy.py). The fused loss (`--cross-entropy-loss-fusion`) makes that copy too,
and a bf16 gradient (megatron/core/fusions/fused_cross_entropy.py). torch.compile splits this gradient into two passes,
since the first writes single elements, with a second fp32 tensor between them. Softmax, that tensor and the bf16
gradient are as large as five tensors of logits, or four if the logits count too: they are freed by then. GPT models
have dropout 0.1 by default (`--hidden-dropout`, `--attention-dropout`). Transformer Engine saves the low-precision copy
of a matmul's input.

The workspaces are those of cuBLAS, Transformer Engine and random numbers: 0.1 GiB in 21 of its functional tests.
Matmuls that overlap with tensor-parallel transfers have another cuBLAS workspace for each of 3 streams, those of
experts one for each of 4 (transformer_engine/pytorch/cpp_extensions/gemm.py, `get_cublas_workspace`). The host takes 69
us to start the matmuls of experts and 25 for each (Transformer Engine, pull request 3134: 0.267 ms for eight experts of
128 tokens on Blackwell, where one kernel for all takes 0.069), and for a float8 module twice as long as for one in bf16
(issue 761). The optimizer update first copies bf16 gradients to fp32, except with
the precision-aware optimizer, which alone has low-precision moments (megatron/core/optimizer/distrib_optimizer.py,
`_copy_model_grads_to_main_grads`).
"""

from planc.ir.policy import AMPERE, Policy

VOCAB = 128
WORKSPACE_BYTES = 0.1 * 2**30
MODULES = {
    "core_attn": ("attention.core",),
    "layernorm": ("attention.norm", "ffn.norm"),
    "mlp": ("ffn.gate", "ffn.up", "ffn.swiglu", "ffn.gelu", "ffn.squared_relu", "ffn.down"),
    "moe": ("moe",),
    "moe_act": ("moe.swiglu", "moe.squared_relu"),
    "shared_experts": ("shared.gate", "shared.up", "shared.swiglu", "shared.squared_relu", "shared.down"),
    "mla_up_proj": ("mla.up_proj",),
}
"""Megatron-Core's names of modules for selective recomputation, and the ops of a plan that they are."""
RUN_AGAIN = {
    **MODULES,
    "mla_up_proj": ("mla.up_proj", "attention.q", "attention.rope_q", "attention.rope_k", "mla.join_k"),
}
"""The ops that published runs run again for these names: `mla_up_proj` is the projections, that of queries without a
down projection too, and the rotation (`qkv_up_proj_and_rope_apply` of
megatron/core/transformer/multi_latent_attention.py). Import and export say the projections alone."""

POLICY = Policy(
    name="megatron",
    spread=0.05,
    title="Megatron-LM",
    matmuls="te",
    kernel="cudnn",
    whole_blocks=True,
    scatters_sends_on=AMPERE,
    expert_streams=4,
    expert_call_s=25e-6,
    experts_call_s=69e-6,
    routes_op_by_op=True,
    narrow_launches=2,
    overlap_streams=3,
    expert_bias_in_fp32=True,
    fuses_amax=True,
    vocab_multiple=VOCAB,
    grads_as_reduced=True,
    updates_in_fp32=True,
    updates_on_host=True,
    keeps_grads_from_host=True,
    loss="fp32_in_place",
    fused_loss_copies=4.0,
    fused_loss_keeps=2.0,
    dropout=("gpt",),
    saves_narrow=True,
    saves_divided=True,
    keeps_outputs=("attention.core",),
    workspace_bytes=WORKSPACE_BYTES,
)
