"""Hugging Face Accelerate and transformers' Trainer: plans of tensor parallelism gather the head's output
(`colwise_gather_output`)."""

from planc.frameworks.framework import Framework

FRAMEWORK = Framework(name="accelerate", title="Accelerate", whole_logits=True)
