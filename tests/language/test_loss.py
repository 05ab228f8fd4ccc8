"""`loss in N chunks`: what it says, and who refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.backends.cuda.refusals.plan import refusals as on_cuda
from planc.backends.xla.refusals.plan import refusals as on_xla
from planc.costing.memory.activations import loss_bytes
from planc.sharding.local import head_elements
from tests.plans import HEAD, codes, plan_of, propagated

TAIL = "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\nrecompute blocks\n"


def text(*sentences: str) -> str:
    return HEAD + TAIL + "\n".join(sentences) + "\n"


@pytest.mark.parametrize(
    ("said", "found"), [("8", []), ("1", []), ("7", ["E0215"]), ("0", ["E0103"]), ("?", ["E0115"]), ("all", ["E0108"])]
)
def test_chunks_are_a_number_that_divides_the_tokens(tmp_path: Path, said: str, found: list[str]) -> None:
    assert [c for c in codes(tmp_path, text(f"loss in {said} chunks")) if c.startswith("E")] == found


def test_a_chunk_has_its_share_of_the_logits_and_all_of_the_heads_gradient(tmp_path: Path) -> None:
    whole, cut = (propagated(plan_of(tmp_path, text(*said))) for said in ((), ("loss in 8 chunks",)))
    logits = loss_bytes(whole) / 2 / 2  # XLA holds two fp32 tensors; the logits are in bf16
    assert loss_bytes(cut) == (loss_bytes(whole) + logits) / 8 + 4 * head_elements(cut)
    assert whole.plan.sha256 != cut.plan.sha256


@pytest.mark.parametrize(
    ("beside", "cuda", "xla"),
    [
        ((), 0, 0),
        (("compile loss",), 1, 0),
        (("quantize head as float8(rowwise)",), 1, 1),
        (("override output = embed over tp",), 1, 1),
    ],
)
def test_targets_refuse_what_they_do_not_write(tmp_path: Path, beside: tuple[str, ...], cuda: int, xla: int) -> None:
    sharded = propagated(plan_of(tmp_path, text("loss in 8 chunks", *beside)))
    found = [d.message for d in on_cuda(sharded) if "loss" in d.message or "head" in d.message]
    assert len(found) >= 1 if cuda else found == []
    assert any("loss in 8 chunks" in d.message for d in on_xla(sharded)) == bool(xla)
