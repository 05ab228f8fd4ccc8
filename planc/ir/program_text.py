"""`ProgramText`: the program that a backend emits, and the plan it was emitted from."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from planc.diag import Diagnostic, PlanError
from planc.diag.fast_dataclass import dataclass
from planc.ir.installed import framework_needed
from planc.ir.target import Target

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from planc.ir.plan import Plan
    from planc.ir.sharding import Sharded


@dataclass(frozen=True, kw_only=True)
class ProgramText:
    """An emitted program: `text` is a Python file that imports its framework, but not planc."""

    sharded: Sharded
    text: str
    target: Target
    rules: Path | None = None
    """The file of rules for pytrees next to the plan."""

    @property
    def plan(self) -> Plan:
        return self.sharded.plan

    @property
    def json(self) -> dict[str, Any]:
        return self.to_json()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of `planc lower --emit json`: the text, its hash and the plan's hash."""
        return {
            "target": self.target,
            "plan": self.plan.name,
            "plan_sha256": self.plan.sha256,
            "text_sha256": hashlib.sha256(self.text.encode()).hexdigest(),
            "text": self.text,
        }

    def load(self) -> ModuleType:
        """Import the program as a module; the same text gives the same module.

        Raises PlanError (E1006) for a text that planc would not emit: a name in the plan has escaped its quotes.
        """
        from planc.ir.emitted import import_text
        from planc.ir.program_shape import foreign

        if why := foreign(self.text):
            message = f"the program of {self.plan.name} is not loaded, as planc would not write it: {why}"
            raise PlanError([Diagnostic("E1006", message, self.plan.mesh.cause.span)])

        with framework_needed(self.target, self.plan.mesh.cause.span):
            return import_text(self.text, f"planc_{self.target}_{self.plan.name}")
