"""Layouts of the family that exists in these tests alone, some of them in layout files of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from planc import catalog
from planc.ir.model import Model
from planc.ir.plan import Plan

from . import own_family
from .cases import FSDP, PP, SP, plan_of


@dataclass(frozen=True)
class Case:
    mesh: str
    sentences: tuple[str, ...]
    fixed: int = -1
    """How many heads the module views on a rank; -1: as many as there are."""


LACE = """layout lace over inner
shard     heads, expert_ffn, vocab over inner
shard     sequence over inner in residual
"""
SLICED = """layout sliced over inner
shard     head_dim over inner in projection
shard     expert_ffn over inner
"""
FILES = {"lace.plan": LACE, "sliced.plan": SLICED}
HEAD_DIM = "shard head_dim over tp in projection"

FAMILY: dict[str, Case] = {
    "third_projection": Case("fsdp 2 > tp 2", (FSDP, "shard heads, expert_ffn over tp")),
    "own_layout": Case("fsdp 2 > tp 2", ('import "lace.plan"', FSDP, "use lace over tp")),
    "head_dim": Case("tp 4", (HEAD_DIM,)),
    "head_dim_stored": Case("fsdp 2 > tp 2", ('import "sliced.plan"', FSDP, "use sliced over tp")),
    "head_dim_sp": Case("fsdp 2 > tp 2", (FSDP, HEAD_DIM, SP)),
    "head_dim_rests": Case("tp 4", ("shard head_dim over tp", SP), fixed=own_family.SIZE.heads),
    "head_dim_pipeline": Case("pp 2 > tp 2", (PP.format("1f1b"), HEAD_DIM, SP)),
    "heads_gathered": Case("dp 2 > tp 2", ("use zero1 over dp", "shard heads over tp in projection", SP)),
    "embed_contracted": Case("fsdp 2 > tp 2", (FSDP, "shard embed over tp in projection")),
    "rows_of_ffn": Case("fsdp 2 > tp 2", (FSDP, SP, "shard sequence over tp in ffn", "shard heads over tp")),
    "one_sibling_whole": Case(
        "fsdp 2 > tp 2",
        (FSDP, "shard heads, expert_ffn over tp", SP, "override layers.*.attention.wg = replicated"),
    ),
}

IN_CI = (
    "head_dim_stored",
    "head_dim_pipeline",
    "rows_of_ffn",
    "one_sibling_whole",
)
"""Those that CI trains."""


def family_case(name: str) -> Plan:
    """The plan of one of these layouts."""
    case = FAMILY[name]
    with registered():
        return plan_of(f"case_{name}", case.mesh, *case.sentences, model="loom_micro", files=FILES)


def registered() -> AbstractContextManager[Any]:
    """While it is entered, `model NAME` also finds the family's."""
    names = {**catalog.model_names(), **dict.fromkeys(own_family.FAMILY.sizes, own_family.FAMILY.name)}

    def build(name: str, changes: dict[str, int] | None = None) -> Model:
        own = name in own_family.FAMILY.sizes
        return own_family.FAMILY.build(name, changes) if own else catalog.build_model(name, changes)

    return patch.multiple("planc.language.verbs.model", model_names=lambda: names, build_model=build)


def builder(name: str) -> Callable[[Model], Any] | None:
    """The function that makes the module of a layout's model; None for the layouts of bundled families."""
    if name not in FAMILY:
        return None
    from .own_family_module import Loom

    return partial(_built, Loom, FAMILY[name].fixed)


def _built(module: Any, fixed: int, model: Model) -> Any:
    return module(model.sizes, fixed)
