"""Scripts of one's own on torch's FSDP2 and DTensor: the head's output is replicated before a loss of torch's own,
which is computed on the logits in the dtype that they have (`torch.nn.functional.cross_entropy`). FSDP2 has let go of
every group of parameters by then (`reshard_after_forward`)."""

from planc.ir.policy import Policy

POLICY = Policy(name="torch", title="torch FSDP2", whole_logits=True, loss="narrow", gathered_in_loss=False)
