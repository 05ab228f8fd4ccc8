"""A step of a traced program, for observers other than the audit's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.cuda.audit.trace import _fake_group, _on_meta, _Step
from planc.checks import check_plan
from planc.lowering import lower_plan
from tests.audit.cases import plan_of
from tests.plans import propagated


@contextmanager
def stepping(name: str) -> Iterator[tuple[_Step, Any, ModuleType, Any]]:
    """(step, divided model, emitted program, mesh) of an audited layout without pipelines, on fake devices.

    The optimizer has its state before the step.
    """
    sharded = propagated(plan_of(name))
    program = lower_plan(check_plan(sharded.plan), "cuda")
    emitted = program.load()
    with _fake_group(sharded, 0):
        mesh = emitted.build_mesh("cpu")
        model = emitted.parallelize(_on_meta(program), mesh)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            yield _Step(program, emitted, model, [model], mesh), model, emitted, mesh
