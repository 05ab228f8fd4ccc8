"""Attention under context parallelism: a rank has some tokens of every sequence, and its attention sees them all.

By an all-gather of keys and values; by a ring, in which ranks pass keys and values round and each attends to all keys
that it receives; or by an all-to-all from sequence to heads before attention and back after it.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

from planc.backends.cuda.program.facts import FACTS


def whole_sequence(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """All-gather [B, S / n, ...] to [B, S, ...], in order of positions."""
    ranks = (fc.all_gather_single_autograd if FACTS.gathers_single else fc.all_gather_tensor_autograd)(
        x.contiguous(), 0, mesh
    ).unflatten(0, (mesh.size(), -1))
    if FACTS.balanced:
        heads, tails = ranks.chunk(2, dim=2)
        return torch.cat((heads, tails.flip(0))).movedim(0, 1).flatten(1, 2)
    return ranks.movedim(0, 1).flatten(1, 2)


def attend_gathered(
    attend: Callable[..., torch.Tensor], mesh: DeviceMesh, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Attention of the local rows over gathered keys. Tensors are [B, S / n, heads, head_dim].

    `attend` gets the keys up to its last row.
    """
    ranks, rank = mesh.size(), mesh.get_local_rank()
    k, v = whole_sequence(k, mesh), whole_sequence(v, mesh)
    piece = k.shape[1] // (2 * ranks if FACTS.balanced else ranks)
    ends = [piece * end for end in ((rank + 1, 2 * ranks - rank) if FACTS.balanced else (rank + 1,))]
    parts = zip(q.split(piece, dim=1), ends, strict=True)
    return torch.cat([attend(part, k[:, :end], v[:, :end]) for part, end in parts], dim=1)


class Rings:
    """Saves the outputs of ring attention in a checkpointed forward; its recompute reuses them."""

    now: "Rings | None" = None
    """The instance of the running forward or recompute; None outside of both."""

    def __init__(self, made: list[tuple[torch.Tensor, torch.Tensor]], *, replayed: bool) -> None:
        self.made, self.replayed = made, replayed

    def __enter__(self) -> None:
        self.before, Rings.now = Rings.now, self

    def __exit__(self, *raised) -> None:
        Rings.now = self.before


def keep_rings() -> tuple[Rings, Rings]:
    """The context managers of a checkpointed forward and of its recompute."""
    made: list[tuple[torch.Tensor, torch.Tensor]] = []
    return Rings(made, replayed=False), Rings(made, replayed=True)


# Tokens that a row attends to, itself included.
WINDOW = FACTS.window


def pieces(rank: int, ranks: int, rows: int) -> list[int]:
    """Positions of the first token of each chunk of a rank that has `rows` tokens."""
    if FACTS.balanced:
        piece = rows // 2
        return [rank * piece, (2 * ranks - 1 - rank) * piece]
    return [rank * rows]


def seen(
    rank: int, source: int, rows: int, ranks: Annotated[int, FACTS.window]
) -> Iterator[tuple[slice, slice, *tuple[Any, ...]]]:
    """Local rows that attend to keys of rank `source`, these keys, and the mask that `attend_part` takes."""
    if FACTS.window:
        mine, others = pieces(rank, ranks, rows), pieces(source, ranks, rows)
        piece = rows // len(mine)
        for i, first in enumerate(mine):
            for j, key in enumerate(others):
                before = WINDOW - 1 - (first - key)
                left_out = max(
                    0, -before
                )  # the last rows attend to none of these keys, and no row to the first of them
                if first >= key and left_out < piece:
                    met = slice(i * piece, (i + 1) * piece - left_out), slice(j * piece + left_out, (j + 1) * piece)
                    yield *met, first == key, max(0, before)
    elif FACTS.balanced:
        # Each rank holds a head and a tail chunk. All rows attend to heads of earlier ranks; tails to all of later ones.
        half = rows // 2
        met = slice(half, None) if source > rank else slice(None), slice(half) if source < rank else slice(None)
        yield *met, source == rank
    elif source <= rank:
        # Ranks hold consecutive chunks: local rows attend to all keys of earlier ranks, and none of later ones.
        yield slice(None), slice(None), source == rank


