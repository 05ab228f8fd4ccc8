"""Run by every rank of a launch: trains each named layout and one process, and compares them.

Rank 0 prints one line of JSON per layout: the largest differences per step.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.audit.observe import meshes_of
from planc.backends.cuda.audit.predict import predicted
from planc.backends.cuda.runtime.reference import DTYPES, reductions
from planc.backends.cuda.runtime.start_up import start, start_single
from planc.checks import check_plan
from planc.ir.audit import compared, differences
from planc.ir.model import Model
from planc.ir.plan import Plan
from planc.ir.program import Program
from planc.ir.session import Settings
from planc.ir.sharding import Sharded
from planc.lowering import lower_plan
from planc.trainer.run.launch import leave
from tests.cuda.cases import LAYOUTS, case
from tests.cuda.family_cases import FAMILY, builder, family_case
from tests.cuda.moe_cases import BALANCE, BALANCED, MOE, moe_case
from tests.cuda.routing import Watch, as_routed
from tests.plans import propagated
from tests.seeded import EPS, batches

STEPS, CHECKED = 3, (1, 3)
LR = 2e-4
Build = Callable[[Model], Any] | None


def initial(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Seeded by the name; norms near one."""
    stream = np.random.default_rng(sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**63)
    values = stream.standard_normal(shape, dtype=np.float32)
    is_norm = len(shape) == 1 and not name.endswith(".bias")
    return 1 + 0.1 * values if is_norm else 0.08 * values


def train(session: Any, plan: Plan, observer: Any = None) -> dict[str, Any]:
    """Losses, norms, and the gradients after the checked steps; `observer` watches the second step."""
    found: dict[str, Any] = {"loss": [], "norm": [], "evaluated": [], "picks": [], "gradients": {}}
    for number, (tokens, targets) in enumerate(batches(plan, STEPS), start=1):
        with observer if observer is not None and number == 2 else nullcontext():
            loss, norm = session.step(tokens, targets, lr=LR)
        found["picks"].append(session.routing() or [])
        found["loss"].append(loss)
        found["norm"].append(norm)
        if number in CHECKED:
            found["gradients"][number] = dict(session.gradients())
        if number == 2:  # between two updates: what evaluation leaves gathered would be stale after
            found["evaluated"].append(session.evaluate(tokens, targets))
    found["parameters"] = dict(session.parameters())
    return found


