"""Scripts of one's own on torch's FSDP2 and DTensor."""

from planc.frameworks.framework import Framework

FRAMEWORK = Framework(name="torch", title="torch FSDP2")
