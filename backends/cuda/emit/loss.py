"""Emits the loss: loss_fn, and the autograd functions of a loss in chunks and of one over a sharded vocabulary."""

from __future__ import annotations

from planc.backends.common.source_writer import because
from planc.backends.common.specialise import specialise
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.styles import Styler
from planc.backends.cuda.program.facts import TorchFacts
from planc.diag.quoting import python_string


def functions(styler: Styler) -> str:
    """Emits loss_fn, the cross entropy in fp32, and what it calls."""
    plan, kind = styler.roles.plan, "divided" if styler.divides_loss else "whole"
    entry = f"{'chunked' if plan.loss_chunks > 1 else kind}_loss_fn"
    text = _specialised(styler, entry).replace(f"def {entry}", "def loss_fn")
    sentence = plan.compiled("loss") if plan.loss_chunks == 1 else None
    whole = f"{because(sentence.cause)}\n@torch.compile(backend={python_string(sentence.method)})\n" if sentence else ""
    return whole + text


def _specialised(styler: Styler, entry: str) -> str:
    plan = styler.roles.plan
    sharded = styler.loss_parallel if entry == "whole_loss_fn" else styler.divides_loss
    facts = TorchFacts(
        divides_vocab=styler.divides_loss,
        vocab=f"V / {_vocab_axes(styler)[1]}" if sharded else "V",
        vocab_cause=why_reduced(styler) if styler.divides_loss else "",
        head=(
            styler.roles.head.params[0].removesuffix(".weight")
            if entry == "chunked_loss_fn"
            else styler.roles.head.module
        ),
        chunks_cause=because(plan.chunked_loss.cause)[2:] if plan.chunked_loss else "",
        computes_fp32=plan.precision.compute == "fp32",
        pipeline=bool(styler.roles.pipeline),
    )
    return "\n\n\n".join(specialise("planc.backends.cuda.program", "loss", facts, [entry], width=120))


def of_a_schedule(roles: AxisRoles) -> str:
    """Emits the loss function that a pipeline's schedule calls with the last stage's output and its targets."""
    return "partial(loss_fn, stages[-1])" if roles.plan.loss_chunks > 1 else "loss_fn"


def leave_head(styler: Styler) -> str:
    """Emits leave_head_to_loss, which makes the head return its input; "" if the loss is not in chunks."""
    return _specialised(styler, "leave_head_to_loss") if styler.roles.plan.loss_chunks > 1 else ""


def _vocab_axes(styler: Styler) -> tuple[tuple[str, ...], str]:
    """Returns the axes that shard the vocab in the loss, and the name of their mesh dimension."""
    loss = next(b for b in styler.section("last") if b.o.op.kind == "loss")
    return loss.axes, next(f.name for f in styler.roles.factors if set(loss.axes) <= set(f.axes))


def why_reduced(styler: Styler) -> str:
    """Returns the plan's sentence that shards the vocab, and what the loss reduces because of it, without a mark."""
    cause = styler.sharded.plan.cause_of_shard("vocab", _vocab_axes(styler)[0][0], "head")
    return because(cause, "all-reduces of the maximum, the sum and the target's logit over the sharded vocab")[2:]
