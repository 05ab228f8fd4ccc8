"""Hugging Face Accelerate and transformers' Trainer, which gather tensor-parallel logits (`colwise_gather_output`)."""

from planc.ir.policy import Policy

POLICY = Policy(name="accelerate", title="Accelerate", whole_logits=True, updates_on_host=True)
