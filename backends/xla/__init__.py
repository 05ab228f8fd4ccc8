"""JAX on XLA: the first runtime of the xla target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planc.backends.common.backend import CommonBackend
from planc.backends.xla.versions import JAX

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
    from planc.ir.session import Runtime
    from planc.ir.sharding import Sharded
    from planc.ir.target import Target
    from planc.ir.tensor_bytes import InFlight, TensorBytes


class Xla(CommonBackend):
    """Implements `planc.ir.backend.Backend` for JAX: sharding annotations, with collectives inserted by XLA's SPMD
    partitioner."""

    name = "xla"
    target: Target = "xla"
    one_process = True
    lockstep = True
    framework = JAX
    launchers = ("jobset", "xpk")

    def refusals(self, sharded: Sharded) -> list[Diagnostic]:
        from planc.backends.xla.refusals.plan import refusals

        return refusals(sharded)

    def notes(self, sharded: Sharded) -> list[Diagnostic]:
        from planc.backends.xla.refusals.plan import notes

        return notes(sharded.plan)

    def realise(self, sharded: Sharded) -> tuple[Collective, ...]:
        from planc.backends.xla.rules import realise
        from planc.sharding.collectives import semantic_collectives

        return realise(sharded, semantic_collectives(sharded))

    def attention_kernel(self, sharded: Sharded) -> AttentionKernel | None:
        from planc.backends.xla.analysis.attention import attention_kernel

        return attention_kernel(sharded)

    def peak_memory(
        self, sharded: Sharded, collectives: tuple[Collective, ...], in_flight: InFlight
    ) -> tuple[TensorBytes, ...]:
        from planc.backends.xla.analysis.peak_memory import peak_memory

        return peak_memory(sharded, collectives)

    def state_layout(self, sharded: Sharded) -> StateLayout:
        from planc.backends.xla.analysis.layouts import state_layout

        return state_layout(sharded)

    def launch_file(self, plan: Plan, kind: str, full: bool = False) -> str:
        from planc.backends.common.launch import cluster_file

        return cluster_file(plan, kind)

    def emit(self, sharded: Sharded) -> str:
        from planc.backends.xla.emit.program import emit

        return emit(sharded, self.version)

    def emit_sync(self, trainer: Sharded, generator: Sharded, *, colocated: bool, dtype: str, block: int) -> str:
        from planc.backends.xla.emit.sync import emit_sync

        return emit_sync(trainer, generator, dtype=dtype, block=block)

    def parallelize(self, program: ProgramText, model: Any) -> Any:
        raise TypeError("a program of the xla target divides pytrees: use shardings")

    def fill(self, program: ProgramText, model: Any, state: Mapping[str, Any]) -> None:
        raise TypeError("a tree of arrays keeps its names: jax.device_get gives them whole")

    def shardings(
        self,
        program: ProgramText,
        tree: Any,
        rules: Mapping[str, str] | str | Path | None = None,
        model: Callable[..., Any] | None = None,
        noun: Noun = "params",
    ) -> Any:
        from planc.backends.xla.runtime.trees.shardings import shardings

        return shardings(program, tree, rules, model, noun)

    def runtime(self) -> Runtime:
        from planc.backends.xla.runtime import start_up

        return start_up

    def ranks(self, devices: int) -> Ranks:
        from planc.backends.xla.runtime.probe import JaxRanks

        return JaxRanks()

    def prober(self, window_s: float, ranks: Ranks) -> Prober:
        from planc.backends.xla.runtime.probe import JaxProber

        return JaxProber(window_s, ranks)

    def dry_run(self, program: ProgramText) -> dict[str, Any]:
        from planc.backends.xla.runtime.dry_run import dry_run

        return dry_run(program)

    def audit(self, plan: Plan, options: AuditOptions) -> Audit:
        from planc.backends.xla.audit.run import audit

        return audit(plan, options)


BACKEND: Backend = Xla()
