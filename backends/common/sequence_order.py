"""The order of a sequence's tokens over its context-parallel ranks, for an unsharded reference that imitates them."""

from __future__ import annotations

from planc.ir.plan import Plan


def held_order(plan: Plan) -> list[int]:
    """Return the positions of a sequence's tokens in the order of the ranks that shard the sequence under `plan`.

    A rank holds one contiguous chunk, or with `balance = headtail` one chunk from the head of the sequence and one from
    its tail.

    >>> held_order(plan)[:4]  # no axis shares sequences
    [0, 1, 2, 3]
    """
    tokens, kernel = plan.batch.sequence_tokens, plan.attention
    axes = plan.axes_of("sequence", "attention")
    passes = kernel is not None and kernel.method in ("ring", "all_gather")
    if not axes or not passes or kernel is None or kernel.balance != "headtail":
        return list(range(tokens))
    ranks = plan.mesh.size(*axes)
    length = tokens // (2 * ranks)
    pieces = [piece for rank in range(ranks) for piece in (rank, 2 * ranks - 1 - rank)]
    return [position for piece in pieces for position in range(piece * length, (piece + 1) * length)]
