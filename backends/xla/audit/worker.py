"""Compiles the training step of an emitted program in a child process, without running it or allocating device memory.

    python -m planc.backends.xla.audit.worker FOLDER

reads `request.json` and `plan.json` there and writes `answer.json`, which names the file with the compiler's answer.
That file and the optimized HLO next to it are cached by content: StableHLO, topology, options and versions. A child
process is needed because a compile cannot be interrupted from inside.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

    from planc.ir.plan import Plan
    from planc.ir.program_text import ProgramText

LOG_LEVELS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TPU_ACCELERATOR_TYPE": "v5p-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Environment of the TPU compiler on a machine without a TPU: no metadata queries, no log files. One accelerator type
serves all topologies; without these, a lock file would admit one process at a time."""


def main(folder: Path) -> None:
    from planc.backends.xla.runtime.start_up import prepare_environment
    from planc.ir.read_plan import read_plan

    os.environ["JAX_TRACEBACK_FILTERING"] = "off"  # so that the last line is the error's own
    request = json.loads((folder / "request.json").read_text())
    plan = read_plan(json.loads((folder / "plan.json").read_text()))
    if request["topology"]:
        os.environ.update(LOG_LEVELS, JAX_PLATFORMS="cpu")
    else:
        prepare_environment(plan.mesh.devices)
    path = cached_answer(plan, request["topology"], Path(request["folder"]))
    (folder / "answer.json").write_text(json.dumps({"path": str(path)}))


def cached_answer(plan: Plan, topology: str, folder: Path) -> Path:
    """Return the path, in `folder`, of the compiler's answer for the step of `plan`. If no answer is cached, compile
    for the TPU `topology` ("": virtual CPU devices)."""
    import jax

    from planc.backends.xla.analysis.compiler_options import compiler_options
    from planc.backends.xla.analysis.slices import ranks_over_slices
    from planc.backends.xla.versions import JAX
    from planc.checks import check_plan
    from planc.lowering import lower_plan

    # A kernel's text names files, and the folder they lie in.
    jax.config.update("jax_traceback_in_locations_limit", 0)  # type: ignore[no-untyped-call]
    devices = described(topology, plan)
    program = lower_plan(check_plan(plan), "xla")
    mesh, step, arguments = step_of(program, devices)
    lowered = step.lower(*arguments)
    options = compiler_options(program.sharded, JAX.pinned) if topology else {}
    facts: dict[str, Any] = {
        "stablehlo_sha256": hashlib.sha256(lowered.as_text().encode()).hexdigest(),
        "topology": topology,
        **chip_options(topology, plan),
        "options": {name: str(value) for name, value in options.items()},
        "versions": {name: version(name) for name in ("jax", "jaxlib", *(["libtpu"] if topology else []))},
        "on_torus": on_torus(mesh, devices, ranks_over_slices(plan)) if topology else None,
    }
    path = folder / f"{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        answer, text = compiled(lowered)
        _write(path.with_suffix(".hlo.gz"), gzip.compress(text.encode()))
        _write(path, json.dumps(facts | answer).encode())
    return path


def compiled(lowered: Any) -> tuple[dict[str, Any], str]:
    """Return the compiler's report on `lowered` with the program's own options, and the optimized HLO. If the program
    does not fit in memory, the HLO is "" and the report has the error (`refused`)."""
    began, used = time.monotonic(), time.process_time()
    refused, done = "", None
    try:
        done = lowered.compile()
    except Exception as error:  # jaxlib's errors have no type of their own beside RuntimeError
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        refused = str(error)
    times = {"compile_s": time.monotonic() - began, "cpu_s": time.process_time() - used}
    if done is None:
        return times | {"refused": refused}, ""
    return times | {"memory": _memory(done)}, done.as_text()


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, since several audits may write the same file at once."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


