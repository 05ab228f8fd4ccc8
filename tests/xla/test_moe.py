"""Models with experts: every layout trains as one device does, and XLA issues what the rules say.

Every token is served where nothing is said: dropless. With a capacity the reference drops the tokens that each rank's
experts have no place for.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from planc.backends.xla.analysis.mesh_factors import parts
from planc.backends.xla.emit.program import emit
from planc.backends.xla.refusals.plan import refusals
from planc.backends.xla.rules import realise
from planc.checks import check_plan
from planc.lowering import lower_plan
from planc.sharding.collectives import semantic_collectives
from tests.launches import Row, case, tier
from tests.plans import propagated
from tests.xla.cases import plan_of
from tests.xla.moe_cases import CI, MOE, MOE_ROUNDED, NOT_PREDICTED, moe_plan, moe_sharded

BUDGET = 1e-5
SCALARS_BYTES = 200
"""The loss and the norm's parts travel with larger sums, and the rules do not count them one by one."""


COMPILED = {
    "ep_hsdp": {
        "all_gather ep": 448128,
        "all_to_all ep": 792576,
        "all_reduce ep": 478208,
        "all_reduce replica": 2450944,
        "all_reduce replica+ep": 109836,
    },
    "ep_per_step": {
        "all_gather fsdp+ep": 206784,
        "all_gather fsdp": 552960,
        "all_to_all ep": 792576,
        "all_reduce fsdp": 2211840,
        "all_reduce fsdp+ep": 827148,
    },
    "ep_view_crossed": {
        "all_gather ep+efsdp": 672192,
        "all_gather efsdp": 2211840,
        "all_to_all ep": 792576,
        "reduce_scatter efsdp": 1105920,
        "all_reduce ep+efsdp": 827148,
    },
    "deepseek_tp": {"all_gather dp": 994240, "all_reduce dp": 7954032, "all_reduce tp": 1071396},
    "etp": {
        "all_gather fsdp": 4875136,
        "all_gather tp": 740352,
        "all_reduce fsdp": 572484,
        "all_reduce tp": 912668,
        "reduce_scatter fsdp": 2211840,
        "reduce_scatter tp": 396288,
    },
    "deepseek_tp_sp": {
        "all_gather fsdp": 7536800,
        "all_gather tp": 571392,
        "all_reduce fsdp": 1318512,
        "all_reduce tp": 4503332,
        "reduce_scatter fsdp": 3317760,
    },
    "deepseek_tp_cp": {
        "all_gather cp": 245760,
        "all_gather tp": 571392,
        "all_reduce cp": 2793504,
        "all_reduce cp+tp": 20556288,
        "all_reduce tp": 1071408,
    },
    "deepseek_tp_ring": {
        "all_gather tp": 571392,
        "all_reduce cp": 2203680,
        "all_reduce cp+tp": 20556288,
        "all_reduce tp": 1071408,
        "send_recv cp": 921600,
    },
}
"""Bytes that a device sends in a step, read from the optimized HLO of jax 0.10.2 on virtual CPU devices."""


@pytest.mark.parametrize("name", COMPILED)
def test_the_rules_give_what_was_compiled(name: str) -> None:
    wanted = predicted(name)
    assert wanted.keys() == COMPILED[name].keys()
    assert all(0 <= seen - wanted[key] <= SCALARS_BYTES for key, seen in COMPILED[name].items())


def cases(*left_out: str) -> list[Any]:
    """Layouts with experts but those left out."""
    return [case("xla", name, *tier(name, CI, ())) for name in MOE if name not in left_out]


ROUNDED = [case("xla-fp64", name, *tier(name, (), ())) for name in MOE_ROUNDED]


@pytest.mark.parametrize("name", [*cases(), *ROUNDED])
def test_trains_as_one_device(name: str, row: Row) -> None:
    assert "failed" not in row, row["failed"]
    assert not row["dead"], "a gradient that is zero everywhere proves nothing"
    assert max(row["gradient"]) <= BUDGET, row["where"]
    assert max(row["loss"], row["evaluated"], row["norm"], row["parameters"]) <= BUDGET, row
    assert row["flips"] == 0, "a token went to another expert: the differences would be that"
    assert row["uncached"] == 0, "a step after the first compiled something"


@pytest.mark.parametrize("name", cases(*NOT_PREDICTED))
def test_issues_the_collectives_that_the_rules_predict(name: str, row: Row) -> None:
    """Bytes that a device sends in a step, by operation and axes, in the optimized HLO."""
    wire, wanted = row["wire"], predicted(name)
    assert wire.keys() == wanted.keys()
    for key, seen in wire.items():
        assert 0 <= seen - wanted[key] <= SCALARS_BYTES, (key, wanted[key], seen)


def predicted(name: str) -> dict[str, int]:
    sharded = moe_sharded(name)
    wire: Counter[str] = Counter()
    for row in realise(sharded, semantic_collectives(sharded)):
        if row.carries != "scalar" and row.stage == 0:  # all ranks of a pipeline do the same
            wire[f"{row.op} {'+'.join(parts(sharded.plan, row.axes))}"] += round(row.wire_bytes)
    return dict(wire)


@pytest.mark.parametrize("name", MOE)
def test_it_is_lowered(name: str) -> None:
    sharded = moe_sharded(name)
    assert refusals(sharded) == []
    compile(emit(sharded), name, "exec")


