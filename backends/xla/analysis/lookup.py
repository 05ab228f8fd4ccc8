"""How the program looks up tokens in the embedding table: in the whole table, or each rank in its own columns."""

from __future__ import annotations

from planc.backends.xla.analysis.layouts import cut
from planc.backends.xla.analysis.padding import padded
from planc.ir.collective import DTYPE_BYTES
from planc.ir.sharding import OpSharding, ParamSharding, Sharded
from planc.sharding.local import param_elements, tensor_bytes


def looked_up_by_columns(sharded: Sharded) -> ParamSharding | None:
    """Return the embedding table if each rank looks up its own columns of it for the tokens of all ranks, and an
    all-to-all hands the rows to the ranks of their tokens; None if the table is gathered.

    It is so where all ranks, of one slice, divide the batch, the plan names `embed` as the dim on which the table and
    its gradient are stored over all of them, and two exchanges of rows in each microbatch send less than one gather of
    the table and one sum of its gradient.
    """
    plan, o = sharded.plan, lookup_of(sharded)
    if o is None or (plan.cluster.has_tpus and plan.cluster.count > 1):
        return None
    table = sharded.param[o.op.params[0]]
    ranks = set(plan.mesh.in_order(plan.mesh.sizes))
    over = (plan.data_axes, table.stored["params"], table.stored["grads"])
    if not ranks or any(set(plan.mesh.in_order(axes)) != ranks for axes in over):
        return None
    if table.param.sections != ("first",) or table.param.frozen or plan.state_on_host or not plan.gathers_each_pass():
        return None
    columns = table.on_dim == 1 and all(cut(plan, table, noun) == 1 for noun in ("params", "grads"))
    if not columns or table.param.name in padded(sharded):
        return None
    hidden = tensor_bytes(plan, o.op.output, sharded.declared(o.op.output))
    number = DTYPE_BYTES[plan.precision.compute] + DTYPE_BYTES["fp32"]
    return table if 2 * hidden < param_elements(plan, table) * number else None


def lookup_of(sharded: Sharded) -> OpSharding | None:
    """Return the op that looks tokens up in the embedding table; None if the model has none."""
    return next((o for o in sharded.ops["first"] if o.op.kind == "embedding"), None)
