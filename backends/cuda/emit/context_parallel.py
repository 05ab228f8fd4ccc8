"""Emits context parallelism: each rank holds some tokens of every sequence of its batch shard.

Only attention mixes tokens. The plan's layouts decide how: by an all-gather of keys and values, by a ring, or by an
all-to-all from sequence to heads before attention and back after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from planc.backends.common.source_writer import because, call, fill, lines
from planc.backends.common.specialise import specialise
from planc.backends.cuda.analysis.attention import value_padding
from planc.backends.cuda.analysis.context import balanced, exchanges, is_divided
from planc.backends.cuda.analysis.module_placements import relative
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.emit import ranks
from planc.backends.cuda.program.facts import TorchFacts
from planc.backends.cuda.versions import gather_with_gradient
from planc.diag.quoting import python_comment, python_string
from planc.ir.sharding import OpSharding, RedistributionStep
from planc.sharding.recompute import names_op


def context(roles: AxisRoles) -> str:
    """Emits all functions for context parallelism, apply_cp last; "" if no axis shards the sequence."""
    if not roles.context:
        return ""
    divided = [o for o in roles.sharded.attentions if is_divided(roles, o)]
    needed = _entries(roles, divided)
    functions = specialise("planc.backends.cuda.program", "context_parallel", facts_of(roles), needed, width=120)
    parts = [_mesh(roles), _rows(roles), *functions, _apply(roles, divided)]
    return "\n\n\n".join(parts)


def _entries(roles: AxisRoles, divided: Sequence[OpSharding]) -> list[str]:
    """Returns the functions that apply_cp and a recompute call."""
    entries = list[str]()
    if divided:
        entries.append("attend_ring" if any(o.ring for o in divided) else "attend_gathered")
    if keeps_rings(roles):
        entries.append("keep_rings")
    return [*entries, *(("sequence_to_heads", "heads_to_sequence") if any(exchanges(roles)) else ())]


def facts_of(roles: AxisRoles) -> TorchFacts:
    """Returns what the plan of `roles` decides about the functions in the program modules."""
    plan, attentions = roles.plan, roles.sharded.attentions
    kernel = plan.attention.kernel if plan.attention else None
    return TorchFacts(
        balanced=balanced(roles),
        window=max((o.op.window for o in attentions if o.ring), default=0),
        pads_values=any(value_padding(roles.sharded.model, o.op) for o in attentions if is_divided(roles, o)),
        saves_rings=keeps_rings(roles),
        reduce=plan.precision.reduce,
        gathers_single=gather_with_gradient.DIFFERENCE.is_in(roles.torch),
        kernel_cause=python_comment(kernel.cause.comment()) if kernel else "",
    )


def keeps_rings(roles: AxisRoles) -> bool:
    """True if the plan recomputes blocks but saves the outputs of ring attention.

    torch's selective checkpoint cannot save them: it decides per op, and a ring is many ops with partial outputs.
    """
    ring = any(o.ring for o in roles.sharded.attentions)
    return ring and any(names_op(word, o.op) for word in roles.plan.recompute.kept for o in roles.sharded.attentions)


def _mesh(roles: AxisRoles) -> str:
    name, mesh = roles.context_name, roles.plan.mesh
    axes = mesh.in_order(mesh.sizes)
    if roles.context in [f.axes for f in roles.factors]:
        body = f"return mesh[{python_string(name)}]"
    else:
        body = fill(
            """
            <laid>
            ranks = <ranks>.reshape(-1, <size>)
            group, _ = dist.new_subgroups_by_enumeration(ranks.tolist(), group_desc=<name>)
            return DeviceMesh.from_group(group, mesh.device_type, mesh_dim_names=(<name>,))
            """,
            laid=ranks.laid(mesh, axes),
            ranks=ranks.arranged(mesh, axes, [*(a for a in axes if a not in roles.context), *roles.context]),
            size=str(mesh.size(*roles.context)),
            name=python_string(name),
        )
    return fill(
        '''
        @cache
        def context_mesh(mesh: DeviceMesh) -> DeviceMesh:
            """The context-parallel ranks of this rank's sequences."""
            <cause>
            <body>
        ''',
        cause=because(roles.plan.cause_of_shard("sequence", roles.context[0])),
        body=body,
    )


def _rows(roles: AxisRoles) -> str:
    mesh = roles.plan.mesh
    return fill(
        '''
        def sequence_rows(mesh: DeviceMesh) -> torch.Tensor:
            """The positions of the local tokens: <what>."""
            <laid>
            rank = mesh.get_rank()
            place, ranks = <place>, <ranks>
            positions = torch.arange(SEQUENCE_TOKENS, device=mesh.device_type)
            <cut>
        ''',
        what="a chunk from each end, which balances causal attention" if balanced(roles) else "one chunk",
        laid=ranks.laid(mesh, mesh.in_order(mesh.sizes)),
        ranks=str(mesh.size(*roles.context)),
        place=ranks.place(mesh, roles.context),
        cut=lines(
            "pieces = positions.chunk(2 * ranks)",
            "return torch.cat((pieces[place], pieces[-1 - place]))",
        )
        if balanced(roles)
        else "return positions.chunk(ranks)[place]",
    )


POSITIONS = """
placed = [module for module in model.modules() if hasattr(module, "positions")]
if <rotating>not placed:
    raise ValueError("no module of the model has an attribute `positions`, the positions of its rows")
for module in placed:
    module.positions = sequence_rows(mesh)
"""


def _apply(roles: AxisRoles, divided: list[OpSharding]) -> str:
    """Emits apply_cp: it replaces attention's forward, adds the all-to-alls around attention, and sets the tokens'
    positions. `divided` are the attention ops with a sharded sequence."""
    kernel = roles.plan.attention
    cause = because(kernel.cause) if kernel is not None else ""
    body: list[str] = []
    for path in dict.fromkeys(relative(o.op.module) for o in divided):
        made = "attend_ring, cp" if any(o.ring for o in divided) else f"attend_gathered, block.{path}.forward, cp"
        body.append(f"block.{path}.forward = partial({made})")
    body += dict.fromkeys(_hook(o, step, index) for o, step, index in exchanges(roles))
    blocks = fill("for block in model.layers.values():\n    <body>", body=lines(*body)) if body else ""
    return fill(
        '''
        def apply_cp(model: nn.Module, mesh: DeviceMesh) -> None:
            """<doc>"""
            <positions>
            <cause>
            <cp>
            <blocks>
        ''',
        doc="Set the positions of the local tokens, and let attention see the keys of other ranks.",
        positions=_positions(roles) if _rotates_rows(roles) else "",
        cause=cause,
        cp="cp = context_mesh(mesh)" if blocks else "",
        blocks=blocks,
    )


def _positions(roles: AxisRoles) -> str:
    """Emits code that sets the rotary positions of local tokens. In a pipeline, a stage may have no rotary modules."""
    return fill(POSITIONS, rotating="model.layers and " if roles.pipeline else "")


def _rotates_rows(roles: AxisRoles) -> bool:
    """True if the context axes shard the sequence dim of a rotary embedding."""
    kinds = roles.sharded.model.blocks
    return any(is_divided(roles, o) for kind in kinds for o in roles.sharded.ops[kind] if o.op.kind == "rope")


def _hook(o: OpSharding, step: RedistributionStep, index: int | None) -> str:
    module = f"block.{relative(o.op.module)}"
    change = "sequence_to_heads" if step.dim == "sequence" else "heads_to_sequence"
    if index is None:
        return f"{module}.register_forward_hook(lambda module, inputs, output: {change}(output, cp))"
    # Before tensor parallelism makes a DTensor of it.
    return call(
        f"{module}.register_forward_pre_hook(",
        [f"lambda module, inputs: ({change}(inputs[0], cp),)", "prepend=True"],
        depth=2,
    )