def test_every_text_is_as_ruff_would_have_it(tmp_path: Path) -> None:
    for name in MOE:
        (tmp_path / f"{name}.py").write_text(emit(moe_sharded(name)))
        (tmp_path / f"{name}_bf16.py").write_text(emit(propagated(moe_plan(name, "compute bf16 reduce fp32"))))
    options = ["--isolated", "--line-length", "110", str(tmp_path)]
    for command in (["format", "--diff"], ["check", "--select", "E,F,I,UP,B,SIM,C4,RET"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *options], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "present", "absent"),
    [
        ("moe_fsdp", "EXPERTS_GATHERED", "all_to_all"),
        ("ep_fsdp", 'jax.lax.all_to_all(sent, ("ep",), 0, 0)', "ragged_all_to_all"),
        ("ep_fsdp_v5p", "jax.lax.ragged_all_to_all(rows, out", "jax.lax.all_to_all"),
        ("ep_per_step", "_gathered(params)", "EXPERTS_GATHERED"),
        ("etp", 'jax.lax.psum_scatter(made, ("tp",)', "all_to_all"),
        ("etp", 'made = P("fsdp", None, None)', "return weight(name, table)[tokens]\n"),
        ("deepseek_ring", "groups = q.reshape(*k.shape[:3]", "jnp.pad(v"),
        ("deepseek_tp_cp", "v = jnp.pad(v, [(0, 0)] * 3", "_ring"),
        ("etp_same_tokens", 'jax.lax.psum(made, ("tp",))', "_exchanged"),
        ("capacity", "math.ceil(chosen.size * 1.25 / total)", "_permuted"),
        ("ep_view_crossed", "# fsdp is ep and efsdp", "etp"),
        ("deepseek_cut_view", 'MESH = {"etp": 2, "a_ep": 2, "b": 2}', "fsdp"),
    ],
)
def test_a_sentence_writes_what_it_needs(name: str, present: str, absent: str) -> None:
    text = emit(moe_sharded(name))
    assert present in text
    assert absent not in text


def test_the_kernel_for_gradients_of_experts_weights_computes_what_xla_does() -> None:
    """The program's own call of it, interpreted: an expert without rows, and rows of no expert."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    program = lower_plan(check_plan(moe_plan("ep_fsdp_v5p")), "xla").load()
    counts = jnp.array([10, 0, 31, 16])
    keys = jax.random.split(jax.random.key(0), 3)
    rows, w, grad = (jax.random.normal(k, s) for k, s in zip(keys, ((64, 24), (4, 40, 24), (64, 40)), strict=True))
    plain = jax.grad(lambda w: jnp.vdot(jax.lax.ragged_dot(rows, jnp.swapaxes(w, 1, 2), counts), grad))(w)
    for platform in ("cpu", "tpu"):
        mesh = SimpleNamespace(abstract_device=SimpleNamespace(platform=platform))
        with (
            patch.object(jax.sharding, "get_abstract_mesh", lambda mesh=mesh: mesh),
            patch.object(program, "tgmm", functools.partial(tgmm, interpret=True)),
        ):
            dw = program._of_experts_backward((counts, rows, w), grad)[2]
        assert dw.shape == w.shape and bool(jnp.allclose(plain, dw, atol=1e-5))


def test_axes_that_divide_neither_rows_nor_weights_leave_the_compiler_its_way() -> None:
    """The kernel is code of one rank."""
    mesh = ("fsdp 2 > tp 2", "use fsdp over fsdp", "shard heads over tp", "attention.core as unfused")
    text = emit(propagated(plan_of("whole", *mesh, model="mixtral_micro", cluster="tpu_v5p(2x2x1)")))
    assert "tgmm" not in text and "tgmm" in emit(moe_sharded("ep_fsdp_v5p")) and "tgmm" not in emit(moe_sharded("etp"))


def refused(*sentences: str, mesh: str = "fsdp 2 > tp 2", model: str = "mixtral_micro") -> list[str]:
    return [d.message for d in refusals(propagated(plan_of("refused", mesh, *sentences, model=model)))]


def test_a_pipeline_maps_experts_over_axes_that_divide_them() -> None:
    """Over all others XLA would sum the gradients of experts, and of their tokens, once more."""
    head, pipeline = "shard heads over tp", "use pp over pp as 1f1b"
    whole = plan_of("whole", "pp 2 > tp 2", head, pipeline, model="mixtral_micro")
    assert "return _served(route, mlp, x, scores, params)" in emit(propagated(whole))
    mesh = ("pp 2 > ep 2 > tp 2", "shard batch over ep", "use ep over ep", head, pipeline)
    assert 'axes = {"ep"}' in emit(propagated(plan_of("divided", *mesh, model="mixtral_micro")))


def test_a_view_without_common_parts_is_refused() -> None:
    view = "view ep 3 > efsdp 2 of fsdp, b for experts"
    sentences = ("shard batch over fsdp, b", view, "shard experts over ep")
    model, batch = "mixtral_micro(experts = 6)", "24 x 24 tokens microbatch 2"
    plan = plan_of("parts", "fsdp 2 > b 3", *sentences, model=model, batch=batch)
    (found,) = refusals(propagated(plan))
    assert found.code == "E0901" and "cannot be factored into common axes" in found.message


def test_one_experts_own_layout_is_refused() -> None:
    (said,) = refused("use fsdp over fsdp", "override layers.*.moe.experts.w1 = replicated", mesh="fsdp 4")
    assert "gathers all weights of the experts" in said


def test_experts_stored_otherwise_are_refused() -> None:
    said = refused(
        "shard batch over fsdp, ep",
        "use ep over ep",
        "store params, grads, optimizer over fsdp for experts",
        mesh="fsdp 2 > ep 2",
    )
    assert said and all("not for both" in s for s in said)
