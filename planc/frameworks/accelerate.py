"""Hugging Face Accelerate and transformers' Trainer: plans of tensor parallelism gather the head's output
(`colwise_gather_output`)."""

from planc.ir.policy import Policy

POLICY = Policy(name="accelerate", title="Accelerate", whole_logits=True)
