"""Where axes lie, and what a collective over them takes."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planc.costing.machine.collective_time import (
    algorithm,
    bound_s,
    collective_s,
    latency_s,
    limit_s,
    ragged_all_to_all_s,
    ring_share,
    transfer_s,
)
from planc.costing.machine.group import device_group
from planc.costing.machine.topology import DeviceGroup, GroupLevel, Ring, at_peak, torus_dims, units_crossed
from planc.ir.collective import NetworkOp
from planc.ir.mesh import Axis, Mesh, View, strided
from planc.ir.plan import Plan
from tests.cost.textbook import algorithm_bytes_per_s
from tests.plans import BODY, HEAD, cluster_of, plan_of

TORUS = """plan example
model     llama3_8b
batch     256 x 8192 tokens microbatch 1
cluster   tpu_v5p({shape})
mesh      fsdp {fsdp} > tp {tp}
compute   fp32
"""


def test_axes_fill_a_node_from_the_inside(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD + BODY)
    tp, fsdp = (device_group(plan.mesh, plan.cluster, (a,)) for a in ("tp", "fsdp"))
    assert (tp.inside, tp.outside, tp.level) == (8, 1, "nvlink4")
    assert (fsdp.inside, fsdp.outside, fsdp.level) == (1, 8, "leaf")


def test_an_axis_may_lie_across(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HEAD.replace("fsdp 8 > tp 8", "fsdp 16 > tp 4") + BODY)
    group = device_group(plan.mesh, plan.cluster, ("fsdp",))
    assert (group.inside, group.outside) == (2, 8)


def test_a_node_shares_its_way_out(tmp_path: Path) -> None:
    """400 GB/s a node, over eight devices that send at once."""
    plan = plan_of(tmp_path, HEAD + BODY)
    group = device_group(plan.mesh, at_peak(plan.cluster), ("fsdp",))
    assert group.levels[-1].bytes_per_s == pytest.approx(400e9 / 8)
    assert collective_s("all_gather", 1e9, group) == pytest.approx(1e9 * 7 / 8 / 50e9)


def test_a_network_may_say_how_fast_a_collective_is_beside_a_gather(tmp_path: Path) -> None:
    """And what the framework takes for each call, which a loop of calls by themselves does not."""
    plan = plan_of(tmp_path, HEAD + BODY)
    usual = device_group(plan.mesh, plan.cluster, ("fsdp",))
    levels = tuple(replace(v, call_s=2e-3, op_efficiency={"reduce_scatter": 0.5}) for v in plan.cluster.levels)
    slow = device_group(plan.mesh, replace(plan.cluster, levels=levels), ("fsdp",))
    slower: dict[NetworkOp, int] = {"all_gather": 1, "reduce_scatter": 2, "all_reduce": 1}
    for op, times in slower.items():
        assert transfer_s(op, 1e8, slow) == pytest.approx(times * transfer_s(op, 1e8, usual))
        assert collective_s(op, 1e8, slow) == pytest.approx(transfer_s(op, 1e8, slow) + 2e-3)
        assert transfer_s(op, 1e8, usual) == collective_s(op, 1e8, usual)
    inside = device_group(plan.mesh, replace(plan.cluster, levels=levels), ("tp",))
    assert collective_s("reduce_scatter", 1e8, inside) == transfer_s("all_gather", 1e8, inside)


def test_an_all_reduce_is_a_scatter_and_a_gather(tmp_path: Path) -> None:
    """Where the switches do not add."""
    plan = plan_of(tmp_path, HEAD.replace("h100_node", "h800_node") + BODY)
    group = device_group(plan.mesh, plan.cluster, ("tp",))
    both = collective_s("reduce_scatter", 1e8, group) + collective_s("all_gather", 1e8, group)
    assert collective_s("all_reduce", 1e8, group) == pytest.approx(both)


def rings(plan: Plan, axis: str) -> list[Ring]:
    return [ring for _, ring in torus_dims(plan.mesh, plan.cluster)[axis]]


def test_axes_of_a_torus_prefer_whole_rings(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TORUS.format(shape="4x8x8", fsdp=64, tp=4) + BODY)
    assert rings(plan, "tp") == [Ring(4, wrapped=True)]
    assert rings(plan, "fsdp") == [Ring(8, wrapped=True), Ring(8, wrapped=True)]


def test_a_cut_ring_has_no_wrap_and_its_rest_shares_the_links(tmp_path: Path) -> None:
    """tp takes half of a ring of 4; the other half are the ends of a ring whose two groups share the links."""
    plan = plan_of(tmp_path, TORUS.format(shape="8x8x4", fsdp=128, tp=2) + BODY)
    assert rings(plan, "tp") == [Ring(2, wrapped=False)]
    assert Ring(2, wrapped=True, stride=2) in rings(plan, "fsdp")


def test_axes_together_use_the_whole_ring(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TORUS.format(shape="8x8x4", fsdp=128, tp=2) + BODY)
    both = device_group(plan.mesh, plan.cluster, ("fsdp", "tp"))
    assert set(both.levels[0].rings) == {Ring(8, wrapped=True), Ring(4, wrapped=True)}


def test_more_rings_gather_faster(tmp_path: Path) -> None:
    """One v5p axis moves 180 GB/s both ways together; two move twice that."""
    plan = plan_of(tmp_path, TORUS.format(shape="4x8x8", fsdp=64, tp=4) + BODY)
    tp, fsdp = (device_group(plan.mesh, at_peak(plan.cluster), (a,)).levels[0] for a in ("tp", "fsdp"))
    assert (tp.bytes_per_s, fsdp.bytes_per_s) == (180e9, 360e9)


@pytest.mark.parametrize(
    ("machine", "wrapped"),
    [
        ("tpu_v5p(4x4x8)", (True, True, True)),
        ("tpu_v5p(2x4x4)", (False, False, False)),
        ("tpu_v4(4x4x2)", (False, False, False)),
        ("tpu_v5e(8x16)", (False, True)),
        ("tpu_v6e(4x8)", (False, False)),
    ],
)
def test_rings_close_where_the_slice_is_whole(tmp_path: Path, machine: str, wrapped: tuple[bool, ...]) -> None:
    devices = {"tpu_v5p(4x4x8)": 128, "tpu_v5p(2x4x4)": 32, "tpu_v5e(8x16)": 128}.get(machine, 32)
    head = HEAD.replace("8 x h100_node", machine).replace("fsdp 8 > tp 8", f"fsdp {devices // 2} > tp 2")
    assert plan_of(tmp_path, head.replace("batch     64", "batch     128") + BODY).cluster.wrap == wrapped


def test_slices_are_joined_by_their_hosts_cards(tmp_path: Path) -> None:
    """A 4x4x4 slice of v5p has 16 hosts of 25 GB/s: 6.25 GB/s for each of its 64 chips."""
    head = HEAD.replace("8 x h100_node", "2 x tpu_v5p(4x4x4)").replace("fsdp 8 > tp 8", "fsdp 32 > tp 4")
    plan = plan_of(tmp_path, head + BODY)
    inside, outside = device_group(plan.mesh, at_peak(plan.cluster), ("fsdp",)).levels
    assert (inside.name, inside.members, outside.name, outside.members) == ("v5p_ici", 16, "dcn", 2)
    assert outside.bytes_per_s == pytest.approx(16 * 25e9 / 64)


def test_two_devices_of_a_chip_share_its_links(tmp_path: Path) -> None:
    head = HEAD.replace("8 x h100_node", "tpu_7x(4x4x4)").replace("fsdp 8 > tp 8", "fsdp 64 > tp 2")
    plan = plan_of(tmp_path, head + BODY)
    tp, fsdp = (device_group(plan.mesh, at_peak(plan.cluster), (a,)) for a in ("tp", "fsdp"))
    assert (tp.level, tp.levels[0].bytes_per_s) == ("tpu7x", 600e9)
    assert fsdp.levels[0].bytes_per_s == pytest.approx(3 * 2 * 100e9 / 2)


def test_a_fragmented_allocation_crosses_leaves_earlier(tmp_path: Path) -> None:
    whole = plan_of(tmp_path, HEAD + BODY)
    split = plan_of(tmp_path, HEAD.replace("h100_node", "h100_node over 3 leaves") + BODY)
    assert device_group(whole.mesh, whole.cluster, ("fsdp",)).level == "leaf"
    assert device_group(split.mesh, split.cluster, ("fsdp",)).level == "spine"


@pytest.mark.parametrize(
    ("size", "stride", "width", "devices", "units"),
    [
        (8, 1, 8, 64, 1),
        (16, 1, 8, 64, 2),
        (4, 8, 8, 64, 4),
        (12, 1, 8, 96, 2),
        (6, 1, 8, 96, 2),
        (6, 1, 8, 6, 1),
        (2, 32, 8, 64, 2),
    ],
)
def test_units_that_a_group_touches(size: int, stride: int, width: int, devices: int, units: int) -> None:
    """Counted over every group of the axis."""
    axis = Axis(name="x", size=size, stride=stride)
    groups: dict[tuple[int, int], set[int]] = {}
    for rank in range(devices):
        groups.setdefault((rank // (size * stride), rank % stride), set()).add(rank // width)
    assert max(len(g) for g in groups.values()) == units == units_crossed(axis, width, devices)


def test_the_axes_of_a_view_lie_on_the_same_machine(tmp_path: Path) -> None:
    """64 ranks as fsdp 8 > tp 8, and for the experts as edp 16 > ep 4: ep fills half a node."""
    plan = plan_of(tmp_path, HEAD + BODY)
    axes = strided({"edp": 16, "ep": 4})
    view = View(axes=axes, of=("fsdp", "tp"), regions=("experts",), cause=plan.mesh.cause)
    mesh = replace(plan.mesh, views=(view,))
    ep, edp = (device_group(mesh, plan.cluster, (a,)) for a in ("ep", "edp"))
    assert (ep.inside, ep.outside, ep.level) == (4, 1, "nvlink4")
    assert (edp.inside, edp.outside, edp.level) == (2, 8, "leaf")


def test_a_view_takes_the_torus_dimensions_of_what_it_divides(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TORUS.format(shape="4x8x8", fsdp=64, tp=4) + BODY)
    view = View(axes=strided({"edp": 32, "ep": 8}), of=("fsdp", "tp"), regions=("experts",), cause=plan.mesh.cause)
    placed = torus_dims(replace(plan.mesh, views=(view,)), plan.cluster, ("ep",))
    assert set(placed) == {"edp", "ep"}
    assert [r for _, r in placed["ep"]] == [Ring(8, wrapped=True)]


# Collectives.


def line(members: int, wrapped: bool) -> DeviceGroup:
    ring = Ring(members, wrapped)
    return DeviceGroup(members, (GroupLevel("ici", members, 1, 45e9 * ring.links, 1e-6, rings=(ring,)),), "ici")


def test_an_all_to_all_on_a_torus_is_bound_by_the_middle() -> None:
    """By counting the links between every two members: a ring of 8 both ways, a line of 8."""
    for wrapped in (True, False):
        busiest = max(crossings(8, wrapped).values())
        seconds = collective_s("all_to_all", 8e6, line(8, wrapped)) - latency_s(line(8, wrapped))
        assert seconds == pytest.approx(busiest * 1e6 / 45e9, rel=0.01)


def crossings(members: int, wrapped: bool) -> dict[tuple[int, int], float]:
    """Messages over each directed link when every member sends one to each, by the shortest way."""
    links: dict[tuple[int, int], float] = {}
    for a in range(members):
        for b in range(members):
            up = (b - a) % members if wrapped else b - a
            ways = [(1, up), (-1, members - up)] if wrapped else [(1 if up > 0 else -1, abs(up))]
            least = min(n for _, n in ways)
            best = [(step, n) for step, n in ways if n == least]
            for step, n in best:
                for hop in range(n):
                    at = (a + step * hop) % members
                    links[at, step] = links.get((at, step), 0.0) + 1 / len(best)
    return links


def test_switches_that_add_help_whole_nodes_and_not_pairs(tmp_path: Path) -> None:
    """H100: 480 over 370 GB/s for eight; two already send each byte once."""
    plan = plan_of(tmp_path, HEAD.replace("fsdp 8 > tp 8", "fsdp 32 > tp 2") + BODY)
    pair = device_group(plan.mesh, plan.cluster, ("tp",))
    plan = plan_of(tmp_path, HEAD + BODY)
    node = device_group(plan.mesh, plan.cluster, ("tp",))
    assert (algorithm("all_reduce", pair), algorithm("all_reduce", node)) == ("ring", "in-network reduction")
    ring = 2 * collective_s("all_gather", 1e10, node)
    assert ring / collective_s("all_reduce", 1e10, node) == pytest.approx(1.3, rel=0.01)


@pytest.mark.parametrize(("size", "way"), [(1e3, "tree"), (1e7, "hierarchical"), (1e10, "ring")])
def test_the_way_of_a_gather_follows_its_size(tmp_path: Path, size: float, way: str) -> None:
    """Few hops for small messages, every link busy for large ones."""
    plan = plan_of(tmp_path, HEAD.replace("h100_node", "h800_node") + BODY)
    assert algorithm("all_gather", device_group(plan.mesh, plan.cluster, ("fsdp", "tp")), size) == way


@pytest.mark.parametrize("size", [1e3, 1e6, 2.5e7, 1e9])
def test_more_nodes_never_gather_the_same_buffer_faster(size: float) -> None:
    """Also where a group outgrows a leaf, of 32 nodes."""
    times = []
    for nodes in (2, 8, 31, 32, 33, 64, 128, 512):
        cluster = cluster_of(f"{nodes} x h100_node")
        mesh = Mesh.of({"fsdp": nodes, "tp": 8}, cluster.cause)
        times.append(collective_s("all_gather", size, device_group(mesh, cluster, ("fsdp",))))
    assert times == sorted(times)


def test_the_measured_all_reduce_of_b200(tmp_path: Path) -> None:
    """Public ml-engineering notes, NCCL 2.27: seconds in one node and in four, at the sizes that training uses."""
    measured = {
        (1, 2**28): 727.1e-6,
        (1, 2**30): 2.598e-3,
        (1, 2**34): 35.55e-3,
        (4, 2**29): 3.182e-3,
        (4, 2**30): 5.747e-3,
        (4, 2**34): 87.18e-3,
    }
    for (nodes, size), seconds in measured.items():
        head = HEAD.replace("8 x h100_node", f"{nodes} x b200_node").replace("fsdp 8", f"fsdp {nodes}")
        plan = plan_of(tmp_path, head + BODY)
        axes = ("tp",) if nodes == 1 else ("fsdp", "tp")
        assert collective_s("all_reduce", size, device_group(plan.mesh, plan.cluster, axes)) == pytest.approx(
            seconds, rel=0.15
        )


PEAKS = [
    ("1 x a100_node", 232e9, "NVIDIA at GTC 2024, s62129"),
    ("16 x a100_node", 192e9, "NVIDIA at GTC 2024, s62129"),
    ("1 x h100_node", 480e9, "NVIDIA at GTC 2024, s62129, switches add"),
    ("16 x h100_node", 380e9, "NVIDIA at GTC 2024, s62129"),
    ("1 x h200_node", 473.1e9, "public ml-engineering notes"),
    ("1 x b200_node", 838e9, "public ml-engineering notes"),
    ("1 x gb200_nvl72", 850e9, "public ml-engineering notes"),
]


@pytest.mark.parametrize(("machine", "bus_bytes_per_s", "source"), PEAKS, ids=lambda v: str(v).split(" (")[0])
def test_the_published_bus_bandwidth_of_large_all_reduces(machine: str, bus_bytes_per_s: float, source: str) -> None:
    """Bytes that a ring of all devices would have to send, over the seconds it takes, for 8 GiB."""
    group = whole(machine)
    sent = ring_share("all_reduce", group.size) * 2**33
    assert sent / collective_s("all_reduce", 2**33, group) == pytest.approx(bus_bytes_per_s, rel=0.03), source


def test_the_published_dispatch_to_experts() -> None:
    """DeepEP's normal kernels on 64 H800: 51 GB/s for 4096 tokens of 7168 bytes to 8 experts each."""
    tokens = 4096 * 7168 * 8
    assert algorithm_bytes_per_s("all_to_all", tokens, whole("8 x h800_node")) == pytest.approx(51e9, rel=0.1)


