"""Emits the functions of one training step: build_step, build_evaluate."""

from __future__ import annotations

from planc.backends.common.source_writer import because
from planc.backends.common.specialise import specialise
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.schedules import in_a_v
from planc.backends.cuda.analysis.styles import Styler
from planc.backends.cuda.emit import global_ops, loss
from planc.backends.cuda.program.facts import TorchFacts


def functions(roles: AxisRoles, styler: Styler) -> str:
    """Emits build_step and build_evaluate, which build the functions for a global batch, and what they call."""
    entries = ["build_stages_step", "build_stages_evaluate"] if roles.pipeline else ["build_step", "build_evaluate"]
    text = "\n\n\n".join(specialise("planc.backends.cuda.program", "step", _facts(roles, styler), entries, width=120))
    return text.replace("build_stages_", "build_")


def _facts(roles: AxisRoles, styler: Styler) -> TorchFacts:
    """Returns what the plan of `roles` decides about a step."""
    plan, gather = roles.plan, roles.plan.gather
    several, scatters = roles.uses_fsdp and plan.microbatches > 1, bool(plan.store("grads"))
    parallel = styler.loss_parallel and not styler.divides_loss
    return TorchFacts(
        divides_sequence=bool(roles.context),
        divides_batch=bool(roles.data),
        reduces_last=several and not scatters,
        all_reduces_last=several and scatters and bool(roles.replicate or roles.experts.replicate),
        frees_last=several and plan.gather_per_in("") == "step",
        gather_cause=because(gather.cause if gather else None, "parameters stay gathered to the end of the step")[2:],
        loss_parallel=parallel,
        vocab_cause=loss.why_reduced(styler) if parallel else "",
        chunks=plan.loss_chunks > 1,
        sums_gradients=global_ops.sums_left(roles),
        ties_ends=bool(roles.modules_of_both_ends),
        fsdp=roles.uses_fsdp,
        in_a_v=bool(roles.pipeline) and in_a_v(plan),
    )
