"""Emits the loss: loss_fn, and the autograd functions of a loss in chunks and of one over a sharded vocabulary."""

from __future__ import annotations

from planc.backends.common.source_writer import because, fill
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.styles import Styler
from planc.diag.quoting import python_string


def functions(styler: Styler) -> str:
    """Emits loss_fn, the cross entropy in fp32, and what it calls."""
    if styler.roles.plan.loss_chunks > 1:
        return _in_chunks(styler)
    if styler.divides_loss:
        return "\n\n\n".join((_cross_entropy(styler), _divided(styler)))
    sentence = styler.roles.plan.compiled("loss")
    whole = f"{because(sentence.cause)}\n@torch.compile(backend={python_string(sentence.method)})" if sentence else ""
    return fill(
        '''
        <compiled>
        def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            """Mean cross entropy in fp32. logits [B, S, <vocab>], targets [B, S]."""
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))
        ''',
        compiled=whole,
        vocab=f"V / {_vocab_axes(styler)[1]}" if styler.loss_parallel else "V",
    )


def call(styler: Styler, model: str, logits: str, targets: str) -> str:
    """Emits the call of loss_fn for the `model` whose forward returned `logits`."""
    given = f"{model}, " if styler.roles.plan.loss_chunks > 1 else ""
    return f"loss_fn({given}{logits}, {targets})"


def of_a_schedule(roles: AxisRoles) -> str:
    """Emits the loss function that a pipeline's schedule calls with the last stage's output and its targets."""
    return "partial(loss_fn, stages[-1])" if roles.plan.loss_chunks > 1 else "loss_fn"


def leave_head(roles: AxisRoles) -> str:
    """Emits leave_head_to_loss, which makes the head return its input; "" if the loss is not in chunks."""
    if roles.plan.loss_chunks == 1:
        return ""
    assert roles.plan.chunked_loss is not None
    path = roles.head.module
    leave = f"model.{path}.forward = lambda hidden, *weight: hidden"
    return fill(
        '''
        def leave_head_to_loss(model: nn.Module) -> None:
            """The head returns its input, and loss_fn multiplies it by the head's weight, chunk by chunk."""
            <cause>
            <leave>
        ''',
        cause=because(roles.plan.chunked_loss.cause),
        leave=f"if model.{path} is not None:\n    {leave}" if roles.pipeline else leave,
    )


def _vocab_axes(styler: Styler) -> tuple[tuple[str, ...], str]:
    """Returns the axes that shard the vocab in the loss, and the name of their mesh dimension."""
    loss = next(b for b in styler.section("last") if b.o.op.kind == "loss")
    return loss.axes, next(f.name for f in styler.roles.factors if set(loss.axes) <= set(f.axes))


def within(styler: Styler, run: str) -> str:
    """Emits the line `run`, inside torch's loss_parallel where a compiled loss has a sharded vocab."""
    if not styler.loss_parallel or styler.divides_loss:
        return run
    return fill("<said>\nwith loss_parallel():\n    <run>", said=_why_reduced(styler), run=run)


def _why_reduced(styler: Styler) -> str:
    cause = styler.sharded.plan.cause_of_shard("vocab", _vocab_axes(styler)[0][0], "head")
    return because(cause, "all-reduces of the maximum, the sum and the target's logit over the sharded vocab")


def _cross_entropy(styler: Styler) -> str:
    """Emits cross_entropy, which the autograd functions call."""
    if not styler.divides_loss:
        return WHOLE_VOCAB.strip()
    return fill(SHARDED_VOCAB, cause=_why_reduced(styler), axis=_vocab_axes(styler)[1])


WHOLE_VOCAB = '''
def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, count: int, gradient: torch.Tensor | None
) -> torch.Tensor:
    """The sum of the cross entropies in fp32 of logits [rows, V], over `count`.

    Its gradient is written to `gradient`, which may be the logits, unless None.
    """
    targets = targets[:, None]
    scores = logits - logits.amax(dim=-1, keepdim=True).float()
    picked = scores.gather(1, targets)
    sums = scores.exp_().sum(dim=-1, keepdim=True)
    if gradient is not None:
        torch.div(scores.scatter_add_(1, targets, -sums), sums * count, out=gradient)
    return (sums.log() - picked).sum() / count
'''

