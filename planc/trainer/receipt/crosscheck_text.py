"""Prints a crosscheck as text: a table of the runs, the result with its numbers, and the loss curves."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from planc.diag.quoting import printable
from planc.trainer.receipt.crosscheck import CrossCheck, spreads
from planc.trainer.receipt.divergence import Diagnosis
from planc.trainer.receipt.receipt import Receipt
from planc.trainer.receipt.routing import AFTER_A_FLIP
from planc.trainer.telemetry.chart import Series, plot, svg

HEAD = ("run", "first", "last", "held out", "tokens/s")


def render(check: CrossCheck, receipts: Sequence[Receipt], width: int = 80) -> str:
    """Return the crosscheck as plain text of at most `width` columns, without colour."""
    parts = [*_table(receipts, width), "", *_wrapped(_verdict(check, receipts), width)]
    if all(_known(r) for r in receipts):
        parts += ["", plot(curves(receipts), min(width, 100))]
    return "\n".join(map(printable, "\n".join(parts).split("\n")))


def picture(receipts: Sequence[Receipt]) -> str:
    """Return the loss curves (nats per token) of `receipts` over the steps as SVG text."""
    return svg(curves(receipts), "loss, nats per token")


def curves(receipts: Sequence[Receipt]) -> list[Series]:
    """Return the loss curve (nats per token) of each of `receipts`, labelled as by `names`."""
    return [Series(name, _known(r)) for name, r in zip(names(receipts), receipts, strict=True)]


def names(receipts: Sequence[Receipt]) -> list[str]:
    """Return a name for each of `receipts`: target and runtime, such as `cuda/torch`, `xla/jax`; numbered if two are
    equal."""
    plain = [f"{r.target}/{r.runtime}" for r in receipts]
    if len(set(plain)) == len(plain):
        return plain
    return [f"{number} {name}" for number, name in enumerate(plain, 1)]


def _known(receipt: Receipt) -> tuple[float, ...]:
    return tuple(loss for loss in receipt.losses if loss is not None)


def _table(receipts: Sequence[Receipt], width: int) -> list[str]:
    """Return a table with one line per run. Columns at the right that do not fit into `width` are omitted."""
    rows = [HEAD, *(_row(name, r) for name, r in zip(names(receipts), receipts, strict=True))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    while len(widths) > 1 and sum(widths) + 2 * (len(widths) - 1) > width:
        widths.pop()
    return [_cells(row, widths)[:width] for row in rows]


def _cells(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row as text: the name aligned left, figures aligned right."""
    figures = [c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=False)]
    return "  ".join([row[0].ljust(widths[0]), *figures]).rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    return [part for line in text.split("\n") for part in wrap(line, width, subsequent_indent="    ")]


def _row(name: str, receipt: Receipt) -> tuple[str, ...]:
    measured, losses = receipt.measured, _known(receipt)
    held_out = measured.heldout_loss_last
    return (
        name,
        f"{losses[0]:.6f}" if losses else "-",
        f"{losses[-1]:.6f}" if losses else "-",
        "-" if held_out is None else f"{held_out:.6f}",
        f"{measured.tokens_per_s:,.0f}",
    )


def _verdict(check: CrossCheck, receipts: Sequence[Receipt]) -> str:
    if check.differing_fields:
        lines = ["not comparable: the runs differ in"]
        for field in check.differing_fields:
            lines.append(f"  {field}: {' | '.join(_value(field, r) for r in receipts)}")
        return "\n".join(lines)
    steps = len(receipts[0].losses)
    spread = f"largest difference {check.max_abs:.2e} over {steps} steps, budget {check.budget:.0e}"
    if check.mean_budget is not None:
        spread += f"; mean {check.mean_abs:.2e}, budget {check.mean_budget:.0e}"
    if check.routing_flips is not None:
        spread += f"; {_flips(check)}"
    if check.ok:
        return f"same: {spread}"
    lines = [f"different: {spread}"]
    if (first := check.first_outside_step) is not None:
        lines.append(f"  first outside at step {first}: {spreads(receipts)[first - 1]:.2e}")
    assert check.diagnosis is not None
    return "\n".join([*lines, *_reasons(check.diagnosis)])


def _flips(check: CrossCheck) -> str:
    if check.first_flip_step is None:
        return "every token went to the same experts"
    first = f"the first at step {check.first_flip_step}, budget {AFTER_A_FLIP:.0e} from there"
    return f"{check.routing_flips} tokens went to other experts, {first}"


def _reasons(why: Diagnosis) -> list[str]:
    if not why.gradients_known:
        lines = ["  first gradients: not in all receipts"]
    elif why.first_group is None:
        lines = ["  first gradients: equal norms of every tensor, so the first step is not at fault"]
    else:
        norms = " | ".join(f"{norm:.6g}" for norm in why.first_group.norms)
        lines = [
            f"  first gradients: {why.groups_apart} tensors differ; nearest to the loss is {why.first_group.tensor}",
            f"    norms {norms}",
        ]
    return lines + [f"  {name}: {' | '.join(map(_value_text, values))}" for name, values in why.lines.items()]


def _value_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _value(field: str, receipt: Receipt) -> str:
    if field.startswith("course."):
        return str((receipt.course or {}).get(field.removeprefix("course."), "-"))
    value: Any = getattr(receipt, field)
    if field == "losses":
        return f"{len(value)} steps"
    if field == "mesh":
        return " > ".join(f"{axis} {size}" for axis, size in value.items())
    return str(value)[:12]
