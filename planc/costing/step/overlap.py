"""Overlap of communication with compute: the exposed seconds of a transfer, which compute does not hide.

Most activation collectives are fully exposed, because the next op needs their result. A few overlap with compute.
Parameter gathers overlap with the remaining compute of the forward. Gradient reductions overlap with the compute of the
backward that hides no parameter gathers. A second of compute hides one second of transfer, and the rest is exposed.
Transfers that run once a step overlap with one microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planc.costing.compute.gemm import weights_s
from planc.costing.compute.section import dispatched_s, launches_s, ops_s
from planc.costing.step.shared_links import LinkSeconds, summed
from planc.costing.step.transfers import Transfer
from planc.ir.model import Section
from planc.ir.sharding import Sharded
from planc.sharding.activation_collectives import ActivationPhase
from planc.sharding.recompute import replay


def exposed_activations(
    sharded: Sharded, section: Section, phase: ActivationPhase, transfers: Sequence[Transfer]
) -> tuple[list[float], float]:
    """Return the exposed seconds of each transfer, launches included, and the seconds of compute that hide transfers,
    for one copy of a section and one microbatch.

    Most transfers are exposed. The rings of context parallelism overlap with attention, and `overlap` sentences name
    other overlaps. `dual_batch` hides one microbatch's transfers by another's compute (DeepSeek-V3, section 3.2.2).
    `weight_gradients` overlaps reductions of input gradients with the matmuls of weight gradients. Other methods
    overlap a transfer with the matmuls that produce or consume its data.

    Args:
        sharded: the plan with its layouts.
        section: the section whose activations are transferred.
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
    """Return the exposed part of activation `transfers`, without launches and once-per-step transfers."""
    found = []
    for t, seconds in zip(transfers, exposed, strict=True):
        if t.links.total_s and t.per == "microbatch":
            found.append(t.links.times((seconds - t.calls * t.launch_s) / t.transfer_s))
    return summed(found)


WEIGHTS = "weights"
"""Key of the compute of weight gradients, among the kinds of op."""
HOST = "host"
"""Key of the seconds in which a device waits for its host. All transfers overlap with them."""
NARROW_FIRST = (("attention",), (WEIGHTS,), ("matmul", WEIGHTS), ())
"""Kinds of compute with which transfers may overlap; () means all kinds. The most restricted transfers come first."""


def _windows(
    sharded: Sharded, phase: ActivationPhase, transfers: Sequence[Transfer]
) -> Iterator[tuple[list[int], tuple[str, ...], float]]:
    """Yield groups of transfers that overlap with compute: their indices in `transfers`, the kinds of op that hide them
    (empty: all kinds), and the share by which they slow this compute (contention)."""
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
    """Return the compute seconds of one copy of `section` in one phase that can hide transfers, by kind of op."""
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
        launched_s = launches_s(sharded, section, chip, backward=phase == "backward", only=tuple(seconds))
        free[HOST] = dispatched_s(seconds.values(), launched_s, chip) - sum(seconds.values())
    return free


def _take(free: dict[str, float], kinds: tuple[str, ...], wanted_s: float) -> float:
    """Take up to `wanted_s` seconds of these kinds of compute from `free`; return the seconds taken."""
    left_s = wanted_s
    for kind in free:
        if not kinds or kind in kinds or kind == HOST:
            taken_s = min(free[kind], left_s)
            free[kind] -= taken_s
            left_s -= taken_s
    return wanted_s - left_s


DUAL_BATCH_CORES = 20
"""Cores used by the transfers of two microbatches instead of compute (DeepSeek-V3 report, section 3.2.2)."""


class WindowTotals(dict[str, tuple[float, float]]):
    """The transfers of a rank that overlap with the same compute (an overlap window), by phase: the seconds of all
    calls, and the number of calls of the most frequent transfer."""

    def add(self, phase: str, seconds: float, calls: float) -> None:
        """Add transfers of a `phase`: their total `seconds`, and the `calls` of the most frequent one."""
        sum_s, most = self.get(phase, (0.0, 0.0))
        self[phase] = sum_s + seconds, max(most, calls)

    def min_s(self, transfer_s: float) -> float:
        """Return the part of `transfer_s` seconds of these transfers that is always exposed.

        One call of each phase is always exposed: no compute runs before the first gather, and none after the last
        reduction.

        >>> WindowTotals(forward=(1.0, 10), backward=(1.0, 10)).min_s(2.0)  # all of them: two calls of 0.1 s
        0.2
        """
        ends_s = sum(sum_s / calls for sum_s, calls in self.values())
        return ends_s and ends_s * (transfer_s / sum(sum_s for sum_s, _ in self.values()))


def exposed_share(transfer_s: float, min_s: float, cover_s: float, contention: float) -> tuple[float, float]:
    """Return the exposed share of the transfers in an overlap window, and the compute left for the next window (s).

    Args:
        transfer_s: seconds of the window's transfers, which share links and run in sequence.
        min_s: the seconds of them that no compute hides.
        cover_s: seconds of compute that can overlap with them.
        contention: share by which a transfer slows overlapped compute (NCCL's kernels use cores).

    >>> exposed_share(2.0, min_s=0.2, cover_s=5.0, contention=0.0)
    (0.1, 3.0)
    >>> exposed_share(2.0, min_s=0.2, cover_s=0.5, contention=0.0)  # 1.5 s of 2 s find no compute
    (0.75, 0.0)
    """
    if transfer_s <= 0:
        return 1.0, cover_s
    exposed_s = max(transfer_s - cover_s, min_s)
    return slowed_share(exposed_s / transfer_s, contention), max(0.0, cover_s - transfer_s)


def slowed_share(share: float, contention: float) -> float:
    """Return the share of a transfer that lengthens the step: the exposed `share`, and `contention` times the rest.

    >>> slowed_share(0.25, contention=0.1)  # a quarter, and a tenth of the other three
    0.325
    """
    exposed = min(1.0, share)
    return exposed + contention * (1 - exposed)
