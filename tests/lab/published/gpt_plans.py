"""Plans of the GPT models of Korthikanti et al. 2022 (arXiv 2205.05198), and their memory as planc derives it.

The paper's closed forms (`gpt_memory`) count tensors of a block by hand; here the same bytes are those of the ops of a
plan that Megatron-LM realises, with scores in memory.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from planc.catalog.parts.part import BLOCK
from planc.checks import check_plan
from planc.costing import cost_plan
from planc.costing.memory.activations import saved_by_section
from planc.costing.memory.state import resting
from planc.ir.sharding import Sharded
from planc.language.build import build_file
from planc.sharding.propagate import propagate
from planc.sharding.stage_assignment import copies_on, sections_on
from tests.lab.published.gpt_memory import GptShape

RECOMPUTE = {"none": "none", "selective": "selective", "full": "blocks"}


@cache
def laid_out(shape: GptShape, recompute: str, sequence_parallel: bool) -> Sharded:
    """The layouts of a model of `shape` with this recomputation: `none`, `selective` or `full`."""
    split = f"interleaved_1f1b(chunks = {shape.interleave})" if shape.interleave > 1 else "1f1b"
    sizes = f"layers = {shape.layers}, embed = {shape.d_model}, heads = {shape.heads}, ffn = {4 * shape.d_model}"
    sizes += f", head_dim = {shape.d_model // shape.heads}, vocab = 51200, positions = {shape.seq}"
    lines = [
        "plan gpt",
        f"model gpt3_175b({sizes})",
        f"batch {2 * shape.pp * shape.micro_batch} x {shape.seq} tokens microbatch {shape.micro_batch}",
        f"cluster {shape.tp * shape.pp // 8} x a100_node",
        f"mesh pp {shape.pp} > tp {shape.tp}" if shape.pp > 1 else f"mesh tp {shape.tp}",
        "realise as megatron",
        "use tp over tp",
        *(["use sp over tp"] if sequence_parallel else []),
        *([f"split layers over pp as {split}"] if shape.pp > 1 else []),
        "attention.core as unfused",
        "compute bf16 reduce fp32",
        f"recompute {RECOMPUTE[recompute]}",
    ]
    path = Path("/gpt.plan")
    built = build_file(path, unsaved={path: "\n".join(lines) + "\n"})
    assert built.plan is not None, built.diagnostics
    return propagate(check_plan(built.plan))


def block_bytes(shape: GptShape, recompute: str = "none", *, sequence_parallel: bool = False) -> float:
    """Bytes that one block of `shape` saves of one microbatch on one device; `recompute` as for `laid_out`."""
    return saved_by_section(laid_out(shape, recompute, sequence_parallel))[BLOCK]


def first_stage_bytes(shape: GptShape, recompute: str = "none", *, sequence_parallel: bool = False) -> float:
    """Bytes that the blocks of the first pipeline rank save at its fullest; `recompute` as for `laid_out`."""
    flying = sum(cost_plan(laid_out(shape, recompute, sequence_parallel)).timed.timeline.in_flight[0].values())
    layers = flying * shape.layers / (shape.pp * shape.interleave)
    return layers * block_bytes(shape, recompute, sequence_parallel=sequence_parallel)


def state_bytes(shape: GptShape) -> float:
    """Bytes of weights, gradients and optimizer state of an inner pipeline rank of `shape`: it has no end."""
    sharded = laid_out(shape, "none", False)
    sections = sections_on(sharded.plan, 1)
    held = [(p, n) for p in sharded.params if (n := copies_on(sharded.plan, p.param, sections))]
    return sum(resting(sharded, held).values())


def compiled_figure(row: dict[str, Any]) -> float:
    """The answer to a published figure (`row` of `data/memory.json`): bytes, or percent of the bytes without
    recomputation and without sequence parallelism."""
    options = dict(row["args"])
    shape = GptShape(**options.pop("shape"))
    recompute, divided = options.get("recompute", "none"), bool(options.get("sequence_parallel"))
    if row["call"] == "state_bytes":
        return state_bytes(shape)
    if row["call"] == "first_stage_activation_bytes":
        return first_stage_bytes(shape, recompute, sequence_parallel=divided)
    return 100 * block_bytes(shape, recompute, sequence_parallel=divided) / block_bytes(shape)
