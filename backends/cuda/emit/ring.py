"""Emits ring attention: ranks pass keys and values round a ring, and each attends to all keys that it receives."""

from __future__ import annotations

from collections.abc import Sequence

from planc.backends.common.source_writer import because, fill, lines
from planc.backends.cuda.analysis.attention import value_padding
from planc.backends.cuda.analysis.context import balanced
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.ir.sharding import OpSharding
from planc.sharding.recompute import names_op


def ring_functions(roles: AxisRoles, divided: Sequence[OpSharding]) -> str:
    """Emits ring attention. `divided` are the attention ops with a sharded sequence, one for each kind of block."""
    kept, window = keeps_rings(roles), ring_window(roles)
    which = "window" if window else "source == rank"
    meet, meet_back = (MEET_IN_WINDOW, MEET_IN_WINDOW) if window else (MEET, MEET_IN_BACKWARD)
    forward = fill(FORWARD, meet=fill(meet, part=fill(PART, which=which).strip()).strip()).strip()
    text = fill(
        RING,
        seen=_seen(roles, window),
        parts=_parts(roles, divided, window),
        forward=fill(AS_IT_WAS, forward=forward) if kept else forward,
        backward=fill(meet_back, part=fill(PART_BACKWARD, which=which).strip()).strip(),
        gradients=_gradient_dtype(roles),
    )
    return "\n\n\n".join([RINGS.strip(), text.strip()] if kept else [text])


def _parts(roles: AxisRoles, divided: Sequence[OpSharding], window: int) -> str:
    """Emits attend_part, the attention of some queries over some keys, and its backward. Values narrower than keys are
    padded, because flash attention wants equal widths."""
    flash = "torch.ops.aten._scaled_dot_product_flash_attention"
    padded = any(value_padding(roles.sharded.model, o.op) for o in divided)
    named = roles.plan.attention.kernel if roles.plan.attention else None
    gpu, cpu = f"{flash}(q, k, v, 0.0, causal)", f"{flash}_for_cpu(q, k, v, 0.0, causal)"
    forward = fill(
        FORWARD_OF_PART,
        widened=WIDENED.strip() if padded else "",
        gpu=f"out, log_sum = {gpu}[:2]\nreturn out[..., :width], log_sum" if padded else f"return {gpu}[:2]",
        cpu=f"out, log_sum = {cpu}\nreturn out[..., :width], log_sum" if padded else f"return {cpu}",
    )
    backward = fill(BACKWARD_OF_PART, kept=SAVED_WIDE.strip() if padded else "")
    seen = "window: tuple[bool, int]" if window else "causal: bool"
    given = f"q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, {seen}"
    return fill(
        PARTS,
        given=f"\n    {given}\n" if window else given,  # as a formatter breaks the longer line
        window_mask=WINDOW_MASK.strip() if window else "",
        seen=seen,
        cause=because(named.cause) if named else "",
        forward=(FORWARD_OF_PART_IN_WINDOW if window else forward).strip(),
        backward=(BACKWARD_OF_PART_IN_WINDOW if window else backward).strip(),
        values="dv[..., :width]" if padded else "dv",
    ).strip()


def ring_window(roles: AxisRoles) -> int:
    """Returns the sliding window of ring attention (tokens, including the query's own); 0 without a window."""
    return max((o.op.window for o in roles.sharded.attentions if o.ring), default=0)


def _seen(roles: AxisRoles, window: int) -> str:
    """Emits the function `seen`, which returns the queries of a rank that attend to keys of another rank."""
    if not window:
        return fill(SEEN_WITHOUT_WINDOW, seen=(SEEN_BALANCED if balanced(roles) else SEEN).strip()).strip()
    return fill(
        SEEN_IN_WINDOW,
        window=f"# Tokens that a row attends to, itself included.\nWINDOW = {window}",
        begin=lines("piece = rows // 2", "return [rank * piece, (2 * ranks - 1 - rank) * piece]")
        if balanced(roles)
        else "return [rank * rows]",
    ).strip()


def keeps_rings(roles: AxisRoles) -> bool:
    """True if the plan recomputes blocks but saves the outputs of ring attention.

    torch's selective checkpoint cannot save them: it decides per op, and a ring is many ops with partial outputs.
    """
    ring = any(o.ring for o in roles.sharded.attentions)
    return ring and any(names_op(word, o.op) for word in roles.plan.recompute.kept for o in roles.sharded.attentions)


