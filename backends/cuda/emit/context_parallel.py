"""Emits context parallelism: each rank holds some tokens of every sequence of its batch shard.

Only attention mixes tokens. The plan's layouts decide how: by an all-gather of keys and values, by a ring, or by an
all-to-all from sequence to heads before attention and back after it.
"""

from __future__ import annotations

from planc.backends.common.source_writer import because, call, fill, lines
from planc.backends.cuda.analysis.context import balanced, exchanges, gathers, is_divided
from planc.backends.cuda.analysis.module_placements import relative
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.emit import ranks
from planc.backends.cuda.emit.ring import ring_functions
from planc.backends.cuda.versions import gather_with_gradient
from planc.diag.quoting import python_string
from planc.ir.sharding import OpSharding, RedistributionStep


def context(roles: AxisRoles) -> str:
    """Emits all functions for context parallelism, apply_cp last; "" if no axis shards the sequence."""
    if not roles.context:
        return ""
    divided = [o for o in roles.sharded.attentions if is_divided(roles, o)]
    passed = any(o.ring for o in divided)
    parts = [
        _mesh(roles),
        _rows(roles),
        fill(WHOLE_BALANCED if balanced(roles) else WHOLE, gather=gather_with_gradient.function(roles.torch))
        if gathers(roles)
        else "",
        _gathered(roles) if gathers(roles) else "",
        ring_functions(roles, divided) if passed else "",
        EXCHANGE if any(exchanges(roles)) else "",
        _apply(roles, divided, ring=passed),
    ]
    return "\n\n\n".join(p.strip() for p in parts if p)


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


WHOLE_BALANCED = '''
def whole_sequence(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """All-gather [B, S / n, ...] to [B, S, ...], in order of positions."""
    ranks = fc.<gather>(x.contiguous(), 0, mesh).unflatten(0, (mesh.size(), -1))
    heads, tails = ranks.chunk(2, dim=2)
    return torch.cat((heads, tails.flip(0))).movedim(0, 1).flatten(1, 2)
'''


WHOLE = '''
def whole_sequence(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """All-gather [B, S / n, ...] to [B, S, ...], in order of positions."""
    ranks = fc.<gather>(x.contiguous(), 0, mesh).unflatten(0, (mesh.size(), -1))
    return ranks.movedim(0, 1).flatten(1, 2)
'''


def _gathered(roles: AxisRoles) -> str:
    ends = "(rank + 1, 2 * ranks - rank)" if balanced(roles) else "(rank + 1,)"
    pieces = "2 * ranks" if balanced(roles) else "ranks"
    return fill(
        '''
        def attend_gathered(
            attend: Callable[..., torch.Tensor], mesh: DeviceMesh, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
        ) -> torch.Tensor:
            """Attention of the local rows over gathered keys. Tensors are [B, S / n, heads, head_dim].

            `attend` gets the keys up to its last row.
            """
            ranks, rank = mesh.size(), mesh.get_local_rank()
            k, v = whole_sequence(k, mesh), whole_sequence(v, mesh)
            piece = k.shape[1] // (<pieces>)
            ends = [piece * end for end in <ends>]
            parts = zip(q.split(piece, dim=1), ends, strict=True)
            return torch.cat([attend(part, k[:, :end], v[:, :end]) for part, end in parts], dim=1)
        ''',
        pieces=pieces,
        ends=ends,
    )


EXCHANGE = '''
def sequence_to_heads(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """All-to-all from [B, S / n, heads * head_dim] to [B, S, heads / n * head_dim]."""
    parts = x.unflatten(2, (mesh.size(), -1)).movedim(2, 0).contiguous()
    return fc.all_to_all_single_autograd(parts, None, None, mesh).movedim(0, 1).flatten(1, 2)


def heads_to_sequence(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """All-to-all from [B, S, heads / n * head_dim] to [B, S / n, heads * head_dim]."""
    parts = x.unflatten(1, (mesh.size(), -1)).movedim(1, 0).contiguous()
    return fc.all_to_all_single_autograd(parts, None, None, mesh).movedim(0, 2).flatten(2, 3)
'''


POSITIONS = """
placed = [module for module in model.modules() if hasattr(module, "positions")]
if <rotating>not placed:
    raise ValueError("no module of the model has an attribute `positions`, the positions of its rows")
for module in placed:
    module.positions = sequence_rows(mesh)
"""


def _apply(roles: AxisRoles, divided: list[OpSharding], *, ring: bool) -> str:
    """Emits apply_cp: it replaces attention's forward, adds the all-to-alls around attention, and sets the tokens'
    positions. `divided` are the attention ops with a sharded sequence; `ring` is True for ring attention."""
    kernel = roles.plan.attention
    cause = because(kernel.cause) if kernel is not None else ""
    body: list[str] = []
    for path in dict.fromkeys(relative(o.op.module) for o in divided):
        made = "attend_ring, cp" if ring else f"attend_gathered, block.{path}.forward, cp"
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
