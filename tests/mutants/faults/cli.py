"""Faults in what the commands read, write and answer."""

from __future__ import annotations

from .fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a bias of one number for each expert is taken for a matrix",
        file="planc/checks/cost/w0305_empty_shards.py",
        text="""inside_expert = dims[0] == ("experts",) and len(dims) > 1""",
        planted="""inside_expert = dims[0] == ("experts",)""",
        test="tests/catalog/test_every_model.py::test_no_model_crashes_under_a_plain_layout",
    ),
)
