"""IBM's fms-fsdp: FSDP1 around its own Llama, with torch's scaled_dot_product_attention."""

from planc.frameworks.framework import Framework

FRAMEWORK = Framework(name="fms", title="fms-fsdp")
