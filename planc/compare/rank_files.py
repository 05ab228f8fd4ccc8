"""Files for torchrun, Slurm and JAX that assign a plan's ranks to devices in the best order of `planc place`.

The plan's program itself is not changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from textwrap import wrap

from planc.backends.common.launch.machines import machine_of
from planc.backends.common.source_writer import fill
from planc.compare.placement import mesh_text
from planc.costing.machine.topology import torus_dims
from planc.diag.quoting import python_comment, python_docstring
from planc.ir.mesh import Mesh
from planc.ir.plan import Plan

KINDS = ("torchrun", "slurm", "jax")


def rank_file(plan: Plan, best: Mesh, order: Sequence[int], kind: str) -> str:
    """Return the text of a file of `kind`, one of KINDS. `order` has the device of each rank of the plan's mesh, as in
    `best`.

    Raises ValueError, with a message for the user, if `kind` does not support the machine.
    """
    torus = plan.cluster.is_torus and plan.cluster.own_graph is None
    if torus and kind != "jax":
        raise ValueError(f"the chips of a torus are laid out by JAX, not by {kind}")
    if kind == "slurm":
        return _slurm(plan, order)
    said = {
        "name": python_docstring(plan.name),
        "mesh": python_docstring(mesh_text(plan.mesh)),
        "axes": repr(plan.mesh.sizes),
    }
    if torus:
        rows = "\n".join(f"    {place}," for place in _places(plan, best, order))
        return fill(JAX_PLACES, **said, places=rows) + "\n"
    return fill(TORCH if kind == "torchrun" else JAX, **said, order=_listed(map(str, order))) + "\n"


TORCH = """
\"\"\"The mesh of <name>, <mesh>, with its ranks where `planc place` lays them.

Under torchrun rank i is device i of the machines in their order: mesh() goes where init_device_mesh(...) is called.
\"\"\"

import torch
from torch.distributed.device_mesh import DeviceMesh

AXES = <axes>
ORDER = [
<order>
]


def mesh(device_type: str = "cuda") -> DeviceMesh:
    ranks = torch.tensor(ORDER).reshape(*AXES.values())
    return DeviceMesh(device_type, ranks, mesh_dim_names=tuple(AXES))
"""
JAX = """
\"\"\"The mesh of <name>, <mesh>, with its devices where `planc place` lays them.\"\"\"

import jax
import numpy as np
from jax.sharding import Mesh

AXES = <axes>
ORDER = [
<order>
]


def mesh() -> Mesh:
    devices = np.array(jax.devices())[ORDER]
    return Mesh(devices.reshape(*AXES.values()), tuple(AXES))
"""
JAX_PLACES = """
\"\"\"The mesh of <name>, <mesh>, with its devices where `planc place` lays them.

PLACES has a row for each device: its slice, its coordinates and its core.
\"\"\"

import jax
import numpy as np
from jax.sharding import Mesh

AXES = <axes>
PLACES = [
<places>
]


def mesh() -> Mesh:
    at = {(getattr(d, "slice_index", 0), *d.coords, d.core_on_chip): d for d in jax.devices()}
    devices = np.array([at[place] for place in PLACES])
    return Mesh(devices.reshape(*AXES.values()), tuple(AXES))
