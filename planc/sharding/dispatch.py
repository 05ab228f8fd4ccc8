"""Computes how many copies of a token are sent to experts: one per chosen expert, or one per device or node that holds
chosen experts."""

from __future__ import annotations

from itertools import product

from planc.ir.cache import cached_on
from planc.ir.plan import Plan


@cached_on(lambda plan, axes: (plan.cache, axes))
def copies_share(plan: Plan, axes: tuple[str, ...]) -> float:
    """Return the copies of a token that an all-to-all over `axes` sends to experts, as a fraction of one per chosen
    expert.

    The sentence `route experts` decides: `copies = choice` gives 1. `copies = device` sends one copy to each device
    that holds chosen experts. `copies = node` does so if `axes` are inside a node; else it sends one copy to each node,
    at most `node_limit` of them, and the node forwards it over faster links (DeepSeek-AI 2024, "DeepSeek-V3 Technical
    Report", section 3.2.2). With balanced routing, k choices hit n (1 - (1 - 1/n)^k) of n devices or nodes (public
    scaling book, gpus.md, appendix B).

    >>> copies_share(plan, ("fsdp",))  # a copy for each choice
    1.0
    """
    if plan.route.copies == "choice":
        return 1.0
    places = plan.mesh.size(*axes)
    nodes = _nodes(plan, axes) if plan.route.copies == "node" else 1
    if nodes > 1:
        places = min(nodes, plan.route.node_limit or nodes)
    return hit(places, plan.model.top_k) / plan.model.top_k


def hit(places: int, choices: int) -> float:
    """Return the expected number of `places` (devices or nodes) that hold at least one of `choices` random experts.

    >>> hit(4, choices=2)  # 4 x (1 - (3/4)^2)
    1.75
    """
    return places * (1 - (1 - 1 / places) ** choices)


def _nodes(plan: Plan, axes: tuple[str, ...]) -> int:
    """Return the number of nodes (for a torus: slices) that one group of ranks along `axes` spans."""
    mesh, each = plan.mesh, plan.cluster.devices_per_node
    steps = [[place * mesh.axis(a).stride for place in range(mesh.axis(a).size)] for a in axes]
    return len({sum(at) // each for at in product(*steps)})
