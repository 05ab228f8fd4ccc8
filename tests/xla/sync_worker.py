"""Run in one process of eight virtual devices: syncs pairs of layouts, and compares each device's shards with slices of
the whole model. `sync_worker.py NAME...` prints a row for each pair.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.xla.analysis.layouts import state_layout
from planc.backends.xla.analysis.padding import padded
from planc.backends.xla.analysis.stacked_params import stacks_of
from planc.backends.xla.emit.sync import emit_sync
from planc.backends.xla.runtime.start_up import prepare_environment
from planc.checks import check_plan
from planc.ir.sharding import Sharded
from planc.lowering import lower_plan
from planc.sharding.transfer_core import TensorLayout, shape_of
from planc.sharding.transfers import tensor_transfers
from tests.plans import propagated
from tests.seeded import initial
from tests.sharding.masks import local_indices
from tests.sync_cases import Arrays, Served, layers_of, serve_of, served_tensors


def synced(name: str) -> dict[str, Any]:
    """Sync a pair; which tensors differ from the whole ones, and which lie elsewhere than by index masks."""
    import jax

    serve = serve_of(name)
    trainer, generator = propagated(serve.trainer), propagated(serve.layout)
    module = ModuleType("emitted")
    exec(
        compile(emit_sync(trainer, generator, dtype=serve.dtype, block=serve.block), f"{name}.py", "exec"),
        module.__dict__,
    )
    count, first = serve.trainer.mesh.devices, 0 if serve.colocated else serve.trainer.mesh.devices
    mesh = module.generator_mesh(jax.devices()[first : first + serve.layout.mesh.devices])
    ranks = {device: rank for rank, device in enumerate(mesh.devices.flat)}
    targets = {m.param.name: m.target for m in tensor_transfers(trainer, generator, state_layout(trainer))}
    found = module.sync(trained(serve, jax.devices()[:count]), mesh)
    expected, shards, wrong, elsewhere = stacked(serve, generator), 0, set(), set()
    for key, array in found.items():
        for shard in array.addressable_shards:
            shards += 1
            if np.asarray(shard.data).tobytes() != expected[key][shard.index].tobytes():
                wrong.add(key)
            if key in targets and not _there(shard.index, targets[key], ranks[shard.device]):
                elsewhere.add(key)
    missing = sorted({*expected} ^ {*found})
    return {"name": name, "shards": shards, "wrong": sorted(wrong), "elsewhere": sorted(elsewhere), "missing": missing}


def _there(index: tuple[slice, ...], held: TensorLayout, rank: int) -> bool:
    """True if a shard has the indices that the rank holds by masks; a stage's layers are compared by their values."""
    indices = local_indices(held._replace(stage=(1, 1), stages=(0,)), rank)
    assert indices is not None
    own = zip(index[len(index) - len(indices) :], indices, shape_of(held), strict=True)
    return all(np.array_equal(np.arange(n)[cut], part) for cut, part, n in own)


def stacked(serve: Served, generator: Sharded) -> Arrays:
    """The whole tensors as the generator's program has them: stacked and padded with zeros."""
    model, found, whole = serve.trainer.model, Arrays(), served_tensors(serve)
    stacks, shapes = stacks_of(generator.plan), padded(generator)
    for param in model.params:
        for suffix in ("", "_scale_inv"):
            names = [param.name.replace("*", str(n)) + suffix for n in layers_of(model, param)]
            if names[0] not in whole:
                continue
            shape = whole[names[0]].shape
            more = shapes.get(param.name, shape) if not suffix else shape
            ends = [(0, b - a) for a, b in zip(shape, more, strict=True)]
            layers = {n: np.pad(whole[x], ends) for n, x in zip(layers_of(model, param), names, strict=True)}
            if param.name in stacks:
                stack = stacks[param.name]
                empty = np.zeros_like(layers[next(iter(layers))]) if not suffix else np.ones(shape, np.float32)
                rows = [empty if n is None else layers[n] for n in stack.layers]
                found[param.name + suffix] = np.stack(rows).reshape(*stack.dims, *more)
            else:
                found[param.name + suffix] = layers[-1]
    return found


def trained(serve: Served, devices: Any) -> Any:
    """The trainer's parameters, as its program keeps them on `devices`."""
    from planc.backends.xla.models import family
    from planc.backends.xla.runtime import shards

    program = lower_plan(check_plan(serve.trainer), "xla")
    emitted, model, stacks = program.load(), serve.trainer.model, stacks_of(serve.trainer)
    stored = padded(program.sharded)
    shapes = shards.abstract(shards.restacked(family(model.family).shapes(model), stacks, stored), "fp32")
    where = emitted.shardings(emitted.build_mesh(devices), shapes)
    return shards.fill(model, where, initial, stacks, "fp32", stored)


def main(names: list[str]) -> None:
    prepare_environment(8)
    for name in names:
        print("ROW", json.dumps(synced(name)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
