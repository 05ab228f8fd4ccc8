"""DeepSpeed, with its own checkpoint function (deepspeed/runtime/activation_checkpointing/checkpointing.py)."""

from planc.ir.policy import Policy

POLICY = Policy(name="deepspeed", title="DeepSpeed", whole_blocks=True, keeps_outputs=("attention.core",))
