"""Days, device hours and price of the whole run, goodput included."""

from __future__ import annotations

from math import ceil

from planc.costing.step.goodput import HOURS_PER_DAY, S_PER_HOUR, goodput
from planc.ir.hardware import Cluster
from planc.ir.plan import Plan, Price
from planc.ir.report import RunCost, Step


def whole_run(plan: Plan, step_s: float, runtime: float) -> RunCost | None:
    """Return the duration and price of the run that `plan` describes; None if it has neither `train for` nor `price`.

    Source: `goodput`, by the paper of Daly 2006.

    Args:
        plan: its batch, cluster, `train for` and `price`.
        step_s: seconds of an optimizer step.
        runtime: share of the wall time that trains (`Goodput.runtime`).
    """
    price, train = plan.price, plan.train
    if price is None and train is None:
        return None
    per_hour = None if price is None else price_per_hour(price, plan.cluster)
    currency = None if price is None else price.currency
    if train is None:
        return RunCost(currency=currency, price_per_hour=per_hour)
    steps = ceil(train.tokens / plan.batch.tokens)
    hours = run_hours(steps, step_s, runtime)
    return RunCost(
        tokens=train.tokens,
        steps=steps,
        days=hours / HOURS_PER_DAY,
        device_hours=hours * plan.cluster.devices,
        currency=currency,
        price_per_hour=per_hour,
        price=None if per_hour is None else per_hour * hours,
    )


def run_of(plan: Plan, step: Step) -> RunCost | None:
    """Return the duration and price of `plan`'s run, at the best checkpoint interval for its `step` (paper by Daly).

    None if the plan has neither `train for` nor `price`.
    """
    if plan.price is None and plan.train is None:
        return None
    return whole_run(plan, step.time_s, goodput(plan, step.mfu).runtime)


def run_hours(steps: int, step_s: float, runtime: float) -> float:
    """Return the wall hours of `steps` steps of `step_s` seconds, if the share `runtime` of the time is training.

    >>> run_hours(steps=36_000, step_s=9.0, runtime=0.9)  # 90 hours of steps
    100.0
    """
    return steps * step_s / runtime / S_PER_HOUR


def price_per_hour(price: Price, cluster: Cluster) -> float:
    """Return the price of an hour of the whole `cluster`, in units of the currency.

    >>> each = Price(per_hour=2.5, currency="USD", per="device", cause=plan.mesh.cause)
    >>> price_per_hour(each, plan.cluster)  # 512 devices
    1280.0
    """
    of = {"device": cluster.devices, "chip": cluster.chips, "node": cluster.count}
    return price.per_hour * of[price.per]
