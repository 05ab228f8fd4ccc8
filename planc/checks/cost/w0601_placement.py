"""W0601: an axis whose activations cross the network leaves its node."""

from __future__ import annotations

from collections.abc import Iterator

from planc.cost import Costed
from planc.diag.diagnostic import Diagnostic
from planc.diag.registry import Rule


def check(costed: Costed) -> Iterator[Diagnostic]:
    plan = costed.sharded.plan
    if plan.cluster.kind != "node" or plan.cluster.devices_per_node == 1:
        return
    for axis in costed.axes:
        rows = [r for r in costed.collectives if axis.name in r.row.axes and r.row.carries == "activation"]
        rows = [r for r in rows if r.row.op != "send_recv"]
        if not rows or axis.size * axis.stride <= plan.cluster.devices_per_node:
            continue
        node = plan.cluster.link
        inside = node.bandwidth_bytes_per_s * node.efficiency
        slow = max(rows, key=lambda r: r.time_s)
        ideal = slow.row.wire_bytes / inside
        yield Diagnostic(
            "W0601",
            f"axis `{axis.name}` of size {axis.size} and stride {axis.stride} leaves the node of"
            f" {plan.cluster.devices_per_node}: its {slow.row.op} takes {slow.time_s / ideal:.1f}x as long on"
            f" {axis.level} as on {node.name}",
            plan.mesh.cause.span,
            help=f"activations move on `{axis.name}` in every layer: make it innermost and at most"
            f" {plan.cluster.devices_per_node}",
        )


RULE = Rule(
    code="W0601",
    title="an axis leaves its node",
    reads="cost",
    why="""Axes are laid on the machine outermost first, so the innermost ones fill a node.
Collectives of activations wait in every layer; over the network they take several times as long as
over the links inside a node.""",
    bad="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      tp 8 > fsdp 2
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
recompute blocks
""",
    good="""plan example
model     llama3_8b
batch     64 x 8192 tokens microbatch 1
cluster   2 x h100_node
mesh      fsdp 2 > tp 8
use       fsdp over fsdp
use       tp   over tp
use       sp   over tp
recompute blocks
""",
    check=check,
)
