"""Emits the functions of one training step: build_step, build_evaluate."""

from __future__ import annotations

from planc.backends.common.source_writer import because, fill, lines
from planc.backends.cuda.analysis.roles import AxisRoles
from planc.backends.cuda.analysis.styles import Styler
from planc.backends.cuda.emit import global_ops, loss, pipeline, tied


def step(roles: AxisRoles, styler: Styler) -> str:
    """Emits build_step, which builds the function for the forward and backward of all microbatches."""
    if roles.pipeline:
        return fill(
            PIPELINED_STEP,
            **_own_tokens(roles),
            run=_scheduled(styler, "step"),
            sums=lines("sum_gradients(parameters)" if global_ops.sums_left(roles) else "", tied.in_the_step(roles)),
            parameters="parameters = [p for stage in stages for p in stage.parameters()]"
            if global_ops.sums_left(roles)
            else "",
        )
    policy = _policy(roles) if roles.plan.microbatches > 1 else ""
    return fill(
        STEP,
        **_own_tokens(roles),
        microbatches=_microbatches(styler, policy, backward=True),
        sums="sum_gradients(model.parameters())" if global_ops.sums_left(roles) else "",
        returned=_returned_loss(roles),
    )


def _own_tokens(roles: AxisRoles) -> dict[str, str]:
    """Returns code, by template field, that selects a rank's tokens under context parallelism; "" without it."""
    if not roles.context:
        return {"rows": "", "own": ""}
    return {"rows": "rows = sequence_rows(mesh)", "own": "tokens, targets = tokens[:, rows], targets[:, rows]"}


STEP = '''
def build_step(model: nn.Module, mesh: DeviceMesh) -> Step:
    """step(tokens, targets) -> loss: one forward and backward; leaves the gradients in .grad.

    Both arguments are this data rank's [sequences, S] int64. The loss is the mean over the global batch.
    """
    <rows>

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        <own>
        <microbatches>
        <sums>
        return <returned>

    return step
'''

PIPELINED_STEP = '''
def build_step(stages: list[nn.Module], mesh: DeviceMesh) -> Step:
    """step(tokens, targets) -> loss: one forward and backward; leaves the gradients in .grad.

    Both arguments are this data rank's [sequences, S] int64, the same on every rank of the pipeline.
    The loss is the mean over the global batch. Gradients are reduced once, after the last microbatch.
    """
    schedule = build_schedule(stages, mesh)
    <parameters>
    <rows>

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        <own>
        <run>
        <sums>
        return _mean_loss(losses, tokens.device, mesh)

    return step
'''


def evaluate(roles: AxisRoles, styler: Styler) -> str:
    """Emits build_evaluate, which builds the function for the mean loss without gradients."""
    if roles.pipeline:
        return fill(
            PIPELINED_EVALUATE,
            **_own_tokens(roles),
            forwards=pipeline.forwards_only(roles),
            run=_scheduled(styler, "eval"),
            let_go=fill(LET_GO, modules="[m for stage in stages for m in stage.modules()]") if roles.uses_fsdp else "",
        )
    return fill(
        EVALUATE,
        **_own_tokens(roles),
        microbatches=_microbatches(styler, "", backward=False),
        let_go=fill(LET_GO, modules="model.modules()") if roles.uses_fsdp else "",
        returned=_returned_loss(roles),
    )


EVALUATE = '''
def build_evaluate(model: nn.Module, mesh: DeviceMesh) -> Step:
    """evaluate(tokens, targets) -> loss, with the arguments of `step`, without gradients."""
    <rows>

    @torch.no_grad()
    def evaluate(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        <own>
        <microbatches>
        <let_go>
        return <returned>

    return evaluate
'''

PIPELINED_EVALUATE = '''
def build_evaluate(stages: list[nn.Module], mesh: DeviceMesh) -> Step:
    """evaluate(tokens, targets) -> loss, with the arguments of `step`, without gradients."""
    schedule = build_schedule(stages, mesh)
    <forwards>
    <rows>

    @torch.no_grad()
    def evaluate(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        <own>
        <run>
        <let_go>
        return _mean_loss(losses, tokens.device, mesh)

    return evaluate
'''

