"""The audit of the xla target: on virtual devices, by the TPU compiler, and what it says when it cannot."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest

from planc.backends.xla.audit import compile as compiling
from planc.backends.xla.audit import run as auditing
from planc.backends.xla.audit.compile import CompilerAnswer, compiled, needed_bytes
from planc.backends.xla.audit.hlo import HloError, parse
from planc.backends.xla.audit.live_buffers import fullest
from planc.backends.xla.audit.predict import by_axis, predicted
from planc.backends.xla.audit.run import audit, audit_of_answer
from planc.backends.xla.audit.topology import slices_of, topology_of
from planc.backends.xla.audit.worker import chip_options, step_of
from planc.checks import check_plan
from planc.cli import main
from planc.cli.commands.audit import lines
from planc.diag import PlanError
from planc.ir.audit import AXES_WITHIN, AuditOptions
from planc.ir.plan import Plan
from planc.lowering import lower_plan
from tests.audit import run_tpu
from tests.audit.tpu_cases import CASES
from tests.audit.tpu_cases import plan_of as tpu_plan
from tests.audit.tpu_predictions import GOLDEN, as_compiled, text
from tests.plans import propagated
from tests.xla.cases import FSDP, NARROW, SP, TP, plan_of
from tests.xla.test_tpu_rules import SLICES, SLICES_BATCH, TWO_SLICES

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("hlo")
WITHOUT_LIBTPU = pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")
SMALL_V6E = "llama_micro(layers = 2, embed = 1024, ffn = 4096, vocab = 8192)"
BF16 = ("compute bf16 reduce fp32", "recompute blocks")


def small(cluster: str = "tpu_v5p(2x2x2)", mesh: str = "fsdp 4 > tp 2") -> Plan:
    return plan_of("small", mesh, FSDP, TP, SP, *BF16, cluster=cluster)


def answer(**changed: object) -> CompilerAnswer:
    """As if the compiler had made the program of hlo/layers_v5p.hlo."""
    facts: dict[str, object] = {
        "topology": "v5p:2x2x2",
        "on_torus": True,
        "options": {},
        "versions": {},
        "compile_s": 1.0,
        "peak_bytes": 2**20,
        "hlo": (CORPUS / "layers_v5p.hlo").read_text(),
    }
    return CompilerAnswer(**{**facts, **changed})  # type: ignore[arg-type]


def test_golden_of_the_tpu_predictions(golden) -> None:  # type: ignore[no-untyped-def]
    golden(GOLDEN, text())


def test_the_audited_plans_are_spread() -> None:
    plans = [tpu_plan(name) for name in CASES]
    chips = {p.cluster.chips for p in plans}
    assert len(plans) >= 12 and min(chips) == 16 and max(chips) == 4096
    assert {p.cluster.chip.name for p in plans} == {"v4", "v5e", "v5p", "v6e", "tpu7x"}
    assert {p.model.name for p in plans} == {
        *("llama3_8b", "llama3_70b", "llama3_405b", "qwen3_8b", "mixtral_8x7b", "deepseek_v3"),
    }


@pytest.mark.parametrize("name", [name for name, found in run_tpu.results().items() if found["said"] == "fits"])
def test_the_rules_of_today_give_what_was_compiled(name: str) -> None:
    """The committed answers of the TPU compiler, axis by axis: no rule is changed for one plan at another's cost."""
    found = run_tpu.results()[name]
    with as_compiled(found):
        expected = by_axis(predicted(propagated(tpu_plan(name))))
    off = {w.axis for w in run_tpu.wires(name, expected, found) if abs(w.relative) > AXES_WITHIN}
    assert off == set(run_tpu.OPEN.get(name, {}))


@pytest.mark.launch
def test_the_command_on_virtual_devices(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["audit", str(ROOT / "plans" / "tiny.plan"), "--target", "xla", "--format", "json"]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["ok"], found["unparsed"]) == ("planc.audit/1", True, [])
    near = {w["axis"] for w in found["wire"] if w["relative"] is not None and abs(w["relative"]) <= 0.02}
    assert near >= {"fsdp", "tp"}
    assert any("all-reduce and slice" in said for said in found["normalisations"])
    assert any(row["op"] == "all_reduce" and row["axis"] == "fsdp" for row in found["rows"])
    assert [abs(m["relative"]) < 1e-9 for m in found["matmuls"]] == [True]


@pytest.mark.launch
@pytest.mark.long
def test_a_step_in_bf16_is_promoted_on_virtual_devices_and_kept_by_content() -> None:
    mesh, *sentences = NARROW["bf16"]
    plan = plan_of("bf16", mesh, *sentences)
    found = audit(plan, AuditOptions())
    dtypes = {row.dtype for row in found.rows}
    assert found.ok and "fp32" in dtypes and "bf16" not in dtypes
    assert any("bf16 as fp32" in said for said in found.normalisations)
    assert audit(plan, AuditOptions()).compiler == found.compiler  # the time it took too: nothing was compiled anew


