"""Refuses settings of a preset that a runtime does not support, so that none is silently ignored."""

from __future__ import annotations

from collections.abc import Iterator

from planc.diag import Diagnostic, Span
from planc.trainer.preset.load import Preset


def beyond(runtime: str, preset: Preset, single: bool, span: Span) -> list[Diagnostic]:
    """Return E1003 at `span` for each `[train]` setting of `preset` that `runtime` does not support; [] if it supports
    all.

    `single` is True for the reference run in one process.
    """
    if runtime != "torch_xla":
        return []
    return [
        Diagnostic("E1003", f"[train] {what}: the torch_xla runtime {why}", span, help="train with `--runtime jax`")
        for what, why in _of_torch_xla(preset, single)
    ]


def _of_torch_xla(preset: Preset, single: bool) -> Iterator[tuple[str, str]]:
    train = preset.train
    if single:
        yield "one process", "has none: its reference is `--target cuda --single`, the same module"
    if train.balance_loss:
        yield "balance_loss", "has no load-balancing loss"
    if train.optimizer != "adamw":
        yield f"optimizer {train.optimizer}", "has AdamW alone"
    if train.decay_groups:
        yield "decay_groups", "has one weight decay"
    if preset.parts.watch.profile_steps:
        yield "and [watch] profile_steps", "has no profiler here"
    if train.deterministic:
        yield "deterministic", "does not promise it"
