"""E1204: a shape that depends on data."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1204",
    title="a shape that depends on data",
    reads="module",
    why="""XLA compiles a program for fixed shapes. `nonzero`, a mask as an index, or sizes read from a tensor make
shapes that depend on values: each new shape is compiled anew, or the operation leaves the device. Keep the shape and
mask what is not wanted.""",
    bad="",
    good="",
)
