"""The interface of a backend, by which the compiler, the commands and the trainer use it.

`planc.lowering.load_backend` returns the backend of a target. Importing a backend loads neither its framework nor its
subpackages: each method imports what it needs.
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
    """A backend emits programs for one target, such as torch on CUDA, and runs them."""

    @property
    def name(self) -> str:
        """The name of the backend's package in `planc.backends`."""
        ...

    @property
    def target(self) -> Target: ...

    @property
    def one_process(self) -> bool:
        """True if one process drives all devices of a host; False if each device has its own process."""
        ...

    @property
    def lockstep(self) -> bool:
        """True if all pipeline ranks run one program (SPMD) and wait for each other in each tick of the schedule."""
        ...

    @property
    def launchers(self) -> tuple[str, ...]:
        """The kinds of file that `launch_file` writes: `torchrun`, `slurm`, `k8s`, ..."""
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
        """Return this backend, but with programs for `version` of the framework (one of `versions`)."""
        ...

    def nearest_installed(self) -> Version:
        """Return the newest of `versions` that is not newer than the installed framework (the oldest if all are newer).
        If none is installed, return the version that planc is pinned to."""
        ...

    # Lowering.

    def refusals(self, sharded: Sharded) -> list[Diagnostic]:
        """Return an error for every sentence of the plan in `sharded` that the backend does not support."""
        ...

    def notes(self, sharded: Sharded) -> list[Diagnostic]:
        """Return a note for each sentence of the plan that the program implements in another way than it says."""
        ...

    def missing_module(self, plan: Plan) -> list[Diagnostic]:
        """Return E0901 if planc has no module for the model of `plan`, and so cannot train it; else []."""
        ...

    def realise(self, sharded: Sharded) -> tuple[Collective, ...]:
        """Return the collectives in the program emitted for `sharded`, per device and optimizer step."""
        ...

    def attention_kernel(self, sharded: Sharded) -> AttentionKernel | None:
        """Return the attention kernel in the program of `sharded`; None if it is the one that the plan names."""
        ...

    def peak_memory(
        self, sharded: Sharded, collectives: tuple[Collective, ...], in_flight: InFlight
    ) -> tuple[TensorBytes, ...]:
        """Return the bytes, by kind, of the emitted program's tensors at the memory peak of each pipeline rank.

        `collectives` is the result of `realise`. `in_flight` has the number of microbatches in flight on each rank. The
        runtime's own memory is not counted.
        """
        ...

    def exceeds(self, sharded: Sharded, in_flight: InFlight, room_bytes: float) -> bool:
        """True if the tensors of some pipeline rank surely take more than `room_bytes`; False if that is not known
        without `peak_memory`."""
        ...

    def state_layout(self, sharded: Sharded) -> StateLayout:
        """Return a function that gives the layout of a parameter, its gradient or its optimizer state between steps."""
        ...

    def emit(self, sharded: Sharded) -> str:
        """Return the source of the program for `sharded`, a Python module. The plan must have no `refusals`."""
        ...

    def emit_sync(self, trainer: Sharded, generator: Sharded, *, colocated: bool, dtype: str, block: int) -> str:
        """Return the source of a module with `sync`, which moves weights from the layout of `trainer` to that of
        `generator`, two plans of one model.

        `colocated` is True if both have the same devices; the generator holds weights as `dtype`, float8 with a scale
        for each `block` x `block` elements (0: for each matrix).
        """
        ...

    def launch_file(self, plan: Plan, kind: str, full: bool = False) -> str:
        """Return the text of a file that launches the plan's ranks; `kind` is one of `launchers`.

        If the predicted peak is close to the device's memory, `full` is True: the file then sets allocator options
        against fragmentation.
        """
        ...

    # Running. These load the framework.

    def parallelize(self, program: ProgramText, model: Any) -> Any:
        """Shard a user's torch module over the running process group, as `program` does, and return the module.

        `model` has the parameter names of the plan's model, or is a causal language model of the transformers package.
        Raises TypeError if the target has no modules (JAX).
        """
        ...

    def fill(self, program: ProgramText, model: Any, state: Mapping[str, Any]) -> None:
        """Copy `state`, the full state dict of a module that `parallelize` returned, into the whole module `model`.
        Raises TypeError if the target has no modules (JAX)."""
        ...

    def model_of(self, source: Any, example: Any = None, name: str = "") -> SavedModel:
        """Return the op graph of `source`: a module, the fields of a config, or `package.module:function`. The model's
        code is executed.

        `example` are inputs of the module; `name` is the model's name. Raises TypeError if the target has no modules
        (JAX), and PlanError for code that cannot be read as an op graph.
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

        `rules` give the dims of leaves, by pattern. For other leaves, `model` (a function of the tree and tokens) is
        traced to infer the dims. Raises TypeError if the target has no pytrees (torch), and PlanError for a tree or
        rules that do not match the plan's model.
        """
        ...

    def runtime(self) -> Runtime:
        """Return the interface by which a worker process starts a training session."""
        ...

    def ranks(self, devices: int) -> Ranks:
        """Join the processes that measure together for `planc calibrate`, with `devices` devices in total."""
        ...

    def prober(self, window_s: float, ranks: Ranks) -> Prober:
        """Return the object that times small operations, each for `window_s` seconds, on this backend's `ranks`."""
        ...

    def dry_run(self, program: ProgramText) -> dict[str, Any]:
        """Return facts (name: value) about a step of `program`, traced or lowered without a device."""
        ...

    def audit(self, plan: Plan, options: AuditOptions) -> Audit:
        """Return the collectives and the memory predicted for `plan`, and those observed in its program.

        Raises PlanError for a plan or `options` that cannot be audited.
        """
        ...


@cached_on(lambda sharded, backend: (sharded.cache, (backend.name, backend.version)))
def refusals(sharded: Sharded, backend: Backend) -> list[Diagnostic]:
    """Return an error for every sentence of the plan in `sharded` that `backend` does not support (cached)."""
    return backend.refusals(sharded)


def run_by(sharded: Sharded, backend: Backend) -> Sharded:
    """Return `sharded` with the attention kernel of the program of `backend`, and with its `lockstep`. Raises PlanError
    if the backend does not support a sentence of the plan."""
    if refused := refusals(sharded, backend):
        raise PlanError(refused)
    stack = replace(sharded.stack, lockstep=backend.lockstep)
    return replace(sharded, attention=backend.attention_kernel(sharded), stack=stack)
