"""E0902: an audit is asked for machines that the plan is not for."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E0902",
    title="a topology that the plan is not for",
    reads="target",
    why="""`planc audit --target xla` compiles the plan's own training step for the machines that the plan
names: a torus of TPUs is described to the TPU compiler as `v5p:4x4x4`, anything else is virtual CPU
devices. Another topology would be another plan. Several slices are not compiled.""",
    bad="",
    good="",
)