def chip_options(topology: str, plan: Plan) -> dict[str, Any]:
    """Return how `topology` is described to the compiler: the dims of the torus that wrap around, as the cluster of
    `plan` says (by default none does, and the compiler sums over a whole torus where it would gather). On v4 the two
    cores of a chip form one device (megacore): by default libtpu makes two devices, on which jax cannot build a mesh.
    """
    from planc.backends.xla.audit.topology import slices_of

    if not topology:
        return {}
    around = (*plan.cluster.wrap, False)[:3]
    megacore = {"chip_config_name": "megacore"} if slices_of(topology)[1].startswith("v4:") else {}
    return {**megacore, "wrap": around}


def described(topology: str, plan: Plan) -> list[jax.Device]:
    """Return the devices of `plan` on a TPU `topology`, which need not exist; for "", devices of this process."""
    import jax

    from planc.backends.xla.audit.topology import slices_of

    if not topology:
        return list(jax.devices()[: plan.mesh.devices])
    from jax.experimental import topologies

    slices, one = slices_of(topology)
    several = {"num_slices": slices} if slices > 1 else {}
    found = topologies.get_topology_desc(platform="tpu", topology_name=one, **chip_options(topology, plan), **several)
    return list(found.devices)


def step_of(program: ProgramText, devices: list[jax.Device]) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return the mesh over `devices`, the jitted training step as emitted, and abstract arguments (shapes without
    data)."""
    import jax
    import jax.numpy as jnp

    from planc.backends.xla.analysis.padding import padded
    from planc.backends.xla.analysis.stacked_params import stacks_of
    from planc.backends.xla.models import family
    from planc.backends.xla.runtime import shards
    from planc.backends.xla.runtime.optimizer import optimizer_of
    from planc.ir.session import Settings

    plan = program.plan
    emitted, module = program.load(), family(plan.model.family)
    mesh = emitted.build_mesh(devices)
    optimizer = optimizer_of(plan.model, Settings(optimizer=plan.optimizer.name), emitted)
    own = shards.restacked(module.shapes(plan.model), stacks_of(plan), padded(program.sharded))
    shapes = shards.abstract(own, plan.store_dtype("params"))
    step = emitted.build_train_step(module.build_loss(plan.model, emitted), optimizer, mesh, shapes)
    shape: Any = jax.ShapeDtypeStruct
    state = jax.tree.map(
        lambda x, where: shape(x.shape, x.dtype, sharding=where),
        {"params": shapes, "optimizer": jax.eval_shape(optimizer.init, shapes)},
        emitted.state_shardings(mesh, shapes, optimizer),
    )
    rows = shape((plan.batch.sequences, plan.batch.sequence_tokens), jnp.int32)
    return mesh, step, (state, rows, rows, shape((), jnp.float32))


def on_torus(mesh: jax.sharding.Mesh, devices: list[jax.Device], slices: dict[str, int]) -> bool:
    """True if jax maps `mesh` onto the torus of `devices` in the order that the program has, so that neighbours in the
    mesh are linked. With several slices, `slices` gives their number per axis, and each slice is a torus."""
    from jax.experimental import mesh_utils

    across = [slices.get(name, 1) for name in mesh.axis_names]
    within, used = [mesh.shape[n] // k for n, k in zip(mesh.axis_names, across, strict=True)], devices[: mesh.size]
    try:
        wanted = (
            mesh_utils.create_hybrid_device_mesh(within, across, used, allow_split_physical_axes=True)
            if slices
            else mesh_utils.create_device_mesh(within, used, allow_split_physical_axes=True)
        )
    except (NotImplementedError, ValueError):  # raised where the mesh fits no torus of these devices
        return False
    return bool((wanted == mesh.devices).all())


def _memory(done: Any) -> dict[str, int]:
    found = done.memory_analysis()
    names = (
        *("peak_memory", "argument_size", "output_size", "alias_size", "temp_size"),
        *("host_argument_size", "host_temp_size"),
    )
    return {name: int(getattr(found, f"{name}_in_bytes")) for name in names}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
