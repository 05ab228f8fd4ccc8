"""Pairs of layouts, of a trainer and of the generator that serves its weights, and what both have."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from planc.ir.model import Model, Param
from planc.ir.plan import Plan
from planc.sharding.transfers import narrows
from tests.cuda.cases import case, plan_of
from tests.cuda.moe_cases import MOE, moe_case
from tests.seeded import initial

DTYPES = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16, "fp16": np.float16, "float8": np.float32}
BATCH = "48 x 24 tokens microbatch 1"
DP, TP, EP = "use ddp over dp", "use tp over tp", "use ep over ep"
GENERATORS: dict[str, tuple[str, ...]] = {
    "one": ("dp 1", DP),
    "dp2": ("dp 2", DP),
    "dp4": ("dp 4", DP),
    "tp2": ("tp 2", TP),
    "tp4": ("tp 4", TP),
    "dp_tp": ("dp 2 > tp 2", DP, TP),
    "tp_dp": ("tp 2 > dp 2", DP, TP),
    "pp2": ("pp 2", "split layers over pp as gpipe"),
    "ep4": ("ep 4", "use ddp over ep", EP),
    "ep_tp": ("ep 2 > tp 2", "use ddp over ep", "use tp over tp", EP),
    "ep_on_tp": ("tp 2", TP, "use ep over tp"),
}


class Pair(NamedTuple):
    """A trainer of `cases` or `moe_cases`, and a generator of `GENERATORS` on the same ranks or on those behind."""

    trainer: str
    generator: str
    colocated: bool = True
    dtype: str = "bf16"
    block: int = 0


SAME, APART = True, False
PAIRS = {
    f"{p.trainer}-{p.generator}-{'same' if p.colocated else 'apart'}-{p.dtype}{p.block or ''}": p
    for p in (
        Pair("fsdp", "tp4"),
        Pair("fsdp", "dp4"),
        Pair("hsdp", "dp_tp", SAME, "fp32"),
        Pair("zero1", "tp4"),
        Pair("dp", "tp_dp"),
        Pair("two_axes", "tp_dp"),
        Pair("on_embed", "tp4"),
        Pair("fsdp_tp_sp", "dp_tp"),
        Pair("fsdp_tp_sp", "tp4", SAME, "float8", 16),
        Pair("fsdp_tp_sp", "tp2", APART),
        Pair("fsdp_tp_sp", "dp4", APART, "float8", 8),
        Pair("fsdp", "one", APART, "fp16"),
        Pair("fsdp", "pp2", APART),
        Pair("two_parts", "tp4"),
        Pair("part_of_axes", "tp2", APART),
        Pair("override", "tp4"),
        Pair("1f1b", "tp4"),
        Pair("1f1b_uneven", "tp2", APART),
        Pair("interleaved_1f1b", "dp_tp"),
        Pair("zbv", "tp4", SAME, "float8", 0),
        Pair("zero2_tp_sp", "dp2", APART, "fp32"),
        Pair("cp_stored", "tp4"),
        Pair("moe_fsdp", "ep4"),
        Pair("moe_dp_tp_sp", "ep4", SAME, "fp32"),
        Pair("ep", "ep_tp"),
        Pair("ep_fsdp", "ep4"),
        Pair("ep_fsdp", "ep_on_tp", APART, "float8", 16),
        Pair("ep_hsdp", "dp4"),
        Pair("ep_pipeline", "ep_tp"),
        Pair("ep_over_tp", "ep4", APART),
        Pair("etp", "ep4"),
        Pair("ep_tp_view", "ep4"),
        Pair("ep_etp_view", "ep_on_tp", APART),
        Pair("ep_view_crossed", "ep_tp", SAME, "float8", 16),
    )
}
"""Dense models and models with experts; on 4 to 8 ranks, one rank a node or two."""

XLA_REFUSES = ("zbv",)
"""Trainers that the xla target has not."""

QUICK = ("fsdp_tp_sp-tp2-apart-bf16", "ep_view_crossed-ep_tp-same-float816")
"""Those of `make test`."""

KILLED = ("fsdp_tp_sp-tp2-apart-bf16", "fsdp-tp4-same-bf16", "fsdp_tp_sp-dp4-apart-float88")
"""Those in which ranks are killed."""


class Served(NamedTuple):
    """A pair as plans."""

    name: str
    trainer: Plan
    layout: Plan
    dtype: str
    block: int
    colocated: bool

    def narrows(self, param: Param) -> bool:
        """True for what is held as float8."""
        return self.dtype == "float8" and narrows(param)


def serve_of(name: str) -> Served:
    """The plans of a pair; every other one has nodes of two ranks."""
    pair = PAIRS[name]
    experts = pair.trainer in MOE
    trainer = moe_case(pair.trainer) if experts else case(pair.trainer)
    mesh, *sentences = GENERATORS[pair.generator]
    layout = plan_of("generator", mesh, *sentences, model="mixtral_micro" if experts else "llama_micro", batch=BATCH)
    layout = replace(layout, model=trainer.model)
    if sorted(PAIRS).index(name) % 2:
        trainer, layout = on_duos(trainer), on_duos(layout)
    return Served(name, trainer, layout, pair.dtype, pair.block, pair.colocated)


def readers_of(module: ModuleType) -> list[Any]:
    """The readers of checkpoints that an emitted module opens from now on."""
    readers, opened = list[Any](), module.open_checkpoint

    def kept(*arguments: Any) -> Any:
        readers.append(opened(*arguments))
        return readers[-1]

    module.open_checkpoint = kept  # type: ignore[attr-defined]
    return readers


def on_duos(plan: Plan) -> Plan:
    """The plan on nodes of two ranks."""
    nodes = -(-plan.mesh.devices // 2)
    return replace(plan, cluster=replace(plan.cluster, count=nodes, shape=(2,), host_chips=2))


Arrays = dict[str, Any]


def layers_of(model: Model, param: Param) -> list[int]:
    """The layers that have a parameter; [-1] of the ends."""
    return [n for n, kind in enumerate(model.kinds) if kind in param.sections] if "*" in param.name else [-1]


def trained_tensors(model: Model) -> Arrays:
    """Every tensor of a model as the trainer has it."""
    shapes = {p.name.replace("*", str(n)): model.shape(p) for p in model.params for n in layers_of(model, p)}
    return {name: initial(name, shape) for name, shape in shapes.items()}


def served_tensors(serve: Served) -> Arrays:
    """Every tensor of the model as the generator has it, cast whole; a float8 one with its scales."""
    model, found, wide = serve.trainer.model, Arrays(), trained_tensors(serve.trainer.model)
    for param in model.params:
        for layer in layers_of(model, param):
            name = param.name.replace("*", str(layer))
            values = wide[name].astype(DTYPES[serve.dtype])
            if serve.narrows(param):
                found[name], found[f"{name}_scale_inv"] = _cast_whole(values, serve.block)
            else:
                found[name] = values
    return found


def _cast_whole(values: Any, block: int) -> tuple[Any, Any]:
    """A whole matrix, or one an expert, as float8 and its scales, block by block."""
    rows, columns = values.shape[-2:]
    high, wide = block or rows, block or columns
    narrow = np.empty(values.shape, ml_dtypes.float8_e4m3fn)
    scales = np.empty((*values.shape[:-2], -(-rows // high), -(-columns // wide)), np.float32)
    for i, j in product(range(scales.shape[-2]), range(scales.shape[-1])):
        at = (..., slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide))
        most = np.abs(values[at]).max((-2, -1))
        scales[..., i, j] = scale = np.where(most > 0, most * np.float32(1 / 448), np.float32(1))
        narrow[at] = (values[at] * (1 / scale[..., None, None])).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    return narrow, scales