"""
BLOCKS = """
# Slurm's placement of <name>, <mesh>: each rank where `planc place` lays it. In a job of one task a device:
# . FILE; srun PROGRAM
export SLURM_DISTRIBUTION=<distribution>
<local>
"""
HOSTS = """
# Slurm's placement of <name>, <mesh>: each rank where `planc place` lays it. In a job of one task a device:
# . FILE; srun PROGRAM
NODE_OF_RANK=(
<nodes>
)
mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
SLURM_HOSTFILE=$(mktemp "$PWD/hosts.XXXXXX")
for node in "${NODE_OF_RANK[@]}"; do echo "${HOSTS[$node]}"; done > "$SLURM_HOSTFILE"
export SLURM_HOSTFILE SLURM_DISTRIBUTION=arbitrary
<local>
"""
LOCAL = """
# The device of each rank in its node, where that is not SLURM_LOCALID: LOCAL_RANK=${LOCAL_OF_RANK[$SLURM_PROCID]}
LOCAL_OF_RANK=(
<locals>
)
"""


def _slurm(plan: Plan, order: Sequence[int]) -> str:
    places = _hosts(plan)
    mine = [places[device] for device in order]
    distribution = _distribution([node for node, _ in mine])
    local = "" if _counted([node for node, _ in mine]) == [at for _, at in mine] else LOCAL
    if local:
        local = fill(local, locals=_listed((str(at) for _, at in mine), between=" "))
    said = {"name": python_comment(plan.name), "mesh": python_comment(mesh_text(plan.mesh)), "local": local}
    if distribution:
        return fill(BLOCKS, **said, distribution=distribution).rstrip() + "\n"
    nodes = _listed((str(node) for node, _ in mine), between=" ")
    return fill(HOSTS, **said, nodes=nodes).rstrip() + "\n"


def _hosts(plan: Plan) -> list[tuple[int, int]]:
    """Return (host, index on that host) of each device."""
    if plan.cluster.own_graph is None:
        each = machine_of(plan.cluster).devices
        return [divmod(device, each) for device in range(plan.mesh.devices)]
    from planc.graph import machine_links

    links = machine_links(plan.cluster)
    units = [links.vertices[v].unit for v in links.devices]
    numbers = {unit: i for i, unit in enumerate(dict.fromkeys(units))}
    hosts = [numbers[unit] for unit in units]
    return [*zip(hosts, _counted(hosts), strict=True)]


def _counted(nodes: Sequence[int]) -> list[int]:
    """Return each rank's local rank in Slurm: the number of earlier ranks on its node."""
    seen: dict[int, int] = defaultdict(int)
    found = []
    for node in nodes:
        found.append(seen[node])
        seen[node] += 1
    return found


def _distribution(nodes: Sequence[int]) -> str:
    """Return the value of Slurm's `--distribution` that puts each rank on its node of `nodes`; "" if there is none."""
    count = len({*nodes})
    if list(nodes) == sorted(nodes):
        return "block"
    run = next(i for i, node in enumerate(nodes) if node != nodes[0])
    if len(nodes) % (run * count) == 0 and all(node == i // run % count for i, node in enumerate(nodes)):
        return "cyclic" if run == 1 else f"plane={run}"
    return ""


def _places(plan: Plan, best: Mesh, order: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the slice, the torus coordinates (at least three) and the core of each device of `order`, with the axes
    mapped to the torus as in `best`.

    An index along an axis counts the cores of a chip first, then positions in rings, then slices.
    """
    cluster, parts = plan.cluster, []
    cores, placed = cluster.chip.devices, torus_dims(best, cluster)
    for axis in sorted(best.axes, key=lambda a: a.stride):
        on_chip = min(axis.size, cores)
        cores //= on_chip
        parts += [(dim, ring, axis.stride * on_chip) for dim, ring in placed.get(axis.name, ())]
    found = []
    for rank in order:
        coordinates = [0] * max(3, len(cluster.shape))
        used: dict[int, int] = {}
        for dim, ring, stride in parts:
            done = used.setdefault(stride, 1)
            coordinates[dim] += rank // (stride * done) % ring.size * ring.stride
            used[stride] = done * ring.size
        found.append((rank // cluster.devices_per_node, *coordinates, rank % cluster.chip.devices))
    if len({*found}) < len(found):
        raise ValueError(f"the axes of {mesh_text(best)} do not divide the dimensions of the torus")
    return found


def _listed(cells: Iterable[str], between: str = ", ") -> str:
    return "\n".join(wrap(between.join(cells), 110, initial_indent="    ", subsequent_indent="    "))
