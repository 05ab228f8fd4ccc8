"""Traces that count the microbatches that repeat: they find what a trace of the whole step finds, and are kept."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from unittest.mock import patch

import pytest

from planc.backends.cuda.audit import pool
from planc.backends.cuda.audit.run import predicted_bytes
from planc.backends.cuda.audit.traced import Traced, UnlikeError
from planc.checks import check_plan
from planc.ir.audit import Total
from planc.ir.program import Program
from planc.lowering import lower_plan
from tests.cuda.cases import BF16, FSDP, PP, STEP, plan_of

PEAK_WITHIN = 0.05


def _program(schedule: str, *sentences: str) -> Program:
    said = sentences or (STEP,)
    plan = plan_of("equal", "pp 2 > fsdp 2", PP.format(schedule), FSDP, *said, batch="16 x 24 tokens microbatch 1")
    return lower_plan(check_plan(plan), "cuda", version="installed")


@pytest.mark.launch
@pytest.mark.long
@pytest.mark.parametrize("stage", [0, 1])
def test_counted_microbatches_are_as_if_they_had_run(stage: int) -> None:
    program = _program("1f1b")
    assert program.plan.microbatches == 8
    with ProcessPoolExecutor(2, mp_context=pool._context(), max_tasks_per_child=1) as workers:
        traced = [workers.submit(pool._trace, program, stage, whole=run_all) for run_all in (False, True)]
        short, whole = (one.result() for one in traced)
    assert (short.counted, whole.counted) == ((3, 4, 5, 6), ())
    assert short.totals == whole.totals and short.totals["send_recv", "pp", "fp32"].count == 8
    assert short.peak_bytes == whole.peak_bytes == pytest.approx(predicted_bytes(program.sharded)[stage], PEAK_WITHIN)


@pytest.mark.launch
def test_a_stage_that_gathers_for_each_pass_holds_what_was_predicted() -> None:
    program = _program("1f1b", BF16)
    (traced,) = pool.traces(program, [0])
    assert traced.counted == ()
    assert traced.peak_bytes == pytest.approx(predicted_bytes(program.sharded)[0], PEAK_WITHIN)


def test_microbatches_that_differ_are_not_counted() -> None:
    from planc.backends.cuda.audit.memory import MemoryTracker
    from planc.backends.cuda.audit.observe import Observer
    from planc.backends.cuda.audit.repeats import FORWARD, ActionPlace, ActionRecord, ActionRepeats

    repeats = ActionRepeats(MemoryTracker(), Observer())
    repeats._last = 7
    place = ActionPlace(FORWARD, 0, frozenset({"F", "B"}))
    calls = ((("all_gather", "tp", "bf16"), 64),)
    repeats._records[place] = {0: ActionRecord((), 9, 9), 1: ActionRecord(calls, 1, 2), 2: ActionRecord(calls, 1, 2)}
    assert repeats._common(place) == ActionRecord(calls, 1, 2)
    for other in (ActionRecord((), 1, 2), ActionRecord(calls, 2, 2), ActionRecord(calls, 1, 3)):
        repeats._records[place][2] = other
        with pytest.raises(UnlikeError, match="forward on stage 0"):
            repeats._common(place)


def test_a_trace_is_kept_by_content() -> None:
    program, other = _program("1f1b"), _program("gpipe")
    total = {("all_gather", "fsdp", "bf16"): Total(2, 128)}
    traced = Traced(stage=1, totals=total, unparsed=("x",), peak_bytes=7, peak_at="mm", counted=(3,))
    pool._save(program, traced)
    with patch.object(pool, "_context", side_effect=AssertionError("nothing is traced")):
        assert pool.traces(program, [1]) == [traced]
        for missing in ((program, [0]), (other, [1])):
            with pytest.raises(AssertionError, match="nothing is traced"):
                pool.traces(*missing)
