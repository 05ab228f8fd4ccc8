"""Inputs of replayed blocks that wait in the host's memory: what they free, and what they cost."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu

from planc.backends.cuda.analysis.peak_memory import peak_memory
from planc.backends.cuda.audit.memory import MemoryTracker
from planc.backends.cuda.audit.trace import host_apart
from planc.backends.cuda.rules import realise
from planc.costing.step.offload import offload_s
from planc.ir.sharding import Sharded
from planc.sharding.collectives import semantic_collectives
from tests.plans import HEAD, sharded_of

LAYOUT = "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\nrecompute blocks\n"
ON_HOST = "offload hidden to host\n"
BUCKETS = "gather params per pass bucket 2 layers\n"
LAYER = 218112000 * 4 / 8
"""Bytes of a layer's parameters in fp32 on one of 8 tensor ranks."""
HIDDEN = 32 * 8192 * 4096 * 4 / 8
"""Bytes of what the 32 blocks of Llama 3 8B are given on a device: fp32, an eighth of the sequence."""


def both(folder: Path) -> tuple[Sharded, Sharded]:
    """The layouts with the inputs on the device, and with them on the host."""
    text = HEAD.replace("llama3_8b", "llama3_8b(vocab = 1024)") + LAYOUT  # whose fullest moment is not the loss
    return sharded_of(folder, text), sharded_of(folder, text + ON_HOST)


def test_the_inputs_of_replayed_blocks_leave_the_device(tmp_path: Path) -> None:
    here, away = (peak_memory(sharded, [{0: 1}])[0] for sharded in both(tmp_path))
    assert here.moment == away.moment == "backward of the last block, 1 microbatch in flight"
    assert (here.params, here.optimizer) == (away.params, away.optimizer)
    assert here.activations - away.activations == pytest.approx(HIDDEN)


def test_the_compute_waits_for_them(tmp_path: Path) -> None:
    """`save_on_cpu` copies on the stream that computes: out in the forward, back in the backward."""
    here, away = both(tmp_path)
    chip = away.plan.cluster.chip
    assert offload_s(here, 0, passes_s=100.0, late_s=0.0) == 0.0
    moved = 2 * away.plan.microbatches * HIDDEN
    assert offload_s(away, 0, passes_s=100.0, late_s=0.0) == pytest.approx(
        moved / (chip.host_bandwidth_bytes_per_s / chip.devices)
    )


def test_a_bucket_is_one_transfer_of_its_layers(tmp_path: Path) -> None:
    """Half as many of twice the bytes; an audit of 8 layers of llama3_8b counted the same."""
    one, two = (
        {
            (r.op, r.phase): (r.count, r.buffer_bytes)
            for r in realise(sharded, semantic_collectives(sharded))
            if r.section == "block" and r.axes == ("fsdp",)
        }
        for sharded in (sharded_of(tmp_path, HEAD + LAYOUT + more) for more in ("", BUCKETS))
    )
    assert one and two == {key: (count // 2, size * 2) for key, (count, size) in one.items()}


def test_gathered_and_waiting_buckets_are_held(tmp_path: Path) -> None:
    """Two more layers gathered, one more reduced, a layer's gradient as computed, and what passes through a block, less
    what the block after it has let go of. The bytes are those between the peaks of two traces."""
    small = HEAD.replace("llama3_8b", "llama3_8b(vocab = 1024)") + LAYOUT
    one, two = (peak_memory(sharded_of(tmp_path, text), [{0: 1}])[0] for text in (small, small + BUCKETS))
    assert two.buffers - one.buffers == 402_784_256
    assert 3 * LAYER < 402_784_256 < (2 + 1 + 1 + 3) * LAYER


def test_state_in_bf16_takes_half_the_bytes(tmp_path: Path) -> None:
    """Parameters and moments; an audit of llama3_8b of 4 layers on fsdp 8 found the peak equal to 0.0 %."""
    narrow = HEAD + LAYOUT + "store params, grads, optimizer as bf16 over fsdp\n"
    wide, half = (peak_memory(sharded_of(tmp_path, text), [{0: 1}])[0] for text in (HEAD + LAYOUT, narrow))
    assert half.optimizer == wide.optimizer / 2
    assert half.params < wide.params


def test_an_audit_does_not_count_what_is_saved_on_the_host() -> None:
    """4,096 bytes that the sine saves leave the device, which is the host's CPU there."""
    emitted: Any = ModuleType("emitted")
    emitted.save_on_cpu = save_on_cpu
    x = torch.ones(1024, requires_grad=True)
    with (tracker := MemoryTracker()), host_apart(emitted, tracker), emitted.save_on_cpu(pin_memory=False):
        total = (x * 2).sin().sum()
        assert tracker.live == total.nbytes
