"""Megatron-LM with Megatron-Core and Transformer Engine.

Transformer Engine prefers cuDNN's attention. A checkpoint is a function of its own
(megatron/core/tensor_parallel/random.py), `--recompute-granularity selective` runs attention's core again unless
modules are named (`MODULES`), the vocabulary is padded to 128 times the tensor-parallel size
(`--make-vocab-size-divisible-by`).
"""

from planc.frameworks.framework import Framework

VOCAB = 128
MODULES = {
    "core_attn": ("attention.core",),
    "layernorm": ("attention.norm", "ffn.norm"),
    "mlp": ("ffn.gate", "ffn.up", "ffn.swiglu", "ffn.gelu", "ffn.down"),
    "moe": ("moe",),
    "moe_act": ("moe.swiglu",),
    "shared_experts": ("shared.gate", "shared.up", "shared.swiglu", "shared.down"),
    "mla_up_proj": ("mla.up_proj",),
}
"""Megatron-Core's names of modules for selective recomputation, and the ops of a plan that they are."""

FRAMEWORK = Framework(name="megatron", title="Megatron-LM", kernel="cudnn", whole_blocks=True, vocab_multiple=VOCAB)
