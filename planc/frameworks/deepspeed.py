"""DeepSpeed: its checkpoint is a function of its own (deepspeed/runtime/activation_checkpointing/checkpointing.py)."""

from planc.frameworks.framework import Framework

FRAMEWORK = Framework(name="deepspeed", title="DeepSpeed", whole_blocks=True, keeps_outputs=("attention.core",))
