"""Goodput under failures: time lost to checkpoints, repeated work and restarts.

Chips and links fail at random. A failure costs a restart, reading the last checkpoint, and the work since that
checkpoint. The checkpoint interval is the one with the highest goodput. Sources: the papers of Young 1974 and of Daly
2006, "A higher order estimate of the optimum checkpoint interval for restart dumps".
"""

from __future__ import annotations

from math import exp, sqrt

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
"""Number of these interruptions caused by a network switch or cable (table 5)."""
LLAMA3_STORAGE_BYTES_PER_S = 2e12
"""Sustained storage bandwidth of that cluster (section 3.3.1); bursts reach 7e12."""
RESTART_S = 600.0
"""Seconds to detect a failure, replace a node and restart. Llama 3 trained for more than 90 % of the time over 466
interruptions in 54 days: at most 1,001 s each, of which some is repeated work."""
MOST = 700.0
"""Largest argument of exp that does not overflow a float."""


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Reliability of a cluster: failure rate of one chip (any failure that ends the job), storage, restarts.

    `stall` is the fraction of a checkpoint's write time that blocks training: 1 for synchronous checkpoints.
    """

    failures_per_chip_s: float = LLAMA3_FAILURES / (LLAMA3_CHIPS * LLAMA3_DAYS * HOURS_PER_DAY * S_PER_HOUR)
    storage_bytes_per_s_per_chip: float = LLAMA3_STORAGE_BYTES_PER_S / LLAMA3_CHIPS
    restart_s: float = RESTART_S
    stall: float = 1.0


def goodput(plan: Plan, mfu: float, reliability: Reliability | None = None) -> Goodput:
    """Return the goodput of `plan` at its best checkpoint interval, on all chips of its cluster.

    `mfu` is the model FLOPs utilization of a step. `reliability` holds failure rate, storage and restarts, by default
    those of Llama 3's training. Rates in the hardware file take precedence over it.

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
    """Return the expected failures per day of the machine of `plan`: of `chips`, and of each kind of link by name.

    The hardware file gives failure rates. A chip without one gets that of `reliability`, which covers all components.
    If links have their own rates, the share of Llama 3's failures that the network caused is subtracted from it.

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
    """Return the number of links and the failures per link and year, of each link type with a failure rate."""
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
    """Return the number of links between chips of `cluster`: one per chip of a node, or pair of torus neighbours."""
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
    """Return the bytes of a checkpoint of `plan`: master parameters and optimizer moments, each once.

    >>> state_bytes(plan) == 12 * plan.model.parameters  # three fp32 numbers a parameter
    True
    """
    masters = plan.model.parameters * DTYPE_BYTES[plan.store_dtype("params")]
    return float(masters + moment_elements(plan) * DTYPE_BYTES[plan.store_dtype("optimizer")])


def useful_share(interval_s: float, stall_s: float, restart_s: float, between_s: float) -> float:
    """Return the share of wall time spent training, with random failures every `between_s` on average (Daly 2006).

    Args:
        interval_s: seconds of training between two checkpoints.
        stall_s: seconds that training waits for a checkpoint.
        restart_s: seconds of a restart and of reading the last checkpoint.
        between_s: mean seconds between failures of the job, M.

    A failure repeats the interval and its checkpoint after a restart, which can fail too. Expected time:
    M e^(R / M) (e^((interval + stall) / M) - 1).

    >>> round(useful_share(interval_s=800.0, stall_s=30.0, restart_s=600.0, between_s=10_000.0), 3)
    0.871
    """
    wall_s = (
        between_s * exp(min(restart_s / between_s, MOST)) * (exp(min((interval_s + stall_s) / between_s, MOST)) - 1)
    )
    return interval_s / wall_s


def young_interval_s(stall_s: float, between_s: float) -> float:
    """Return the best seconds between checkpoints to first order: sqrt(2 x checkpoint x time between failures).

    `stall_s` is what training waits for a checkpoint, `between_s` the mean time between failures. Source: Young 1974.

    >>> round(young_interval_s(stall_s=30.0, between_s=10_000.0))
    775
    """
    return sqrt(2 * stall_s * between_s)


def best_interval_s(stall_s: float, between_s: float) -> float:
    """Return the seconds of training between checkpoints with the largest share of useful time.

    `stall_s` is what training waits for a checkpoint, `between_s` the mean between failures, both in seconds. In units
    of `between_s`, with stall c, the best interval x solves (1 - x) e^(x + c) = 1 (the derivative of Daly 2006). It is
    found by bisection: the left side falls from e^c to 0 as x goes from 0 to 1.

    >>> round(best_interval_s(stall_s=30.0, between_s=10_000.0))
    755
    """
    c = min(stall_s / between_s, MOST)
    low, high = 0.0, 1.0
    for _ in range(80):
        x = (low + high) / 2
        low, high = (x, high) if (1 - x) * exp(x + c) > 1 else (low, x)
    return high * between_s
