"""A training step and an evaluation: the forward, and in a step the backward, of all microbatches.

A program has the functions of a model or those of a pipeline's stages, as `build_step` and `build_evaluate`.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor.parallel import loss_parallel

from planc.backends.cuda.program.facts import FACTS
from planc.backends.cuda.program.names import (
    MICROBATCH_SEQUENCES,
    STAGES,
    Step,
    build_schedule,
    loss_fn,
    mean_over_batch,
    sequence_rows,
    stage_indices,
    sum_gradients,
    sum_shared_gradients,
)


def build_step(model: nn.Module, mesh: DeviceMesh) -> Step:
    """step(tokens, targets) -> loss: one forward and backward; leaves the gradients in .grad.

    Both arguments are this data rank's [sequences, S] int64. The loss is the mean over the global batch.
    """
    if FACTS.divides_sequence:
        rows = sequence_rows(mesh)

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if FACTS.divides_sequence:
            tokens, targets = tokens[:, rows], targets[:, rows]
        inputs = tokens.split(MICROBATCH_SEQUENCES)
        labels = targets.split(MICROBATCH_SEQUENCES)
        total = torch.zeros((), device=tokens.device)
        for index in range(len(inputs)):
            if FACTS.reduces_last or FACTS.all_reduces_last or FACTS.frees_last:
                last = index == len(inputs) - 1
            if FACTS.reduces_last:
                # Gradients stay unsharded and are reduced once, with the last microbatch.
                model.set_requires_gradient_sync(last)
            if FACTS.all_reduces_last:
                # Reduce-scatter each microbatch; all-reduce their sum with the last one.
                model.set_requires_all_reduce(last)
            if FACTS.frees_last:
                # FACTS.gather_cause
                model.set_reshard_after_backward(last)
            # FACTS.vocab_cause
            with loss_parallel() if FACTS.loss_parallel else nullcontext():
                loss = loss_fn(*((model,) if FACTS.chunks else ()), model(inputs[index]), labels[index]) / len(inputs)
                loss.backward()
            total += loss.detach().full_tensor() if FACTS.loss_parallel else loss.detach()
        if FACTS.sums_gradients:
            sum_gradients(model.parameters())
        return mean_over_batch(total, mesh) if FACTS.divides_batch else total

    return step


def build_stages_step(stages: list[nn.Module], mesh: DeviceMesh) -> Step:
    """step(tokens, targets) -> loss: one forward and backward; leaves the gradients in .grad.

    Both arguments are this data rank's [sequences, S] int64, the same on every rank of the pipeline.
    The loss is the mean over the global batch. Gradients are reduced once, after the last microbatch.
    """
    schedule = build_schedule(stages, mesh)
    if FACTS.sums_gradients:
        parameters = [p for stage in stages for p in stage.parameters()]
    if FACTS.divides_sequence:
        rows = sequence_rows(mesh)

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if FACTS.divides_sequence:
            tokens, targets = tokens[:, rows], targets[:, rows]
        held = stage_indices(mesh)
        inputs = (tokens,) if 0 in held else ()
        labels, losses = (targets, []) if len(STAGES) - 1 in held else (None, None)
        # FACTS.vocab_cause
        with loss_parallel() if FACTS.loss_parallel else nullcontext():
            schedule.step(*inputs, target=labels, losses=losses, return_outputs=False)
        if FACTS.sums_gradients:
            sum_gradients(parameters)
        if FACTS.ties_ends:
            sum_shared_gradients(stages, mesh)
        return _mean_loss(losses, tokens.device, mesh)

    return step


def build_evaluate(model: nn.Module, mesh: DeviceMesh) -> Step:
    """evaluate(tokens, targets) -> loss, with the arguments of `step`, without gradients."""
    if FACTS.divides_sequence:
        rows = sequence_rows(mesh)

    @torch.no_grad()
    def evaluate(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if FACTS.divides_sequence:
            tokens, targets = tokens[:, rows], targets[:, rows]
        inputs = tokens.split(MICROBATCH_SEQUENCES)
        labels = targets.split(MICROBATCH_SEQUENCES)
        total = torch.zeros((), device=tokens.device)
        for index in range(len(inputs)):
            # FACTS.vocab_cause
            with loss_parallel() if FACTS.loss_parallel else nullcontext():
                loss = loss_fn(*((model,) if FACTS.chunks else ()), model(inputs[index]), labels[index]) / len(inputs)
            total += loss.detach().full_tensor() if FACTS.loss_parallel else loss.detach()
        if FACTS.fsdp:
            # No backward has freed the gathered parameters, and an optimizer step would not update them.
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
        return mean_over_batch(total, mesh) if FACTS.divides_batch else total

    return evaluate


def build_stages_evaluate(stages: list[nn.Module], mesh: DeviceMesh) -> Step:
    """evaluate(tokens, targets) -> loss, with the arguments of `step`, without gradients."""
    schedule = build_schedule(stages, mesh)
    if FACTS.in_a_v:
        # torch does not leave the backward out of V schedules by itself.
        kept = ("FORWARD", "RECV_F", "SEND_F", "WAIT_SEND_F", "UNSHARD", "RESHARD")
        schedule.pipeline_order_with_comms = {
            rank: [p for action in actions for p in action.sub_actions or (action,) if p.computation_type.name in kept]
            for rank, actions in schedule.pipeline_order_with_comms.items()
        }
    if FACTS.divides_sequence:
        rows = sequence_rows(mesh)

    @torch.no_grad()
    def evaluate(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if FACTS.divides_sequence:
            tokens, targets = tokens[:, rows], targets[:, rows]
        held = stage_indices(mesh)
        inputs = (tokens,) if 0 in held else ()
        labels, losses = (targets, []) if len(STAGES) - 1 in held else (None, None)
        # FACTS.vocab_cause
        with loss_parallel() if FACTS.loss_parallel else nullcontext():
            schedule.eval(*inputs, target=labels, losses=losses, return_outputs=False)
        if FACTS.fsdp:
            # No backward has freed the gathered parameters, and an optimizer step would not update them.
            for module in [m for stage in stages for m in stage.modules()]:
                if isinstance(module, FSDPModule):
                    module.reshard()
        return _mean_loss(losses, tokens.device, mesh)

    return evaluate


def _mean_loss(losses: list[torch.Tensor] | None, device: torch.device, mesh: DeviceMesh) -> torch.Tensor:
    """The mean loss of the global batch, the same on every rank.

    `losses`: one for each microbatch on the ranks with the last stage, None on the others.
    """
    total = torch.zeros((), device=device)
    if losses is not None:
        total += torch.stack([loss.full_tensor() for loss in losses] if FACTS.loss_parallel else losses).detach().mean()
    return mean_over_batch(total, mesh)
