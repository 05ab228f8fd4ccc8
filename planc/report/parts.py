"""The parts of memory and of a step that stacked bars show, with their colours."""

from __future__ import annotations

from planc.picture.charts import BarPart

MEMORY_PARTS = (
    BarPart("params", "parameters"),
    BarPart("grads", "gradients"),
    BarPart("optimizer", "optimizer"),
    BarPart("activations", "activations"),
    BarPart("buffers", "buffers"),
    BarPart("comm_buffers", "communicators"),
    BarPart("reserve", "reserve"),
)
"""Parts of a device's memory in stacking order."""
STEP_PARTS = (
    BarPart("compute", "compute"),
    BarPart("recompute", "recompute"),
    BarPart("exposed_comm", "exposed communication"),
    BarPart("bubble", "bubble"),
    BarPart("optimizer", "optimizer"),
    BarPart("offload", "offload"),
    BarPart("overhead", "overhead"),
)
"""Parts of a step in stacking order."""
