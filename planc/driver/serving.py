"""The examination of a serve plan: read, checked, its memory and its sync predicted, and reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from planc.checks import assume_checked
from planc.checks.serving import block_findings, expectations, layout_findings, memory_findings
from planc.diag.diagnostic import Diagnostic, bounded, has_errors, in_order
from planc.diag.errors import PlanError
from planc.diag.fast_dataclass import dataclass
from planc.diag.span import Source
from planc.driver.examining import Examined, examine
from planc.driver.places import user_path, with_user_paths
from planc.ir.collective import DTYPE_BYTES
from planc.ir.model import Param
from planc.ir.serve_report import ServeReport, SyncFacts
from planc.ir.served import ServedMemory, SharedPeaks
from planc.ir.serving import ServePlan
from planc.ir.sharding import Sharded
from planc.ir.target import AnyTarget, Target
from planc.language.build import Built, build_serve
from planc.lowering import load_backend, state_layout
from planc.sharding.propagate import propagate
from planc.sharding.transfers import WeightTransfer, narrows, transfer

INDEX_BYTES = 4
"""Bytes of the index of an element that travels alone."""


@dataclass(frozen=True)
class ServeExamined:
    """The result of `examine_serve`: the report, what was read, the texts that diagnostics quote, and the layouts of
    both sides."""

    report: ServeReport
    built: Built
    sources: dict[str, Source] = field(default_factory=dict)
    serve: ServePlan | None = None
    sides: tuple[Sharded, Sharded] | None = None
    """The trainer's layouts and the generator's, if a program can move weights between them."""
    trainer: Examined | None = None
    """Findings about the training plan."""


def check_serve(source: str | Path, *, set: dict[str, int] | None = None) -> ServeReport:
    """Return the report of a serve plan: what fits beside the weights, and what a sync of weights moves. Its mistakes
    are diagnostics in it, never exceptions.

    Args:
        source: path of the serve plan.
        set: values of its `let` numbers, by name.
    """
    return examine_serve(source, set=set).report


def examine_serve(
    source: str | Path,
    *,
    set: dict[str, int] | None = None,
    target: AnyTarget | None = None,
    unsaved: Mapping[Path, str] | None = None,
    trainer: Examined | None = None,
) -> ServeExamined:
    """Check a serve plan like `check_serve`, and return its report with the texts read and the layouts of both sides.

    Args:
        source: path of the serve plan.
        set: values of its `let` numbers, by name.
        target: the target of the training plan; None: that of its `target` sentence, or of its cluster.
        unsaved: texts by resolved path, which replace those on disk.
        trainer: what was found of the training plan before; None: it is examined.
    """
    path = Path(source)

    def read_trainer(file: Path) -> Built:
        nonlocal trainer
        trainer = trainer or examine(file, target=target, unsaved=unsaved)
        assert trainer.built is not None
        return trainer.built

    built = build_serve(path, set, unsaved, read_trainer=read_trainer)
    serve, found = built.serve, list(built.diagnostics)
    memory = peaks = sync = sides = None
    times: tuple[float | None, float | None] = (None, None)
    if serve is not None:
        assert trainer is not None
        found += layout_findings(serve)
        wrong = next((d for d in trainer.report.diagnostics if d.severity == "error" and trainer.costed is None), None)
        if wrong is not None:
            message = f"the training plan {serve.trainer.file} has a mistake: {wrong.message}"
            found.append(Diagnostic("E1502", message, serve.layout.mesh.cause.span, help=f"code {wrong.code}"))
        if not has_errors(found) and trainer.costed is not None:
            layout = propagate(assume_checked(serve.layout).for_planc)
            found += block_findings(serve, layout)
            both = (trainer.costed.sharded, layout)
            sides = None if has_errors(found) else both
            parts = trainer.costed.memory.per_device_gib
            from planc.costing.serving import Serving, rooflines, served_memory, shared_peaks

            requests = serve.requests
            tokens = requests.tokens if requests else None
            run = Serving(
                weights=serve.weights.dtype,
                weights_block=serve.weights.block,
                cache=serve.cache_dtype,
                request_tokens=tokens,
                concurrent=requests.count if requests else None,
            )
            memory = served_memory(layout, run)
            if serve.colocated:
                runtime = serve.layout.cluster.chip.runtime_bytes
                phases = (serve.asleep("training"), serve.asleep("serving"))
                taken = shared_peaks(memory, parts, runtime, *phases).serving[0]
                memory = served_memory(layout, replace(run, taken_bytes=taken))
                if serve.cache is not None:
                    memory = replace(memory, cache=min(memory.cache, _cache_bytes(memory, serve.cache.tokens)))
                peaks = shared_peaks(memory, parts, runtime, *phases)
            if requests is not None:
                found_s = rooflines(layout, run, requests.count, requests.prompt_tokens, requests.output_tokens)
                times = found_s.prefill_s, found_s.decode_s
            sync = sync_facts(serve, both, trainer.costed.target)
            found += memory_findings(serve, memory, peaks)
            found += expectations(serve, memory, peaks, sync)
    diagnostics = bounded(in_order([with_user_paths(d, path, built) for d in found]))
    shown = {user_path(name, path): Source(user_path(name, path), s.text, s.lines) for name, s in built.sources.items()}
    report = _report(serve, memory, peaks, times, sync, diagnostics)
    return ServeExamined(report, built, shown, serve, sides, trainer)


def _cache_bytes(memory: ServedMemory, tokens: int) -> float:
    """Return the bytes of a cache of `tokens` tokens, in whole blocks."""
    block = memory.size.block_tokens
    return -(-tokens // block) * block * memory.size.every_token_bytes


def _report(
    serve: ServePlan | None,
    memory: ServedMemory | None,
    peaks: SharedPeaks | None,
    times: tuple[float | None, float | None],
    sync: SyncFacts | None,
    diagnostics: tuple[Diagnostic, ...],
) -> ServeReport:
    ok = not has_errors(diagnostics)
    if serve is None:
        return ServeReport(plan=None, trainer=None, ok=ok, diagnostics=diagnostics)
    block = f"(block = {serve.weights.block})" if serve.weights.block else ""
    return ServeReport(
        plan=serve.name,
        trainer=serve.trainer.name,
        colocated=serve.colocated,
        devices=serve.layout.mesh.devices,
        replicas=serve.replicas,
        weights=f"{serve.weights.dtype}{block}",
        cache_dtype=serve.cache_dtype,
        memory=memory,
        peaks=peaks,
        prefill_s=times[0],
        decode_s=times[1],
        sync=sync,
        ok=ok,
        diagnostics=diagnostics,
    )


def _wire_bytes(serve: ServePlan, param: Param) -> float:
    """Return the bytes of an element of `param` as it travels: cast before it is sent. The scales of float8, 4 bytes a
    block, are reduced over all ranks beforehand and not counted."""
    wide = serve.layout.precision.compute
    dtype = wide if serve.weights.dtype == "float8" and not narrows(param) else serve.weights.dtype
    return DTYPE_BYTES[dtype]


def transferred_weights(serve: ServePlan, sides: tuple[Sharded, Sharded], target: Target | None) -> WeightTransfer:
    """Return the bytes that ranks send and receive in one sync of `serve`, between the layouts of its two `sides`.
    `target` is that of `sync_facts`."""
    rest = state_layout(sides[0], target)
    return transfer(*sides, rest, colocated=serve.colocated, wire_bytes=lambda move: _wire_bytes(serve, move.param))


def sync_facts(serve: ServePlan, sides: tuple[Sharded, Sharded], target: Target | None) -> SyncFacts:
    """Return what one sync of `serve` moves between the layouts of its two `sides`, and how long it takes.

    `target` is the program that trains; None: the layout of state that the plan itself says.
    """
    from planc.costing.weight_sync import sync_time

    element = DTYPE_BYTES[serve.weights.dtype]
    moved = transferred_weights(serve, sides, target)
    clusters = (serve.trainer.cluster, serve.layout.cluster)
    took = sync_time(moved, clusters)
    changed_s = None
    if serve.sync.changed < 1:
        share = min(1.0, serve.sync.changed * (element + INDEX_BYTES) / element)
        changed_s = sync_time(moved, clusters, share=share).seconds
    return SyncFacts(
        **vars(took),
        dtype=serve.weights.dtype,
        pieces=moved.pieces,
        local_bytes=sum(c.local_bytes for c in moved.classes),
        near_bytes=sum(c.near_bytes for c in moved.classes),
        far_bytes=sum(c.far_bytes for c in moved.classes),
        deepest=moved.deepest,
        load_bytes=moved.load_bytes,
        changed_s=changed_s,
        classes=moved.classes,
    )


def lower_serve(source: str | Path, target: Target, *, set: dict[str, int] | None = None) -> tuple[str, ServeExamined]:
    """Return the program of a serve plan, a module with `sync`, and what `examine_serve` finds.

    `target` is "cuda" or "xla". Raises PlanError if the layouts have errors, or the target refuses the training plan; a
    plan that does not fit its devices has a program, and its findings are in the report.
    """
    examined = examine_serve(source, set=set, target=target)
    serve, sides = examined.serve, examined.sides
    if serve is None or sides is None:
        raise PlanError(examined.report.diagnostics)
    weights = serve.weights
    text = load_backend(target).emit_sync(*sides, colocated=serve.colocated, dtype=weights.dtype, block=weights.block)
    return text, examined
