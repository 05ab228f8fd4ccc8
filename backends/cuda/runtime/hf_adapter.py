"""Maps names of parameters of Llama, Mistral and Qwen3 in transformers' checkpoints to those in the op graph."""

from __future__ import annotations

ENDS = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"}
"""The modules outside the blocks."""

ATTENTION = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "self_attn": "attention",
    "post_attention_layernorm": "ffn_norm",
}
GATED = {
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "mlp": "feed_forward",
}
