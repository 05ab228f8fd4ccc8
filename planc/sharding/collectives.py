"""The semantic collectives of a plan: the collectives that any correct program must issue in some form.

The forward's redistributions come from propagation, and the backward's are their duals. Sharded parameters are
all-gathered, gradients are reduced to their stored layout, and pipeline stages send activations to the next stage. A
`Collective` belongs to one pipeline rank. The collectives of the repeated block are derived once, and their count is
multiplied by the number of layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from planc.ir.collective import DTYPE_BYTES, Collective, Phase
from planc.ir.plan import Plan
from planc.ir.sharding import ParamSharding, Sharded
from planc.ir.stack import Stack
from planc.pipeline.split import microbatch_copies
from planc.sharding.activation_collectives import PHASES, activation_calls
from planc.sharding.calls import Call
from planc.sharding.local import local_elements, stored_elements
from planc.sharding.stage_assignment import boundaries_sent, copies_on, microbatches_each, replayed_on, sections_on
from planc.sharding.state_collectives import scalars, state


def semantic_collectives(sharded: Sharded, ranks: Iterable[int] | None = None) -> tuple[Collective, ...]:
    """Return every collective of the plan in `sharded`, with its calls per optimizer step on one pipeline rank.

    `ranks` are the pipeline ranks to include; None for all.

    >>> gathers = [r for r in semantic_collectives(sharded, [0]) if r.op == "all_gather" and r.carries == "param"]
    >>> sum(r.count for r in gathers)  # once a step: 9 parameters of each of 20 layers, and the embedding
    181
    """
    plan = sharded.plan
    stages = range(plan.pipeline) if ranks is None else tuple(ranks)
    calls: dict[str, list[Call]] = {
        section: [
            *(call for phase in PHASES for call in activation_calls(sharded, section, phase)),
            *state(sharded, section),
        ]
        for section in sharded.ops
    }
    calls["step"] = list(scalars(sharded))
    each = microbatches_each(plan)
    told = {section: [(c, _facts(sharded, c)) for c in found] for section, found in calls.items()}
    rows = [
        Collective(
            stage=stage,
            section=section,
            count=_count(call, again if call.phase == "recompute" else copies, each),
            **facts,
        )
        for stage in stages
        for section, copies in sections_on(plan, stage).items()
        for again in (replayed_on(plan, stage, section, copies),)
        for call, facts in told.get(section, ())
        if facts["group_size"] > 1
    ]
    if plan.split is not None and plan.pipeline > 1:
        rows += _sends(sharded, stages)
        rows += [row for stage in stages for row in _shared_gradient_sums(sharded, stage)]
    return tuple(r for r in rows if r.count)


def _facts(sharded: Sharded, call: Call) -> dict[str, Any]:
    """Return the fields of `Collective` that do not depend on the pipeline rank."""
    mesh = sharded.plan.mesh
    return {
        "op": call.op,
        "axes": mesh.in_order(call.axes),
        "group_size": mesh.size(*call.axes),
        "phase": call.phase,
        "carries": call.carries,
        "tensor": call.tensor,
        "dtype": call.dtype,
        "per": call.per,
        "buffer_bytes": call.elements * DTYPE_BYTES[call.dtype],
        "cause": call.cause,
    }


def _count(call: Call, copies: int, each: int) -> int:
    return copies * call.times * (each if call.per == "microbatch" else 1)


def _sends(sharded: Sharded, stages: Iterable[int]) -> Iterator[Collective]:
    """Yield the sends of each rank in `stages`: hidden states to the next stage, and gradients to the previous one."""
    plan = sharded.plan
    assert plan.split is not None
    last = sharded.model.block_output
    size = handed_over_bytes(sharded) / plan.mesh.size(*scattering_axes(plan, sharded.stack))
    ways: tuple[Phase, ...] = ("forward", "backward")
    for stage in stages:
        for phase in ways:
            count = boundaries_sent(plan, stage, forward=phase == "forward")
            yield Collective(
                op="send_recv",
                axes=(plan.split.axis,),
                group_size=plan.pipeline,
                stage=stage,
                phase=phase,
                carries="activation",
                tensor=last,
                section="step",
                dtype=plan.precision.compute,
                per="microbatch",
                count=count * microbatches_each(plan),
                buffer_bytes=size,
                cause=plan.split.cause,
            )


def handed_over_bytes(sharded: Sharded) -> float:
    """Return the bytes of a microbatch's hidden state between pipeline stages, on one device of the plan in `sharded`.

    >>> handed_over_bytes(sharded) == 2 * 8192 * 8192 / 8  # bf16, the sequence over tp 8
    True
    """
    plan, last = sharded.plan, sharded.model.block_output
    elements = local_elements(plan, sharded.model.tensor[last].dims, sharded.declared(last))
    return elements * DTYPE_BYTES[plan.precision.compute]


def scattering_axes(plan: Plan, stack: Stack) -> tuple[str, ...]:
    """Return the axes over which a pipeline stage sends shards of a replicated hidden state, which the receivers
    all-gather (Narayanan et al. 2021, section 4.1). () if the framework of `stack` does not do so on the plan's chip.

    >>> scattering_axes(plan, sharded.stack)  # planc's own programs send what a rank holds
    ()
    """
    if plan.split is None or plan.cluster.chip.name not in stack.policy.scatters_sends_on:
        return ()
    state = plan.model.tensor[plan.model.block_output]
    dividing = {a for d in state.dims for a in plan.axes_of(d, state.region)}
    return tuple(a for a in plan.mesh.sizes if a not in dividing and a != plan.split.axis)


def shared_bytes(plan: Plan, p: ParamSharding) -> float:
    """Return the bytes of the stored gradient of `p` on one device, which is all-reduced if two pipeline ranks share
    `p`."""
    rest = p.stored["grads"] or p.stored["optimizer"]
    return stored_elements(plan, p, rest) * DTYPE_BYTES[plan.precision.reduce]


def _shared_gradient_sums(sharded: Sharded, stage: int) -> Iterator[Collective]:
    """Yield the all-reduces, once a step, of gradients of parameters that two pipeline ranks hold: a tied embedding
    whose head is on another rank, or all parameters if the schedule places every stage on two ranks."""
    plan = sharded.plan
    assert plan.split is not None
    held = sections_on(plan, stage)
    twice = microbatch_copies(plan.split) > 1
    for p in sharded.params if twice else sharded.tied:
        tied = {"first", "last"} <= set(p.param.sections) and ("first" in held) != ("last" in held)
        copies = copies_on(plan, p.param, held)
        if copies and (twice or tied) and not p.param.frozen:
            yield Collective(
                op="all_reduce",
                axes=(plan.split.axis,),
                group_size=2,
                stage=stage,
                phase="optimizer",
                carries="grad",
                tensor=p.param.name,
                section="step",
                dtype=plan.precision.reduce,
                per="step",
                count=copies,
                buffer_bytes=shared_bytes(plan, p),
                cause=plan.split.cause,
            )
