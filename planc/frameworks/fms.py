"""IBM's fms-fsdp: FSDP1 around its own Llama, with torch's scaled_dot_product_attention."""

from planc.ir.policy import Policy

POLICY = Policy(name="fms", title="fms-fsdp", updates_on_host=True)
