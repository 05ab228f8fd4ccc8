"""Hugging Face Accelerate and transformers' Trainer: tensor parallelism gathers the logits
(`colwise_gather_output`)."""

from planc.ir.policy import Policy

POLICY = Policy(name="accelerate", title="Accelerate", whole_logits=True)
