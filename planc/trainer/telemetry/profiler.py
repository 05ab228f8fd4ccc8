"""Profiles the steps of a run that the preset names: [watch] profile_steps = [first, last]."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planc.ir.session import Session


class Profile:
    """Traces the steps `first` to `last` of a session into a folder. Every rank has its own trace."""

    def __init__(self, session: Session, steps: tuple[int, int] | None, folder: Path) -> None:
        self._session, self._steps, self._folder = session, steps, folder
        self._open = ExitStack()
        self._on = False

    def before(self, step: int) -> None:
        """Start the trace if `step` (counted from 1) is to be profiled. Must be called before every step."""
        if self._steps and not self._on and self._steps[0] <= step <= self._steps[1]:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._open.enter_context(self._session.profile(str(self._folder)))
            self._on = True

    def after(self, step: int) -> None:
        """Stop the trace and write it if `step` is the last step to be profiled. Must be called after every step."""
        if self._on and self._steps and step >= self._steps[1]:
            self.close()

    def close(self) -> None:
        """Stop the trace and write what was recorded so far."""
        self._open.close()
        self._on = False
