"""Hugging Face Accelerate and transformers' Trainer."""

from planc.frameworks.framework import Framework

FRAMEWORK = Framework(name="accelerate", title="Accelerate")
