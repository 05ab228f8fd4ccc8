"""Goodput under failures: time lost to checkpoints, repeated work and restarts.

Failures come at random, of chips and of links; each costs a restart, reading the last checkpoint, and the work since
then. Checkpoints cost their writing and are as often as leaves the most time. Sources: the papers of Young 1974 and
of Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps".
"""

from __future__ import annotations

from math import exp

from planc.diag.fast_dataclass import dataclass
from planc.ir.collective import DTYPE_BYTES
from planc.ir.hardware import Cluster
from planc.ir.plan import Plan
from planc.ir.report import Goodput
from planc.ir.updates import moment_elements

HOURS_PER_DAY = 24
S_PER_HOUR = 3600.0
DAYS_PER_YEAR = 365.25
LLAMA3_CHIPS, LLAMA3_DAYS, LLAMA3_FAILURES = 16_384, 54, 419
"""Unexpected interruptions of Llama 3 405B's pre-training (Llama team 2024, section 3.3.4)."""
LLAMA3_NETWORK_FAILURES = 35
"""Those of them by a switch or a cable of the network (table 5)."""
LLAMA3_STORAGE_BYTES_PER_S = 2e12
"""Sustained storage bandwidth of that cluster (section 3.3.1); bursts reach 7e12."""
RESTART_S = 600.0
"""Noticing, replacing a node and starting again. Llama 3 trained for more than 90 % of the time over 466
interruptions in 54 days: at most 1,001 s each, of which some is work done again."""
MOST = 700.0
"""exp of more does not fit a float."""


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Reliability of a cluster: failure rate of one chip (whatever takes the job down with it), storage, restarts.

    `stall` is the share of a checkpoint's writing that training waits for: 1 when it is synchronous.
    """

    failures_per_chip_s: float = LLAMA3_FAILURES / (LLAMA3_CHIPS * LLAMA3_DAYS * HOURS_PER_DAY * S_PER_HOUR)
    storage_bytes_per_s_per_chip: float = LLAMA3_STORAGE_BYTES_PER_S / LLAMA3_CHIPS
    restart_s: float = RESTART_S
    stall: float = 1.0


def goodput(plan: Plan, mfu: float, reliability: Reliability | None = None) -> Goodput:
    """The goodput of `plan` at its best checkpoint interval, on all chips of its cluster.

    `mfu` is the model FLOPs utilization of a step; `reliability` has failure rate, storage and restarts, by default
    those of Llama 3's training. Rates of the hardware file come before it.

    >>> found = goodput(plan, mfu=0.4)
    >>> f"{found.interruptions_per_day:.2f} a day, {found.runtime:.1%} of the time trains"  # 512 of 16,384 chips
    '0.24 a day, 99.0% of the time trains'
    """
    reliability = reliability or Reliability()
    chips = plan.cluster.chips
    failures = failures_per_day(plan, reliability)
    between_s = HOURS_PER_DAY * S_PER_HOUR / sum(failures.values())
    write_s = state_bytes(plan) / (reliability.storage_bytes_per_s_per_chip * chips)
    stall_s, restart_s = write_s * reliability.stall, reliability.restart_s + write_s
    interval_s = best_interval_s(stall_s, between_s)
    runtime = useful_share(interval_s, stall_s, restart_s, between_s)
    return Goodput(
        interruptions_per_day=sum(failures.values()),
        failures_per_day=failures,
        checkpoint_s=write_s,
        checkpoint_interval_s=interval_s,
        restart_s=restart_s,
        runtime=runtime,
        productivity=runtime * mfu,
    )


def failures_per_day(plan: Plan, reliability: Reliability) -> dict[str, float]:
    """Failures of the machine of `plan` that end a run, in a day, by component: `chips`, and links by their names.

    A chip or a link fails as often as its hardware file says. A chip that has no rate there has that of `reliability`,
    which is of all that fails; where links have rates, less the network's part of Llama 3's failures.

    >>> f"{failures_per_day(plan, Reliability())['chips']:.2f}"  # 512 chips x 419 / (16,384 x 54 days)
    '0.24'
    """
    cluster = plan.cluster
    found = sorted(_failing_links(cluster).items())
    links = {name: count * rate / DAYS_PER_YEAR for name, (count, rate) in found if count}
    usual = reliability.failures_per_chip_s * HOURS_PER_DAY * S_PER_HOUR
    if links:
        usual *= 1 - LLAMA3_NETWORK_FAILURES / LLAMA3_FAILURES
    return {"chips": cluster.chips * (cluster.chip.failures_per_year / DAYS_PER_YEAR or usual), **links}


def _failing_links(cluster: Cluster) -> dict[str, tuple[float, float]]:
    """By name of a link whose failures the hardware file says: how many there are, and failures of one in a year."""
    if cluster.own_graph is None:
        link = cluster.link
        return {link.name: (_links(cluster), link.failures_per_year)} if link.failures_per_year else {}
    found = {link.name: (0.0, link.failures_per_year) for link in cluster.own_graph.links if link.failures_per_year}
    if not found:
        return {}
    from planc.graph.from_parts import links_of_graph

    machine = links_of_graph(cluster.name, cluster.own_graph)
    for cable in machine.cables:
        name = machine.kinds[cable.kind].name
        if name in found:
            found[name] = found[name][0] + cable.links, found[name][1]
    return found


def _links(cluster: Cluster) -> float:
    """Links of the chips of `cluster`: one of each in a node, those between neighbours in a torus."""
    if not cluster.is_torus:
        return cluster.chips
    slice_chips = cluster.chips // cluster.count
    wraps = cluster.wrap or (False,) * len(cluster.shape)
    of_slice = sum(
        slice_chips // length * (length if wrap and length > 2 else length - 1)
        for length, wrap in zip(cluster.shape, wraps, strict=True)
    )
    return float(cluster.count * of_slice)


def state_bytes(plan: Plan) -> float:
    """Bytes of a checkpoint of `plan`: masters and the optimizer's moments, each once.

    >>> state_bytes(plan) == 12 * plan.model.parameters  # three fp32 numbers a parameter
    True
    """
    masters = plan.model.parameters * DTYPE_BYTES[plan.store_dtype("params")]
    return float(masters + moment_elements(plan) * DTYPE_BYTES[plan.store_dtype("optimizer")])


def useful_share(interval_s: float, stall_s: float, restart_s: float, between_s: float) -> float:
    """Share of the wall time that trains, for random failures `between_s` apart on average (Daly 2006).

    Args:
        interval_s: seconds of training between two checkpoints.
        stall_s: seconds that training waits for a checkpoint.
        restart_s: seconds of a restart and of reading the last checkpoint.
        between_s: mean seconds between failures of the job, M.

    An interval with its checkpoint is begun again, after a restart, until it passes without a failure; restarts fail
    too. Expected time: M e^(R / M) (e^((interval + stall) / M) - 1).

    >>> round(useful_share(interval_s=800.0, stall_s=30.0, restart_s=600.0, between_s=10_000.0), 3)
    0.871
    """
    wall_s = (
        between_s * exp(min(restart_s / between_s, MOST)) * (exp(min((interval_s + stall_s) / between_s, MOST)) - 1)
    )
    return interval_s / wall_s


def best_interval_s(stall_s: float, between_s: float) -> float:
    """Seconds of training between checkpoints with the largest useful share.

    `stall_s` is what training waits for a checkpoint, `between_s` the mean between failures, both in seconds.

    It is where (1 - x) e^(x + c) = 1, x and c being interval and `stall_s` in units of `between_s` (the derivative of
    Daly 2006). Found by halving: the left side falls from e^c to 0 as x goes from 0 to 1.

    >>> round(best_interval_s(stall_s=30.0, between_s=10_000.0))
    755
    """
    c = min(stall_s / between_s, MOST)
    low, high = 0.0, 1.0
    for _ in range(80):
        x = (low + high) / 2
        low, high = (x, high) if (1 - x) * exp(x + c) > 1 else (low, x)
    return high * between_s
