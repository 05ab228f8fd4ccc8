"""Compare clusters for one plan by days and price of its training run: `planc.clusters/1`.

The answer is the cheapest cluster within the plan's limit of days, the fastest within its limit of price, and the
Pareto front. Each cluster runs the fastest layout that `planc search` finds on it; that is also the cheapest layout
there, as devices are paid by the hour.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planc.compare.plan_edit import NotWrittenError, own_sentence, read, rewritten
from planc.diag.diagnostic import Diagnostic
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.driver import search
from planc.ir.plan import Expect
from planc.ir.report import RunCost
from planc.ir.target import AnyTarget, Target
from planc.language.build import build_file
from planc.searching.holes import filled
from planc.searching.result import Candidate, Enough, Found
from planc.searching.space import Space
from planc.syntax.tree import Node

_PRICED = re.compile(r"(?P<cluster>.*?)[;,]?\s+price\s+(?P<price>.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A cluster from the command line: `64 x h100_node price 2.50 USD per device hour`.

    `price` is "" if omitted: the price of the plan or of the hardware file applies.
    """

    cluster: str
    price: str = ""

    @classmethod
    def of(cls, text: str) -> Choice:
        """Parse `text`, a cluster with an optional price."""
        found = _PRICED.fullmatch(text.strip())
        return cls(cluster=text.strip()) if found is None else cls(**found.groupdict())


@dataclass(frozen=True, kw_only=True)
class OnCluster:
    """The best layout of the plan on one cluster. `best` is None if no layout fits or the plan has errors there."""

    cluster: str
    devices: int
    best: Candidate | None
    target: Target | None = None
    """The target for which the best layout is costed; None: any correct program."""
    why: str = ""
    """The reason if there is no layout."""
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def run(self) -> RunCost | None:
        """Days, device hours and price of the training run with the best layout; None without one."""
        return self.best.run if self.best else None

    @property
    def days(self) -> float:
        """Number of days that the training run takes; infinite if no layout fits."""
        found = self.run.days if self.run else None
        return float("inf") if found is None else found

    @property
    def price(self) -> float:
        """Price of the run, a number of units of its currency; infinite if no layout fits or no price is known."""
        found = self.run.price if self.run else None
        return float("inf") if found is None else found

    def to_json(self) -> dict[str, Any]:
        """Return this cluster as an object of the format `planc.clusters/1`."""
        return {
            "cluster": self.cluster,
            "devices": self.devices,
            "target": self.target,
            "layout": None if self.best is None else self.best.to_json(),
            "run": None if self.run is None else asdict(self.run),
            "why": self.why or None,
            "diagnostics": [d.to_json() for d in self.diagnostics],
        }