WIDENED = """
# Flash attention wants values as wide as keys: pad them with zeros.
width = v.shape[3]
v = F.pad(v, (0, q.shape[3] - width))
"""


SAVED_WIDE = """
width = v.shape[3]
grad, v, out = (F.pad(x, (0, q.shape[3] - width)) for x in (grad, v, out))
"""


SEEN_IN_WINDOW = '''
<window>


def pieces(rank: int, ranks: int, rows: int) -> list[int]:
    """Positions of the first token of each chunk of a rank that has `rows` tokens."""
    <begin>


def seen(rank: int, source: int, rows: int, ranks: int) -> Iterator[tuple[slice, slice, tuple[bool, int]]]:
    """Local rows that attend to keys of rank `source`, as many of each, and their window (causal, before).

    Row n attends to key n and `before` keys before it, and to all later keys unless causal.
    """
    mine, others = pieces(rank, ranks, rows), pieces(source, ranks, rows)
    piece = rows // len(mine)
    for i, first in enumerate(mine):
        for j, key in enumerate(others):
            before = WINDOW - 1 - (first - key)
            left_out = max(0, -before)  # the last rows attend to none of these keys, and no row to the first of them
            if first >= key and left_out < piece:
                met = slice(i * piece, (i + 1) * piece - left_out), slice(j * piece + left_out, (j + 1) * piece)
                yield *met, (first == key, max(0, before))
'''


SEEN_WITHOUT_WINDOW = '''
def seen(rank: int, source: int, rows: int) -> tuple[slice, slice] | None:
    """Local rows that attend to keys of rank `source`, and these keys; None: no row attends to any."""
    <seen>
'''


SEEN = """
# Ranks hold consecutive chunks: local rows attend to all keys of earlier ranks, and none of later ones.
if source > rank:
    return None
return slice(None), slice(None)
"""


SEEN_BALANCED = """
# Each rank holds a head and a tail chunk. All rows attend to heads of earlier ranks; tails to all of later ones.
half = rows // 2
if source < rank:
    return slice(None), slice(half)
if source > rank:
    return slice(half, None), slice(None)
return slice(None), slice(None)
"""


MEET = """
if (meet := seen(rank, source, q.shape[2])) is None:
    continue
rows, keys = meet
<part>
"""


MEET_IN_BACKWARD = """
if (meet := seen(rank, source, q.shape[2])) is not None:
    rows, keys = meet
    <part>
"""


MEET_IN_WINDOW = """
for rows, keys, window in seen(rank, source, q.shape[2], mesh.size()):
    <part>
"""


FORWARD = """
rank = mesh.get_local_rank()
out = q.new_zeros((*q.shape[:3], v.shape[3]), dtype=torch.float32)
log_sum = torch.full(q.shape[:3], float("-inf"), dtype=torch.float32, device=q.device)
for source, (k_part, v_part) in round_the_ring(mesh, [k, v]):
    <meet>
out = out.to(q.dtype)
"""


PART = """
part, part_sum = attend_part(q[:, :, rows], k_part[:, :, keys], v_part[:, :, keys], <which>)
before = log_sum[:, :, rows]
total = torch.logaddexp(before, part_sum)
weights = (before - total).exp()[..., None], (part_sum - total).exp()[..., None]
out[:, :, rows] = out[:, :, rows] * weights[0] + part * weights[1]
log_sum[:, :, rows] = total
"""


PART_BACKWARD = """
of_rows = grad[:, :, rows], q[:, :, rows]
of_keys = k_part[:, :, keys], v_part[:, :, keys]
known = out[:, :, rows], log_sum[:, :, rows]
row_grad, *key_grads = attend_part_backward(*of_rows, *of_keys, *known, <which>)
dq[:, :, rows] += row_grad
for total, part in zip(sums, key_grads, strict=True):
    total[:, :, keys] += part
"""


AS_IT_WAS = """
if Rings.now is not None and Rings.now.replayed:
    out, log_sum = Rings.now.made.pop(0)
else:
    <forward>
if Rings.now is not None and not Rings.now.replayed:
    Rings.now.made.append((out.detach(), log_sum))
"""


RINGS = '''
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
'''


