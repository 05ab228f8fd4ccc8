"""Traces that count blocks like others: they find what a trace of every block finds."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from planc.backends.cuda.audit import pool
from planc.backends.cuda.audit.equal_blocks import BlockEvents, EqualBlocks
from planc.backends.cuda.audit.memory import MemoryTracker
from planc.backends.cuda.audit.observe import Observer
from planc.backends.cuda.audit.traced import UnlikeError
from planc.checks import check_plan
from planc.lowering import lower_plan
from tests.cuda.cases import BF16, FSDP, PP, SP, STEP, TP, plan_of

DEEP = "llama_micro(layers = {})"
CASES = {
    "fsdp": (("fsdp 4", FSDP, BF16), 6),
    "pipeline": (("pp 2 > fsdp 2 > tp 2", PP.format("1f1b"), FSDP, STEP, TP, SP, "recompute attention.core", BF16), 10),
    "chunks": (("pp 2 > fsdp 2", PP.format("interleaved_1f1b(chunks = 4)"), FSDP, STEP, "recompute blocks"), 8),
    "every_other": (("fsdp 2 > tp 2", FSDP, TP, "recompute blocks every 2 layers"), 10),
}


@pytest.mark.launch
@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_counted_blocks_are_as_if_they_had_run(name: str) -> None:
    said, layers = CASES[name]
    plan = plan_of(name, *said, batch="16 x 24 tokens microbatch 1", model=DEEP.format(layers))
    program = lower_plan(check_plan(plan), "cuda", version="installed")
    with ProcessPoolExecutor(2, mp_context=pool._context(), max_tasks_per_child=1) as workers:
        short, whole = (workers.submit(pool._trace, program, 0, whole=run_all).result() for run_all in (False, True))
    assert short.counted_blocks > 0 and whole.counted_blocks == 0
    assert short.totals == whole.totals
    assert short.peak_bytes == whole.peak_bytes


def _blocks(count: int) -> list[nn.Module]:
    return [nn.Linear(4, 4) for _ in range(count)]


def _stage(blocks: list[nn.Module]) -> nn.Module:
    stage = nn.Module()
    stage.layers = nn.ModuleDict({str(i): block for i, block in enumerate(blocks)})
    return stage


def _counted(blocks: list[nn.Module]) -> int:
    equal = EqualBlocks(MemoryTracker(), Observer())
    equal.replace([_stage(blocks)])
    return equal.counted


def test_blocks_are_counted_where_their_modules_say_the_same() -> None:
    assert _counted(_blocks(8)) == 4  # not the first and the last of all, nor the first and the last between
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda module, inputs, output: None)
    for other in (nn.Linear(4, 4, bias=False), nn.Linear(4, 4).double(), nn.RMSNorm(4), hooked):
        assert _counted([*_blocks(4), other, *_blocks(3)]) == 3


def test_blocks_that_differ_are_not_counted() -> None:
    blocks = EqualBlocks(MemoryTracker(), Observer())
    calls = ((("all_gather", "tp", "bf16"), 64),)
    for other in (BlockEvents((), 1, 2), BlockEvents(calls, 2, 2), BlockEvents(calls, 1, 3)):
        blocks.compare("a block", BlockEvents(calls, 1, 2), BlockEvents(calls, 1, 2))
        blocks.check()
        blocks.compare("a block", BlockEvents(calls, 1, 2), other)
        with pytest.raises(UnlikeError, match="a block"):
            blocks.check()
        blocks = EqualBlocks(MemoryTracker(), Observer())


def test_the_tensor_that_a_collective_is_waited_for_is_the_one_that_it_filled() -> None:
    """On fake tensors the wait makes another one, which no device holds."""
    real = torch.ones(4)
    assert torch.ops._c10d_functional.wait_tensor(real).data_ptr() == real.data_ptr()
    tracker = MemoryTracker()
    with FakeTensorMode(), tracker:
        held = torch.ones(64)
        waited = torch.ops._c10d_functional.wait_tensor(held)
        assert tracker.live == tracker.peak == held.nbytes == waited.nbytes
