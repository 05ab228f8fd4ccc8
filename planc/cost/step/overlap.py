"""Overlap: the seconds of a transfer that compute does not hide.

Collectives of activations wait for their data and are exposed whole, but for the few that run beside compute.
Gathers of parameters hide behind the forward. Reductions of gradients hide behind the part of the backward that its own
gathers leave free. What does not fit there is exposed. Transfers once a step hide behind one microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.cost.compute.gemm import weights_s
from planc.cost.compute.section import ops_s
from planc.cost.step.shared_links import LinkSeconds, summed
from planc.cost.step.transfers import Transfer
from planc.ir.cache import cached_on
from planc.ir.model import Section
from planc.ir.sharding import Sharded
from planc.sharding.activation_collectives import ActivationPhase


def exposed_activations(
    sharded: Sharded, section: Section, phase: ActivationPhase, transfers: Sequence[Transfer]
) -> list[float]:
    """Exposed seconds of each of these transfers, launches included, of one copy of a section and one microbatch.

    Most are waited for. Some run beside compute: the rings of context parallelism beside attention, and what an
    `overlap` sentence names. `dual_batch` runs one microbatch's transfers beside another's compute (DeepSeek-V3 report,
    section 3.2.2); `weight_gradients` the sums of inputs' gradients beside the products that make the weights'
    gradients; other methods run transfers beside the matmuls that make or take what is moved.

    Args:
        sharded: the plan with its layouts.
        section: the section whose activations move.
        phase: forward, recompute or backward.
        transfers: the transfers of one copy of the section in that phase.

    >>> from planc.cost.step.transfers import LinkTimes, transfers_of_calls
    >>> from planc.sharding.activation_collectives import activation_calls
    >>> sent = transfers_of_calls(sharded, "block", activation_calls(sharded, "block", "forward"), LinkTimes())
    >>> [f"{s * 1e6:.0f} us" for s in exposed_activations(sharded, "block", "forward", sent)]  # 117 MB at 450 GB/s
    ['261 us', '261 us', '261 us', '261 us']
    """
    wire_s = [t.calls * t.transfer_s for t in transfers]
    full_s = list(wire_s)
    for members, kinds, contention in _windows(sharded, phase, transfers):
        total_s = sum(full_s[i] for i in members)
        if total_s:
            cover_s = _cover_s(sharded, section, phase, kinds)
            share = slowed_share(max(0.0, 1 - cover_s / total_s), contention)
            for i in members:
                wire_s[i] = full_s[i] * share
    return [s + t.calls * t.launch_s for s, t in zip(wire_s, transfers, strict=True)]


def waited(transfers: Sequence[Transfer], exposed: Sequence[float]) -> LinkSeconds:
    """The part of `transfers` of activations that a step waits for, from their `exposed` seconds: launches left out,
    and what happens once a step."""
    found = []
    for t, seconds in zip(transfers, exposed, strict=True):
        if t.links.total_s and t.per == "microbatch":
            found.append(t.links.times((seconds - t.calls * t.launch_s) / t.transfer_s))
    return summed(found)


WEIGHTS = ("weights",)
"""Compute of the products that make the weights' gradients, beside kinds of op."""


def _windows(
    sharded: Sharded, phase: ActivationPhase, transfers: Sequence[Transfer]
) -> Iterator[tuple[list[int], tuple[str, ...], float]]:
    """Transfers that run beside compute: their positions, the kinds of op beside them (none: all), the contention."""
    plan, chip = sharded.plan, sharded.plan.cluster.chip
    rings = [i for i, t in enumerate(transfers) if t.op == "send_recv"]
    if rings:
        yield rings, ("attention",), chip.contention
    for overlap in plan.overlaps:
        over = [i for i, t in enumerate(transfers) if overlap.axis in t.axes and t.op != "send_recv"]
        if overlap.method == "weight_gradients":
            sums = [i for i in over if phase == "backward" and transfers[i].op in ("all_reduce", "reduce_scatter")]
            yield sums, WEIGHTS, chip.contention
        elif overlap.method == "dual_batch":
            yield over, (), min(1.0, DUAL_BATCH_CORES / chip.cores) if chip.cores else chip.contention
        elif overlap.method != "none":
            yield over, ("matmul",), chip.contention


@cached_on(lambda sharded, section, phase, kinds: (sharded.cache, (section, phase == "backward", kinds)))
def _cover_s(sharded: Sharded, section: Section, phase: ActivationPhase, kinds: tuple[str, ...]) -> float:
    """Seconds of one copy's compute of these kinds of op, in the forward or the backward."""
    ops, chip = sharded.ops[section], sharded.plan.cluster.chip
    if kinds == WEIGHTS:
        return sum(weights_s(sharded, o, chip) for o in ops if o.op.kind == "matmul")
    seconds = ops_s(sharded, section, chip, backward=phase == "backward")
    return sum(seconds.get(o.op.name, 0.0) for o in ops if o.op.kind in kinds or not kinds)


DUAL_BATCH_CORES = 20
"""Cores that two microbatches' transfers keep from compute (DeepSeek-V3 report, section 3.2.2)."""


class WindowTotals(dict[str, tuple[float, float]]):
    """Transfers that share one overlap window, by phase: seconds of all calls, and calls of the most frequent one."""

    def add(self, phase: str, seconds: float, calls: float) -> None:
        """Add transfers of a `phase`: their `seconds` together, and the `calls` of the most frequent one."""
        sum_s, most = self.get(phase, (0.0, 0.0))
        self[phase] = sum_s + seconds, max(most, calls)


def exposed_share(totals: WindowTotals, cover_s: float, contention: float) -> tuple[float, float]:
    """Share of each transfer of an overlap window that is exposed, and the compute time left for the next window (s).

    Args:
        totals: transfers of the window by phase, in seconds and calls.
        cover_s: seconds of compute that may run beside them.
        contention: share by which a transfer slows the compute beside it (NCCL's kernels take cores).

    Transfers run one after the other on the same links. What does not fit is exposed, and always one call of
    each phase: the first gather has no compute before it, the last reduction none after it.

    >>> totals = WindowTotals(forward=(1.0, 10), backward=(1.0, 10))  # 2 s of transfers, ten calls each way
    >>> exposed_share(totals, cover_s=5.0, contention=0.0)  # all hides but two calls of 0.1 s
    (0.1, 3.0)
    >>> exposed_share(totals, cover_s=0.5, contention=0.0)  # 1.5 s of 2 s find no compute
    (0.75, 0.0)
    """
    total_s = sum(sum_s for sum_s, _ in totals.values())
    if total_s <= 0:
        return 1.0, cover_s
    least_s = sum(sum_s / calls for sum_s, calls in totals.values())
    exposed_s = max(total_s - cover_s, least_s)
    return slowed_share(exposed_s / total_s, contention), max(0.0, cover_s - total_s)


def slowed_share(share: float, contention: float) -> float:
    """Share of a transfer that lengthens the step when `share` of it is exposed and the rest slows compute down.

    >>> slowed_share(0.25, contention=0.1)  # a quarter, and a tenth of the other three
    0.325
    """
    exposed = min(1.0, share)
    return exposed + contention * (1 - exposed)