@pytest.mark.launch
@WITHOUT_LIBTPU
@pytest.mark.long
def test_the_tpu_compiler_makes_what_was_predicted() -> None:
    """Every collective of a small step on v6e, to a fifth of a percent."""
    plan = plan_of(
        "v6e", "fsdp 8", FSDP, *BF16, model=SMALL_V6E, batch="8 x 128 tokens microbatch 1", cluster="tpu_v6e(2x4)"
    )
    found = audit(plan, AuditOptions(topology="v6e:2x4"))
    assert found.ok and found.compiler is not None and found.compiler.on_torus and found.compiler.cycles > 0
    assert [w.axis for w in found.judged] == ["fsdp"] and abs(found.wire[0].relative) < 0.002
    assert {r.op for r in found.rows if r.observed.bytes > 2**20} == {"all_gather", "reduce_scatter"}


@pytest.mark.launch
@WITHOUT_LIBTPU
@pytest.mark.slow
def test_the_tpu_compiler_makes_of_two_slices_what_was_predicted() -> None:
    """Sums across slices among them, which hosts carry."""
    found = audit(plan_of("slices", *SLICES, model=SMALL_V6E, batch=SLICES_BATCH, cluster=TWO_SLICES), AuditOptions())
    assert found.compiler is not None and found.compiler.on_torus and found.compiler.topology == "2 x v5p:2x2x2"
    off = {w.axis: w.relative for w in found.judged}
    assert off.keys() == {"fsdp", "replica", "tp"} and all(abs(share) < 0.002 for share in off.values())


@pytest.mark.long
@pytest.mark.launch
@WITHOUT_LIBTPU
def test_the_tpu_compiler_reads_a_step_with_sequence_parallelism() -> None:
    """Too small to be judged: its gradients are summed together. Its parameters are gathered as predicted."""
    found = audit(small(), AuditOptions())
    gathered = [r for r in found.rows if (r.op, r.axis, r.dtype) == ("all_gather", "fsdp", "bf16")]
    assert found.compiler is not None and found.compiler.fits and found.unparsed == ()
    assert gathered[0].observed.bytes == pytest.approx(gathered[0].predicted.bytes, rel=0.03)
    assert found.memory[0].observed_bytes > 0


@pytest.mark.long
def test_a_step_of_two_kinds_of_blocks_is_traced() -> None:
    """Dense layers, and after them one with experts: each kind's parameters are a stack of its own layers."""
    import jax

    plan = plan_of("kinds", "fsdp 1", FSDP, "recompute blocks", model="deepseek_micro", batch="2 x 16 tokens")
    _, step, arguments = step_of(lower_plan(check_plan(plan), "xla"), jax.devices("cpu")[:1])
    assert "stablehlo" in step.lower(*arguments).as_text()


def test_an_axis_that_is_off_makes_the_answer_no() -> None:
    sharded = propagated(small())
    found = audit_of_answer(sharded, answer())
    assert not found.ok
    assert {w.axis: w.predicted_bytes for w in found.wire if w.predicted_bytes} == by_axis(predicted(sharded))


def test_a_program_that_multiplies_otherwise_makes_the_answer_no() -> None:
    """The program of the corpus is another one: its largest products are named, and its cycles told beside the plan's
    seconds."""
    sharded = propagated(small())
    (found,) = audit_of_answer(sharded, answer()).matmuls
    assert found.observed_flops == 3 * 6 * 2 * 64 * 512 * 256 and not found.agrees
    busy = answer(hlo=answer().hlo.replace('"estimated_cycles":"', '"estimated_cycles":"9999999'))
    said = "\n".join(lines(audit_of_answer(sharded, busy)))
    assert "off by more than 2%" in said and "TFLOP: bf16[64, 256] by" in said
    assert "s at 1.75 GHz" in said and "GHz" not in "\n".join(lines(audit_of_answer(sharded, answer())))


def test_a_refusal_names_what_the_compiler_says_it_needs() -> None:
    said = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (20.25G) exceeds"
    )
    found = audit_of_answer(propagated(small()), answer(refused=said, peak_bytes=needed_bytes(said), hlo=""))
    assert found.compiler is not None and not found.compiler.fits and not found.ok
    assert found.memory[0].observed_bytes == 20.25 * 2**30 and found.rows == ()


@pytest.mark.parametrize(
    ("message", "gib"),
    [
        ("total memory required for HLO temporaries (20.25G) exceeds available HBM (15.75G).", 20.25),
        ("Ran out of memory in memory space hbm. Used 512.00M of 15.75G hbm.", 0.5),
        ("no number at all", None),
    ],
)
def test_sizes_in_refusals(message: str, gib: float | None) -> None:
    assert needed_bytes(message) == (None if gib is None else gib * 2**30)