LET_GO = """
# No backward has freed the gathered parameters, and an optimizer step would not update them.
for module in <modules>:
    if isinstance(module, FSDPModule):
        module.reshard()
"""


def _microbatches(styler: Styler, policy: str, *, backward: bool) -> str:
    """Emits the loop that runs the microbatches and sums their losses; each iteration starts with the code `policy`."""
    return fill(
        """
        inputs = tokens.split(MICROBATCH_SEQUENCES)
        labels = targets.split(MICROBATCH_SEQUENCES)
        total = torch.zeros((), device=tokens.device)
        for index in range(len(inputs)):
            <policy>
            <forward>
        """,
        policy=lines("last = index == len(inputs) - 1", policy) if policy else "",
        forward=_forward(styler, backward=backward),
    )


def _forward(styler: Styler, *, backward: bool) -> str:
    called = loss.call(styler, "model", "model(inputs[index])", "labels[index]")
    run = lines(f"loss = {called} / len(inputs)", "loss.backward()" if backward else "")
    return lines(loss.within(styler, run), f"total += loss.detach(){_whole(styler)}")


def _whole(styler: Styler) -> str:
    """Emits the call after a loss that makes it a plain tensor, if it is a DTensor."""
    return ".full_tensor()" if styler.loss_parallel and not styler.divides_loss else ""


def _policy(roles: AxisRoles) -> str:
    """Emits the code that sets FSDP's gradient reduction and resharding for each microbatch of a step."""
    if not roles.uses_fsdp:
        return ""
    scatters, gather = bool(roles.plan.store("grads")), roles.plan.gather
    whole = lines(
        "# Gradients stay unsharded and are reduced once, with the last microbatch.",
        "model.set_requires_gradient_sync(last)",
    )
    scattered = lines(
        "# Reduce-scatter each microbatch; all-reduce their sum with the last one.",
        "model.set_requires_all_reduce(last)",
    )
    kept = lines(
        because(gather.cause if gather else None, "parameters stay gathered to the end of the step"),
        "model.set_reshard_after_backward(last)",
    )
    return lines(
        "" if scatters else whole,
        scattered if scatters and (roles.replicate or roles.experts.replicate) else "",
        kept if roles.plan.gather_per_in("") == "step" else "",
    )


def _scheduled(styler: Styler, method: str) -> str:
    """Emits the call of the schedule's `method` with the tokens on the first stage and the targets on the last."""
    run = f"schedule.{method}(*inputs, target=labels, losses=losses, return_outputs=False)"
    return fill(
        """
        held = stage_indices(mesh)
        inputs = (tokens,) if 0 in held else ()
        labels, losses = (targets, []) if len(STAGES) - 1 in held else (None, None)
        <run>
        """,
        run=loss.within(styler, run),
    )


def mean_loss(roles: AxisRoles, styler: Styler) -> str:
    """Emits _mean_loss, which averages a pipeline's losses over the global batch; "" without a pipeline."""
    if not roles.pipeline:
        return ""
    whole = _whole(styler)
    losses = f"[loss{whole} for loss in losses]" if whole else "losses"
    return fill(MEAN_LOSS, losses=losses)


MEAN_LOSS = '''
def _mean_loss(losses: list[torch.Tensor] | None, device: torch.device, mesh: DeviceMesh) -> torch.Tensor:
    """The mean loss of the global batch, the same on every rank.

    `losses`: one for each microbatch on the ranks with the last stage, None on the others.
    """
    total = torch.zeros((), device=device)
    if losses is not None:
        total += torch.stack(<losses>).detach().mean()
    return mean_over_batch(total, mesh)
'''


def _returned_loss(roles: AxisRoles) -> str:
    return "mean_over_batch(total, mesh)" if roles.data else "total"
