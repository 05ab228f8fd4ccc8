"""A ring whose rows see a window of tokens: which parts meet, and what the GPU's kernel is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from planc.backends.cuda.analysis.attention import attention_kernel
from planc.checks import check_plan
from planc.costing.compute.attention import attention_s
from planc.lowering import lower_plan
from tests.plans import propagated

from .cases import plan_of

RING = "attention.core as ring"


def emitted(ranks: int, *, headtail: bool) -> Any:
    """The program of a ring over so many ranks; Mistral's micro model sees 16 tokens."""
    method = RING if headtail else f"{RING}(balance = none)"
    sentences = (f"cp {ranks}", "shard sequence over cp", method)
    plan = plan_of("window", *sentences, model="mistral_micro", batch="4 x 48 tokens microbatch 4")
    return lower_plan(check_plan(plan), "cuda", version="installed").load()


@pytest.mark.parametrize("headtail", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_every_row_meets_its_window_once(ranks: int, headtail: bool) -> None:
    """The pairs of all parts of all ranks are those of the mask, each once, and no row of a part sees nothing."""
    module, tokens = emitted(ranks, headtail=headtail), 48
    rows = tokens // ranks
    met = torch.zeros(tokens, tokens, dtype=torch.int64)
    for rank in range(ranks):
        for source in range(ranks):
            mine, theirs = (_positions(module, r, ranks, rows) for r in (rank, source))
            for own, keys, *mask in module.seen(rank, source, rows, ranks):
                shape = torch.empty(1, 1, len(mine[own]), 1), torch.empty(1, 1, len(theirs[keys]), 1)
                shown = module.window_mask(*shape, *mask) == 0
                assert shown.any(1).all()
                met[mine[own][:, None], theirs[keys][None]] += shown.long()
    back = torch.arange(tokens)[:, None] - torch.arange(tokens)
    assert torch.equal(met, ((back >= 0) & (back < 16)).long())


def _positions(module: Any, rank: int, ranks: int, rows: int) -> torch.Tensor:
    begins = module.pieces(rank, ranks, rows)
    return torch.cat([torch.arange(at, at + rows // len(begins)) for at in begins])


def test_a_gpu_is_asked_for_the_window_and_not_for_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flash kernels' own windows, in shapes that they take: traced on fake CUDA tensors."""
    module = emitted(2, headtail=True)
    monkeypatch.setattr(module, "window_mask", None)
    with FakeTensorMode():
        q = torch.empty(2, 8, 12, 32, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.empty(2, 4, 12, 32, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for window in ((True, 15), (False, 3), (False, 0)):
            out, log_sum = module.attend_part(q, k, v, *window)
            assert out.shape == q.shape and log_sum.shape == q.shape[:3] and log_sum.dtype == torch.float32
            grads = module.attend_part_backward(out, q, k, v, out, log_sum, *window)
            assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]


def test_a_ring_computes_what_the_window_shows() -> None:
    """Scores of a window of 16 of 8,192 tokens, not all of them with a mask, as for gathered keys."""
    ring, gathered = (seconds(how) for how in ("ring", "all_gather"))
    assert ring < 0.2 * gathered


def seconds(how: str) -> float:
    """Seconds of a block's attention on a device."""
    batch = "8 x 8192 tokens microbatch 1"
    chosen = f"use cp over cp as {how}"
    plan = plan_of("cost", "cp 8", chosen, model="mistral_micro", cluster="1 x h100_node", batch=batch)
    sharded = propagated(plan)
    whole = replace(sharded, attention=attention_kernel(sharded))
    core = next(o for o in whole.ops["block"] if o.op.kind == "attention")
    return attention_s(whole, core, plan.cluster.chip, backward=False)
