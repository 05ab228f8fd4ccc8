"""`optimizer muon`: one moment of the matrices of the blocks, their gathers, and the time to make them orthogonal."""

from pathlib import Path

import pytest

from planc.costing import cost_plan
from planc.driver import check, lower
from planc.ir.updates import NEWTON_SCHULZ_STEPS, is_orthogonalised, moment_elements, newton_schulz_flops
from tests.plans import BODY, HEAD, codes, plan_of, propagated

MUON = HEAD + BODY + "optimizer muon\n"
ADAMW = HEAD + BODY + "optimizer adamw\n"


def test_matrices_of_the_blocks_have_one_moment(tmp_path: Path) -> None:
    muon, adamw = plan_of(tmp_path, MUON), plan_of(tmp_path, ADAMW)
    model = muon.model
    matrices = [p for p in model.params if is_orthogonalised(model, p.name)]
    assert {p.name.rsplit(".", 2)[-2] for p in matrices} == {"wq", "wk", "wv", "wo", "w1", "w2", "w3"}
    less = sum(model.elements(p) * model.copies(p) for p in matrices)
    assert moment_elements(adamw) == 2 * model.parameters and moment_elements(muon) == 2 * model.parameters - less
    held = {name: check(plan).memory for name, plan in (("muon", muon), ("adamw", adamw))}
    assert held["muon"] and held["adamw"]
    saved_gib = held["adamw"].per_device_gib.optimizer - held["muon"].per_device_gib.optimizer
    assert saved_gib * 2**30 == pytest.approx(4 * less / 64)  # fp32 over fsdp 8 x tp 8


def test_a_divided_matrix_is_gathered_once_a_step(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, MUON)
    costed = cost_plan(propagated(plan))
    rows = [r for r in costed.collectives if r.row.carries == "update"]
    assert {(r.row.op, r.row.axes, r.row.phase, r.row.count) for r in rows} == {
        ("all_gather", ("fsdp", "tp"), "optimizer", 32)
    }
    assert len(rows) == 7 and all(r.exposed_s == pytest.approx(r.time_s) for r in rows)
    model = plan.model
    wq = next(r for r in rows if ".wq" in r.row.tensor)
    assert wq.row.buffer_bytes == 4 * model.sizes["embed"] ** 2
    assert costed.step.exposed_comm_s == pytest.approx(sum(r.exposed_s for r in costed.collectives))


def test_its_iteration_is_counted_whole_on_every_device(tmp_path: Path) -> None:
    muon, adamw = (cost_plan(propagated(plan_of(tmp_path, text))) for text in (MUON, ADAMW))
    plan = plan_of(tmp_path, MUON)
    model, chip = plan.model, plan.cluster.chip
    flops = sum(
        newton_schulz_flops(model.shape(p)) * model.copies(p) for p in model.params if is_orthogonalised(model, p.name)
    )
    seconds = flops / (chip.flops_per_s["fp32"] * chip.efficiency("fp32"))
    assert adamw.step.optimizer_s < 0.01 * seconds
    assert muon.step.optimizer_s == pytest.approx(seconds, rel=0.01)


def test_a_square_matrix_takes_six_cubes_a_step() -> None:
    assert newton_schulz_flops((3, 10, 10)) == 3 * NEWTON_SCHULZ_STEPS * 6 * 10**3


@pytest.mark.parametrize("target", ["cuda", "xla"])
def test_targets_lower_it(tmp_path: Path, target: str) -> None:
    text = {o: lower(plan_of(tmp_path, t), target).text for o, t in (("muon", MUON), ("adamw", ADAMW))}  # type: ignore[arg-type]
    assert text["muon"] and text["adamw"]


def test_torch_xla_has_adamw_alone(tmp_path: Path) -> None:
    from planc.diag import PlanError

    small = (
        "plan example\nmodel llama_tiny\nbatch 16 x 128 tokens microbatch 2\ncluster 4 x cpu_local\nmesh dp 4\n"
        "use ddp over dp\noptimizer {}\ncompute fp32\n"
    )
    lower(plan_of(tmp_path, small.format("adamw")), "xla", runtime="torch_xla")
    with pytest.raises(PlanError, match="AdamW alone"):
        lower(plan_of(tmp_path, small.format("muon")), "xla", runtime="torch_xla")


def test_another_optimizer_is_not_the_same_training(tmp_path: Path) -> None:
    from planc.compare.same_training import apart

    (reason,) = apart(plan_of(tmp_path, MUON), plan_of(tmp_path, ADAMW))
    assert (reason.what, reason.a, reason.b) == ("optimizer", "muon", "adamw")


def test_a_misspelt_one_is_suggested(tmp_path: Path) -> None:
    assert codes(tmp_path, HEAD + BODY + "optimizer moun\n") == ["E0108"]
