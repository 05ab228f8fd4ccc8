"""Rules of serve plans, beside those of plans that hold for a generator's layout too."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from planc.checks import plan_findings
from planc.checks.cost.e0801_expect import COMPARE
from planc.diag.diagnostic import Diagnostic
from planc.ir.serve_report import SyncFacts
from planc.ir.served import ServedMemory, SharedPeaks
from planc.ir.serving import ServePlan
from planc.ir.sharding import Sharded
from planc.sharding.transfers import narrows

OF_TRAINING = ("E0119", "E0205", "E0210", "E0215", "E0402")
"""Rules about batches, microbatches and gradients, of which a generator has none."""
GIB = 2.0**30


def layout_findings(serve: ServePlan) -> Iterator[Diagnostic]:
    """Yield the errors of the layout of the generator in `serve`, and those of sentences that contradict each other."""
    found = plan_findings(serve.layout)
    yield from (d for d in found if d.severity == "error" and d.code not in OF_TRAINING)
    split = serve.layout.split
    if split is not None and split.chunks > 1:
        message = f"{split.chunks} chunks a rank: a generator's stage is one run of layers"
        yield Diagnostic("E1503", message, split.cause.span, help="split layers over ... as 1f1b")
    if not serve.colocated:
        for sleep in serve.sleeps:
            message = "trainer and generator share no device: nothing has to leave it"
            yield Diagnostic("E1503", message, sleep.cause.span, help="remove it, or the `cluster` sentence")
        if serve.trainer.cluster.has_tpus != serve.layout.cluster.has_tpus:
            kinds = [cluster.chip.name for cluster in (serve.trainer.cluster, serve.layout.cluster)]
            message = (
                f"the trainer is on {kinds[0]}, the generator on {kinds[1]}: no program moves weights between them"
            )
            yield Diagnostic(
                "E1506", message, serve.layout.cluster.cause.span, help="serve on the trainer's kind of chip"
            )
        elif not (serve.trainer.cluster.levels and serve.layout.cluster.levels):
            message = "no network joins the two clusters: a hardware file has no `network` sentence"
            yield Diagnostic(
                "E1506", message, serve.layout.cluster.cause.span, help="such as: network ib = leaf 32 at 400 GB/s"
            )


def block_findings(serve: ServePlan, layout: Sharded) -> Iterator[Diagnostic]:
    """Yield E1504 for the first matrix that a shard of `layout` cuts inside a block of float8 with one scale."""
    block = serve.weights.block
    if serve.weights.dtype != "float8" or not block or serve.weights.cause is None:
        return
    plan = layout.plan
    for p in layout.params:
        if not narrows(p.param):
            continue
        for dims, axes in zip(p.param.shape_dims, p.compute, strict=True):
            length, ranks = prod(plan.model.sizes[d] for d in dims), plan.mesh.size(*axes)
            if dims != ("experts",) and ranks > 1 and length // ranks % block:
                name = " x ".join(dims)
                each = (
                    f"{length} / {ranks} = {length / ranks:g} of {name}, {length / ranks / block:g} blocks of {block}"
                )
                message = f"{p.param.name}: a rank of {' x '.join(axes)} holds {each}"
                help = "fewer ranks, a block that divides it, or float8 without blocks"
                yield Diagnostic("E1504", message, serve.weights.cause.span, help=help)
                return


def memory_findings(serve: ServePlan, memory: ServedMemory, peaks: SharedPeaks | None) -> Iterator[Diagnostic]:
    """Yield E1505 if the requests of `serve` do not fit its cache, and E1507 if weights and cache do not fit a device
    as `memory` says, or both sides not the shared one (`peaks`; None: there is none)."""
    need, cache = serve.requests, serve.cache
    if need is not None and cache is not None and need.count * need.tokens > cache.tokens:
        tokens = need.count * need.tokens
        message = f"{need.count} requests of {need.tokens:,} tokens are {tokens:,}, the cache holds {cache.tokens:,}"
        yield Diagnostic("E1505", message, need.cause.span, help=f"at most {cache.tokens // need.tokens} at once")
    wanted = memory.tokens
    if not memory.fits:
        weights = f"{memory.weights.total / GIB:.1f} GiB of weights"
        message = f"{weights} leave no block of cache in {memory.usable / GIB:.1f} GiB"
        yield Diagnostic(
            "E1507", message, serve.layout.mesh.cause.span, help="more ranks a replica, or narrower weights"
        )
    elif cache is not None and cache.tokens > wanted:
        message = f"a cache of {cache.tokens:,} tokens does not fit: {wanted:,} do"
        yield Diagnostic("E1507", message, cache.cause.span, help="fewer tokens, float8, or more ranks a replica")
    if peaks is None:
        return
    for phase, parts in (("training", peaks.training), ("serving", peaks.serving)):
        if sum(parts) > peaks.capacity:
            sides = f"trainer {parts[0] / GIB:.1f} + generator {parts[1] / GIB:.1f} GiB"
            message = f"while {phase}: {sides} on a device of {peaks.capacity / GIB:.0f} GiB"
            side = "params, cache" if phase == "training" else "params, grads, optimizer"
            help = f"such as: sleep {side} while {phase}"
            yield Diagnostic("E1507", message, serve.layout.mesh.cause.span, help=help)


def expectations(
    serve: ServePlan, memory: ServedMemory, peaks: SharedPeaks | None, sync: SyncFacts
) -> Iterator[Diagnostic]:
    """Yield E0801 for each `expect` sentence of `serve` that does not hold for its memory, peaks and sync."""
    used = memory.weights.total + memory.cache + memory.activations + memory.other
    most = max(sum(peaks.training), sum(peaks.serving)) if peaks else used
    values = {"cache": float(memory.tokens), "memory": most, "sync_time": sync.seconds}
    for expect in serve.expects:
        value = values[expect.metric]
        if not COMPARE[expect.cmp](value, expect.value):
            texts = {"cache": f"{value:,.0f} tokens", "memory": f"{value / GIB:.1f} GiB", "sync_time": f"{value:.3f} s"}
            message = f"{expect.metric} is {texts[expect.metric]}, expected {expect.cmp} {expect.text}"
            yield Diagnostic("E0801", message, expect.cause.span, help="change the plan, or relax the expectation")
