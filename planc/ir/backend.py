"""The interface of a backend: everything of a backend that the compiler, the commands and the trainer call.

`planc.lowering.load_backend` returns the backend of a target. Importing a backend loads neither a framework nor the
backend's subpackages: each method imports what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from planc.diag.errors import PlanError
from planc.ir.cache import cached_on

if TYPE_CHECKING:
    from pathlib import Path

    from planc.diag.diagnostic import Diagnostic
    from planc.ir.attention_kernel import AttentionKernel
    from planc.ir.audit import Audit, AuditOptions
    from planc.ir.collective import Collective
    from planc.ir.plan import Noun, Plan
    from planc.ir.probe import Prober, Ranks
    from planc.ir.program_text import ProgramText
    from planc.ir.saved_model import SavedModel
    from planc.ir.session import Runtime
    from planc.ir.sharding import ParamSharding, Sharded
    from planc.ir.target import Target
    from planc.ir.tensor_bytes import InFlight, TensorBytes
    from planc.ir.version import Version

StateLayout = Callable[["ParamSharding", "Noun"], tuple[tuple[str, ...], "int | None"]]
"""Maps a parameter and a noun to the axes over which it is stored and the index of the dim that they shard; None:
stored whole."""


class Backend(Protocol):
    """A backend: a target, and the runtime that executes the code emitted for it."""

    @property
    def name(self) -> str:
        """The name of the backend's folder in `planc.backends`."""
        ...

    @property
    def target(self) -> Target: ...

    @property
    def one_process(self) -> bool:
        """True if one process drives all devices of a machine; False if each device has a process."""
        ...

    @property
    def lockstep(self) -> bool:
        """True if all ranks of a pipeline run one program (SPMD) and wait for each other in each tick."""
        ...

    @property
    def launchers(self) -> tuple[str, ...]:
        """The kinds of launch file that `launch_file` writes."""
        ...

    @property
    def version(self) -> Version:
        """The version of the framework for which `emit` writes programs."""
        ...

    @property
    def versions(self) -> tuple[Version, ...]:
        """The versions of the framework for which `emit` can write programs, oldest first."""
        ...

    def written_for(self, version: Version) -> Backend:
        """Return this backend with `version`, one of `versions`, as the version of the framework for which it emits."""
        ...

    def nearest_installed(self) -> Version:
        """Return the version in `versions` that is nearest to the installed framework; the pinned version if no
        framework is installed."""
        ...

    # Lowering.

    def refusals(self, sharded: Sharded) -> list[Diagnostic]:
        """Return an error for every sentence of the plan in `sharded` that the backend does not support; [] if `emit`
        can write the program."""
        ...

    def notes(self, sharded: Sharded) -> list[Diagnostic]:
        """Return notes on sentences of the plan in `sharded` that the program implements in another way than the
        sentences say."""
        ...

    def missing_module(self, plan: Plan) -> list[Diagnostic]:
        """Return E0901 if no bundled module implements the model of `plan`, so that planc cannot train it; else []."""
        ...

    def realise(self, sharded: Sharded) -> tuple[Collective, ...]:
        """Return the collectives that the program emitted for `sharded` issues, per device and optimizer step."""
        ...

    def attention_kernel(self, sharded: Sharded) -> AttentionKernel | None:
        """Return the attention kernel that the program emitted for `sharded` calls; None if it calls the kernel that
        the plan names."""
        ...

    def peak_memory(
        self, sharded: Sharded, collectives: tuple[Collective, ...], in_flight: InFlight
    ) -> tuple[TensorBytes, ...]:
        """Return the bytes, by kind, of the emitted program's tensors at the memory peak of each pipeline rank.

        `collectives` are those that `realise` returns. `in_flight` has the microbatches in flight on each rank. The
        runtime's own memory is not counted.
        """
        ...

    def state_layout(self, sharded: Sharded) -> StateLayout:
        """Return the layout of parameters, gradients and optimizer state between steps in the program of `sharded`."""
        ...

    def emit(self, sharded: Sharded) -> str:
        """Return the source of the program for `sharded`, a Python module. The plan must have no `refusals`."""
        ...

    def launch_file(self, plan: Plan, kind: str, full: bool = False) -> str:
        """Return the text of a file that launches the plan's ranks; `kind` is one of `launchers`.

        `full` is True if the predicted peak is close to the device's memory. The file then sets options of the ranks'
        allocator against fragmentation.
        """
        ...

    # Running. These load the framework.

    def parallelize(self, program: ProgramText, model: Any) -> Any:
        """Shard a user's module over the running process group, as `program` says, and return it.

        `model` is a torch module with the parameter names of the plan's model, or a causal language model of the
        transformers package. Raises TypeError if the target has no modules.
        """
        ...

    def model_of(self, source: Any, example: Any = None, name: str = "") -> SavedModel:
        """Return the op graph of `source`: a module, a config's fields or `package.module:function`, whose code is
        executed.

        `example` are the module's inputs; `name` is the model's. Raises TypeError if the target has no modules, and
        PlanError for code without an op graph.
        """
        ...

    def shardings(
        self,
        program: ProgramText,
        tree: Any,
        rules: Mapping[str, str] | str | Path | None = None,
        model: Callable[..., Any] | None = None,
        noun: Noun = "params",
    ) -> Any:
        """Return a sharding for every leaf of `tree`, a pytree of parameters, gradients or optimizer state (`noun`).

        `rules` name the dims of leaves, and `model` is a function of the tree and tokens from which they are inferred.
        Raises TypeError if the target has no pytrees, and PlanError for a tree or rules that do not match the plan's
        model.
        """
        ...

    def runtime(self) -> Runtime:
        """Return the functions that start a training session in a worker process."""
        ...

    def ranks(self, devices: int) -> Ranks:
        """Join the processes of a measurement on `devices` devices in total."""
        ...

    def prober(self, window_s: float, ranks: Ranks) -> Prober:
        """Return a prober that times small operations in windows of `window_s` seconds; `ranks` are this backend's."""
        ...

    def dry_run(self, program: ProgramText) -> dict[str, Any]:
        """Return facts about the first step of `program`, traced or lowered on abstract devices, as {name: value}."""
        ...

    def audit(self, plan: Plan, options: AuditOptions) -> Audit:
        """Return the collectives and the memory predicted for `plan`, next to those observed in its program.

        Raises PlanError for a plan or `options` that cannot be audited.
        """
        ...


@cached_on(lambda sharded, backend: (sharded.cache, (backend.name, backend.version)))
def refusals(sharded: Sharded, backend: Backend) -> list[Diagnostic]:
    """Return an error for every sentence of a propagated plan (`sharded`) that `backend` does not support."""
    return backend.refusals(sharded)


def run_by(sharded: Sharded, backend: Backend) -> Sharded:
    """Return `sharded` as the program of `backend` runs it: with the program's attention kernel, and in lockstep (all
    pipeline ranks run one program) or not. Raises PlanError with the refusals if the backend does not support all
    sentences of the plan."""
    if refused := refusals(sharded, backend):
        raise PlanError(refused)
    stack = replace(sharded.stack, lockstep=backend.lockstep)
    return replace(sharded, attention=backend.attention_kernel(sharded), stack=stack)
