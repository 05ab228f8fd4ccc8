"""Modules for multi-token prediction: their FLOPs, where they lie, what is theirs alone and what they keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.catalog import build_model
from planc.costing.compute.flops import model_flops_per_token
from planc.costing.memory.activations import saved_by_section
from planc.ir.sharding import Sharded
from planc.sharding.stage_assignment import copies_on, sections_on
from planc.sharding.state_collectives import state
from tests.plans import sharded_of

EMBED, VOCAB, TOKENS = 2048, 102400, 4096
PLAN = """plan ahead
model     deepseek_v2_lite(layers = 7, mtp_layers = 1)
batch     64 x 4096 tokens microbatch 1
cluster   1 x h100_node
mesh      pp 4 > dp 2
use       zero1 over dp
split     layers over pp as 1f1b
compute   bf16 reduce fp32
"""


def ahead(folder: Path, more: str = "", layers: str = "7, mtp_layers = 1") -> Sharded:
    return sharded_of(folder, PLAN.replace("7, mtp_layers = 1", layers) + more)


def test_a_module_is_a_layer_a_projection_and_a_head() -> None:
    """6 FLOPs for each parameter of these, and the layer's attention."""
    plain, longer, ahead = (
        model_flops_per_token(build_model("deepseek_v2_lite", sizes), TOKENS)
        for sizes in ({"layers": 7}, {"layers": 8}, {"layers": 7, "mtp_layers": 1})
    )
    assert ahead - plain == pytest.approx(longer - plain + 6 * (2 * EMBED**2 + EMBED * VOCAB))


def test_it_is_the_last_stage_s_and_shares_the_head(tmp_path: Path) -> None:
    sharded = ahead(tmp_path)
    last = sections_on(sharded.plan, 3)
    assert last == {"block": 1, "mtp": 1, "last": 1, "step": 1}
    copies = {
        name: copies_on(sharded.plan, sharded.param[f"{name}.weight"].param, last)
        for name in ("output", "tok_embeddings")
    }
    assert copies == {"output": 1, "tok_embeddings": 1}
    assert copies_on(sharded.plan, sharded.param["output.weight"].param, sections_on(sharded.plan, 0)) == 0


def test_what_is_shared_is_gathered_and_reduced_once_a_step(tmp_path: Path) -> None:
    calls = [c.tensor for c in state(ahead(tmp_path), "mtp")]
    assert "layers.*.mtp.project.weight" in calls
    assert not {"output.weight", "tok_embeddings.weight"} & {*calls}


@pytest.mark.parametrize(
    ("more", "copies"),
    [
        ("", 2),
        ("compile loss\n", 0),
        ("realise as megatron\n", 2),
        ("realise as megatron\ncompile loss\n", 2),
        ("realise as bridge\n", 0),
    ],
)
def test_its_loss_keeps_what_the_framework_s_does(more: str, copies: int, tmp_path: Path) -> None:
    """The logits in bf16, and beside them an fp32 tensor like them where the loss is not a kernel of its own."""
    plain, module = (saved_by_section(ahead(tmp_path, more))[kind] for kind in ("block", "mtp"))
    beside = module - plain - 2 * TOKENS * VOCAB * (1 + copies)
    assert beside == pytest.approx(TOKENS * (5 * 2 * EMBED + 4 + 4), rel=0.35)
