"""NeMo AutoModel: FSDP2 around Hugging Face models, with Transformer Engine's attention where it is installed."""

from planc.ir.policy import Policy

POLICY = Policy(name="automodel", title="NeMo AutoModel", kernel="cudnn", updates_on_host=True)
