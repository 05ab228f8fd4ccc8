"""The program: emitted text, and the backend that it was emitted by."""

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
    """Program that `lower` returns. `text` is a Python file that imports its framework and no planc.

    >>> import planc
    >>> program = planc.lower("plans/tiny.plan", "cuda")
    >>> program.target, "import torch" in program.text, "import planc" in program.text
    ('cuda', True, False)
    """

    backend: Backend

    def parallelize(self, model: Any) -> Any:
        """Torch: divide a user's own module over the running process group, as the plan says.

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
        """JAX: a NamedSharding for every leaf of a pytree, on the mesh that `load().build_mesh()` makes.

        A leaf is known by planc's own name for it; else by a rule; else by the dims that its shape can have, if all of
        them lie in one layout.

        Args:
            tree: arrays or shapes, in dicts, lists, dataclasses, Flax or Equinox modules.
            rules: dims of leaves by a pattern on their path, `{"*/mlp/wi/kernel": "embed, ffn"}`, or a file of such
                rules; None reads `NAME.rules` beside `NAME.plan`, if there is one.
            model: a function of the tree and of tokens [B, S], traced on shapes: the dims of leaves that it finds are
                known beside their shapes.
            noun: params, grads or optimizer: of which state the tree is.

        Raises:
            PlanError: leaves without a layout (E1206), or wrong rules (E1221 to E1225).
            ValueError: there is no such noun.
        """
        from planc.ir.plan import NOUNS

        if noun not in NOUNS:
            raise ValueError(f"noun {noun!r} is not one of {', '.join(NOUNS)}")
        with framework_needed(self.target, self.plan.mesh.cause.span):
            return self.backend.shardings(self, tree, self.rules if rules is None else rules, model, noun)