def whole(machine: str) -> DeviceGroup:
    """All devices of a machine as one group."""
    cluster = cluster_of(machine)
    return device_group(Mesh.of({"all": cluster.devices}, cluster.cause), cluster, ("all",))


def test_an_oversubscribed_level_takes_less(tmp_path: Path) -> None:
    """Half as much leaves each leaf; below it nothing changes."""
    head = HEAD.replace("8 x h100", "64 x h100").replace("fsdp 8", "fsdp 64")
    plan = plan_of(tmp_path, head + BODY)
    leaf, spine = plan.cluster.levels
    slow = replace(plan.cluster, levels=(leaf, replace(spine, oversubscription=2.0)))
    (here, up), (same, half) = (device_group(plan.mesh, c, ("fsdp",)).levels for c in (plan.cluster, slow))
    assert (same.bytes_per_s, half.bytes_per_s) == (here.bytes_per_s, up.bytes_per_s / 2)
    assert (here.members, up.members, up.below) == (32, 2, 32)


def test_a_network_that_adds_sends_a_buffer_once(tmp_path: Path) -> None:
    """The measured gain over a ring of many nodes, both with large buffers."""
    plan = plan_of(tmp_path, HEAD.replace("h100_node", "h800_node") + BODY)
    adding = tuple(replace(v, in_network_reduction=1.26) for v in plan.cluster.levels)
    plain, fast = (device_group(plan.mesh, c, ("fsdp",)) for c in (plan.cluster, replace(plan.cluster, levels=adding)))
    ring = limit_s("all_reduce", 1e11, plain)
    assert ring / collective_s("all_reduce", 1e11, fast) == pytest.approx(1.26, rel=0.01)


