"""The work of each pipeline rank, and pipeline splits that balance it better."""

from __future__ import annotations

from planc.ir.sharding import Sharded


def rank_seconds(sharded: Sharded) -> list[float]:
    """Return the compute seconds of one microbatch on each pipeline rank: forward, backward and recompute together."""
    from planc.sharding.stage_assignment import sections_on

    each = section_seconds(sharded)
    held = [sections_on(sharded.plan, rank) for rank in range(sharded.plan.pipeline)]
    return [sum(n * each.get(s, 0.0) for s, n in sections.items()) for sections in held]


def section_seconds(sharded: Sharded) -> dict[str, float]:
    """Return the compute seconds of one microbatch in the embedding (`first`), the head (`last`) and one layer of each
    kind of block: forward, backward and recompute together."""
    from planc.costing.compute.section import section_time

    times = {s: section_time(sharded, s, sharded.plan.cluster.chip) for s in sharded.ops}
    return {s: t.forward_s + t.backward_s + t.recompute_s for s, t in times.items()}


def even_stages(sharded: Sharded) -> tuple[tuple[int, int], ...]:
    """Return (first layer, end) of each stage so that the ranks have similar work, embedding and head included. Greedy:
    each further layer goes to the rank with the least work."""
    from planc.sharding.stage_assignment import virtual_stages

    plan, each = sharded.plan, section_seconds(sharded)
    count, layers = len(plan.stages), plan.model.layers
    block = sum(each[k] * plan.model.layers_of(k) for k in plan.model.blocks) / layers
    home = {v: rank for rank in range(plan.pipeline) for v in virtual_stages(plan, rank)}
    sizes = [1] * count  # no stage may be empty
    ends = [0.0] * count
    ends[0] += each["first"]
    ends[-1] += each["last"]
    for _ in range(layers - count):
        load = [0.0] * plan.pipeline
        for v in range(count):
            load[home[v]] += ends[v] + sizes[v] * block
        idlest = min(range(count), key=lambda v: (load[home[v]], ends[v] + sizes[v] * block))
        sizes[idlest] += 1
    return tuple((sum(sizes[:v]), sum(sizes[: v + 1])) for v in range(count))


def stages_text(stages: tuple[tuple[int, int], ...]) -> str:
    """Return `stages`, (first layer, end) of each, as in a `split` sentence: `[embed + 9, 2 x 8 layers, 7 + head]`."""
    sizes = [b - a for a, b in stages]
    parts: list[str] = []
    index = 1
    while index < len(sizes) - 1:
        run = index
        while run < len(sizes) - 1 and sizes[run] == sizes[index]:
            run += 1
        parts.append(f"{run - index} x {sizes[index]} layers" if run - index > 1 else str(sizes[index]))
        index = run
    return f"[{', '.join([f'embed + {sizes[0]}', *parts, f'{sizes[-1]} + head'])}]"
