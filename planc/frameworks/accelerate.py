"""Hugging Face Accelerate and transformers' Trainer, which gather tensor-parallel logits (`colwise_gather_output`).

The models run op by op (`LlamaRMSNorm` and `LlamaMLP` in transformers/models/llama/modeling_llama.py).
`ForCausalLMLoss` copies the logits to fp32 and nothing saves them in bf16 (transformers/loss/loss_utils.py). Its
backward holds three fp32 tensors of their size, that of a fused cross entropy two: 20 of 28 published runs whose peak
is there have the kernel, all of one publisher (IBM's fms-acceleration), and two are assumed. `use_liger_kernel`
replaces head and loss by one kernel. PEFT keeps the matrices of a LoRA update in fp32 and casts their input
(`autocast_adapter_dtype`). The optimizer is torch's AdamW over lists of tensors, which allocates all denominators at
once (`_multi_tensor_adamw` in torch/optim/adamw.py). Accelerate's FSDP is version 1 unless `fsdp_version` is 2. A
token's weights multiply what its experts made (`MixtralSparseMoeBlock` in transformers/models/mixtral).
"""

from planc.ir.policy import Policy

POLICY = Policy(
    name="accelerate",
    title="Accelerate",
    whole_logits=True,
    loss_copies=2.0,
    frees_logits=True,
    fuses_head_and_loss=True,
    weighs_outputs=True,
    eager=True,
    fixed_segments=True,
    fresh_grads=True,
    update_copies=1.0,
    fsdp1=True,
    updates_on_host=True,
)
