"""Published closed forms, answered by the public functions of `planc.costing` on the machines of the catalog.

`oracles.json`, and for memory `tests/lab/published/data/memory.json`, hold each question's inputs, its answer with its
source, and the function that answers it.
Machines are those of `plans/hardware` at their data-sheet rates; `given` names the rates that the source
rounds otherwise. Nothing is computed here.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from planc.catalog import build_model
from planc.costing.machine import collective_time as network
from planc.costing.machine import roofline, topology
from planc.costing.machine.group import device_group
from planc.ir.hardware import Chip, Cluster
from planc.ir.mesh import Mesh
from planc.ir.model import Model
from tests.cost import textbook
from tests.lab.published import gpt_memory
from tests.lab.published.rows import bundled
from tests.plans import cluster_of

ROWS = [*json.loads((Path(__file__).parent / "oracles.json").read_text()), *bundled("memory.json")]
SECONDS = {"GiB": 2.0**30, "days": 86400.0}
"""Bytes or seconds in one of a row's units; all others are as the functions give them."""


@dataclass(frozen=True)
class Machine:
    """The cluster of a row, its mesh and the axes of the group that the row asks about."""

    cluster: Cluster
    mesh: Mesh
    axes: tuple[str, ...]

    @property
    def chip(self) -> Chip:
        return self.cluster.chip

    @property
    def groups(self) -> list[topology.DeviceGroup]:
        return [device_group(self.mesh, self.cluster, (a,)) for a in self.axes]

    @property
    def group(self) -> topology.DeviceGroup:
        return self.groups[0]


Calls = dict[str, Callable[..., float]]
ON_CHIP: Calls = {f.__name__: f for f in (roofline.chip_intensity, roofline.matmul_s, textbook.largest_parameters)}
ON_CHIP |= {f.__name__: f for f in (textbook.vector_lanes, textbook.vector_ops_per_s, textbook.stream_critical_tokens)}
ON_CHIP |= {"critical_tokens": roofline.critical_tokens}
ON_CLUSTER: Calls = {f.__name__: f for f in (topology.injection_bytes_per_s, topology.bisection_bytes_per_s)}
ON_CLUSTER |= {f.__name__: f for f in (topology.switches, textbook.egress_bytes_per_s, textbook.total_memory_bytes)}
ON_CLUSTER |= {"torus_send_s": lambda cluster, buffer_bytes, **to: textbook.torus_send_s(buffer_bytes, cluster, **to)}
ON_CLUSTER |= {"hosts": lambda cluster: cluster.hosts}
ON_GROUP: Calls = {f.__name__: f for f in (network.collective_s, network.limit_s, textbook.group_bytes_per_s)}
ON_GROUP |= {"multicast_ingress_bytes": lambda **given: sum(textbook.multicast_ingress_bytes(**given))}
ON_GROUP |= {f.__name__: f for f in (textbook.tree_gather_bytes_per_s, network.latency_s, textbook.time_ratio)}
ON_LEVEL: Calls = {f.__name__: f for f in (network.gather_bytes_per_s, textbook.latency_bound_bytes)}
OF_GROUP: Calls = {f.__name__: f for f in (roofline.critical_tokens_per_device, roofline.critical_batch_tokens)}
OF_GROUP |= {f.__name__: f for f in (textbook.critical_ffn, roofline.largest_tp, textbook.largest_data_parallel)}
OF_GROUP |= {f.__name__: f for f in (roofline.critical_expert_ffn,)}
OF_TWO: Calls = {f.__name__: f for f in (roofline.critical_tokens_fsdp_tp, textbook.best_fsdp_degree)}
OF_GPT: Calls = {f.__name__: f for f in (gpt_memory.first_stage_activation_bytes, gpt_memory.percent_of_baseline)}
OF_GPT |= {f.__name__: f for f in (gpt_memory.state_bytes,)}
PLAIN: Calls = {f.__name__: f for f in (textbook.pipeline_sends_s, textbook.tokens_per_device, network.peers_hit)}
PLAIN |= {f.__name__: f for f in (network.ring_share, textbook.state_bytes_per_device)}


def answer(row: dict[str, Any]) -> float:
    """Calls the row's function with what it takes first: a chip, a cluster, a group, a model."""
    call, args = row["call"], dict(row.get("args", {}))
    if call in PLAIN:
        return PLAIN[call](**args)
    if call in OF_GPT:
        return OF_GPT[call](gpt_memory.GptShape(**args.pop("shape")), **args)
    if call == "ring_time_ratio":
        ring = topology.Ring(**args.pop("ring"))
        return textbook.time_ratio(group=topology.ring_group(ring, args.pop("link_bytes_per_s")), **args)
    return of_model(call, args) if "model" in args else on_machine(call, machine(row), args)


def on_machine(call: str, at: Machine, args: dict[str, Any]) -> float:
    for functions, first in ((ON_CHIP, [at.chip]), (ON_CLUSTER, [at.cluster])):
        if call in functions:
            return functions[call](*first, **args)
    other: dict[str, Callable[[], float]] = {
        "stream_s": lambda: roofline.stream_s(chip=at.chip, **args),
        "training_s": lambda: textbook.training_s(chip=at.chip, **args),
        "fewest_chips": lambda: textbook.fewest_chips(chip=at.chip, **args),
        "replicas": lambda: topology.replicas(at.mesh, at.axes),
    }
    if call in other:
        return other[call]()
    if call in ON_LEVEL:
        return ON_LEVEL[call](textbook.group_level(at.group, args.get("level", at.group.level)))
    if call in ON_GROUP:
        return ON_GROUP[call](group=at.group, **args)
    functions = OF_TWO if call in OF_TWO else OF_GROUP
    return functions[call](at.cluster, *at.groups, **args)


def of_model(call: str, args: dict[str, Any]) -> float:
    model: Model = build_model(args.pop("model"), args.pop("changes", None))
    if call == "parameters_of":
        return textbook.parameters_of(model, *args["patterns"])
    return float(getattr(textbook, call)(model, **args))


def machine(row: dict[str, Any]) -> Machine:
    cluster = topology.at_peak(cluster_of(row["cluster"]), latency=row.get("latency", False))
    for path, value in row.get("given", {}).items():
        cluster = put(cluster, path.split("."), value)
    return Machine(cluster, Mesh.of(row["mesh"], cluster.cause), tuple(row.get("axes", ())))


def put(noun: Any, path: list[str], value: float) -> Any:
    """The noun with one field, at any depth, replaced."""
    first, *rest = path
    if isinstance(noun, dict):
        return {**noun, first: value}
    return replace(noun, **{first: put(getattr(noun, first), rest, value) if rest else value})


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["id"])
def test_the_published_answer(row: dict[str, Any]) -> None:
    wanted = row["answer"] * SECONDS.get(row["unit"], 1.0)
    assert answer(row) == pytest.approx(wanted, rel=row["tolerance_rel"] or 1e-12), row["source"]


def test_every_oracle_is_asked_once() -> None:
    assert len({r["id"] for r in ROWS}) == len(ROWS) == 92
