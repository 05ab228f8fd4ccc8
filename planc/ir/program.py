"""The program: emitted text that stands alone, and what it was made from."""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from planc.diag.fast_dataclass import dataclass
from planc.ir.plan import Plan

if TYPE_CHECKING:
    from types import ModuleType

Target = Literal["cuda", "xla"]


@dataclass(frozen=True)
class Program:
    """What `lower` returns. `text` is a Python file that imports its framework and no planc."""

    target: Target
    plan: Plan
    text: str

    @property
    def json(self) -> dict[str, Any]:
        return self.to_json()

    def to_json(self) -> dict[str, Any]:
        """`planc lower --emit json`: the text, its hash and the plan's."""
        return {
            "target": self.target,
            "plan": self.plan.name,
            "plan_sha256": self.plan.sha256,
            "text_sha256": hashlib.sha256(self.text.encode()).hexdigest(),
            "text": self.text,
        }

    def load(self) -> ModuleType:
        """Import the emitted text as a module (cached by its content)."""
        from planc.ir.emitted import import_text

        return import_text(self.text, f"planc_{self.target}_{self.plan.name}")

    def parallelize(self, model: Any) -> Any:
        """Torch: divide a user's own module over the running process group, as the plan says.

        The module has the op graph's names, or is a causal model of the transformers package, which is
        renamed in place. Returns the module (without a pipeline) or this rank's list of stage modules.
        """
        assert self.target == "cuda", "parallelize is of the cuda target; use shardings for xla"
        emitted = self.load()
        named = import_module(f"planc.backends.{self.target}.runtime.hf_adapter").bound(
            model, self.plan.batch.sequence_tokens
        )
        return emitted.parallelize(named, emitted.build_mesh())

    def shardings(self, tree: Any) -> Any:
        """JAX: a NamedSharding for every leaf of a parameter pytree, by the leaf's path."""
        assert self.target == "xla", "shardings is of the xla target; use parallelize for cuda"
        emitted = self.load()
        return emitted.shardings(emitted.build_mesh(), tree)
