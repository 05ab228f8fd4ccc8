"""FLOPs of matmuls and attention, and the fraction of them that the ranks of an axis all repeat."""

from __future__ import annotations

from planc.ir.sharding import OpSharding, Sharded
from planc.sharding.propagate import override_of


def copies(sharded: Sharded, section: str) -> int:
    """Return the number of copies of `section` in the model: the number of layers for a kind of block, 1 for embedding
    or head."""
    model = sharded.model
    return model.layers_of(section) if section in model.blocks else 1


def flops(sharded: Sharded) -> list[tuple[OpSharding, float]]:
    """Return each matmul or attention op of `sharded` with its FLOPs per device and microbatch, over all layers."""
    from planc.costing.compute.flops import op_flops

    return [
        (o, copies(sharded, section) * amount)
        for section, ops in sharded.ops.items()
        for o in ops
        if (amount := op_flops(sharded, o)) > 0
    ]


def repeated_share(sharded: Sharded, axis: str) -> float:
    """Return the fraction of matmul and attention FLOPs that all ranks along `axis` repeat. Ops with a parameter
    override are left out."""
    done = [(o, amount) for o, amount in flops(sharded) if not _overridden(sharded, o)]
    total = sum(amount for _, amount in done)
    alike = [amount for o, amount in done if not _divides(o, axis) and sharded.plan.exists(axis, o.op.region)]
    return sum(alike) / total if total else 0.0


def _overridden(sharded: Sharded, o: OpSharding) -> bool:
    return any(override_of(sharded.plan, sharded.model.param[name]) for name in o.op.params)


def _divides(o: OpSharding, axis: str) -> bool:
    return any(axis in axes for axes in o.layout.values())