SHARDED_VOCAB = '''
def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, count: int, gradient: torch.Tensor | None, vocab: int, mesh: DeviceMesh
) -> torch.Tensor:
    """The sum of the cross entropies in fp32 of logits [rows, V / <axis>], over `count`.

    Its gradient is written to `gradient`, which may be the logits, unless None. `vocab` is V; `mesh` has the ranks
    that divide it.
    """
    <cause>
    group = mesh.get_group()
    most = logits.amax(dim=-1, keepdim=True).float()
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    scores = logits - most
    own = targets[:, None] - mesh.get_local_rank() * -(-vocab // mesh.size())
    mine = (own >= 0) & (own < scores.shape[1])
    own = own.where(mine, 0)
    picked = scores.gather(1, own) * mine
    sums = scores.exp_().sum(dim=-1, keepdim=True)
    dist.all_reduce(picked, group=group)
    dist.all_reduce(sums, group=group)
    if gradient is not None:
        torch.div(scores.scatter_add_(1, own, -sums * mine), sums * count, out=gradient)
    return (sums.log() - picked).sum() / count
'''


def _divided(styler: Styler) -> str:
    return fill(DIVIDED, axis=_vocab_axes(styler)[1])


DIVIDED = '''
class DividedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy in fp32 of logits [rows, V / <axis>], a share of the vocabulary on each rank.

    The forward computes the gradient too, so that nothing in fp32 is saved.
    """

    @staticmethod
    def forward(ctx, logits, targets, vocab: int, mesh: DeviceMesh, backward: bool) -> torch.Tensor:
        gradient = torch.empty_like(logits) if backward else None
        ctx.save_for_backward(gradient)
        return cross_entropy(logits, targets, len(logits), gradient, vocab, mesh)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None, None, None, None


def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in fp32. logits [B, S, V / <axis>], targets [B, S]."""
    shares = logits.to_local().flatten(0, 1), targets.flatten()
    return DividedCrossEntropy.apply(*shares, logits.shape[-1], logits.device_mesh, torch.is_grad_enabled())
'''


def _in_chunks(styler: Styler) -> str:
    plan, divided = styler.roles.plan, styler.divides_loss
    weight = f"model.{styler.roles.head.params[0].removesuffix('.weight')}.weight"
    wide = plan.precision.compute == "fp32"
    text = fill(
        IN_CHUNKS,
        vocab=f"V / {_vocab_axes(styler)[1]}" if divided else "V",
        more=", vocab: int, mesh: DeviceMesh" if divided else "",
        given=", vocab, mesh" if divided else "",
        nones=", None, None" if divided else "",
        added="d_weight.addmm_(logits.t(), x)" if wide else "add_product(d_weight, logits.t(), x)",
        weight=f"weight = {weight}",
        local="weight.to_local()" if divided else "weight",
        divided=", weight.shape[0], weight.device_mesh" if divided else "",
    )
    parts = [_cross_entropy(styler), *([] if wide else [ADD_PRODUCT.strip()]), text]
    return "\n\n\n".join(parts)


ADD_PRODUCT = '''
def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add the matmul left @ right to the fp32 `total`; a GPU's matmul adds by itself."""
    if total.is_cuda:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total += left @ right
'''

IN_CHUNKS = '''
class ChunkedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy in fp32 of hidden [rows, E] @ weight.T, weight [<vocab>, E], LOSS_CHUNKS parts of the rows.

    The forward computes the gradients too, so that the logits of a chunk are freed before those of the next. The
    weight's gradient is accumulated in fp32 and rounded once.
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets<more>, backward: bool) -> torch.Tensor:
        of_hidden, of_weight = (backward and needed for needed in ctx.needs_input_grad[:2])
        d_hidden = torch.empty_like(hidden) if of_hidden else None
        d_weight = weight.new_zeros(weight.shape, dtype=torch.float32) if of_weight else None
        total = hidden.new_zeros((), dtype=torch.float32)
        size = len(hidden) // LOSS_CHUNKS
        for begin in range(0, len(hidden), size):
            rows = slice(begin, begin + size)
            x = hidden[rows]
            logits = x @ weight.t()
            gradient = logits if of_hidden or of_weight else None
            total += cross_entropy(logits, targets[rows], len(hidden), gradient<given>)
            if d_hidden is not None:
                torch.mm(logits, weight, out=d_hidden[rows])
            if d_weight is not None:
                <added>
            del logits, gradient
        ctx.save_for_backward(d_hidden, d_weight)
        ctx.dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        if d_hidden is not None:
            d_hidden = d_hidden * grad
        if d_weight is not None:
            d_weight = torch.mul(d_weight, grad, out=d_weight.new_empty(d_weight.shape, dtype=ctx.dtype))
        return d_hidden, d_weight, None<nones>, None


def loss_fn(model: nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in fp32. hidden [B, S, E], the head's input; targets [B, S]."""
    <weight>
    rows, labels = hidden.flatten(0, 1), targets.flatten()
    return ChunkedCrossEntropy.apply(rows, <local>, labels<divided>, torch.is_grad_enabled())
'''
