"""Seconds and bytes of one copy of each section of a model (embedding, layer of each kind, head).

The compute and saved activations of a copy depend on the axes inside a data-parallel rank. Its state (parameters,
gradients, moments) and its transfers depend on where state is stored. Layouts in a search share most of both.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping

from planc.costing.compute.section import SectionTime, section_time
from planc.costing.memory.activations import Replays, replays_of, saved_by_section
from planc.costing.memory.state import PassingBytes, communicators, largest, passing_bytes, resting
from planc.costing.step.optimizer import Sections, by_sections, held_by
from planc.costing.step.overlap import exposed_activations, waited
from planc.costing.step.shared_links import NOTHING, LinkSeconds, summed
from planc.costing.step.transfers import LinkTimes, TransferGroup, axes_that_wait, transfers_of_calls
from planc.diag.fast_dataclass import dataclass
from planc.ir.cache import Cache, cached_on
from planc.ir.model import Section
from planc.ir.plan import Plan
from planc.ir.sharding import Sharded
from planc.ir.stack import Stack
from planc.pipeline.split import microbatch_copies
from planc.sharding.activation_collectives import PHASES, ActivationPhase, activation_calls
from planc.sharding.collectives import handed_over_bytes, scattering_axes, shared_bytes
from planc.sharding.stage_assignment import copies_in


@dataclass(frozen=True, slots=True)
class SectionSeconds:
    """Seconds of one copy of a section for one microbatch: compute, and exposed transfers of activations.

    `exposed_recompute_s` applies to a copy that the backward recomputes.
    """

    time: SectionTime
    exposed_forward_s: float
    exposed_backward_s: float
    exposed_recompute_s: float
    backward_compute_s: float
    """Compute of the backward and its recompute, with which transfers of state overlap."""
    hidden: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Compute of forward, recompute and backward that hides only transfers of activations."""
    waits: tuple[LinkSeconds, LinkSeconds, LinkSeconds] = (NOTHING, NOTHING, NOTHING)
    """Exposed transfers of forward, recompute and backward, without launches, on machines described as graphs."""


def section_seconds(
    time: SectionTime,
    exposed: Mapping[ActivationPhase, tuple[Iterable[float], float]],
    waits: Mapping[ActivationPhase, LinkSeconds],
) -> SectionSeconds:
    """Return the seconds of a section, from its compute (`time`) and its activation transfers by phase: `exposed`
    seconds of each, with the compute that hides others, and the transfers that the section `waits` for."""
    forward_s, recompute_s, backward_s = (sum(exposed[phase][0]) for phase in PHASES)
    hidden = exposed["forward"][1], exposed["recompute"][1], exposed["backward"][1]
    on_links = waits["forward"], waits["recompute"], waits["backward"]
    compute_s = time.backward_s + time.recompute_s
    return SectionSeconds(time, forward_s, backward_s, recompute_s, compute_s, hidden, on_links)


@dataclass(frozen=True, slots=True)
class MicrobatchSeconds:
    """Seconds of one microbatch for one copy of each section, and totals for lower bounds."""

    sections: dict[Section, SectionSeconds]
    forward_s: dict[Section, float]
    """One copy's forward, exposed transfers of activations included."""
    backward_s: dict[Section, float]
    """One copy's backward and recompute, exposed transfers included. Transfers of a recompute that only some layers run
    are not included."""
    all_layers_s: float
    all_forwards_s: float
    fastest_layer_s: float
    fastest_forward_s: float


