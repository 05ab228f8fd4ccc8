"""Run in one process of two virtual devices: what a circular pipeline holds, by its number of microbatches.

Prints one line of JSON: bytes of the compiled step's temporary arrays, and those of one chunk's weights.
"""

from __future__ import annotations

import json
import os
import sys
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.xla.analysis.pipeline import chunks
from planc.backends.xla.analysis.stacked_params import stacks_of
from planc.backends.xla.runtime.start_up import prepare_environment
from planc.checks import check_plan
from planc.ir.plan import Plan
from planc.lowering import lower_plan
from tests.xla.cases import plan_of
from tests.xla_flags import QUICKLY_COMPILED

MICROBATCHES = (4, 16)
LAYOUT = ("pp 2", "split layers over pp as circular(chunks = 2)", "recompute blocks")


def circular(microbatches: int) -> Plan:
    model, batch = "llama_micro(embed = 256, ffn = 512)", f"{microbatches} x 8 tokens microbatch 1"
    return plan_of("held", *LAYOUT, model=model, batch=batch)


def temporary_bytes(plan: Plan) -> int:
    import jax

    from planc.backends.xla.models import family
    from planc.backends.xla.runtime import shards

    emitted, model = lower_plan(check_plan(plan), "xla").load(), plan.model
    module, mesh, optimizer = family(model.family), emitted.build_mesh(), emitted.adamw()
    params = shards.abstract(shards.restacked(module.shapes(model), stacks_of(plan)))
    step = emitted.build_train_step(module.build_loss(model, emitted), optimizer, mesh, params)
    rows = jax.ShapeDtypeStruct((plan.batch.sequences, plan.batch.sequence_tokens), np.int32)
    state = {"params": params, "optimizer": jax.eval_shape(optimizer.init, params)}
    used: Any = step.lower(state, rows, rows, np.float32(1)).compile().memory_analysis()
    return int(used.temp_size_in_bytes)


def main() -> None:
    os.environ["XLA_FLAGS"] = QUICKLY_COMPILED
    prepare_environment(2)
    plans = [circular(m) for m in MICROBATCHES]
    model = plans[0].model
    layer = sum(prod(model.shape(p)) for p in model.params if p.section == "block")
    chunk = 4 * layer * model.layers // (plans[0].pipeline * chunks(plans[0]))
    print("ROW", json.dumps({"temporary_bytes": [temporary_bytes(p) for p in plans], "chunk_bytes": chunk}))


if __name__ == "__main__":
    main()
