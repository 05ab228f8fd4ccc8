"""A Megatron-LM script in the form in which people write them: an array of flags, a variable, a line that goes on."""

SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=4
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096            # of Llama 3 8B
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
    --vocab-size 128256
)
torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} \\
   --tensor-model-parallel-size $TP --sequence-parallel --use-distributed-optimizer \\
   --overlap-grad-reduce --overlap-param-gather --micro-batch-size 1 --global-batch-size 128 --bf16 \\
   --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --lr 1e-4
"""
