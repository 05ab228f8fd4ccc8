"""Drawn pairs of layouts, of a trainer and of the generator that serves its weights, on two to eight ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from random import Random

from planc.checks import check_plan
from planc.diag import PlanError
from planc.ir.plan import Plan
from tests.cuda.cases import plan_of
from tests.sync_cases import BATCH, Served, on_duos

DENSE = ("llama_micro", "llama_micro_tied", "qwen2_micro", "qwen3_micro")
EXPERTS = ("mixtral_micro", "qwen3_moe_micro", "deepseek_micro")
SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b(chunks = 2)", "looped_bfs(chunks = 2)", "zbv")
Layout = tuple[str, list[str]]
"""A mesh and its sentences."""


def _axes(draw: Random, devices: int, most: int) -> list[int]:
    """Sizes of axes, outermost first."""
    found = list[int]()
    while devices > 1:
        size = devices if len(found) == most - 1 else draw.choice([n for n in range(2, devices + 1) if not devices % n])
        found.append(size)
        devices //= size
    return found


def _data(draw: Random, axes: list[str]) -> list[str]:
    """Sentences about the data axes."""
    if len(axes) == 1:
        (a,) = axes
        kinds = [[f"use {kind} over {a}"] for kind in ("ddp", "zero1", "zero2", "fsdp", "fsdp", "fsdp")]
        return draw.choice([*kinds, [f"shard batch over {a}", f"store params, grads, optimizer over {a} on embed"]])
    a, b = axes
    both = [f"shard batch over {a}, {b}"]
    stored = draw.choice([f"params, grads, optimizer over {a}, {b}", f"params, grads, optimizer over {b}", "", ""])
    return [*both, *([f"store {stored}"] if stored else [f"store optimizer over {draw.choice(axes)}"])]


def _trainer(draw: Random, devices: int, experts: bool) -> Layout:
    roles = ["dp", "fsdp", "tp", "pp", "cp", *(["ep"] if experts else [])]
    sizes = _axes(draw, devices, 3)
    names = draw.sample(roles, len(sizes))
    found = _data(draw, [n for n in names if n in ("dp", "fsdp", "ep")][:2]) if {*names} & {"dp", "fsdp", "ep"} else []
    sized = dict(zip(names, sizes, strict=True))
    if "tp" in names:
        divided = ["use tp over tp", "shard heads, vocab over tp", "shard heads over tp"]
        found.append(draw.choice([*divided, *([] if experts else ["shard ffn, vocab over tp"])]))
        found += draw.choice([[], ["shard sequence over tp in residual"]])
        found += draw.choice([[], ["use ep over tp"], ["use etp over tp"]]) if experts and "ep" not in names else []
    if "pp" in names:
        found.append(f"split layers over pp as {draw.choice(SCHEDULES)}")
    if "cp" in names:
        found.append("use cp over cp")
    if "ep" in names:
        found.append("use ep over ep")
    elif experts and "tp" not in names and sized.get("fsdp", 1) % 2 == 0 and "fsdp" in names and draw.random() < 0.6:
        parts = draw.choice([["ep 2", f"efsdp {sized['fsdp'] // 2}"], [f"efsdp {sized['fsdp'] // 2}", "ep 2"]])
        found += [f"view {' > '.join(parts)} of fsdp for experts", "use ep over ep"]
        found.append("store params, grads, optimizer over efsdp for experts")
    return " > ".join(f"{name} {size}" for name, size in sized.items()), found


def _generator(draw: Random, devices: int, experts: bool) -> Layout:
    sizes = _axes(draw, devices, 2) or [1]
    names = draw.sample(["dp", "tp", "pp", *(["ep"] if experts else [])], len(sizes))
    found = {
        "dp": ["use ddp over dp"],
        "tp": ["use tp over tp", *draw.choice([[], ["use ep over tp"]] if experts and "ep" not in names else [[]])],
        "pp": ["split layers over pp as gpipe"],
        "ep": ["use ddp over ep", "use ep over ep"],
    }
    mesh = " > ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
    return mesh, [sentence for name in names for sentence in found[name]]


@cache
def _plan(name: str, model: str, mesh: str, sentences: tuple[str, ...]) -> Plan | None:
    """The plan, if it has no mistake."""
    try:
        plan = plan_of(name, mesh, *sentences, model=model, batch=BATCH)
        check_plan(plan)
    except (AssertionError, PlanError):
        return None
    return plan


def drawn(seed: int) -> Served:
    """The pair of a seed: the first without a mistake that it draws."""
    draw = Random(seed)
    while True:
        experts, colocated = draw.random() < 0.5, draw.random() < 0.5
        devices = draw.choice([2, 3, 4, 4, 6, 8, 8] if colocated else [2, 3, 4, 4, 6])
        others = devices if colocated else draw.choice([n for n in (1, 2, 2, 3, 4, 4) if devices + n <= 8])
        model = draw.choice(EXPERTS if experts else DENSE)
        (mesh, sentences), (theirs, others_said) = _trainer(draw, devices, experts), _generator(draw, others, experts)
        trainer = _plan("trainer", model, mesh, tuple(sentences))
        layout = _plan("generator", model, theirs, tuple(others_said))
        dtype, block = draw.choice(
            [("fp32", 0), ("bf16", 0), ("fp16", 0), ("float8", 0), ("float8", 8), ("float8", 16)]
        )
        duos = draw.random() < 0.5
        if trainer is None or layout is None:
            continue
        layout = replace(layout, model=trainer.model)
        if duos and devices % 2 == others % 2 == 0:
            trainer, layout = on_duos(trainer), on_duos(layout)
        place = "same" if colocated else "apart"
        sides = f"{mesh}: {', '.join(sentences)} | {theirs}: {', '.join(others_said)}"
        said = f"{model} {sides} | {place} {dtype}{block or ''}"
        assert prod(trainer.mesh.sizes.values()) == devices
        return Served(f"{seed}: {said}", trainer, layout, dtype, block, colocated)
