"""Emits MoE layers as matmuls with masks, which XLA's partitioner can shard.

Sorting and indexing rows, as the torch module does, aborts the partitioner of XLA 2.9. A matmul with a mask is
equivalent, and its shapes do not depend on the routing. `dropless`: every expert computes every token of its ranks,
with weight 0 for tokens routed elsewhere, so FLOPs are those of all experts. `capacity`: tokens are dispatched to the
plan's number of slots per expert, by a mask [tokens, experts, slots] (GShard, arXiv:2006.16668, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator

from planc.backends.common.source_writer import beside, comment, fill
from planc.backends.xla.analysis.layouts import Spec, outermost_first
from planc.backends.xla.analysis.mesh_factors import parts
from planc.backends.xla.emit.specs import spec_text
from planc.diag.quoting import python_string
from planc.ir.sharding import OpSharding, Sharded

HOOK = """
if _pattern(name) == EXPERTS:
    module.forward = _by_masks(module, mesh)
"""

DROPLESS = '''
def _by_masks(moe: nn.Module, mesh: xs.Mesh) -> Callable[[Tensor], Tensor]:
    """The layer `moe`, [B, S, D] to [B, S, D]: each of X experts computes all tokens, most with weight 0."""

    def forward(x: Tensor) -> Tensor:
        shared = moe.shared(x) if moe.shared is not None else None
        weights, chosen = moe.picks(moe.router(x))
        numbers = torch.arange(moe.router.out_features, device=x.device)
        weight = (weights[..., None] * (chosen[..., None] == numbers)).sum(-2)  # [B, S, X]
        rows, experts = _Placed.apply(x, mesh, EXPERT_ROWS), moe.experts
        gate, up = (torch.einsum("bsd,xfd->bsxf", rows, w.weight) for w in (experts.w1, experts.w3))
        mid = _Placed.apply(silu(gate) * up * weight[..., None].to(x.dtype), mesh, EXPERT_MID)
        out = _Placed.apply(torch.einsum("bsxf,xdf->bsd", mid, experts.w2.weight), mesh, HIDDEN)
        return out if shared is None else out + shared

    return forward
'''

CAPACITY = '''
def _by_masks(moe: nn.Module, mesh: xs.Mesh) -> Callable[[Tensor], Tensor]:
    """The layer `moe`, [B, S, D] to [B, S, D]. An expert takes its first tokens of the T of each of G
    ranks, as many as it has slots; a mask [G, T, X, slots] dispatches and combines them."""

    def forward(x: Tensor) -> Tensor:
        shared = moe.shared(x) if moe.shared is not None else None
        weights, chosen = moe.picks(moe.router(x))
        x, weights, chosen = _by_rank(x), _by_rank(weights), _by_rank(chosen)
        experts = moe.experts
        count, tokens, k = moe.router.out_features, *chosen.shape[-2:]
        places = math.ceil(tokens * k * CAPACITY_FACTOR / count)
        picked = chosen[..., None] == torch.arange(count, device=x.device)  # [G, T, k, X]
        weight = (weights[..., None] * picked).sum(-2)
        taken = picked.sum(-2)
        place = taken.cumsum(2) - taken  # number of earlier tokens of the expert
        there = (place[..., None] == torch.arange(places, device=x.device)) & (taken[..., None] > 0)
        mask = there.to(x.dtype)  # [G, T, X, places]
        rows = _Placed.apply(torch.einsum("bstxc,bstd->bsxcd", mask, x), mesh, EXPERT_ROWS)
        each = torch.einsum("bstxc,bstx->bsxc", mask, weight.to(x.dtype))
        gate, up = (torch.einsum("bsxcd,xfd->bsxcf", rows, w.weight) for w in (experts.w1, experts.w3))
        mid = _Placed.apply(silu(gate) * up * each[..., None], mesh, EXPERT_MID)
        made = _Placed.apply(torch.einsum("bsxcf,xdf->bsxcd", mid, experts.w2.weight), mesh, EXPERT_ROWS)
        out = _Placed.apply(_in_sequences(torch.einsum("bstxc,bsxcd->bstd", mask, made)), mesh, HIDDEN)
        return out if shared is None else out + shared

    return forward


def _by_rank(x: Tensor) -> Tensor:
    """[B, S, n] to [batch ranks, sequence ranks, local tokens, n]."""
    over_batch, over_sequence = TOKEN_RANKS
    sequences, tokens, n = x.shape
    parts = x.view(over_batch, sequences // over_batch, over_sequence, tokens // over_sequence, n)
    return parts.transpose(1, 2).flatten(2, 3)


def _in_sequences(x: Tensor) -> Tensor:
    """The inverse of `_by_rank`."""
    sequences = MICROBATCH // TOKEN_RANKS[0]
    parts = x.unflatten(2, (sequences, x.shape[2] // sequences)).transpose(1, 2)
    return parts.flatten(2, 3).flatten(0, 1)
'''


def has_experts(sharded: Sharded) -> bool:
    """True if some blocks of the model in `sharded` have experts."""
    return bool(sharded.model.top_k)


def experts_functions(sharded: Sharded) -> str:
    """Returns the functions of the MoE layer for `sharded`, which must have experts."""
    return fill(CAPACITY if sharded.plan.route.method == "capacity" else DROPLESS)


def experts_constants(sharded: Sharded) -> list[str]:
    """Returns the lines of `EXPERTS`, the name of the MoE modules, and of the shardings of expert inputs, hidden
    activations and outputs. The model in `sharded` must have experts."""
    plan = sharded.plan
    route = next(_ops(sharded, "route"))
    gate = next(o for o in _ops(sharded, "matmul") if "expert_ffn" in o.layout or o.op.region == "experts")
    slots, batch, sequence = gate.layout.get("slots", ()), plan.data_axes, plan.axes_of("sequence", "residual")

    def entry(dim: str, axes: tuple[str, ...]) -> tuple[str, ...]:
        return parts(plan, outermost_first(plan, dim, axes))

    of_batch = entry("batch", tuple(a for a in batch if a in slots))
    of_sequence = entry("sequence", tuple(a for a in sequence if a in slots))
    of_experts = entry("experts", gate.layout.get("experts", ()))
    of_ffn = entry("expert_ffn", gate.layout.get("expert_ffn", ()))
    rows: Spec = (of_batch, of_sequence, ())
    mid: Spec = (of_batch, of_sequence, of_experts, of_ffn)
    limited: list[str] = []
    if plan.route.method == "capacity":
        rows, mid = (of_batch, of_sequence, of_experts, (), ()), (of_batch, of_sequence, of_experts, (), of_ffn)
        ranks = plan.mesh.size(*batch), plan.mesh.size(*sequence)
        said = plan.route.cause.comment() if plan.route.cause else ""
        limited = [
            *beside(f"CAPACITY_FACTOR = {plan.route.factor!r}", said),
            *beside(f"TOKEN_RANKS = {ranks}", "ranks that shard the sequences, and the tokens of each"),
        ]
    hidden: Spec = (entry("batch", batch), entry("sequence", sequence), ())
    return [
        *comment("The MoE layers: their modules, and the shardings of expert inputs, hidden activations and outputs."),
        f"EXPERTS = {python_string(route.op.module)}",
        *limited,
        f"EXPERT_ROWS = {spec_text(rows)}",
        f"EXPERT_MID = {spec_text(mid)}",
        f"HIDDEN = {spec_text(hidden)}",
    ]


def _ops(sharded: Sharded, kind: str) -> Iterator[OpSharding]:
    return (o for section in sharded.ops.values() for o in section if o.op.kind == kind)
