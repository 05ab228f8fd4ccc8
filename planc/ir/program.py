"""The program: emitted text that stands alone, and what it was made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from planc.diag import Diagnostic, PlanError, Span
from planc.diag.fast_dataclass import dataclass
from planc.ir.target import Target
from planc.picture.notebook import InNotebook, Shown

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from planc.ir.backend import Backend
    from planc.ir.plan import Noun, Plan
    from planc.ir.sharding import Sharded


@dataclass(frozen=True)
class Program(InNotebook):
    """Program that `lower` returns. `text` is a Python file that imports its framework and no planc.

    >>> import planc
    >>> program = planc.lower("plans/tiny.plan", "cuda")
    >>> program.target, "import torch" in program.text, "import planc" in program.text
    ('cuda', True, False)
    """

    backend: Backend
    sharded: Sharded
    text: str
    rules: Path | None = None
    """The file of rules for trees that stands beside the plan."""

    def _shown(self) -> Shown:
        from planc.ir.notebook import program_shown

        return program_shown(self)

    @property
    def plan(self) -> Plan:
        return self.sharded.plan

    @property
    def target(self) -> Target:
        return self.backend.target

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
        """Import the emitted text as a module (cached by its content).

        Raises PlanError (E1006) for a text that no emitter writes: a plan's name has ended its quotes.
        """
        from planc.ir.emitted import import_text
        from planc.ir.program_shape import foreign

        if why := foreign(self.text):
            message = f"the program of {self.plan.name} is not loaded, as planc would not write it: {why}"
            raise PlanError([Diagnostic("E1006", message, self.plan.mesh.cause.span)])

        with framework_needed(self.target, self.plan.mesh.cause.span):
            return import_text(self.text, f"planc_{self.target}_{self.plan.name}")

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


FRAMEWORKS = ("torch", "torchao", "torch_xla", "jax", "jaxlib", "optax", "numpy", "safetensors")
"""Modules that a compiler-only installation lacks."""


@contextmanager
def framework_needed(target: Target, span: Span) -> Iterator[None]:
    """Raise E1009 (a PlanError) where the body imports a framework that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in FRAMEWORKS:
            raise
        raise missing_framework(error, target, span) from None


def need_framework(target: Target, span: Span) -> None:
    """Raise E1009 (a PlanError) unless the framework of a target is installed; nothing is imported.

    Args:
        target: cuda asks for torch, xla for jax.
        span: the place in the plan at which the error is reported.
    """
    name = {"cuda": "torch", "xla": "jax"}[target]
    if find_spec(name) is None:
        raise missing_framework(ModuleNotFoundError(name=name), target, span)


def missing_framework(error: ModuleNotFoundError, target: Target, span: Span) -> PlanError:
    """E1009: the package that `error` names, which programs for `target` need, is not installed; reported at `span`."""
    message = f"the {target} target needs {error.name}, which is not installed"
    return PlanError([Diagnostic("E1009", message, span, help=f"pip install 'planc[{target}]'")])