def test_a_token_goes_once_to_each_peer(tmp_path: Path) -> None:
    """Many choices reach every peer, so that no more is sent than in a gather; one choice goes to one."""
    plan = plan_of(tmp_path, HEAD + BODY)
    group = device_group(plan.mesh, at_peak(plan.cluster), ("tp",))
    everywhere = ragged_all_to_all_s(1e9, 1000, group)
    assert everywhere == pytest.approx(collective_s("all_to_all", 8e9, group))
    assert ragged_all_to_all_s(1e9, 1, group) == pytest.approx(everywhere / 8)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv", "broadcast"])
def test_more_bytes_never_take_less_time(tmp_path: Path, op: NetworkOp) -> None:
    plan = plan_of(tmp_path, HEAD + BODY)
    for axes in (("fsdp",), ("tp",), ("fsdp", "tp")):
        group = device_group(plan.mesh, plan.cluster, axes)
        times = [collective_s(op, n, group) for n in (0, 1, 1e3, 1e6, 1e9, 1e12)]
        assert times == sorted(times)


@pytest.mark.parametrize("machine", ["h100_node", "h800_node", "b200_node", "l40s_node"])
def test_no_gather_beats_what_its_levels_allow(tmp_path: Path, machine: str) -> None:
    plan = plan_of(tmp_path, HEAD.replace("h100_node", machine).replace("llama3_8b", "llama3_8b(layers = 2)") + BODY)
    for axes in (("fsdp",), ("tp",), ("fsdp", "tp")):
        group = device_group(plan.mesh, plan.cluster, axes)
        assert all(collective_s("all_gather", n, group) >= bound_s(n, group) for n in (1e3, 1e6, 1e9))


