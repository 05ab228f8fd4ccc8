"""A backend whose runtime is given, for runs of the worker's own main in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planc.backends.cuda import Cuda
from planc.ir.checked import CheckedPlan
from planc.ir.program import Program
from planc.sharding.propagate import propagate


class StandIn(Cuda):
    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def runtime(self) -> Any:
        return self._runtime


def lowering_to(runtime: Any) -> Callable[..., Program]:
    """In the place of `planc.lowering.lower_plan`: programs without a text, started by this runtime."""

    def lower(checked: CheckedPlan, _target: str, _runtime: str = "", _version: str = "") -> Program:
        return Program(backend=StandIn(runtime), sharded=propagate(checked), text="", target="cuda")

    return lower
