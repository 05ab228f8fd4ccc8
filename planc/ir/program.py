"""`Program`, the result of `lower`: the emitted text, and the backend that emitted it."""

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
    """An emitted program, the result of `lower`. `text` is a Python file that imports its framework, but not planc.

    >>> import planc
    >>> program = planc.lower("plans/tiny.plan", "cuda")
    >>> program.target, "import torch" in program.text, "import planc" in program.text
    ('cuda', True, False)
    """

    backend: Backend

    def parallelize(self, model: Any) -> Any:
        """Shard a user's torch module over the running process group, as the plan says.

        `model` has the parameter names of the plan's model, or is a causal language model of the transformers package,
        whose modules are renamed in place. Returns the module; with a pipeline, the list of this rank's stage modules.
        """
        with framework_needed(self.target, self.plan.mesh.cause.span):
            return self.backend.parallelize(self, model)

    def fill(self, model: Any, state: Mapping[str, Any]) -> None:
        """Copy what was trained into `model`, a whole module of the class that was parallelized, on one process.

        Args:
            model: a module with its own names; `save_pretrained`, `generate` and `state_dict` are as of any other.
            state: whole tensors by the names of what `parallelize` returned, such as torch's `get_model_state_dict`
                gives with `full_state_dict`; those of all stages of a pipeline. Low-rank updates are added to their
                weights.

        Raises:
            PlanError: E1205 or E1207 to E1210, as `parallelize` does, if `model` is not the plan's model.
            ValueError: names are missing or too many, or `model` stores a parameter in a form that is not written back.
        """
        with framework_needed(self.target, self.plan.mesh.cause.span):
            self.backend.fill(self, model, state)

    def shardings(
        self,
        tree: Any,
        rules: Mapping[str, str] | str | Path | None = None,
        *,
        model: Callable[..., Any] | None = None,
        noun: Noun = "params",
    ) -> Any:
        """Return a NamedSharding for every leaf of a pytree, on the mesh of `load().build_mesh()` (JAX only).

        The dims of a leaf are found by its name, if that is planc's own; else by a rule; else by its shape, if all dims
        that fit the shape give the same layout.

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
