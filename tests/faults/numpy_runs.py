"""Runs of the worker with a runtime of numpy, in this process or in forks of it: planc's own code, and no framework."""

from __future__ import annotations

import io
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from planc.trainer.run import worker
from tests.faults import AnyFault, forked
from tests.faults.calls import NO_FAULT, CountedCalls, Fault
from tests.faults.nth import Place
from tests.trainer.moving import MovingRuntime
from tests.trainer.stand_in import lowering_to

RANK = "rank 0"


class InProcess:
    """Runs of the worker's main in this process."""

    def prepare(self, stack: str) -> None:
        pass

    def run(self, place: Place, words: Sequence[str], who: str, fault: AnyFault) -> tuple[int | None, str]:
        said, status = io.StringIO(), 1
        assert isinstance(fault, Fault)
        os.environ.update(place.environ)
        arguments = ["--preset", str(place.preset), "--target", "cuda", "--receipt", str(place.receipt)]
        with redirect_stdout(said), redirect_stderr(said):
            calls = CountedCalls(fault if who else NO_FAULT, place.logs / f"{RANK.replace(' ', '-')}.calls")
            with calls.installed():
                try:
                    status = worker.main([*arguments, *words])
                except Exception:
                    traceback.print_exc()
        return status, said.getvalue()

    def learn(self, place: Place) -> None:
        pass

    def orphans(self) -> list[int]:
        return []


class NumpyForks(InProcess):
    """Runs of the worker's main in forks: a line that fails may leave a lock or a thread behind."""

    def run(self, place: Place, words: Sequence[str], who: str, fault: AnyFault) -> tuple[int | None, str]:
        arguments = ["--preset", str(place.preset), "--target", "cuda", "--receipt", str(place.receipt)]

        def main() -> int:
            with forked.Planted(who, fault, place.logs)(RANK):
                return worker.main([*arguments, *words])

        environ = {**os.environ, **place.environ}
        return forked.ended(forked.Forked(main, environ, dies_with_parent=True), within_s=120)


@contextmanager
def numpy_runtime() -> Iterator[None]:
    """Within, the worker of this process and of its forks trains with numpy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "lower_plan", lowering_to(MovingRuntime()))
        yield
