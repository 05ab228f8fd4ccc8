"""Computes how many copies of a token are sent to experts: one per chosen expert, or one per device or node that has
some of them."""

from __future__ import annotations

from itertools import product

from planc.ir.cache import cached_on
from planc.ir.plan import Plan


@cached_on(lambda plan, axes: (plan.cache, axes))
def copies_share(plan: Plan, axes: tuple[str, ...]) -> float:
    """Return the fraction of one copy per choice that an exchange of tokens over `axes` sends, as `route experts` says:
    1 with `copies = choice`.

    Choices are balanced: out of n devices or nodes, k choices hit n (1 - (1 - 1/n)^k) (public scaling book, gpus.md,
    appendix B). `copies = device` counts devices. `copies = node` with axes over several nodes counts nodes, at most
    `node_limit` of them: within its node a token is forwarded over the faster links (DeepSeek-AI 2024, "DeepSeek-V3
    Technical Report", section 3.2.2).

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
    """Return the expected number of `places` (devices or nodes) that have at least one of `choices` random choices.

    >>> hit(4, choices=2)  # 4 x (1 - (3/4)^2)
    1.75
    """
    return places * (1 - (1 - 1 / places) ** choices)


def _nodes(plan: Plan, axes: tuple[str, ...]) -> int:
    """Return the number of nodes (or slices of a torus) that the ranks along `axes` are on."""
    mesh, each = plan.mesh, plan.cluster.devices_per_node
    steps = [[place * mesh.axis(a).stride for place in range(mesh.axis(a).size)] for a in axes]
    return len({sum(at) // each for at in product(*steps)})