def difference(found: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """The largest relative differences; gradients per parameter, against its largest element."""
    worst: dict[int, float] = dict.fromkeys(CHECKED, 0.0)
    where, dead = "", []
    for number in CHECKED:
        for name, expected in reference["gradients"][number].items():
            scale = np.abs(expected).max()
            if scale == 0:
                dead.append(name)
            got = found["gradients"][number][name]
            gap = float(np.abs(got - expected).max() / max(scale, 1e-30))
            if gap > worst[number]:
                worst[number], where = gap, f"{name} at step {number}"
    picks = [*zip(found["picks"], reference["picks"], strict=True)]
    return {
        "gradient": [worst[number] for number in CHECKED],
        "where": where,
        "dead": dead,
        "miscounted": [n for n, (a, b) in enumerate(picks, 1) if [*map(sum, a)] != [*map(sum, b)]],
        "flips": sum(abs(m - n) for a, b in picks for m, n in zip(chain(*a), chain(*b), strict=True)) // 2,
        "loss": relative(found["loss"], reference["loss"]),
        "norm": relative(found["norm"], reference["norm"]),
        "evaluated": relative(found["evaluated"], reference["evaluated"]),
        "parameters": max(
            float(np.abs(found["parameters"][name] - expected).max() / np.abs(expected).max())
            for name, expected in reference["parameters"].items()
        ),
        "losses": found["loss"],
    }


def relative(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def unpredicted(sharded: Sharded, mesh: Any, observer: Watch) -> list[str]:
    """Where the rules and torch differ, on any rank."""
    roles = AxisRoles(sharded)
    stage = mesh.get_local_rank(roles.name("pipeline")) if roles.pipeline else 0
    sizes = {f.name: f.size for f in (*roles.experts.factors, *roles.factors)}
    own = as_on_rank(sharded, mesh.get_local_rank(roles.name("tensor"))) if roles.tensor else sharded
    expected = as_routed(own, stage, predicted(own, stage, dist.get_rank()), observer.counted)
    here = differences(compared(stage, expected, observer.totals(sizes)))
    here += sorted(observer.unparsed)
    everywhere: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everywhere, here)
    return [f"rank {rank}: {text}" for rank, found in enumerate(everywhere) for text in found]


def as_on_rank(sharded: Sharded, rank: int) -> Sharded:
    """The plan with an even vocabulary, of which every rank has as many rows as `rank` of the tensor axes really has.

    The last one has fewer of an uneven vocabulary, which the plan's own predictions leave to the others.
    """
    plan, roles = sharded.plan, AxisRoles(sharded)
    vocab, ranks = plan.model.sizes["vocab"], plan.mesh.size(*roles.tensor)
    if vocab % ranks == 0 or plan.axes_of("vocab", "head") != roles.tensor:
        return sharded
    rows = min(ceil(vocab / ranks), vocab - rank * ceil(vocab / ranks))
    model = replace(plan.model, sizes={**plan.model.sizes, "vocab": rows * ranks})
    return propagated(replace(plan, model=model))


def plan_of(name: str) -> Plan:
    """The plan of a named layout, whatever its group."""
    if name in MOE:
        return moe_case(name)
    return case(name) if name in LAYOUTS else family_case(name)


def sentences_of(name: str) -> tuple[str, ...]:
    """The mesh of a named layout, and its sentences."""
    if name in FAMILY:
        return FAMILY[name].mesh, *FAMILY[name].sentences
    return {**LAYOUTS, **MOE}[name]


References = dict[str, dict[str, Any]]


def reference(plan: Plan, program: Program, settings: Settings, build: Build, known: References) -> dict[str, Any]:
    """The training of one process; layouts that it is the same for share it."""
    batch = plan.batch.sequences, plan.batch.microbatch_sequences
    limited = plan.route.method == "capacity"
    narrow_state = (plan.store_dtype("params"), reductions(plan))
    places = (plan.route, plan.axes_of("sequence", "residual"), plan.attention) if limited else ()
    narrow = [(q.ops, q.recipe, q.kept_layers) for q in plan.quantize]
    rounding = plan.precision, narrow, narrow_state
    tuned = [p.name for p in plan.model.params if p.frozen], plan.lora and (plan.lora.alpha, plan.lora.ops)
    key = repr((plan.model.name, plan.model.sizes, batch, rounding, places, tuned, settings.balance_loss))
    if key not in known:
        known[key] = train(start_single(program, settings, initial, build), plan)
    return known[key]


def in_fp64(plan: Plan, module: Any) -> Plan:
    """A plan that computes and sums in fp64, as its emitted `module` does from now on.

    A sum that ranks round otherwise moves a number to the next one in float8 or bf16, and all that follows.
    """
    module.MixedPrecisionPolicy = lambda **policy: MixedPrecisionPolicy(
        **(policy | {"param_dtype": torch.float64, "reduce_dtype": torch.float64})
    )
    DTYPES["fp64"] = torch.float64
    if plan.quantize:
        multiply_in_fp64()
    wide: Any = "fp64"
    return replace(plan, precision=replace(plan.precision, compute=wide, reduce=wide))


@cache
def multiply_in_fp64() -> None:
    """Let torchao multiply what it has cast to float8 in fp64, in this process, from now on."""
    from torchao.float8 import float8_ops  # type: ignore[import-untyped]

    def product(op: Any, args: Any, kwargs: Any = None) -> torch.Tensor:
        wide = [x._data.double() / x._scale.double() for x in args]
        return torch.mm(*wide).to(args[0]._orig_dtype)

    float8_ops.FLOAT8_OPS_TABLE[torch.ops.aten.mm.default] = product


def compare(name: str, references: References) -> None:
    """Train a layout on all ranks and as one process on rank 0, which prints the differences."""
    began = time.monotonic()
    plan, build = plan_of(name), builder(name)
    sharded = propagated(plan)
    program = lower_plan(check_plan(sharded.plan), "cuda", version="installed")
    settings = Settings(balance_loss=BALANCE if name in BALANCED else 0.0, eps=EPS)
    if plan.compiles:  # tracing and autograd as with inductor, whose code would take a minute to make
        module: Any = program.load()
        module.COMPILER = "aot_eager"
    narrow_state = plan.store_dtype("params") != "fp32"
    if narrow_state or (plan.quantize and AxisRoles(sharded).tensor):
        settings = replace(settings, clip_norm=0.0) if narrow_state else settings  # or the norm's last bit would count
        plan = in_fp64(plan, program.load())
        sharded = propagated(plan)
        program = replace(program, sharded=sharded)
    session = start(program, settings, initial, build)
    observer = Watch(program.load(), *meshes_of(program.load(), session.mesh))
    # torch compiles nothing while a dispatch mode watches: these collectives are those of the plain blocks.
    found = train(session, plan, None if plan.compiles else observer)
    differing = [] if plan.compiles else unpredicted(sharded, session.mesh, observer)
    if dist.get_rank() == 0:
        row = difference(found, reference(plan, program, settings, build, references))
        about = {"name": name, "model": plan.model.name, "plan": sentences_of(name), "collectives": differing}
        print("ROW", json.dumps({**about, "seconds": time.monotonic() - began, **row}), flush=True)


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    references: References = {}
    for name in names:
        compare(name, references)
    dist.barrier()  # nobody leaves while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
    leave(0)
