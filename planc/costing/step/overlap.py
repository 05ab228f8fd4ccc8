"""Overlap: the seconds of a transfer that compute does not hide.

Collectives of activations wait for their data and are exposed whole, but for the few that run beside compute.
Gathers of parameters hide behind the part of the forward that those leave free, reductions of gradients behind the part
of the backward that its own gathers leave free too: a second of compute hides one second. What does not fit there is
exposed. Transfers once a step hide behind one microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.costing.compute.gemm import weights_s
from planc.costing.compute.section import dispatched_s, ops_s
from planc.costing.step.shared_links import LinkSeconds, summed
from planc.costing.step.transfers import Transfer
from planc.ir.model import Section
from planc.ir.sharding import Sharded
from planc.sharding.activation_collectives import ActivationPhase
from planc.sharding.recompute import replay


def exposed_activations(
    sharded: Sharded, section: Section, phase: ActivationPhase, transfers: Sequence[Transfer]
) -> tuple[list[float], float]:
    """Exposed seconds of each of these transfers, launches included, of one copy of a section and one microbatch; and
    the seconds of compute that hide the rest.

    Most are waited for. Some run beside compute: the rings of context parallelism beside attention, and what an
    `overlap` sentence names. `dual_batch` runs one microbatch's transfers beside another's compute (DeepSeek-V3 report,
    section 3.2.2); `weight_gradients` the sums of inputs' gradients beside the products that make the weights'
    gradients; other methods run transfers beside the matmuls that make or take what is moved.

    Args:
        sharded: the plan with its layouts.
        section: the section whose activations move.
        phase: forward, recompute or backward.
        transfers: the transfers of one copy of the section in that phase.

    >>> from planc.costing.step.transfers import LinkTimes, transfers_of_calls
    >>> from planc.sharding.activation_collectives import activation_calls
    >>> sent = transfers_of_calls(sharded, "block", activation_calls(sharded, "block", "forward"), LinkTimes())
    >>> exposed_s, hidden_s = exposed_activations(sharded, "block", "forward", sent)
    >>> [f"{s * 1e6:.0f} us" for s in exposed_s], hidden_s  # 117 MB at 450 GB/s, none beside compute
    (['261 us', '261 us', '261 us', '261 us'], 0.0)
    """
    wire_s = [t.calls * t.transfer_s for t in transfers]
    waiting, free, hidden_s = set(range(len(wire_s))), dict[str, float](), 0.0
    windows = sorted(_windows(sharded, phase, transfers), key=lambda window: NARROW_FIRST.index(window[1]))
    for members, kinds, contention in windows:
        mine = waiting.intersection(members)
        total_s = sum(wire_s[i] for i in mine)
        if total_s:
            free = free or _free(sharded, section, phase)
            beside_s = _take(free, kinds, total_s)
            share = slowed_share(1 - beside_s / total_s, contention)
            for i in mine:
                wire_s[i] *= share
            hidden_s += beside_s
            waiting -= mine
    return [s + t.calls * t.launch_s for s, t in zip(wire_s, transfers, strict=True)], hidden_s


def waited(transfers: Sequence[Transfer], exposed: Sequence[float]) -> LinkSeconds:
    """The part of `transfers` of activations that a step waits for, from their `exposed` seconds: launches left out,
    and what happens once a step."""
    found = []
    for t, seconds in zip(transfers, exposed, strict=True):
        if t.links.total_s and t.per == "microbatch":
            found.append(t.links.times((seconds - t.calls * t.launch_s) / t.transfer_s))
    return summed(found)


WEIGHTS = "weights"
"""Compute of the products that make the weights' gradients, beside kinds of op."""
HOST = "host"
"""Seconds in which a device waits for its host: everything runs beside them."""
NARROW_FIRST = (("attention",), (WEIGHTS,), ("matmul", WEIGHTS), ())
"""Kinds of compute beside which some transfers run; () is all. Those that have few take theirs first."""


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
            yield sums, (WEIGHTS,), chip.contention
        elif overlap.method == "dual_batch":
            yield over, (), min(1.0, DUAL_BATCH_CORES / chip.cores) if chip.cores else chip.contention
        elif overlap.method != "none":
            yield over, ("matmul", WEIGHTS), chip.contention


def _free(sharded: Sharded, section: Section, phase: ActivationPhase) -> dict[str, float]:
    """Seconds of one copy's compute by kind of op, in one phase: of the ops that run in it."""
    chip, free = sharded.plan.cluster.chip, dict[str, float]()
    seconds = ops_s(sharded, section, chip, backward=phase == "backward")
    if phase == "recompute":
        again = replay(sharded.plan, section).ops
        seconds = {name: s for name, s in seconds.items() if name in again}
    for o in sharded.ops[section]:
        own_s = seconds.get(o.op.name, 0.0)
        if own_s and phase == "backward" and o.op.kind == "matmul":
            of_weights_s = weights_s(sharded, o, chip)
            free[WEIGHTS] = free.get(WEIGHTS, 0.0) + of_weights_s
            own_s -= of_weights_s
        free[o.op.kind] = free.get(o.op.kind, 0.0) + own_s
    if not chip.hosts_itself:
        free[HOST] = dispatched_s(seconds.values(), chip) - sum(seconds.values())
    return free


def _take(free: dict[str, float], kinds: tuple[str, ...], wanted_s: float) -> float:
    """Take up to so many seconds of these kinds of compute from those that are `free`; returns how many."""
    left_s = wanted_s
    for kind in free:
        if not kinds or kind in kinds or kind == HOST:
            taken_s = min(free[kind], left_s)
            free[kind] -= taken_s
            left_s -= taken_s
    return wanted_s - left_s


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
