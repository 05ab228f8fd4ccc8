"""The interface of a backend: everything that the compiler, the commands and the trainer ask of one.

`planc.lowering.load_backend` returns the backend of a target. Importing a backend loads no framework and none of its
own rooms: each method imports what it needs.
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
"""The axes that a parameter's noun is stored over, and the storage dimension that they divide; None: stored whole."""


class Backend(Protocol):
    """One way to run a plan's program: a target, and the runtime that executes what is emitted for it."""

    @property
    def name(self) -> str:
        """The folder below `planc.backends`."""
        ...

    @property
    def target(self) -> Target: ...

    @property
    def one_process(self) -> bool:
        """True where one process drives all devices of a machine; else each device has a process."""
        ...

    @property
    def lockstep(self) -> bool:
        """True where all ranks of a pipeline run one program, and wait for each other."""
        ...

    @property
    def launchers(self) -> tuple[str, ...]:
        """The kinds of launch file that `launch_file` writes."""
        ...

    @property
    def version(self) -> Version:
        """The version of the framework that `emit` writes for."""
        ...

    @property
    def versions(self) -> tuple[Version, ...]:
        """The versions of the framework that `emit` can write for, the oldest first."""
        ...

    def written_for(self, version: Version) -> Backend:
        """This backend, writing for a `version` of the framework: one of `versions`."""
        ...

    def nearest_installed(self) -> Version:
        """That of `versions` which is nearest to the framework installed here; the pinned one where there is none."""
        ...

    # Lowering.

    def refusals(self, sharded: Sharded) -> list[Diagnostic]:
        """An error for every sentence of the plan in `sharded` that the backend cannot do; [] when `emit` can write the
        program."""
        ...

    def notes(self, sharded: Sharded) -> list[Diagnostic]:
        """Notes on sentences of the plan in `sharded` that the backend's program meets in another way than they
        say."""
        ...

    def missing_module(self, plan: Plan) -> list[Diagnostic]:
        """E0901 when no bundled module computes the model of `plan`, so that planc cannot train it itself; else []."""
        ...

    def realise(self, sharded: Sharded) -> tuple[Collective, ...]:
        """The collectives that the program emitted for `sharded` issues, per device and optimizer step."""
        ...

    def attention_kernel(self, sharded: Sharded) -> AttentionKernel | None:
        """The kernel of attention that the program emitted for `sharded` calls; None: the one that the plan names."""
        ...

    def peak_memory(
        self, sharded: Sharded, collectives: tuple[Collective, ...], in_flight: InFlight
    ) -> tuple[TensorBytes, ...]:
        """Tensors of the emitted program on each pipeline rank at its fullest moment (bytes, by part).

        `collectives` are those of `realise`; `in_flight` tells the microbatches in flight on each rank. The runtime's
        own memory is not counted.
        """
        ...

    def state_layout(self, sharded: Sharded) -> StateLayout:
        """The layout of parameters, gradients and optimizer state between steps in the program of `sharded`."""
        ...

    def emit(self, sharded: Sharded) -> str:
        """The text of the program for `sharded`, a Python module. The plan must have no `refusals`."""
        ...

    def launch_file(self, plan: Plan, kind: str, full: bool = False) -> str:
        """The text of a file that starts the plan's ranks; `kind` is one of `launchers`.

        `full` is true where a device's memory is predicted to be nearly used up: the ranks' allocator is told so.
        """
        ...

    # Running. These load the framework.

    def parallelize(self, program: ProgramText, model: Any) -> Any:
        """Divide a user's module over the running process group, as `program` says.

        `model` is a torch module with the parameter names of the plan's model, or a causal language model of the
        transformers package. Raises TypeError where the target has no modules.
        """
        ...

    def model_of(self, source: Any, example: Any = None, name: str = "") -> SavedModel:
        """The op graph of `source`, a module, a config's fields or `package.module:function`, whose code is run.

        `example` are the module's inputs; `name` is the model's. Raises TypeError where the target has no modules, and
        PlanError for code that has no op graph.
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
        """A sharding for every leaf of `tree`, a pytree of parameters, gradients or optimizer state (`noun`), as
        `program` says.

        `rules` name the dims of leaves, and `model` is a function of the tree and tokens that tells them. Raises
        TypeError where the target has no pytrees, and PlanError for a tree or rules that do not fit the plan's model.
        """
        ...

    def runtime(self) -> Runtime:
        """The functions that start a training session in a worker process."""
        ...

    def ranks(self, devices: int) -> Ranks:
        """Join the processes of a measurement, which has `devices` devices in all."""
        ...

    def prober(self, window_s: float, ranks: Ranks) -> Prober:
        """Times small pieces of work, in windows of this many seconds; `ranks` are this backend's."""
        ...

    def dry_run(self, program: ProgramText) -> dict[str, Any]:
        """Facts of the first step of `program`, traced or lowered on devices that hold no data: {name: value}."""
        ...

    def audit(self, plan: Plan, options: AuditOptions) -> Audit:
        """The collectives and the memory that are predicted for `plan`, beside those observed in its program.

        Raises PlanError for a plan or `options` that cannot be audited.
        """
        ...


@cached_on(lambda sharded, backend: (sharded.cache, (backend.name, backend.version)))
def refusals(sharded: Sharded, backend: Backend) -> list[Diagnostic]:
    """An error for every sentence of a propagated plan (`sharded`) that a `backend` cannot do."""
    return backend.refusals(sharded)


def run_by(sharded: Sharded, backend: Backend) -> Sharded:
    """A propagated plan (`sharded`) as the program of a `backend` runs it: with its kernel of attention, in lockstep or
    not. Raises PlanError with the refusals when the backend cannot do all sentences of the plan."""
    if refused := refusals(sharded, backend):
        raise PlanError(refused)
    stack = replace(sharded.stack, lockstep=backend.lockstep)
    return replace(sharded, attention=backend.attention_kernel(sharded), stack=stack)
