"""Parts of memory and of a step as pictures stack them."""

from __future__ import annotations

from planc.picture.charts import Part

MEMORY_PARTS = (
    Part("params", "parameters"),
    Part("grads", "gradients"),
    Part("optimizer", "optimizer"),
    Part("activations", "activations"),
    Part("buffers", "buffers"),
    Part("comm_buffers", "communicators"),
    Part("reserve", "reserve"),
)
"""Parts of a device's memory in the order in which they are stacked."""
STEP_PARTS = (
    Part("compute", "compute"),
    Part("recompute", "recompute"),
    Part("exposed_comm", "exposed communication"),
    Part("bubble", "bubble"),
    Part("optimizer", "optimizer"),
    Part("offload", "offload"),
    Part("overhead", "overhead"),
)
"""Parts of a step in the order in which they are stacked."""
