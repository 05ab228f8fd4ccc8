"""Starts a program on JAX: the environment, the processes, the initial state. The trainer has the loop.

This module imports no framework on load: `prepare_environment` must run before jax is imported.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planc.backends.xla.runtime.session import JaxSession
    from planc.ir.program_text import ProgramText
    from planc.ir.session import Initial, Settings

DEVICE_COUNT = "--xla_force_host_platform_device_count"


def prepare_environment(devices: int) -> None:
    """Set the environment so that jax finds this machine's accelerator, or without one, `devices` virtual CPU devices.

    Several processes of one run divide the virtual devices. A JAX_PLATFORMS set by the user takes precedence.
    """
    assert "jax" not in sys.modules, "the environment must be set before jax is imported"
    if os.environ.setdefault("JAX_PLATFORMS", _platforms()) != "cpu":
        return
    here = max(devices // int(os.environ.get("WORLD_SIZE", "1")), 1)
    flags = re.sub(rf"{DEVICE_COUNT}=\d+", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = f"{flags} {DEVICE_COUNT}={here}".strip()


def _platforms() -> str:
    if any(name.startswith(("accel", "vfio")) for name in os.listdir("/dev")):
        return "tpu,cpu"
    return "cuda,cpu" if os.path.exists("/dev/nvidiactl") else "cpu"


def start(program: ProgramText, settings: Settings, initial: Initial, *, keep_gradients: bool = False) -> JaxSession:
    """Start the plan's program over all devices of the plan. With `keep_gradients`, the session computes each step's
    gradients a second time and stores them, for tests."""
    import jax

    from planc.backends.xla.analysis.padding import padded
    from planc.backends.xla.analysis.stacked_params import stacks_of
    from planc.backends.xla.models import family, loss_of
    from planc.backends.xla.runtime import shards
    from planc.backends.xla.runtime.optimizer import optimizer_of
    from planc.backends.xla.runtime.session import JaxSession
    from planc.backends.xla.runtime.state import guarded
    from planc.backends.xla.runtime.steps import Steps

    _join()
    emitted, model = program.load(), program.plan.model
    mesh, module = emitted.build_mesh(), family(model.family)
    loss = loss_of(model, emitted, settings)
    optimizer = optimizer_of(model, settings, emitted)
    stacks = stacks_of(program.plan)
    kept = program.plan.store_dtype("params")
    stored = padded(program.sharded)
    shapes = shards.abstract(shards.restacked(module.shapes(model), stacks, stored), kept)
    params = shards.fill(model, emitted.shardings(mesh, shapes), initial, stacks, kept, stored)
    state = emitted.init_state(params, optimizer, mesh)
    steps = Steps(
        step=emitted.build_train_step(loss, optimizer, mesh, shapes, clip_norm=settings.clip_norm or float("inf")),
        evaluate=emitted.build_eval_step(loss, mesh, shapes),
        gradients=emitted.build_gradients(loss, mesh, shapes),
        state=emitted.state_shardings(mesh, shapes, optimizer),
        rows=jax.sharding.NamedSharding(mesh, emitted.BATCH),
    )
    return JaxSession(
        program,
        guarded(steps) if settings.skip_not_finite else steps,
        state,
        process=(jax.process_index(), jax.process_count()),
        versions=_versions(),
        stacks=stacks,
        keep_gradients=keep_gradients,
        skip_not_finite=settings.skip_not_finite,
    )


def start_single(
    program: ProgramText, settings: Settings, initial: Initial, *, keep_gradients: bool = False
) -> JaxSession:
    """Start the unsharded model on one device of this process; arguments as in `planc.ir.session.Runtime`.

    `keep_gradients` computes each step's gradients a second time and stores them, for parity tests.
    """
    import jax

    from planc.backends.xla.analysis.stacked_params import undivided
    from planc.backends.xla.models import family
    from planc.backends.xla.runtime import shards
    from planc.backends.xla.runtime.reference import Single, hooks_of, rounding_of
    from planc.backends.xla.runtime.session import JaxSession
    from planc.backends.xla.runtime.steps import Steps

    model = program.plan.model
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    single = Single(model, settings, hooks_of(program.plan), rounding_of(program.plan))
    where = dict.fromkeys(family(model.family).shapes(model), here)
    state = single.init(shards.fill(model, where, initial, dtype=program.plan.store_dtype("params")))
    steps = Steps(
        step=jax.jit(single.step, donate_argnums=0),
        evaluate=jax.jit(single.loss),
        gradients=jax.jit(single.gradients),
        state=jax.tree.map(lambda _: here, state),
        rows=here,
    )
    return JaxSession(
        program,
        steps,
        state,
        process=(0, 1),
        versions=_versions(),
        stacks=undivided(model),
        keep_gradients=keep_gradients,
    )


def _join() -> None:
    """Join the other processes of the run, which torchrun's environment variables name."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return
    import jax

    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(address, world, int(os.environ["RANK"]))


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("jax", "jaxlib", "optax")}
