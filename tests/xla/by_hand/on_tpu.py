"""Compile the program with a kernel that was written by hand, and the emitted one, for four TPU v5p without a TPU.

Prints one line of JSON for both: bytes that a device sends by `OP AXES dtype`, calls of kernels, the peak of memory,
and the compiler's own estimate of the cycles of a step, transfers left out.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from planc.backends.xla.audit.inventory import inventory
from planc.backends.xla.audit.worker import LOG_LEVELS, OPTIONS, compiled, described, step_of
from planc.checks import check_plan
from planc.lowering import lower_plan
from tests.xla.by_hand.worker import SCALARS_BYTES, plan

TOPOLOGY, CLUSTER = "v5p:2x2x1", "tpu_v5p(2x2x1)"
LONG = "16 x 2048 tokens microbatch 1"
DEEP = "llama_micro(layers = 4, embed = 1024, ffn = 4096, head_dim = 128, heads = 8, kv_heads = 4, vocab = 8192)"


def lowered_by_hand(devices: list[Any]) -> tuple[Any, dict[str, int]]:
    """The step that was written by hand, lowered, and its mesh."""
    import jax
    import numpy as np

    from tests.xla.by_hand import kernel

    of = plan("kernel", model=DEEP, batch=LONG, cluster=CLUSTER)
    model = of.model
    stacked = {p.name: ((model.layers,) if "*" in p.name else ()) + tuple(model.shape(p)) for p in model.params}
    shapes = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in stacked.items()}
    mesh = jax.sharding.Mesh(np.array(devices), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
    batch = of.batch
    rows = jax.ShapeDtypeStruct((4, batch.sequences // 4, batch.sequence_tokens), np.int32)
    with jax.sharding.set_mesh(mesh), jax.default_matmul_precision("highest"):
        state, step = kernel.step_of(mesh, shapes)
        return step.lower(state, rows, rows), dict(mesh.shape)


def lowered_as_emitted(devices: list[Any]) -> tuple[Any, dict[str, int]]:
    """The emitted step, lowered, and its mesh."""
    program = lower_plan(check_plan(plan("kernel", model=DEEP, batch=LONG, cluster=CLUSTER)), "xla")
    _, step, arguments = step_of(program, devices)
    return step.lower(*arguments), dict(program.load().MESH)


def observed(lowered: Any, mesh: dict[str, int]) -> dict[str, Any]:
    answer, text = compiled(lowered, OPTIONS)
    found, wire = inventory(text, mesh), Counter[str]()
    for row in found.found:
        if row.payload_bytes > SCALARS_BYTES:
            wire[f"{row.op} {row.axis} {row.dtype}"] += round(row.wire_bytes)
    return {
        "wire_bytes": dict(wire),
        "kernels": text.count('custom_call_target="tpu_custom_call"'),
        "peak_bytes": answer["memory"]["peak_memory"],
        "cycles": found.cycles,
    }


def main() -> None:
    os.environ.update(LOG_LEVELS, JAX_PLATFORMS="cpu")
    devices = described(TOPOLOGY, 4)
    row = {
        "by_hand": observed(*lowered_by_hand(devices)),
        "emitted": observed(*lowered_as_emitted(devices)),
    }
    print("ROW", json.dumps({"name": "kernel", **row}), flush=True)


if __name__ == "__main__":
    main()
