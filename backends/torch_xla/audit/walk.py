"""Runs three steps on the stand-in device and finds what would make XLA synchronise, recompile or lose state.

The first step may create state for later ones. The second and third see other data, and must run the same operations
with the same constants and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import zip_longest

from planc.backends.torch_xla.audit.containers import Containers
from planc.backends.torch_xla.audit.operations import Operation, Watch
from planc.backends.torch_xla.audit.places import Place, here
from planc.backends.torch_xla.audit.stand_in import ReadStandIn
from planc.diag.fast_dataclass import dataclass

STEPS = 3
READ, CONSTANT, CONTAINER, SHAPE = "E1201", "E1202", "E1203", "E1204"


@dataclass(frozen=True)
class Leak:
    """An operation at `place` (None in a backward without Python) that makes XLA wait, recompile or lose state."""

    code: str
    message: str
    place: Place | None
    help: str = ""


@dataclass(frozen=True)
class Walked:
    """The result of `walk`: at most one leak of each code per source line, and the number of operations in a step."""

    leaks: tuple[Leak, ...]
    operations: int


def walk(step: Callable[[int], None]) -> Walked:
    """Returns the operations in three steps that do not carry over to XLA: values read on the host, shapes that depend
    on values, constants that differ between the second and the third step, and containers that outlive a step.

    `step` takes the step's number, 1 to 3; each step must use the same shapes, and other data.
    """
    seen: list[Leak] = []
    runs: list[list[Operation]] = []

    def read(name: str) -> None:
        seen.append(Leak(READ, f"`{_op_name(name)}` needs a tensor's value on the host", here(), READ_HELP))

    def sized(name: str) -> None:
        message = f"the size of what `{_op_name(name)}` returns depends on values"
        seen.append(Leak(SHAPE, message, here(), SHAPE_HELP))

    containers = Containers()
    for number in range(1, STEPS + 1):
        # The first step triggers torch's lazy imports: profiling their calls takes ten seconds.
        with containers if number > 1 else nullcontext(), ReadStandIn(read), Watch(read, sized) as watch:
            take_step(step, number)
        runs.append(watch.done)
    seen += _differences(runs[-2], runs[-1])
    for place, site in containers.outliving():
        message = f"`{'.'.join(site.path)}{site.how}` changes a container that outlives the step"
        seen.append(Leak(CONTAINER, message, place, CONTAINER_HELP))
    return Walked(_without_duplicates(seen), len(runs[-1]))


READ_HELP = "keep it a tensor: torch.where for a choice, a 0-D tensor for a number; read it outside of the step"
CONSTANT_HELP = "hold the number in a 0-D tensor on the device, and change that tensor in place"
CONTAINER_HELP = "return what the step makes, or keep it in a buffer of fixed shape"
SHAPE_HELP = "keep the shape and mask what is not wanted: torch.where, a weight of 0, a fixed number of places"


def take_step(step: Callable[[int], None], number: int) -> None:
    """Runs `step` with its `number`. The search for the user's frame stops at this function's frame."""
    step(number)


def _differences(before: list[Operation], after: list[Operation]) -> Iterator[Leak]:
    """Yields constants and shapes that differ between two steps. Stops at the first operation that differs."""
    for a, b in zip_longest(before, after):
        if a is None or b is None or (a.name, a.place) != (b.name, b.place):
            at = b or a
            message = f"from `{_op_name(at.name)}` on, one step runs other operations than the next"
            yield Leak(CONSTANT, message, at.place, "a choice made in Python is compiled in: make it with torch.where")
            return
        if a.shapes != b.shapes:
            yield Leak(
                SHAPE, f"`{_op_name(b.name)}` makes {_shapes(a)} in one step and {_shapes(b)} in the next", b.place
            )
        elif a.numbers != b.numbers:
            old, new = next((x, y) for x, y in zip_longest(a.numbers, b.numbers) if x != y)
            message = f"`{_op_name(b.name)}` has the constant {old} in one step and {new} in the next"
            yield Leak(CONSTANT, message, b.place, CONSTANT_HELP)


def _op_name(name: str) -> str:
    """Returns the short name of an operation: `add` for `aten.add.Tensor`."""
    return name.split(".")[1] if name.startswith("aten.") else name


def _shapes(operation: Operation) -> str:
    return ", ".join(str(list(shape)) for shape in operation.shapes)


def _without_duplicates(leaks: list[Leak]) -> tuple[Leak, ...]:
    """Returns the first leak of each code and line; leaks without a line (in a backward) only if no leak has one."""
    first: dict[tuple[str, str, int], Leak] = {}
    for leak in leaks:
        at = leak.place
        first.setdefault((leak.code, at.file if at else "", at.line if at else 0), leak)
    placed = tuple(leak for leak in first.values() if leak.place)
    return placed or tuple(first.values())