@given(
    sizes=st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=4),
    chosen=st.sets(st.integers(0, 3), min_size=1),
    leaf=st.sampled_from([1, 2, 4]),
)
def test_groups_are_counted_as_enumeration_counts_them(sizes: list[int], chosen: set[int], leaf: int) -> None:
    """Nodes of 8 and leaves of 1, 2 or 4 nodes: the members of rank 0's group, by where each of them lies."""
    machine = cluster_of("256 x h800_node")
    levels = (replace(machine.levels[0], width=leaf), machine.levels[1])
    mesh = Mesh.of({f"a{i}": n for i, n in enumerate(sizes)}, machine.cause)
    axes = [a for i, a in enumerate(mesh.axes) if i in chosen]
    ranks = {0}
    for axis in axes:
        ranks = {r + i * axis.stride for r in ranks for i in range(axis.size)}
    group = device_group(mesh, replace(machine, levels=levels), tuple(a.name for a in axes))
    assert group.size == len(ranks)
    assert group.outside == len({r // 8 for r in ranks})
    spine = [p for p in group.levels if p.name == "spine"]
    assert (spine[0].members if spine else 1) == len({r // (8 * leaf) for r in ranks})


def test_a_ring_through_three_levels_waits_at_each_of_its_steps() -> None:
    """By hand: a ring of 4 x 3 x 2 devices has 23 steps, 18 in a leaf, 4 over a spine and 1 beyond."""
    waits = (1e-6, 10e-6, 100e-6)

    def ring_of(waits: tuple[float, ...]) -> DeviceGroup:
        sizes = zip(("leaf", "spine", "core"), (4, 3, 2), (1, 4, 12), waits, strict=True)
        levels = tuple(
            GroupLevel(n, members=m, below=b, bytes_per_s=50e9, latency_s=s, network=True) for n, m, b, s in sizes
        )
        return DeviceGroup(24, levels, "core")

    group, large = ring_of(waits), 1e12
    assert algorithm("all_gather", group, large) == algorithm("all_gather", ring_of((0.0, 0.0, 0.0)), large) == "ring"
    waited = collective_s("all_gather", large, group) - collective_s("all_gather", large, ring_of((0.0, 0.0, 0.0)))
    assert waited == pytest.approx(18 * 1e-6 + 4 * 10e-6 + 1 * 100e-6, rel=1e-6)
    one_step = ring_of((1e-6, 1e-6, 1e-6))
    steps = collective_s("all_gather", large, one_step) - collective_s("all_gather", large, ring_of((0.0, 0.0, 0.0)))
    assert steps == pytest.approx(23 * 1e-6, rel=1e-6)
