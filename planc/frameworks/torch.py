"""The user's own training script on torch's FSDP2 and DTensor. The logits are replicated before the loss, which
`torch.nn.functional.cross_entropy` computes in their dtype; FSDP2 has freed all gathered parameters by then
(`reshard_after_forward`)."""

from planc.ir.policy import Policy

POLICY = Policy(
    name="torch", title="torch FSDP2", whole_logits=True, loss="narrow", gathered_in_loss=False, updates_on_host=True
)