PARTS = '''
<window_mask>


def attend_part(<given>) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of some rows over some keys, [B, heads, S, head_dim]; returns (output, log-sum-exp)."""
    <cause>
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    <forward>


def attend_part_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    log_sum: torch.Tensor,
    <seen>,
) -> list[torch.Tensor]:
    """The gradients of q, k and v, given the output and log-sum-exp over all keys."""
    heads = k.shape[1]
    k, v = (x.repeat_interleave(q.shape[1] // heads, dim=1) for x in (k, v))
    <backward>
    return [dq, *(x.unflatten(1, (heads, -1)).sum(2) for x in (dk, <values>))]
'''

FORWARD_OF_PART = """
<widened>
if q.device.type == "cuda":
    <gpu>
<cpu>
"""

BACKWARD_OF_PART = """
<kept>
given = [x.contiguous() for x in (grad, q, k, v, out, log_sum)]
if q.device.type == "cuda":
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
    lengths = (None, None, q.shape[2], k.shape[2])
    op = torch.ops.aten._scaled_dot_product_flash_attention_backward
    dq, dk, dv = op(*given, *lengths, 0.0, causal, seed, seed)
else:
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*given, 0.0, causal)
"""

WINDOW_MASK = '''
def window_mask(q: torch.Tensor, k: torch.Tensor, causal: bool, before: int) -> torch.Tensor:
    """The additive mask of the scores, [S, T]; only the CPU kernel needs it."""
    back = torch.arange(q.shape[2], device=q.device)[:, None] - torch.arange(k.shape[2], device=q.device)
    hidden = (back > before) | (causal & (back < 0))
    return torch.zeros(back.shape, dtype=q.dtype, device=q.device).masked_fill(hidden, float("-inf"))
'''

FORWARD_OF_PART_IN_WINDOW = """
causal, before = window
if q.device.type == "cuda":
    given = (x.transpose(1, 2) for x in (q, k, v))
    lengths = (None, None, q.shape[2], k.shape[2])
    sides = {"window_size_left": before, "window_size_right": 0 if causal else -1}
    out, log_sum = torch.ops.aten._flash_attention_forward(*given, *lengths, 0.0, causal, False, **sides)[:2]
    return out.transpose(1, 2), log_sum
mask = window_mask(q, k, causal, before)
return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask)
"""

BACKWARD_OF_PART_IN_WINDOW = """
given, log_sum = [x.contiguous() for x in (grad, q, k, v, out)], log_sum.contiguous()
causal, before = window
if q.device.type == "cuda":
    given = [x.transpose(1, 2) for x in given]
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
    lengths = (None, None, q.shape[2], k.shape[2])
    sides = {"window_size_left": before, "window_size_right": 0 if causal else -1}
    op = torch.ops.aten._flash_attention_backward
    dq, dk, dv = (x.transpose(1, 2) for x in op(*given, log_sum, *lengths, 0.0, causal, seed, seed, **sides))
else:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    dq, dk, dv = op(*given, log_sum, 0.0, False, attn_mask=window_mask(q, k, causal, before))
"""

RING = '''
<seen>


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


<parts>


class Ring(torch.autograd.Function):
    """Causal attention whose keys and values go round the ring of ranks; [B, heads, S / n, head_dim].

    The partial outputs are merged by their log-sum-exp (Liu et al. 2023, Ring Attention).
    """

    @staticmethod
    def forward(ctx, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        q, k, v = (x.contiguous() for x in (q, k, v))
        <forward>
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.mesh = mesh
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, log_sum = ctx.saved_tensors
        mesh, rank = ctx.mesh, ctx.mesh.get_local_rank()
        dq = torch.zeros_like(q, dtype=torch.float32)
        works, sums = [], [torch.zeros_like(x, dtype=<gradients>) for x in (k, v)]
        for source, (k_part, v_part) in round_the_ring(mesh, [k, v]):
            for work in works:
                work.wait()
            <backward>
            works, sums = send_on(mesh, sums)  # gradients follow their keys round the ring, back to the keys' own rank
        for work in works:
            work.wait()
        return dq.to(q.dtype), *(total.to(k.dtype) for total in sums), None


def attend_ring(mesh: DeviceMesh, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of the local rows over all keys. Tensors are [B, S / n, heads, head_dim]."""
    return Ring.apply(*(x.transpose(1, 2) for x in (q, k, v)), mesh).transpose(1, 2)
'''


def _gradient_dtype(roles: AxisRoles) -> str:
    return {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[roles.plan.precision.reduce]
