"""Scripts of one's own on torch's FSDP2 and DTensor: the head's output is replicated before a loss of torch's own."""

from planc.frameworks.framework import Framework

FRAMEWORK = Framework(name="torch", title="torch FSDP2", whole_logits=True)