@dataclass(frozen=True, kw_only=True)
class RunBounds:
    """Limits on the training run from the plan's `expect` sentences; infinite where there is none."""

    days: float = float("inf")
    price: float = float("inf")

    @classmethod
    def of(cls, expects: Iterable[Expect]) -> RunBounds:
        """Return the smallest upper bounds in `expects`: days, and a price in its sentence's currency."""
        least = {"days": float("inf"), "price": float("inf")}
        for expect in expects:
            if expect.metric in least and expect.cmp[0] == "<":
                least[expect.metric] = min(least[expect.metric], expect.value)
        return cls(**least)


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """The result of the comparison: one row for each cluster, in the order given."""

    file: str
    currency: str
    """The currency of all prices; empty if a cluster has no price."""
    limits: RunBounds
    rows: tuple[OnCluster, ...]

    @property
    def pareto(self) -> tuple[OnCluster, ...]:
        """The clusters on the Pareto front of days and price, fastest first; without prices, the fastest one."""
        front: list[OnCluster] = []
        for row in sorted((r for r in self.rows if r.best), key=lambda r: (r.days, r.price)):
            if not front or row.price < front[-1].price:
                front.append(row)
        return tuple(front)

    @property
    def cheapest(self) -> OnCluster | None:
        """The cheapest cluster within the limit of days. None if there is none, or if prices are missing."""
        if not self.currency:
            return None
        return min((r for r in self.pareto if r.days <= self.limits.days), key=lambda r: r.price, default=None)

    @property
    def fastest(self) -> OnCluster | None:
        """The fastest cluster within the limit of price. None if there is none."""
        affordable = (r for r in self.pareto if r.price <= self.limits.price or not self.currency)
        return min(affordable, key=lambda r: r.days, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as `planc.clusters/1`. `pareto`, `cheapest` and `fastest` are indices into `clusters`."""
        places = {id(row): i for i, row in enumerate(self.rows)}
        bounds = {"days": self.limits.days, "price": self.limits.price}
        return {
            "format": "planc.clusters/1",
            "file": self.file,
            "currency": self.currency or None,
            "limits": {name: None if bound == float("inf") else bound for name, bound in bounds.items()},
            "clusters": [row.to_json() for row in self.rows],
            "pareto": [places[id(row)] for row in self.pareto],
            "cheapest": None if self.cheapest is None else places[id(self.cheapest)],
            "fastest": None if self.fastest is None else places[id(self.fastest)],
        }


def compare(
    path: Path,
    choices: Iterable[Choice],
    *,
    set: dict[str, int] | None = None,
    most_sequences: int | None = None,
    target: AnyTarget | None = None,
    seconds: float | None = None,
    on_cluster: Callable[[str], None] | None = None,
) -> Clusters:
    """Search the best layout of the plan at `path` on each cluster of `choices`, and compare the training runs.

    Args:
        set: values of the plan's `let` numbers.
        most_sequences: the largest batch, for a plan that leaves its batch free.
        target: "cuda", "xla" or "none"; None: each cluster's own.
        seconds: time limit (s) of the search on each cluster.
        on_cluster: called with each cluster before its search starts.

    Raises:
        NotWrittenError: the plan has no `cluster` sentence of its own, no `train` sentence, or prices in several
            currencies.
        OSError: the file cannot be read.
    """
    text, rows, limits = read(path), [], RunBounds()
    own_sentence(text, "train")
    for choice in choices:
        if on_cluster is not None:
            on_cluster(choice.cluster)
        unsaved = {path.resolve(): _on(text, choice)}
        try:
            found = search(
                path, set=set, top=1, most_sequences=most_sequences, target=target, seconds=seconds, unsaved=unsaved
            )
        except PlanError as error:
            rows.append(_refused(choice, error.diagnostics))
            continue
        best = found.best[0] if found.best else None
        if best is None:
            rows.append(OnCluster(cluster=choice.cluster, devices=0, best=None, why=_no_layout(found)))
            continue
        plan = build_file(path, set, unsaved={path.resolve(): best.text}).plan
        assert plan is not None
        limits = RunBounds.of(plan.expects)
        on = OnCluster(cluster=choice.cluster, devices=plan.cluster.devices, best=best, target=found.target)
        rows.append(on)
    return Clusters(file=str(path), currency=_currency(rows), limits=limits, rows=tuple(rows))


MOST_TIMES = 64
"""Largest multiple of a plan's nodes that `enough_nodes` tries."""


def enough_nodes(
    path: Path,
    *,
    seconds: float,
    on_nodes: Callable[[int], None],
    set: dict[str, int] | None = None,
    most_sequences: int | None = None,
    memory_gib: float | None = None,
    target: AnyTarget | None = None,
) -> Enough | None:
    """Return the fewest of twice, four times, ... the nodes of the plan at `path` on which some layout fits, with that
    layout; or the most that were tried, up to MOST_TIMES as many, within `seconds` (s). None if the plan does not count
    its nodes.

    `on_nodes` is called with each number before it is tried; the others are those of `planc.driver.search`.
    """
    text, until_s = read(path), time.monotonic() + seconds
    plan = Space(path, set, most_sequences).plan
    try:
        first = own_sentence(text, "cluster").node.parts[0]
    except NotWrittenError:
        return None  # the cluster is of an imported file
    if isinstance(first, Node) and first.kind == "call":
        return None  # no number of nodes
    nodes, most = plan.cluster.count, MOST_TIMES * plan.cluster.count
    while nodes < most and (left_s := until_s - time.monotonic()) > 0:
        nodes *= 2
        on_nodes(nodes)
        changed = filled(text, {first.span: str(nodes)})
        try:
            found = search(
                path,
                set=set,
                most_sequences=most_sequences,
                memory_gib=memory_gib,
                target=target,
                seconds=left_s,
                unsaved={path.resolve(): changed},
                leanest=True,
            )
        except PlanError:
            continue
        if (near := found.nearest_miss) is not None and near.memory_gib <= found.room_gib:
            return Enough(nodes=nodes, layout=near)
    return Enough(nodes=nodes, layout=None)


def _on(text: str, choice: Choice) -> str:
    """Return the plan `text` with the cluster of `choice` and, if it has one, its price."""
    changed = rewritten(text, "cluster", choice.cluster)
    if not choice.price:
        return changed
    try:
        return rewritten(changed, "price", choice.price)
    except NotWrittenError:
        return f"{changed.rstrip()}\nprice     {choice.price}\n"


def _refused(choice: Choice, found: tuple[Diagnostic, ...]) -> OnCluster:
    first = next((d for d in found if d.severity == "error"), found[0])
    return OnCluster(
        cluster=choice.cluster, devices=0, best=None, why=f"{first.code}: {first.message}", diagnostics=found
    )


def _no_layout(found: Found) -> str:
    near = found.nearest_miss
    if near is None:
        return "no layout was met in the time" if found.cut_short else "every layout breaks a rule of the language"
    return f"{found.none_fits}: the nearest miss needs {near.memory_gib:.1f} of {found.room_gib:.1f} GiB"


def _currency(rows: list[OnCluster]) -> str:
    """Return the currency of all prices; empty if a price is missing. Raises NotWrittenError if there are two."""
    known = {row.run.currency or "" for row in rows if row.run is not None}
    if len(known - {""}) > 1:
        raise NotWrittenError(f"prices are in {' and '.join(sorted(known - {''}))}: write them in one currency")
    return known.pop() if len(known) == 1 else ""
