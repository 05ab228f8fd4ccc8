"""The targets that a plan can be lowered for."""

from __future__ import annotations

from typing import Literal, get_args

Target = Literal["cuda", "xla"]
AnyTarget = Literal["cuda", "xla", "none"]
NO_TARGET: Literal["none"] = "none"
"""No target: the minimum that any correct program must store and send."""
TARGETS: tuple[Target, ...] = get_args(Target)


def named(target: Target | None) -> str:
    """Return `target` in words for an answer, such as `target cuda`; `target none` if it is None."""
    return f"target {target or NO_TARGET}"