def test_the_largest_buffers_are_told() -> None:
    """By the program's order, and not on virtual devices, whose programs are in none; they are no reason to fail."""
    found = audit_of_answer(propagated(small()), answer()).compiler
    assert found is not None and found.live_bytes == fullest(parse(answer().hlo)).bytes
    sizes = [b.bytes for b in found.buffers]
    assert len(sizes) == 10 and sizes == sorted(sizes, reverse=True) and sum(sizes) <= found.live_bytes
    said = "\n".join(lines(audit_of_answer(propagated(small()), answer())))
    assert (
        "the largest buffers at the fullest moment" in said
        and f"{found.buffers[0].dtype} {list(found.buffers[0].shape)}" in said
    )
    virtual = audit_of_answer(propagated(small()), answer(topology="")).compiler
    with patch.object(auditing, "fullest", side_effect=HloError("an order that is not known")):
        unknown = audit_of_answer(propagated(small()), answer()).compiler
    assert [(r.live_bytes, r.buffers) for r in (virtual, unknown) if r] == [(0, ()), (0, ())]


def test_bytes_that_a_program_does_not_wait_for_are_told_beside_exposed_seconds() -> None:
    plan = plan_of("overlap", "fsdp 4 > tp 2", FSDP, TP, *BF16, model=SMALL_V6E, cluster="tpu_v5p(2x2x2)")
    report = audit_of_answer(propagated(plan), answer()).compiler
    assert report is not None
    found = {(o.op, o.axis): o for o in report.overlap}
    gathers = found["all_gather", "fsdp"]
    assert gathers.sent_bytes > 0 and 0 < gathers.exposed_s <= gathers.predicted_s
    assert [o.sent_bytes for o in report.overlap] == sorted((o.sent_bytes for o in report.overlap), reverse=True)
    said = "\n".join(lines(audit_of_answer(propagated(plan), answer())))
    assert "does not wait for" in said and f"{1e3 * gathers.exposed_s:.2f}" in said


def test_a_program_that_is_not_understood_is_a_finding() -> None:
    with pytest.raises(PlanError) as caught:
        audit_of_answer(propagated(small()), answer(hlo=answer().hlo.replace(" all-gather(", " all-broadcast(")))
    assert [d.code for d in caught.value.diagnostics] == ["E0904"]


@pytest.mark.parametrize(
    ("cluster", "asked", "code"),
    [
        ("tpu_v5p(2x2x2)", "v5e:2x4", "E0902"),
        ("8 x cpu_local", "v5p:2x2x2", "E0902"),
        ("2 x tpu_v5e(2x2)", None, "E0902"),
    ],
)
def test_other_machines_than_the_plans_are_refused(cluster: str, asked: str | None, code: str) -> None:
    with pytest.raises(PlanError) as caught:
        topology_of(small(cluster), asked)
    assert [d.code for d in caught.value.diagnostics] == [code]


def test_the_plans_own_topology() -> None:
    assert topology_of(small(), None) == topology_of(small(), "v5p:2x2x2") == "v5p:2x2x2"
    assert topology_of(small("8 x cpu_local"), None) == ""


def test_slices_are_compiled_together_where_whole_axes_lie_across_them() -> None:
    assert topology_of(small("2 x tpu_v5p(2x2x1)", "fsdp 2 > tp 4"), None) == "2 x v5p:2x2x1"
    assert slices_of("2 x v5p:2x2x1") == (2, "v5p:2x2x1") and slices_of("v5p:2x2x2") == (1, "v5p:2x2x2")
    plan = small("tpu_v4(2x2x2)")
    assert chip_options("2 x v4:2x2x1", plan) == chip_options("v4:2x2x1", plan) != {}
    whole = small("tpu_v5p(4x4x4)", "fsdp 16 > tp 4")
    assert chip_options("v5p:4x4x4", whole) == {"wrap": (True, True, True)} and chip_options("", whole) == {}


def test_without_the_compiler_the_audit_says_what_to_install() -> None:
    with patch.object(compiling, "find_spec", lambda name: None), pytest.raises(PlanError) as caught:
        compiled(small(), "v5p:2x2x2")
    (found,) = caught.value.diagnostics
    assert found.code == "E1009" and "libtpu" in found.message and "planc[tpu]" in found.help


def test_a_compiler_without_an_answer_is_ended() -> None:
    slow = [sys.executable, "-c", "import time; time.sleep(60)"]
    with patch.object(compiling, "_command", lambda folder: slow), pytest.raises(PlanError) as caught:
        compiled(small("8 x cpu_local"), "", timeout_s=0.2)
    assert [d.code for d in caught.value.diagnostics] == ["E0903"]


def test_a_worker_that_fails_is_a_finding() -> None:
    failing = [sys.executable, "-c", "raise SystemExit('no such flag')"]
    with patch.object(compiling, "_command", lambda folder: failing), pytest.raises(PlanError) as caught:
        compiled(small("8 x cpu_local"), "")
    (found,) = caught.value.diagnostics
    assert found.code == "E0904" and "no such flag" in found.message