def microbatch_seconds(sharded: Sharded, links: LinkTimes) -> MicrobatchSeconds:
    """Return the seconds of a copy of each section of `sharded` for one microbatch. `links` has those of collectives.

    >>> from planc.costing.step.transfers import LinkTimes
    >>> seconds = microbatch_seconds(sharded, LinkTimes())
    >>> [f"{s * 1e3:.1f} ms" for s in (seconds.forward_s["block"], seconds.backward_s["block"])]  # transfers included
    ['3.1 ms', '5.3 ms']
    """
    plan = sharded.plan
    found = {s: _section_seconds(sharded, s, links) for s in sharded.ops}
    all_recompute = plan.recompute.every == 1
    forward = {s: one.time.forward_s + one.exposed_forward_s for s, one in found.items()}
    backward = {
        s: one.backward_compute_s + one.exposed_backward_s + (one.exposed_recompute_s if all_recompute else 0.0)
        for s, one in found.items()
    }
    copies = {s: plan.model.layers_of(s) if s in plan.model.blocks else 1 for s in found}
    return MicrobatchSeconds(
        sections=found,
        forward_s=forward,
        backward_s=backward,
        all_layers_s=sum(n * (forward[s] + backward[s]) for s, n in copies.items()),
        all_forwards_s=sum(n * forward[s] for s, n in copies.items()),
        fastest_layer_s=min(forward[s] + backward[s] for s in plan.model.blocks),
        fastest_forward_s=min(forward[s] for s in plan.model.blocks),
    )


def _section_seconds(sharded: Sharded, section: Section, links: LinkTimes) -> SectionSeconds:
    found = {phase: _exposed(sharded, section, phase, links) for phase in PHASES}
    exposed = {phase: seconds for phase, (seconds, _) in found.items()}
    waits = {phase: on_links for phase, (_, on_links) in found.items()}
    return section_seconds(section_time(sharded, section, sharded.plan.cluster.chip), exposed, waits)


def _store(sharded: Sharded, section: Section, phase: ActivationPhase, _links: LinkTimes) -> tuple[Cache, Hashable]:
    """Return the cache of a phase and its key: transfers of forward and backward do not depend on recompute."""
    return sharded.cache if phase != "recompute" else Cache(), (section, phase)


@cached_on(_store)
def _exposed(
    sharded: Sharded, section: Section, phase: ActivationPhase, links: LinkTimes
) -> tuple[tuple[list[float], float], LinkSeconds]:
    transfers = transfers_of_calls(sharded, section, activation_calls(sharded, section, phase), links)
    exposed = exposed_activations(sharded, section, phase, transfers)
    return exposed, waited(transfers, exposed[0])


@dataclass(frozen=True, slots=True)
class SavedActivations:
    """Activation bytes of a microbatch: saved by each section, recomputed (`replays`), sent to a stage (`boundary`)."""

    saved: dict[Section, float]
    replays: Replays
    boundary: float

    def times(self, sequences: float) -> SavedActivations:
        """Return the bytes of a microbatch with `sequences` times as many sequences."""
        back = self.replays
        return SavedActivations(
            {s: n * sequences for s, n in self.saved.items()},
            Replays(
                {s: n * sequences for s, n in back.blocks.items()},
                back.logits * sequences,
                back.loss * sequences,
                back.together,
            ),
            self.boundary * sequences,
        )


def saved_activations(sharded: Sharded) -> SavedActivations:
    """Return the activation bytes of one microbatch of `sharded` on a device: saved, recomputed, and sent to a stage.

    >>> saved_activations(sharded).boundary / 2**20  # MiB: 8192 tokens x 8192 in bf16, over tp 8
    16.0
    """
    return SavedActivations(saved_by_section(sharded), replays_of(sharded), handed_over_bytes(sharded))


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of state on a device: of one copy of parameters, gradients and moments, by the sections that use them
    (`resting`); of the gather and reduce buffers of each section (`passing`); and of the communicators."""

    resting: dict[Sections, float]
    passing: dict[Section, PassingBytes]
    communicators: float


def state_bytes(sharded: Sharded) -> StateBytes:
    """Return the bytes of state of `sharded`'s plan on one device, by the sections that use it. Gradients that its
    framework frees in the update do not count.

    >>> f"{state_bytes(sharded).resting[('block',)] / 2**20:.0f} MiB"  # a layer
    '689 MiB'
    """
    return StateBytes(
        resting={
            sections: sum(
                size
                for part, size in resting(sharded, [(p, 1) for p in params]).items()
                if part != "grads" or not sharded.stack.policy.fresh_grads
            )
            for sections, params in by_sections(sharded).items()
        },
        passing=passing_bytes(sharded, sharded.params),
        communicators=communicators(sharded) * sharded.plan.cluster.chip.communicator_bytes,
    )


def resting_bytes(state: StateBytes, load: Mapping[Section, int], blocks: Container[Section]) -> float:
    """Return the bytes of persistent state on a rank with this load: every copy, and the communicators.

    Args:
        state: bytes of one copy, by the sections that use it.
        load: copies of each section on the rank.
        blocks: the sections that are kinds of block.

    >>> resting_bytes(StateBytes({("block",): 5.0, ("last",): 2.0}, {}, communicators=1.0), {"block": 3}, {"block"})
    16.0
    """
    return state.communicators + sum([n * size for n, size in held_by(load, state.resting, blocks)])


def passing_on(state: StateBytes, load: Iterable[Section]) -> PassingBytes:
    """Return the largest gather buffer and the largest reduce buffer (bytes) in `state` of the sections in `load`.

    >>> passing_on(StateBytes({}, {"block": (3.0, 1.0), "last": (2.0, 4.0)}, communicators=0.0), ["block", "last"])
    (3.0, 4.0)
    """
    return largest([state.passing[s] for s in load if s in state.passing])


@dataclass(frozen=True, slots=True)
class SharedGradient:
    """A gradient that pipeline ranks sum once a step: seconds of one copy's transfer, its launch and its links."""

    sections: Sections
    transfer_s: float
    launch_s: float
    links: LinkSeconds


