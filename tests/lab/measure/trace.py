"""torch's profiler traces: communication that no compute covers, and NCCL's calls with their bytes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from planc.ir.audit import Total

Events = Sequence[dict[str, Any]]
Span = tuple[float, float]
"""(start, end) in microseconds."""

NCCL_OPS = {
    "_allgather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce": "all_reduce",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
    "send": "send_recv",
}
"""The `Collective name` that torch writes beside a kernel of NCCL. A receive is the other end of a send."""
ELEMENT_BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Int": 4, "Long": 8, "Float8_e4m3fn": 1, "Double": 8}
KERNELS = {"kernel", "gpu_memcpy", "gpu_memset"}


def read_trace(path: Path) -> Events:
    """The complete events of a trace that `Session.profile` wrote at `path`."""
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return [e for e in events if e.get("ph") == "X"]


def communication(events: Events) -> list[Span]:
    """When collectives ran, by the trace's `events`: NCCL's kernels, or gloo's threads where no device is used."""
    nccl = [e for e in events if e.get("cat") in KERNELS and e["name"].startswith("nccl")]
    return united(_span(e) for e in (nccl or [e for e in events if e["name"].startswith("gloo:")]))


def computing(events: Events) -> list[Span]:
    """When something was computed, by the trace's `events`: kernels but NCCL's, or torch's operators on the CPU."""
    kernels = [e for e in events if e.get("cat") in KERNELS and not e["name"].startswith("nccl")]
    operators = (e for e in events if e.get("cat") == "cpu_op" and e["name"].startswith("aten::"))
    return united(_span(e) for e in (kernels or operators))


def _span(event: dict[str, Any]) -> Span:
    return event["ts"], event["ts"] + event.get("dur", 0.0)


def united(spans: Iterable[Span]) -> list[Span]:
    """`spans` in order, those that touch joined.

    >>> united([(4, 6), (0, 2), (1, 3)])
    [(0, 3), (4, 6)]
    """
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def length_s(spans: Iterable[Span]) -> float:
    """Seconds that `spans`, which do not overlap, take together."""
    return sum(end - start for start, end in spans) / 1e6


def uncovered(spans: Sequence[Span], cover: Sequence[Span]) -> list[Span]:
    """The parts of `spans` outside of `cover`; both as `united` gives them.

    >>> uncovered([(0, 10)], [(2, 3), (8, 12)])
    [(0, 2), (3, 8)]
    """
    found = []
    for start, end in spans:
        at = start
        for begin, close in cover:
            if close <= at or begin >= end:
                continue
            if begin > at:
                found.append((at, begin))
            at = max(at, close)
        if at < end:
            found.append((at, end))
    return found


def nccl_calls(events: Events) -> dict[str, Total]:
    """Calls of NCCL and their payload (the larger of input and output) in the trace's `events`, by operation."""
    counts: dict[str, int] = defaultdict(int)
    payload: dict[str, int] = defaultdict(int)
    for event in events:
        about = event.get("args", {})
        op = NCCL_OPS.get(str(about.get("Collective name")))
        if op is None or event.get("cat") != "kernel" or about.get("Group size") == 1:
            continue
        elements = max(int(about.get("In msg nelems", 0)), int(about.get("Out msg nelems", 0)))
        counts[op] += 1
        payload[op] += elements * ELEMENT_BYTES.get(str(about.get("dtype")), 0)
    return {op: Total(counts[op], payload[op]) for op in counts}