def send_on(mesh: DeviceMesh, parts: list[torch.Tensor]) -> tuple[list[dist.Work], list[torch.Tensor]]:
    """Start sending `parts` to the next rank and receiving those of the previous one."""
    group, ranks, rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
    coming = [torch.empty_like(part) for part in parts]
    sends = [dist.P2POp(dist.isend, p, group=group, group_peer=(rank + 1) % ranks) for p in parts]
    takes = [dist.P2POp(dist.irecv, c, group=group, group_peer=(rank - 1) % ranks) for c in coming]
    return dist.batch_isend_irecv(sends + takes), coming


def round_the_ring(mesh: DeviceMesh, parts: list[torch.Tensor]) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Yield (rank, its parts) for every rank, this one first; the next parts are received meanwhile."""
    ranks, rank = mesh.size(), mesh.get_local_rank()
    for step in range(ranks):
        works, coming = send_on(mesh, parts) if step < ranks - 1 else ([], [])
        yield (rank - step) % ranks, parts
        for work in works:
            work.wait()
        parts = coming


def window_mask(q: torch.Tensor, k: torch.Tensor, causal: bool, before: int) -> torch.Tensor:
    """The additive mask of the scores, [S, T]; only the CPU kernel needs it."""
    back = torch.arange(q.shape[2], device=q.device)[:, None] - torch.arange(k.shape[2], device=q.device)
    hidden = (back > before) | (causal & (back < 0))
    return torch.zeros(back.shape, dtype=q.dtype, device=q.device).masked_fill(hidden, float("-inf"))


def attend_part(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, before: Annotated[int, FACTS.window] = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of some rows over some keys, [B, heads, S, head_dim]; returns (output, log-sum-exp)."""
    # FACTS.kernel_cause
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    if FACTS.pads_values:
        # Flash attention wants values as wide as keys: pad them with zeros.
        width = v.shape[3]
        v = F.pad(v, (0, q.shape[3] - width))
    if q.device.type == "cuda":
        if FACTS.window:
            given = (x.transpose(1, 2) for x in (q, k, v))
            lengths = (None, None, q.shape[2], k.shape[2])
            sides = {"window_size_left": before, "window_size_right": 0 if causal else -1}
            out, log_sum = torch.ops.aten._flash_attention_forward(*given, *lengths, 0.0, causal, False, **sides)[:2]
            out = out.transpose(1, 2)
        else:
            out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]
    elif FACTS.window:
        mask = window_mask(q, k, causal, before)
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask)
    else:
        out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out[..., :width] if FACTS.pads_values else out, log_sum


