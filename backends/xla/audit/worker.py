"""Compiles the training step of an emitted program in a process of its own; nothing is run and no memory used.

    python -m planc.backends.xla.audit.worker FOLDER

reads `request.json` and `plan.json` there and writes `answer.json` and, when the compiler accepts the program,
`program.hlo`: its optimized text. A process of its own, as a compile cannot be interrupted from inside.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

    from planc.ir.plan import Plan

QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""The TPU compiler on a machine without a TPU: it asks nobody what the machine is, and writes no log. The type
of accelerator serves every topology; a lock file would let one process at a time load the library."""

OPTIONS = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}
"""Windowed einsum off: it turns gathers and scatters into permutes inside matmul loops, whose direction is lost."""


def main(folder: Path) -> None:
    from planc.backends.xla.runtime import prepare_environment
    from planc.ir.plan import Plan

    request = json.loads((folder / "request.json").read_text())
    plan = Plan.from_json(json.loads((folder / "plan.json").read_text()))
    if request["topology"]:
        os.environ.update(QUIET, JAX_PLATFORMS="cpu")
    else:
        prepare_environment(plan.mesh.devices)
    answer = compiled(plan, request["topology"], folder)
    (folder / "answer.json").write_text(json.dumps(answer))


def compiled(plan: Plan, topology: str, folder: Path) -> dict[str, Any]:
    """What the compiler says of the plan's step. `request.json` names what is known already, by key."""
    devices = described(topology, plan.mesh.devices)
    mesh, step, arguments = program(plan, devices)
    began = time.monotonic()
    lowered = step.lower(*arguments)
    answer: dict[str, Any] = {
        "stablehlo_sha256": hashlib.sha256(lowered.as_text().encode()).hexdigest(),
        "options": OPTIONS if topology else {},
        "lower_s": time.monotonic() - began,
        "on_torus": on_torus(mesh, devices) if topology else None,
        "devices": len(devices),
    }
    began = time.monotonic()
    try:
        done = lowered.compile(compiler_options=answer["options"] or None)
    except Exception as error:  # jaxlib's errors have no type of their own beside RuntimeError
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return answer | {"refused": str(error), "compile_s": time.monotonic() - began}
    (folder / "program.hlo").write_text(done.as_text())
    return answer | {"memory": _memory(done), "compile_s": time.monotonic() - began}


def described(topology: str, count: int) -> list[jax.Device]:
    """The devices of a TPU topology, which need not exist; without one, this process's own."""
    import jax

    if not topology:
        return list(jax.devices()[:count])
    from jax.experimental import topologies

    found = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    return list(found.devices)


def program(plan: Plan, devices: list[jax.Device]) -> tuple[Any, Any, tuple[Any, ...]]:
    """The mesh, the jitted training step as emitted, and arguments that are shapes alone."""
    import jax
    import jax.numpy as jnp

    from planc.backends.xla import shards
    from planc.backends.xla.lower import lower
    from planc.backends.xla.models import family
    from planc.sharding import propagate

    emitted, module = lower(propagate(plan)).load(), family(plan.model.family)
    mesh, optimizer = emitted.build_mesh(devices), emitted.adamw()
    shapes = shards.abstract(module.shapes(plan.model))
    step = emitted.build_train_step(module.build_loss(plan.model, emitted), optimizer, mesh, shapes)
    state = {"params": shapes, "optimizer": jax.eval_shape(optimizer.init, shapes)}
    shape: Any = jax.ShapeDtypeStruct
    rows = shape((plan.batch.sequences, plan.batch.sequence_tokens), jnp.int32)
    return mesh, step, (state, rows, rows, shape((), jnp.float32))


def on_torus(mesh: jax.sharding.Mesh, devices: list[jax.Device]) -> bool:
    """Whether jax finds a way to lay the mesh on the torus' links, so that the program's mesh is that one."""
    from jax.experimental import mesh_utils

    try:
        wanted = mesh_utils.create_device_mesh(
            mesh.devices.shape, devices[: mesh.devices.size], allow_split_physical_axes=True
        )
    except (NotImplementedError, ValueError):
        return False
    return bool((wanted == mesh.devices).all())


def _memory(done: Any) -> dict[str, int]:
    """Bytes on one device, as the compiler counts them."""
    found = done.memory_analysis()
    names = ("peak_memory", "argument_size", "output_size", "alias_size", "temp_size")
    return {name: int(getattr(found, f"{name}_in_bytes")) for name in names}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
