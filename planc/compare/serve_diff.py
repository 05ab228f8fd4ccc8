"""Differences between two serve plans: those of their training plans, and of what both generators hold and receive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planc.compare.diff import Diff, Part, PlanChange, diff, machines_text, mesh_text, number_change
from planc.driver.serving import ServeExamined
from planc.ir.serve_report import ServeReport

GIB = 2.0**30


def serve_diff(a: ServeExamined, b: ServeExamined, *, names: tuple[str, str]) -> Diff:
    """Compare two serve plans whose layouts have no error, `names` in the result. Losses, checkpoint and targets are
    those of the training plans."""
    trainers = [one.trainer.costed for one in (a, b) if one.trainer and one.trainer.costed]
    found = diff(*trainers, names=names)
    return replace(found, changes=(*found.changes, *_settings(a, b), *_numbers(a, b)))


def _settings(a: ServeExamined, b: ServeExamined) -> Iterator[PlanChange]:
    one, other = _texts(a), _texts(b)
    for name in one:
        if one[name] != other[name]:
            yield PlanChange(part="generator", name=name, unit="", a=one[name], b=other[name])


def _texts(side: ServeExamined) -> dict[str, str | None]:
    serve = side.serve
    assert serve is not None
    requests, cache = serve.requests, serve.cache
    return {
        "place": "the trainer's devices" if serve.colocated else machines_text(serve.layout),
        "mesh": mesh_text(serve.layout),
        "weights": side.report.weights,
        "cache": side.report.cache_dtype if cache is None else f"{cache.tokens:,} tokens as {serve.cache_dtype}",
        "requests": None
        if requests is None
        else f"{requests.count:,} x {requests.prompt_tokens:,} + {requests.output_tokens:,} tokens a replica",
        "sleep": "; ".join(sleep.cause.sentence for sleep in serve.sleeps if sleep.cause) or None,
    }


def _numbers(a: ServeExamined, b: ServeExamined) -> Iterator[PlanChange]:
    one, other = _figures(a.report), _figures(b.report)
    for part, name, unit in dict.fromkeys((*one, *other)):
        yield from number_change(part, name, unit, one.get((part, name, unit)), other.get((part, name, unit)))


def _figures(report: ServeReport) -> dict[tuple[Part, str, str], float]:
    """Return the figures of a report, by part, name and unit; memory is that of a device."""
    memory, peaks, sync = report.memory, report.peaks, report.sync
    assert memory is not None and sync is not None
    found: dict[tuple[Part, str, str], float | None] = {
        ("serving", "devices", ""): report.devices,
        ("serving", "replicas", ""): report.replicas,
        ("serving", "weights", "GiB"): memory.weights.total / GIB,
        ("serving", "activations", "GiB"): memory.activations / GIB,
        ("serving", "cache", "GiB"): memory.cache / GIB,
        ("serving", "cache of a replica, tokens", "tokens"): memory.tokens,
        ("serving", "requests that fit a replica", ""): memory.requests,
        ("serving", "both sides while training", "GiB"): sum(peaks.training) / GIB if peaks else None,
        ("serving", "both sides while serving", "GiB"): sum(peaks.serving) / GIB if peaks else None,
        ("serving", "prefill at best", "s"): report.prefill_s,
        ("serving", "a token of every request at best", "s"): report.decode_s,
        ("sync", "sync", "s"): sync.seconds,
        ("sync", "lower bound", "s"): sync.bound_s,
        ("sync", "between nodes", "bytes"): sync.far_bytes,
        ("sync", "inside nodes", "bytes"): sync.near_bytes,
        ("sync", "stay where they are", "bytes"): sync.local_bytes,
        ("sync", "received by one rank at most", "bytes"): sync.staging_bytes,
        ("sync", "messages", ""): sync.pieces,
    }
    return {key: float(value) for key, value in found.items() if value is not None}