def attend_part_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    log_sum: torch.Tensor,
    causal: bool,
    before: Annotated[int, FACTS.window] = 0,
) -> list[torch.Tensor]:
    """The gradients of q, k and v, given the output and log-sum-exp over all keys."""
    heads = k.shape[1]
    k, v = (x.repeat_interleave(q.shape[1] // heads, dim=1) for x in (k, v))
    if FACTS.pads_values:
        width = v.shape[3]
        grad, v, out = (F.pad(x, (0, q.shape[3] - width)) for x in (grad, v, out))
    given = [x.contiguous() for x in (grad, q, k, v, out, log_sum)]
    if q.device.type == "cuda":
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
        lengths = (None, None, q.shape[2], k.shape[2])
        if FACTS.window:
            given = [*(x.transpose(1, 2) for x in given[:-1]), given[-1]]
            sides = {"window_size_left": before, "window_size_right": 0 if causal else -1}
            op = torch.ops.aten._flash_attention_backward
            dq, dk, dv = (x.transpose(1, 2) for x in op(*given, *lengths, 0.0, causal, seed, seed, **sides))
        else:
            op = torch.ops.aten._scaled_dot_product_flash_attention_backward
            dq, dk, dv = op(*given, *lengths, 0.0, causal, seed, seed)
    elif FACTS.window:
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        dq, dk, dv = op(*given, 0.0, False, attn_mask=window_mask(q, k, causal, before))
    else:
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*given, 0.0, causal)
    return [dq, *(x.unflatten(1, (heads, -1)).sum(2) for x in (dk, dv[..., :width] if FACTS.pads_values else dv))]


class RingAttention(torch.autograd.Function):
    """Causal attention whose keys and values go round the ring of ranks; [B, heads, S / n, head_dim].

    The partial outputs are merged by their log-sum-exp (Liu et al. 2023, Ring Attention).
    """

    @staticmethod
    def forward(ctx, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        q, k, v = (x.contiguous() for x in (q, k, v))
        if FACTS.saves_rings and Rings.now is not None and Rings.now.replayed:
            out, log_sum = Rings.now.made.pop(0)
        else:
            rank = mesh.get_local_rank()
            out = q.new_zeros((*q.shape[:3], v.shape[3]), dtype=torch.float32)
            log_sum = torch.full(q.shape[:3], float("-inf"), dtype=torch.float32, device=q.device)
            for source, (k_part, v_part) in round_the_ring(mesh, [k, v]):
                for rows, keys, *mask in seen(rank, source, q.shape[2], mesh.size()):
                    part, part_sum = attend_part(q[:, :, rows], k_part[:, :, keys], v_part[:, :, keys], *mask)
                    before = log_sum[:, :, rows]
                    total = torch.logaddexp(before, part_sum)
                    weights = (before - total).exp()[..., None], (part_sum - total).exp()[..., None]
                    out[:, :, rows] = out[:, :, rows] * weights[0] + part * weights[1]
                    log_sum[:, :, rows] = total
            out = out.to(q.dtype)
        if FACTS.saves_rings and Rings.now is not None and not Rings.now.replayed:
            Rings.now.made.append((out.detach(), log_sum))
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.mesh = mesh
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, log_sum = ctx.saved_tensors
        mesh, rank = ctx.mesh, ctx.mesh.get_local_rank()
        dq = torch.zeros_like(q, dtype=torch.float32)
        works = []
        sums = [torch.zeros_like(x, dtype=torch.float32 if FACTS.reduce == "fp32" else torch.bfloat16) for x in (k, v)]
        for source, (k_part, v_part) in round_the_ring(mesh, [k, v]):
            for work in works:
                work.wait()
            for rows, keys, *mask in seen(rank, source, q.shape[2], mesh.size()):
                of_rows = grad[:, :, rows], q[:, :, rows]
                of_keys = k_part[:, :, keys], v_part[:, :, keys]
                known = out[:, :, rows], log_sum[:, :, rows]
                row_grad, *key_grads = attend_part_backward(*of_rows, *of_keys, *known, *mask)
                dq[:, :, rows] += row_grad
                for total, part in zip(sums, key_grads, strict=True):
                    total[:, :, keys] += part
            works, sums = send_on(mesh, sums)  # gradients follow their keys round the ring, back to the keys' own rank
        for work in works:
            work.wait()
        return dq.to(q.dtype), *(total.to(k.dtype) for total in sums), None


def sequence_to_heads(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """All-to-all from [B, S / n, heads * head_dim] to [B, S, heads / n * head_dim]."""
    parts = x.unflatten(2, (mesh.size(), -1)).movedim(2, 0).contiguous()
    return fc.all_to_all_single_autograd(parts, None, None, mesh).movedim(0, 1).flatten(1, 2)


def heads_to_sequence(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """All-to-all from [B, S, heads / n * head_dim] to [B, S / n, heads * head_dim]."""
    parts = x.unflatten(1, (mesh.size(), -1)).movedim(1, 0).contiguous()
    return fc.all_to_all_single_autograd(parts, None, None, mesh).movedim(0, 2).flatten(2, 3)


def attend_ring(mesh: DeviceMesh, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of the local rows over all keys. Tensors are [B, S / n, heads, head_dim]."""
    return RingAttention.apply(*(x.transpose(1, 2) for x in (q, k, v)), mesh).transpose(1, 2)