def shared_gradients(sharded: Sharded, links: LinkTimes) -> tuple[SharedGradient, ...]:
    """Return the gradients that two pipeline ranks sum, with the seconds of a transfer.

    These are the gradients of an embedding tied to a head on another rank, or all gradients if a schedule has two
    copies of each stage (`planc.sharding.collectives`). `sharded` holds the parameters, `links` the seconds of calls.

    >>> from planc.costing.step.transfers import LinkTimes
    >>> shared_gradients(sharded, LinkTimes())  # Llama 3 70B ties nothing
    ()
    """
    plan = sharded.plan
    if plan.split is None or plan.pipeline == 1:
        return ()
    axes = (plan.split.axis,)
    params = sharded.params if microbatch_copies(plan.split) > 1 else sharded.tied
    found = []
    for p in params:
        if not p.param.frozen:
            size = shared_bytes(plan, p)
            seconds, on_links = (
                links.call_s(plan, "all_reduce", size, axes),
                links.links_of(plan, "all_reduce", size, axes),
            )
            found.append(SharedGradient(p.param.sections, *seconds, on_links))
    return tuple(found)


def shared_group(plan: Plan, shared: Iterable[SharedGradient], load: Mapping[Section, int]) -> TransferGroup | None:
    """Return the gradients in `shared` that a rank with this `load` sums in `plan`'s pipeline, as one group or None."""
    apart = ("first" in load) != ("last" in load)
    if not (apart or microbatch_copies(plan.split) > 1):
        return None
    transfer_s = launch_s = calls = 0.0
    on_links = []
    for one in shared:
        copies = copies_in(load, one.sections, plan.model.blocks)
        transfer_s += copies * one.transfer_s
        launch_s += copies * one.launch_s
        on_links.append(one.links.times(copies))
        calls = max(calls, copies)
    waits = plan.split is not None and plan.split.axis in axes_that_wait(plan)
    if not calls:
        return None
    return TransferGroup("step", "optimizer", waits, transfer_s, launch_s, calls, summed(on_links))


def stage_boundary_s(plan: Plan, stack: Stack, boundary_bytes: float, links: LinkTimes) -> float:
    """Return the seconds to send `boundary_bytes` of a microbatch between pipeline stages of `plan`, run by `stack`.

    0 without a pipeline. If the tensor is scattered for the send, gathering it afterwards counts (`scattering_axes`).

    >>> from planc.costing.step.transfers import LinkTimes
    >>> f"{stage_boundary_s(plan, sharded.stack, 2 * 8192 * 8192 / 8, LinkTimes()) * 1e6:.0f} us"  # 17 MB at 50 GB/s
    '336 us'
    """
    if plan.split is None or plan.pipeline == 1:
        return 0.0
    whole = scattering_axes(plan, stack)
    parts = plan.mesh.size(*whole)
    sent_s = sum(links.call_s(plan, "send_recv", boundary_bytes / parts, (plan.split.axis,)))
    return sent_s + (sum(links.call_s(plan, "all_gather", boundary_bytes, whole)) if parts > 1 else 0.0)
