"""The targets: what a plan is lowered for."""

from __future__ import annotations

from typing import Literal, get_args

Target = Literal["cuda", "xla"]
AnyTarget = Literal["cuda", "xla", "none"]
NO_TARGET: Literal["none"] = "none"
"""No target: what any correct program must keep and send."""
TARGETS: tuple[Target, ...] = get_args(Target)


def named(target: Target | None) -> str:
    """The words by which an answer names the `target` that its figures are of, or that it has none."""
    return f"target {target or NO_TARGET}"
