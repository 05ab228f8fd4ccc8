"""The program of a plan: the emitted text, and the backend that emitted it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from planc.diag.fast_dataclass import dataclass
from planc.ir.installed import framework_needed
from planc.ir.program_text import ProgramText
from planc.picture.notebook import InNotebook

if TYPE_CHECKING:
    from pathlib import Path

    from planc.ir.backend import Backend
    from planc.ir.plan import Noun


@dataclass(frozen=True, kw_only=True)
class Program(ProgramText, InNotebook):
    """The result of `lower`. `text` is a Python file that imports its framework and not planc.

    >>> import planc
    >>> program = planc.lower("plans/tiny.plan", "cuda")
    >>> program.target, "import torch" in program.text, "import planc" in program.text
    ('cuda', True, False)
    """

    backend: Backend

    def parallelize(self, model: Any) -> Any:
        """Shard a user's torch module over the running process group, as the plan says.

        `model` has the op graph's names, or is a causal model of the transformers package, which is renamed in place.
        Returns the module (without a pipeline) or this rank's list of stage modules.
        """
        with framework_needed(self.target, self.plan.mesh.cause.span):
            return self.backend.parallelize(self, model)

    def shardings(
        self,
        tree: Any,
        rules: Mapping[str, str] | str | Path | None = None,
        *,
        model: Callable[..., Any] | None = None,
        noun: Noun = "params",
    ) -> Any:
        """Return a NamedSharding for every leaf of a pytree, on the mesh of `load().build_mesh()` (JAX only).

        A leaf is identified by planc's own name for it; else by a rule; else by the dims that its shape allows, if they
        all give one layout.

        Args:
            tree: arrays or shapes, in dicts, lists, dataclasses, Flax or Equinox modules.
            rules: dims of leaves by a pattern on their path, `{"*/mlp/wi/kernel": "embed, ffn"}`, or a file of such
                rules; None reads `NAME.rules` next to `NAME.plan`, if there is one.
            model: a function of the tree and of tokens [B, S], traced on shapes to infer the dims of leaves.
            noun: the kind of state in the tree: params, grads or optimizer.

        Raises:
            PlanError: leaves without a layout (E1206), or wrong rules (E1221 to E1225).
            ValueError: an unknown `noun`.
        """
        from planc.ir.plan import NOUNS

        if noun not in NOUNS:
            raise ValueError(f"noun {noun!r} is not one of {', '.join(NOUNS)}")
        with framework_needed(self.target, self.plan.mesh.cause.span):
            return self.backend.shardings(self, tree, self.rules if rules is None else rules, model, noun)
