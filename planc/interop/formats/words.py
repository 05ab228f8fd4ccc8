"""A word of a shell script."""

from __future__ import annotations

from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Span


@dataclass(frozen=True)
class ShellWord:
    """A word of a command, without its quotes, and its place."""

    text: str
    span: Span
    quoted: bool = False
    certain: bool = True
    """False for a word in a branch or loop of which only the shell knows whether it is run."""
