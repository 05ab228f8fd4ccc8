"""Receipts and their comparison: exact keys, refusals, the budget, and the pictures."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from planc.diag import PlanError
from planc.trainer.receipt.crosscheck import MUST_AGREE, crosscheck, otherwise_begun
from planc.trainer.receipt.crosscheck_text import picture, render
from planc.trainer.receipt.receipt import CompileActivity, Measured, Receipt, read_receipt
from planc.trainer.telemetry.chart import Series, plot, svg

RECEIPT_KEYS = {
    "format",
    "plan_sha256",
    "target",
    "runtime",
    "versions",
    "mesh",
    "seed",
    "init_sha256",
    "data_sha256",
    "tokens_per_step",
    "dtype",
    "course",
    "features",
    "losses",
    "grad_norms",
    "step_time_s",
    "peak_memory_gib",
    "compile",
    "routing_flips",
    "collectives",
    "predicted",
    "measured",
    "goodput",
}
CROSSCHECK_KEYS = {
    *("budget", "max_abs", "first_outside_step", "differing_fields", "ok"),
    *("mean_abs", "mean_budget", "diagnosis", "routing_flips", "first_flip_step"),
}
LOSSES = (5.5, 4.0, 3.25)


def receipt(losses: tuple[float, ...] = LOSSES, **changes: Any) -> Receipt:
    values: dict[str, Any] = {
        "plan_sha256": "p",
        "target": "cuda",
        "runtime": "torch",
        "versions": {"torch": "2.13.0"},
        "mesh": {"fsdp": 2, "tp": 2},
        "seed": 0,
        "init_sha256": "i",
        "data_sha256": "d",
        "tokens_per_step": 2048,
        "dtype": "fp32",
        "features": (),
        "losses": losses,
        "grad_norms": losses,
        "step_time_s": 0.5,
        "peak_memory_gib": None,
        "compile": CompileActivity(),
        "routing_flips": None,
        "collectives": None,
        "predicted": None,
        "measured": Measured(steps=len(losses), first_step_s=1.0, step_time_s=0.5, tokens_per_s=4096.0, start_s=2.0),
        "goodput": None,
    }
    return Receipt.model_validate({**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"target": "\x1b[2J"}, {"runtime": "a\nb"}, {"features": ["\u202e"]}, {"mesh": {"\x07": 2}}, {"dtype": "\r"},
        {"goodput": 1e999}, {"course": {"lr": [float("nan")]}}, {"collectives": [{"count": -1e999}]},
        {"versions": {"torch": "\x9b"}}, {"losses": [float("nan")]}, {"losses": [1e999]}, {"losses": [1e308]},
        {"plan_sha256": "p" * 99999},
    ],
    ids=str,
)  # fmt: skip
def test_a_strangers_receipt_is_refused_where_planc_could_not_have_written_it(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    (tmp_path / "r.json").write_text(json.dumps({**receipt().to_json(), **changes}))
    with pytest.raises(PlanError) as raised:
        read_receipt(tmp_path / "r.json")
    assert [d.code for d in raised.value.diagnostics] == ["E1020"]


def test_a_strangers_receipt_moves_no_cursor() -> None:
    """Values of any kind may stand in the settings: they are shown where they differ."""
    receipts = [receipt(course={"lr": value, "\x1b[1m": 1}) for value in ("\x1b[2J\x07", {"a\nb": "\u202e"})]
    text = render(crosscheck(receipts), receipts)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "x1b" in text


def test_a_comparison_is_json_whatever_the_runs_did() -> None:
    """Only one run skipped a step; norms of tensors with odd names; no step at all."""
    norms = {"layers.*.wq": 1.0, "layers.1": 2.0, "": 0.5}
    plain = receipt((5.0, 4.0))
    measured = [plain.measured.model_copy(update={"first_gradient_norms": {**norms, "": n}}) for n in (0.5, 0.7)]
    for one, other in (
        (plain, receipt((5.0, None))),
        (plain.model_copy(update={"measured": measured[0]}), receipt((5.0, 9.0), measured=measured[1])),
        (receipt(()), receipt(())),
    ):
        found = crosscheck([one, other])
        assert not found.ok
        json.dumps(found.to_json(), allow_nan=False)
        assert render(found, [one, other])


def test_a_receipt_has_exactly_the_keys_of_the_contract() -> None:
    assert set(receipt().to_json()) == RECEIPT_KEYS
    assert set(receipt().to_json()["compile"]) == {"uncached", "scalar_reads", "hlo_sha256"}


def test_a_receipt_survives_its_file_unrounded(tmp_path: Path) -> None:
    written = receipt((math.pi, 1 / 3, 5e-324))
    written.write(tmp_path / "deep" / "r.json")
    assert read_receipt(tmp_path / "deep" / "r.json") == written
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["r.json"]


def test_a_receipt_that_is_no_json_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        receipt((math.nan,)).write(tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "planc.receipt/1"}', '{"format": "other"}'])
def test_another_file_is_no_receipt(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(PlanError, match="E1020"):
        read_receipt(tmp_path / "r.json")
    with pytest.raises(PlanError, match="E1020"):
        read_receipt(tmp_path / "absent.json")


def test_equal_runs_are_the_same() -> None:
    check = crosscheck([receipt(), receipt(target="xla", runtime="jax"), receipt()])
    assert check.to_json() == {
        "budget": 1e-4,
        "max_abs": 0.0,
        "first_outside_step": None,
        "differing_fields": [],
        "ok": True,
        "mean_abs": 0.0,
        "mean_budget": None,
        "diagnosis": None,
        "routing_flips": None,
        "first_flip_step": None,
    }
    assert set(check.to_json()) == CROSSCHECK_KEYS


def test_the_first_step_outside_the_budget_is_named() -> None:
    other = receipt((5.5, 4.0 + 3e-4, 3.25 - 5e-4))
    check = crosscheck([receipt(), other])
    assert not check.ok
    assert check.first_outside_step == 2
    assert check.max_abs == pytest.approx(5e-4)
    assert crosscheck([receipt(), other], budget=1e-3).ok


def test_the_third_run_counts_too() -> None:
    assert not crosscheck([receipt(), receipt(), receipt((5.5, 4.0, 3.3))]).ok


def test_the_budget_is_a_bound_on_any_pair() -> None:
    apart = [receipt((x,)) for x in (5.0, 5.0 + 0.8e-4, 5.0 - 0.8e-4)]
    assert not crosscheck(apart).ok


@pytest.mark.parametrize("field", MUST_AGREE)
def test_runs_that_had_no_reason_to_agree_are_refused(field: str) -> None:
    other: Any = {"seed": 1, "tokens_per_step": 1, "mesh": {"fsdp": 4}}.get(field, "other")
    check = crosscheck([receipt(), receipt(), receipt(**{field: other})])
    assert not check.ok
    assert check.differing_fields == (field,)
    assert check.max_abs is None
    assert field in render(check, [receipt(), receipt(**{field: other})])


@pytest.mark.parametrize(("name", "other"), [("lr", 2e-3), ("betas", [0.9, 0.99]), ("eps", 1e-6), ("clip_norm", 0.5)])
def test_runs_of_another_course_are_refused(name: str, other: Any) -> None:
    course = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "clip_norm": 1.0}
    runs = [receipt(course=course), receipt(course={**course, name: other})]
    check = crosscheck(runs)
    assert not check.ok and check.max_abs is None
    assert check.differing_fields == (f"course.{name}",)
    assert f"course.{name}: {course[name]} | {other}" in render(check, runs)


def test_a_receipt_that_does_not_tell_its_course_is_compared() -> None:
    """Those of earlier versions."""
    assert crosscheck([receipt(course={"lr": 1e-3}), receipt(), receipt(course={"lr": 1e-3})]).ok


def test_bf16_has_a_budget_of_the_mean_too() -> None:
    """Every step within 2e-2, and the mean above 5e-3: not the same."""
    steady = receipt(tuple(x + 6e-3 for x in LOSSES), dtype="bf16")
    check = crosscheck([receipt(dtype="bf16"), steady])
    assert not check.ok and check.first_outside_step is None
    assert check.mean_abs == pytest.approx(6e-3) and check.mean_budget == 5e-3
    once = receipt((5.5, 4.0, 3.26), dtype="bf16")
    assert crosscheck([receipt(dtype="bf16"), once]).ok
    assert crosscheck([receipt(dtype="bf16"), steady], budget=1e-2).ok


FIRST = {
    "tok_embeddings.weight": 1.0,
    "layers.0.attention.wq.weight": 2.0,
    "layers.0.attention.wo.weight": 2.5,
    "layers.0.feed_forward.w2.weight": 2.0,
    "layers.1.attention_norm.weight": 0.5,
    "norm.weight": 0.1,
    "output.weight": 3.0,
}


def told(changes: dict[str, float] | None, **others: Any) -> Receipt:
    """A run that parts at its second step, with the norms of its first gradients."""
    run = receipt((5.5, 4.0 + (0.1 if changes else 0), 3.25), **others)
    norms = None if changes is None else {**FIRST, **changes}
    return run.model_copy(update={"measured": run.measured.model_copy(update={"first_gradient_norms": norms})})


def test_a_failed_comparison_names_the_tensor_nearest_to_the_loss() -> None:
    fault = {"layers.0.attention.wo.weight": 2.6, "layers.0.attention.wq.weight": 2.2, "tok_embeddings.weight": 0.9}
    runs = [told({}), told(fault, target="xla", runtime="jax", versions={"jax": "1"})]
    check = crosscheck(runs)
    assert check.diagnosis is not None and check.diagnosis.first_group is not None
    assert check.first_outside_step == 2
    assert check.diagnosis.first_group.tensor == "layers.0.attention.wo.weight"
    assert check.diagnosis.groups_apart == 3
    assert check.diagnosis.lines == {"runtime": ("torch", "jax"), "versions": ({"torch": "2.13.0"}, {"jax": "1"})}
    text = re.sub(r"\s+", " ", render(check, runs))
    assert "first outside at step 2" in text
    assert "3 tensors differ; nearest to the loss is layers.0.attention.wo.weight norms 2.5 | 2.6" in text
    assert "versions: torch 2.13.0 | jax 1" in text


def test_a_first_step_without_fault_is_said_to_be_none() -> None:
    within = {"output.weight": 3.0 * (1 + 5e-5)}
    check = crosscheck([told({}), told(within)])
    assert check.diagnosis is not None
    assert check.diagnosis.gradients_known and check.diagnosis.first_group is None
    assert "the first step is not at fault" in re.sub(r"\s+", " ", render(check, [told({}), told(within)]))


def test_norms_that_a_receipt_lacks_are_not_compared() -> None:
    check = crosscheck([told({}), told({"output.weight": 9.0}), receipt()])
    assert check.diagnosis is not None
    assert not check.diagnosis.gradients_known and check.diagnosis.first_group is None


def test_runs_of_different_length_are_refused() -> None:
    assert crosscheck([receipt(), receipt(LOSSES[:2])]).differing_fields == ("losses",)


@pytest.mark.parametrize("width", [40, 80])
def test_the_text_fits_a_narrow_terminal_and_has_no_colour(width: int) -> None:
    runs = [receipt(), receipt(target="xla", runtime="jax")]
    text = render(crosscheck(runs), runs, width)
    assert max(map(len, text.split("\n"))) <= width
    assert "\x1b" not in text
    assert "cuda/torch" in text
    assert "same: largest difference 0.00e+00 over 3 steps, budget 1e-04" in re.sub(r"\s+", " ", text)


def test_different_runs_say_where() -> None:
    runs = [receipt(), receipt((5.5, 4.0, 3.26))]
    text = render(crosscheck(runs), runs)
    assert "different: largest difference 1.00e-02" in text
    assert "first outside at step 3: 1.00e-02" in text
    assert "1 cuda/torch" in text


def test_the_plot_shows_apart_and_together() -> None:
    text = plot([Series("a", (2.0, 2.0, 1.0)), Series("b", (2.0, 1.0, 1.0))], width=40, height=3)
    rows = [line.partition("|")[2] for line in text.split("\n")[:3]]
    assert rows[0].startswith("=")
    assert "*" in rows[0]
    assert "o" in rows[2]
    assert rows[2].endswith("=")


def test_a_flat_curve_can_be_drawn() -> None:
    assert "*" in plot([Series("a", (1.0,))])


def test_the_picture_is_well_formed() -> None:
    from xml.etree import ElementTree

    text = svg([Series("a<b", LOSSES), Series("c", LOSSES)], "x & y")
    root = ElementTree.fromstring(text)
    assert len(root.findall("{*}polyline")) == 2
    assert len(re.findall(r"<polyline", picture([receipt()]))) == 1


def test_json_is_plain() -> None:
    assert json.loads(json.dumps(crosscheck([receipt(), receipt()]).to_json()))["ok"] is True


def test_a_first_loss_beside_another_stack_s_is_told(tmp_path: Path) -> None:
    """Receipts of the same training alone, whatever else lies there."""
    first, *rest = LOSSES
    mine, path = receipt((first, *rest)), tmp_path / "cuda.json"
    mine.write(path)
    (tmp_path / "other.json").write_text("{}")
    for name, losses, changes in (
        ("equal", (first + 1e-6, 9.0), {"target": "xla"}),
        ("again", (first + 1.0,), {}),
        ("seed", (first + 1.0,), {"target": "xla", "seed": 1}),
    ):
        receipt(losses, **changes).write(tmp_path / f"{name}.json")
    assert otherwise_begun(mine, path) == []
    receipt((first + 0.01, *rest), target="xla").write(tmp_path / "xla.json")
    (said,) = otherwise_begun(mine, path)
    assert f"{first:.4f}, and {first + 0.01:.4f} on xla" in said and "xla.json" in said
