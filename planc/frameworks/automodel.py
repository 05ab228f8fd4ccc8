"""NeMo AutoModel: FSDP2 around Hugging Face models, with Transformer Engine's attention where it is installed."""

from planc.frameworks.framework import Framework

FRAMEWORK = Framework(name="automodel", title="NeMo AutoModel", kernel="cudnn")
