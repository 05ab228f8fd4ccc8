"""The cuda target: programs for torch on CUDA devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planc.backends.common.backend import CommonBackend
from planc.backends.cuda.versions import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from planc.diag.diagnostic import Diagnostic
    from planc.ir.attention_kernel import AttentionKernel
    from planc.ir.audit import Audit, AuditOptions
    from planc.ir.backend import Backend, StateLayout
    from planc.ir.collective import Collective
    from planc.ir.plan import Noun, Plan
    from planc.ir.probe import Prober, Ranks
    from planc.ir.program_text import ProgramText
    from planc.ir.saved_model import SavedModel
    from planc.ir.session import Runtime
    from planc.ir.sharding import Sharded
    from planc.ir.target import Target
    from planc.ir.tensor_bytes import InFlight, TensorBytes


class Cuda(CommonBackend):
    """The backend for torch: explicit process groups, eager collectives."""

    name = "cuda"
    target: Target = "cuda"
    one_process = False
    launchers = ("torchrun", "slurm", "k8s", "jobset", "xpk", "skypilot")
    framework = TORCH

    def refusals(self, sharded: Sharded) -> list[Diagnostic]:
        from planc.backends.cuda.refusals.plan import refusals

        return refusals(sharded) or self.framework.refusals(sharded, self.version)

    def realise(self, sharded: Sharded) -> tuple[Collective, ...]:
        from planc.backends.cuda.rules import realise
        from planc.sharding.collectives import semantic_collectives

        return realise(sharded, semantic_collectives(sharded))

    def attention_kernel(self, sharded: Sharded) -> AttentionKernel | None:
        from planc.backends.cuda.analysis.attention import attention_kernel

        return attention_kernel(sharded)

    def peak_memory(
        self, sharded: Sharded, collectives: tuple[Collective, ...], in_flight: InFlight
    ) -> tuple[TensorBytes, ...]:
        from planc.backends.cuda.analysis.peak_memory import peak_memory

        return peak_memory(sharded, in_flight)

    def exceeds(self, sharded: Sharded, in_flight: InFlight, room_bytes: float) -> bool:
        from planc.backends.cuda.analysis.peak_memory import exceeds

        return exceeds(sharded, in_flight, room_bytes)

    def state_layout(self, sharded: Sharded) -> StateLayout:
        from planc.backends.cuda.analysis.fsdp_shard_dim import state_layout

        return state_layout(sharded)

    def emit(self, sharded: Sharded) -> str:
        from planc.backends.cuda.emit.program import emit

        return emit(sharded, self.version)

    def emit_sync(self, trainer: Sharded, generator: Sharded, *, colocated: bool, dtype: str, block: int) -> str:
        from planc.backends.cuda.emit.sync import emit_sync

        return emit_sync(trainer, generator, colocated=colocated, dtype=dtype, block=block)

    def launch_file(self, plan: Plan, kind: str, full: bool = False) -> str:
        from planc.backends.cuda.emit.launch_files import launch_file

        return launch_file(plan, kind, full)

    def parallelize(self, program: ProgramText, model: Any) -> Any:
        from planc.backends.cuda.runtime.compare_module import named

        compared = named(model, program)
        emitted = program.load()
        return emitted.parallelize(compared, emitted.build_mesh())

    def fill(self, program: ProgramText, model: Any, state: Mapping[str, Any]) -> None:
        from planc.backends.cuda.runtime.fill import fill

        fill(program, model, state)

    def model_of(self, source: Any, example: Any = None, name: str = "") -> SavedModel:
        from planc.backends.cuda.runtime.traced.read import model_of

        return model_of(source, example, name)

    def shardings(
        self,
        program: ProgramText,
        tree: Any,
        rules: Mapping[str, str] | str | Path | None = None,
        model: Callable[..., Any] | None = None,
        noun: Noun = "params",
    ) -> Any:
        raise TypeError("a program of the cuda target divides modules: use parallelize")

    def runtime(self) -> Runtime:
        from planc.backends.cuda.runtime import start_up

        return start_up

    def ranks(self, devices: int) -> Ranks:
        from planc.backends.cuda.runtime.probe import TorchRanks

        return TorchRanks(devices)

    def prober(self, window_s: float, ranks: Ranks) -> Prober:
        from planc.backends.cuda.runtime.probe import TorchProber, TorchRanks

        assert isinstance(ranks, TorchRanks)
        return TorchProber(window_s, ranks)

    def dry_run(self, program: ProgramText) -> dict[str, Any]:
        from planc.backends.cuda.runtime.dry_run import dry_run

        return dry_run(program)

    def audit(self, plan: Plan, options: AuditOptions) -> Audit:
        from planc.backends.cuda.audit.run import audit

        return audit(plan, options)


BACKEND: Backend = Cuda()
