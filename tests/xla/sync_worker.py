"""Run in one process of eight virtual devices: syncs pairs of layouts, loads what the trainer saved, and compares each
device's shards with slices of the whole model. `sync_worker.py NAME...` prints a row for each pair,
`sync_worker.py --drawn COUNT SEED` one for each drawn pair that the target takes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, cast

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planc.backends.xla.analysis.layouts import state_layout
from planc.backends.xla.analysis.padding import padded
from planc.backends.xla.analysis.stacked_params import stacks_of
from planc.backends.xla.emit.sync import emit_sync
from planc.backends.xla.runtime.start_up import prepare_environment
from planc.checks import check_plan
from planc.diag import PlanError
from planc.ir.session import Piece, Session
from planc.ir.sharding import Sharded
from planc.lowering import lower_plan
from planc.sharding.transfer_core import TensorLayout, shape_of
from planc.sharding.transfers import tensor_transfers
from tests.plans import propagated
from tests.seeded import initial
from tests.sharding.masks import local_indices
from tests.sync_cases import Arrays, Served, layers_of, readers_of, serve_of, served_tensors
from tests.sync_draws import drawn
from tests.trainer.matrix import checkpoint, save


def synced(name: str, serve: Served) -> dict[str, Any]:
    """Sync a pair; which tensors differ from the whole ones, and which lie elsewhere than by index masks."""
    import jax

    trainer, generator = propagated(serve.trainer), propagated(serve.layout)
    module = ModuleType("emitted")
    exec(
        compile(emit_sync(trainer, generator, dtype=serve.dtype, block=serve.block), f"{name}.py", "exec"),
        module.__dict__,
    )
    count, first = serve.trainer.mesh.devices, 0 if serve.colocated else serve.trainer.mesh.devices
    mesh = module.generator_mesh(jax.devices()[first : first + serve.layout.mesh.devices])
    ranks = {device: rank for rank, device in enumerate(mesh.devices.flat)}
    moves = list(tensor_transfers(trainer, generator, state_layout(trainer)))
    targets = {m.param.name: m.target for m in moves}
    params, expected = trained(serve, jax.devices()[:count]), stacked(serve, generator)
    row: dict[str, Any] = {"name": name, "shards": 0, "wrong": [], "elsewhere": [], "missing": []}
    with tempfile.TemporaryDirectory() as folder:
        save(cast(Session, Trained(serve, params)), serve.trainer, "xla", Path(folder))
        readers = readers_of(module)
        for found in (module.sync(params, mesh), module.load(checkpoint(Path(folder)), mesh)):
            for key, array in found.items():
                for shard in array.addressable_shards:
                    row["shards"] += 1
                    if np.asarray(shard.data).tobytes() != expected[key][shard.index].tobytes():
                        row["wrong"].append(key)
                    if key in targets and not _there(shard.index, targets[key], ranks[shard.device]):
                        row["elsewhere"].append(key)
            row["missing"] += sorted({*expected} ^ {*found})
    row["read"] = readers[0].read_bytes
    parts = [(len(m.layers), local_indices(m.target, rank)) for m in moves for rank in ranks.values()]
    row["needed"] = sum(4 * layers * prod(map(len, part)) for layers, part in parts if part is not None)
    return row


class Trained:
    """A session of the trainer's program that only saves: its parameters."""

    rank, world, optimizer_steps, runtime = 0, 1, 0, "jax"
    versions: ClassVar[dict[str, str]] = {}

    def __init__(self, serve: Served, params: Any) -> None:
        self._serve, self._params = serve, params

    def pieces(self) -> list[Piece]:
        from planc.backends.xla.runtime.state import pieces

        plan = self._serve.trainer
        return pieces(plan.model, lambda: {"params": self._params}, stacks_of(plan))


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


def main(arguments: list[str]) -> None:
    prepare_environment(8)
    if arguments[0] != "--drawn":
        for name in arguments:
            print("ROW", json.dumps(synced(name, serve_of(name))), flush=True)
        return
    done, failed, seed = 0, 0, int(arguments[2])
    while done < int(arguments[1]):
        serve, seed = drawn(seed), seed + 1
        try:
            row = synced(serve.name, serve)
        except PlanError:
            continue  # the target refuses the trainer
        done += 1
        failed += bool(row["wrong"] or row["elsewhere"] or row["missing"] or not 0 < row["read"] <= row["needed"])
        print("ROW", json.dumps(row), flush=True)
    print(f"{done} drawn pairs synced and loaded, {failed} wrong")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main(sys.argv[1:])
