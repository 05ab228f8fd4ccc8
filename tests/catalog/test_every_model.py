"""Every model of the catalog under plain layouts, on every target: a report or a diagnostic, never an exception."""

from pathlib import Path
from typing import Literal

import pytest

from planc.catalog import build_model, model_names
from planc.driver import examine
from planc.ir.plan import Plan
from tests.plans import plan_of

TARGETS: tuple[Literal["cuda", "xla"] | None, ...] = (None, "cuda", "xla")
PLAN = """plan example
model   {model}(layers = 4, vocab = 512)
batch   16 x 64 tokens microbatch 1
cluster 1 x h100_node
mesh    {mesh}
compute fp32
{sentences}
"""
LAYOUTS = {
    "zero1": ("dp 8", "use zero1 over dp"),
    "fsdp and tp": ("fsdp 4 > tp 2", "use fsdp over fsdp\nuse tp over tp\nuse sp over tp\nrecompute blocks"),
    "pipeline": ("pp 2 > fsdp 4", "use fsdp over fsdp\nuse pp over pp"),
    "context": ("fsdp 4 > cp 2", "use fsdp over fsdp\nuse cp over cp"),
    "head_dim": ("fsdp 4 > tp 2", "use fsdp over fsdp\nshard head_dim over tp in projection"),
}
PARTS = 5
"""Parts of the catalog, each under another layout: `make test` sees every model once."""
EXPERTS = ("fsdp 8", "view ep 4 > edp 2 of fsdp for experts\nuse fsdp over fsdp\nuse ep over ep")


def _costed_on_every_target(plan: Plan) -> bool:
    """Check a plan without a target and on each; a target that does not cost it must say why."""
    reports = [examine(plan, target=target).report for target in TARGETS]
    for target, report in zip(TARGETS, reports, strict=True):
        assert report.step is not None or not report.ok, (plan.model.name, target)
    return reports[0].step is not None


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, PARTS))])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_model_crashes_under_a_plain_layout(layout: str, part: int, tmp_path: Path) -> None:
    mesh, sentences = LAYOUTS[layout]
    for model in [*model_names()][(part + [*LAYOUTS].index(layout)) % PARTS :: PARTS]:
        text = PLAN.format(model=model, mesh=mesh, sentences=sentences)
        assert _costed_on_every_target(plan_of(tmp_path, text)), model


def test_no_model_with_experts_crashes_under_expert_parallelism(tmp_path: Path) -> None:
    mesh, sentences = EXPERTS
    routed = [name for name in model_names() if build_model(name).top_k]
    assert len(routed) >= 10
    for model in routed:
        text = PLAN.format(model=model, mesh=mesh, sentences=sentences)
        assert _costed_on_every_target(plan_of(tmp_path, text)), model


def test_a_pipeline_may_have_no_layer_of_the_first_kind(tmp_path: Path) -> None:
    """Two layers of Maverick are of two kinds, neither of them the one that attends to the whole sequence."""
    text = PLAN.format(model="llama4_maverick", mesh="pp 2 > fsdp 4", sentences=LAYOUTS["pipeline"][1])
    plan = plan_of(tmp_path, text.replace("layers = 4", "layers = 2"))
    assert "block" not in plan.model.blocks
    assert _costed_on_every_target(plan)
